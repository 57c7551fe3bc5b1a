//! Another client, which changes the directory all the time.

use std::ops::Range;
use std::time::Duration;

use client::Nfs3;
use proto::nfs3::FileHandle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::Options;
use super::changes::{Change, Changes, removed};
use super::entries;
use crate::experiments::export::Export;
use crate::experiments::scratch_directory::ScratchDirectory;
use crate::{Error, Result};

/// The client at work.
pub(super) struct Changer {
    change: Change,
    entries: u32,
    /// How often it has begun a change, and how often it was answered.
    times: watch::Receiver<(u32, u32)>,
    end: watch::Sender<bool>,
    task: JoinHandle<client::Result<()>>,
}

impl Changer {
    /// Connects, and makes the first change at once.
    pub(super) async fn start(
        export: &Export<'_>,
        directory: &ScratchDirectory,
        change: Change,
        options: &Options,
    ) -> Result<Self> {
        let nfs = export.mount_plain().await?.nfs;
        let (sender, times) = watch::channel((0, 0));
        let (end, ended) = watch::channel(false);
        let entries = options.entries;
        let work = Work {
            nfs,
            dir: directory.handle(),
            change,
            entries,
            links: options.links,
            interval: options.change_interval,
        };
        let task = tokio::spawn(work.go_on(sender, ended));
        Ok(Self { change, entries, times, end, task })
    }

    /// How often a change was begun, and how often one was done.
    pub(super) fn times(&self) -> (u32, u32) {
        *self.times.borrow()
    }

    /// The changes `times`.
    pub(super) fn changes(&self, times: Range<u32>) -> Changes {
        Changes { change: self.change, entries: self.entries, times }
    }

    /// Waits until a change is done that was begun after now. Returns at once when there will be
    /// none any more.
    pub(super) async fn next(&self) {
        let mut times = self.times.clone();
        let (begun, _) = self.times();
        // It fails when the client has ended, and `stop` returns the reason.
        let _ = times.wait_for(|(_, done)| *done > begun).await;
    }

    /// Ends it, and returns its changes.
    ///
    /// # Errors
    /// [`Error::Call`]: a change failed.
    pub(super) async fn stop(self) -> Result<Changes> {
        self.end.send_replace(true);
        let (change, entries) = (self.change, self.entries);
        let ended = self.task.await.expect("the calls do not panic");
        ended.map_err(Error::call("the other client cannot change the directory"))?;
        let (_, done) = *self.times.borrow();
        Ok(Changes { change, entries, times: 0..done })
    }
}

struct Work {
    nfs: Nfs3,
    dir: FileHandle,
    change: Change,
    entries: u32,
    links: bool,
    interval: Duration,
}

impl Work {
    async fn go_on(
        self,
        times: watch::Sender<(u32, u32)>,
        mut end: watch::Receiver<bool>,
    ) -> client::Result<()> {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The half that stays is enough to be listed.
        for nth in 0..self.entries / 2 {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = end.wait_for(|end| *end) => return Ok(()),
            }
            times.send_modify(|(begun, _)| *begun += 1);
            match self.change {
                Change::Add => {
                    entries::create(&self.nfs, self.dir, self.entries + nth, self.links).await?;
                }
                Change::Remove => {
                    let name = entries::name(removed(nth, self.entries));
                    self.nfs.remove(self.dir, name.as_bytes()).await?;
                }
            }
            times.send_modify(|(_, done)| *done += 1);
        }
        Ok(())
    }
}
