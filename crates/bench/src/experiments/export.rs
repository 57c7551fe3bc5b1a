//! Exports under test.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::mount3::{self, Mounted};
use client::trace::Tracer;
use client::{FileSystem, Identity, MountOptions, NfsUrl};
use tokio::runtime::Runtime;

use super::meter::{Counters, Meter};
use crate::load::Version;
use crate::rig::Watched;
use crate::stage::mount_options;
use crate::stop::Stop;
use crate::{Error, Result};

/// An export of a running server, and what is known of the server besides what it answers.
pub(crate) struct Export<'a> {
    /// Stands in front of what is compared where there is more than one; may be empty.
    pub(super) name: String,
    /// Where it is.
    pub(super) url: NfsUrl,
    /// The name of a directory in it for this subject's rounds, which is not yet there.
    pub(super) directory: String,
    /// The version of NFS to speak, where an experiment can choose.
    pub(super) version: Version,
    /// The server's process, if it is on this machine.
    pub(super) watched: Option<&'a Watched>,
    /// The directory of its files, if that is on this machine and known.
    pub(super) files: Option<PathBuf>,
    /// Reads the server's counters.
    pub(super) counters: Counters<'a>,
    /// The user's request to stop.
    pub(super) stop: Stop,
}

impl Export<'_> {
    /// Begins to measure what server and client spend.
    pub(super) fn begin(&self) -> Result<Meter<'_>> {
        Meter::start(self.watched, Box::new(&self.counters))
    }

    /// For use while a program of another process works: it tries again for ever what a server that
    /// is gone does not answer.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; [`Error::Server`]: it has ended.
    pub(super) fn check(&self) -> Result<()> {
        self.stop.check()?;
        self.check_alive()
    }

    fn check_alive(&self) -> Result<()> {
        self.watched.map_or(Ok(()), |watched| watched.rss_bytes_max().map(drop))
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
                if let Err(error) = self.check_alive() {
                    return error;
                }
            }
        };
        tokio::select! {
            done = work => done,
            error = gone => Err(error),
        }
    }

    /// The name in results of `subject` on this export.
    pub(super) fn subject(&self, subject: &str) -> String {
        if self.name.is_empty() { subject.to_owned() } else { format!("{}, {subject}", self.name) }
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

/// The runtime of the client's part of an experiment. The caller is a thread of its own, as a
/// program beside the client's is.
pub(super) fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(Error::machine("cannot start threads"))
}

/// How soon a request to stop, or the end of the server, is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(20);
