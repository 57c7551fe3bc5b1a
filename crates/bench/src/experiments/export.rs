//! Exports under test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::mount3::{self, Mounted};
use client::trace::Tracer;
use client::{FileSystem, Identity, MountOptions, NfsUrl, Recovery};
use tokio::runtime::Runtime;

use crate::rig::{CpuSecs, CpuTime, ServerProcess, Watched};
use crate::stop::Stop;
use crate::{Error, Result};

/// An export of a running server, and what is known of the server besides what it answers.
pub struct Export<'a> {
    /// Stands in front of what is compared where there is more than one; may be empty.
    pub name: String,
    /// Where it is.
    pub url: NfsUrl,
    /// The server's process, if it is on this machine.
    pub watched: Option<Watched>,
    /// What the server has counted since its start, if it tells.
    pub counters: Option<Counters<'a>>,
    /// Whether the user wants no more of it.
    pub stop: Stop,
}

/// Asks a server for its counters.
pub type Counters<'a> = Box<dyn Fn() -> Result<BTreeMap<String, u64>> + 'a>;

impl<'a> Export<'a> {
    /// An export of which nothing is known but its URL.
    #[must_use]
    pub fn at(url: NfsUrl) -> Self {
        Self { name: String::new(), url, watched: None, counters: None, stop: Stop::default() }
    }

    /// What a server that was started here exports.
    ///
    /// # Panics
    /// Never: it has a URL that can be read.
    #[must_use]
    pub fn of(server: &'a ServerProcess) -> Self {
        let url = server.url().parse().expect("a server that was started has a URL");
        let watched = Some(server.watched().clone());
        Self { watched, counters: Some(Box::new(|| server.counters())), ..Self::at(url) }
    }

    /// Begins to measure what server and client spend.
    pub(super) fn begin(&self) -> Result<Meter<'_>> {
        let counters = self.counted()?;
        // Where it may not be begun anew, the maximum is that since the server's start.
        let _ = self.watched.as_ref().map(Watched::forget_rss_max);
        let own = CpuTime::of_self()?;
        // Last, and first at the end: nothing that is done here is the server's.
        let server = self.watched.as_ref().map(Watched::cpu_time).transpose()?;
        Ok(Meter { export: self, counters, server, own })
    }

    /// Carries out what the user may end, also just before it begins, so that it can be cleaned up
    /// after.
    pub(super) async fn until_stopped<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let wanted = async {
            while !self.stop.is_wanted() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            done = self.unless_gone(work) => done,
            () = wanted => Err(Error::Interrupted),
        }
    }

    /// Carries out what only a server that lives can answer. Its calls alone would be repeated for
    /// a minute before they fail.
    pub(super) async fn unless_gone<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let gone = async {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                if let Some(Err(error)) = self.watched.as_ref().map(Watched::rss_bytes_max) {
                    return error;
                }
            }
        };
        tokio::select! {
            done = work => done,
            error = gone => Err(error),
        }
    }

    /// What results call `subject` when it is measured here.
    pub(super) fn subject(&self, subject: &str) -> String {
        if self.name.is_empty() { subject.to_owned() } else { format!("{}, {subject}", self.name) }
    }

    /// What the server has counted so far.
    fn counted(&self) -> Result<BTreeMap<String, u64>> {
        self.counters.as_ref().map_or_else(|| Ok(BTreeMap::new()), |counters| counters())
    }

    /// Mounts it for calls without any cache.
    pub(super) async fn mount_plain(&self) -> Result<Mounted> {
        let (me, options) = (Arc::new(Identity::of_process()), mount_options());
        mount3::mount(&self.url, &options, &me).await.map_err(Error::call(self.mounting()))
    }

    /// Mounts it as programs do.
    pub(super) async fn mount(
        &self,
        options: &MountOptions,
        tracer: Arc<Tracer>,
    ) -> Result<FileSystem> {
        let me = Arc::new(Identity::of_process());
        let mounted = FileSystem::mount(&self.url, &me, options, tracer).await;
        mounted.map_err(Error::call(self.mounting()))
    }

    fn mounting(&self) -> String {
        format!("cannot mount {}", self.url)
    }
}

/// The client's own, but that a server which is gone ends the experiment, after a minute.
pub(super) fn mount_options() -> MountOptions {
    MountOptions { recovery: Recovery::Soft, retransmissions: 0, ..MountOptions::default() }
}

/// Measures what server and client spend.
pub(super) struct Meter<'a> {
    export: &'a Export<'a>,
    counters: BTreeMap<String, u64>,
    server: Option<CpuTime>,
    own: CpuTime,
}

/// What they have spent.
#[derive(Clone, Debug, Default)]
pub(super) struct Spent {
    /// Processor time of the server.
    pub(super) server: Option<CpuSecs>,
    /// The largest resident memory of the server.
    pub(super) server_rss_bytes_max: Option<u64>,
    /// Processor time of this process.
    pub(super) own: CpuSecs,
    /// What the server has counted, without what stayed.
    pub(super) counters: BTreeMap<String, u64>,
}

impl Meter<'_> {
    /// What was spent since it began.
    pub(super) fn end(&self) -> Result<Spent> {
        let watched = self.export.watched.as_ref();
        let server = watched.map(Watched::cpu_time).transpose()?;
        let own = CpuTime::of_self()?.since(&self.own);
        let server = server.zip(self.server).map(|(after, before)| after.since(&before));
        let server_rss_bytes_max = watched.map(Watched::rss_bytes_max).transpose()?;
        let added = |(name, now): (String, u64)| {
            let added = now.saturating_sub(self.counters.get(&name).copied().unwrap_or(0));
            (added > 0).then_some((name, added))
        };
        let counters = self.export.counted()?.into_iter().filter_map(added).collect();
        Ok(Spent { server, server_rss_bytes_max, own, counters })
    }
}

/// What the client's part of an experiment runs on. The one who calls is a thread of its own, as a
/// program beside the client's is.
pub(super) fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(Error::machine("cannot start threads"))
}

/// How soon it is noticed that no more is wanted, or that the server is gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);
