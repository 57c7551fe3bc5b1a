//! Operations that are attempted again: after room was made, or after a moment.

use std::time::{Duration, Instant};

use io::{ByteRange, DeviceNumber};

use super::{Answer, Caller, Object, SpaceWanted, Status, Vfs};
use crate::export::ExportRoot;
use crate::inode_cache::{Changing, Inode, InodeKey};

/// How often an operation that found no free descriptor is tried again, after making room.
const DESCRIPTOR_RETRIES: usize = 3;
/// How long a call waits for the return of a delegation, together 155 ms, before its client is
/// asked to repeat it.
pub(crate) const RETURN_PAUSES: [Duration; 5] = [
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
];

impl Vfs {
    /// Attempts a change of the names in a directory: as [`Self::with_descriptors`], for a moment
    /// while a delegation is in its way, and again if there is space after all.
    pub(super) async fn attempt_name_change<A: Default, T, F>(
        &self,
        dir: &Object,
        attempt: impl Fn() -> F,
    ) -> Answer<A, T>
    where
        F: Future<Output = Result<(A, Result<T, Status>), Status>>,
    {
        let device = dir.root().device();
        let attempt = async || self.with_descriptors(device, &attempt).await.into();
        let attempt = async || self.while_delegated(&attempt).await;
        self.with_space(dir, Takes::SOME_BLOCKS, attempt).await
    }

    /// Attempts a change of an object, and again if it fails for want of space and there is some
    /// after all. An attempt that fails so can be repeated.
    pub(super) async fn with_space<F: Future<Output: Outcome>>(
        &self,
        object: &Object,
        takes: Takes,
        attempt: impl Fn() -> F,
    ) -> F::Output {
        let mut since = Instant::now();
        let mut done = attempt().await;
        let key = InodeKey::new(object.root(), *object.handle());
        for &source in takes.sources() {
            let Some(status) = done.status().filter(|status| status.lacks_space()) else { break };
            let bytes_min = match takes {
                Takes::Bytes(bytes) => bytes,
                Takes::BlocksOf(range) => self.bytes_to_fill(object, range).await,
                Takes::InodeSpace => 0,
            };
            let lack = Lack { status, since };
            if self.free_space((source, lack), (object.root(), key), bytes_min).await {
                since = Instant::now();
                done = attempt().await;
            }
        }
        done
    }

    /// After a change of an object has failed for want of space, of which it takes at least
    /// `bytes_min`: closes what has lost its last name on the device of `root`. Returns whether the
    /// change may succeed now.
    pub(super) async fn free_space(
        &self,
        (source, Lack { status, since }): (SpaceSource, Lack),
        (root, object): (&ExportRoot, InodeKey),
        bytes_min: u64,
    ) -> bool {
        let device = root.device();
        if !root.attributes_in_memory {
            return false;
        }
        match source {
            SpaceSource::Unused => self.inode_cache.free_space(device, since, &self.engine).await,
            // Whether the files count in a quota that is used up is not known.
            SpaceSource::Held if status == Status::Quota => false,
            SpaceSource::Held => {
                self.held_space.free(SpaceWanted { device, bytes_min, object }, since).await
            }
        }
    }

    /// The bytes that blocks for a range of a file take at least: there are none behind its size,
    /// and all blocks that it has may be in the range.
    async fn bytes_to_fill(&self, object: &Object, range: ByteRange) -> u64 {
        let live = async { self.live_attributes(&self.hold(object).await?).await };
        live.await.map_or(range.len(), |live| {
            let behind = range.end().saturating_sub(range.offset().max(live.size));
            range.len().saturating_sub(live.used).max(behind)
        })
    }

    /// Attempts an operation that opens descriptors on a device. When the process or the system has
    /// none left, cached ones are closed and it is tried again, so that clients do not see the
    /// limit.
    ///
    /// # Errors
    /// Those of the attempt; `NoDescriptor` if giving up what is cached does not help. An attempt
    /// that ends so must have changed nothing.
    pub(crate) async fn with_descriptors<T, F>(
        &self,
        device: DeviceNumber,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        for _ in 0..DESCRIPTOR_RETRIES {
            match attempt().await {
                Err(Status::NoDescriptor) => {
                    self.close_unused(device).await;
                }
                result => return result,
            }
        }
        attempt().await
    }

    /// Waits a moment for the return of delegations that a change of an object conflicts with. Most
    /// clients return them at once, and the caller of version 3 would wait for 5 s.
    ///
    /// # Errors
    /// `Delegated`.
    pub(super) async fn wait_for_return(
        &self,
        file: &Inode,
        caller: &Caller,
        what: Changing,
    ) -> Result<(), Status> {
        self.while_delegated(async || file.may_change(caller.client, what)).await
    }

    /// Attempts a change, and again for a moment while a delegation is in its way.
    async fn while_delegated<F: Future<Output: Outcome>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> F::Output {
        let mut done = attempt().await;
        for pause in RETURN_PAUSES {
            if done.status() != Some(Status::Delegated) {
                break;
            }
            self.sleep(pause).await;
            done = attempt().await;
        }
        done
    }

    /// Sleeps on any thread.
    pub(crate) async fn sleep(&self, duration: Duration) {
        let sleep = {
            let _entered = self.timers.enter();
            Box::pin(tokio::time::sleep(duration))
        };
        sleep.await;
    }
}

/// The space that a change takes at least.
#[derive(Clone, Copy)]
pub(super) enum Takes {
    Bytes(u64),
    /// Blocks for all of a range of the file.
    BlocksOf(ByteRange),
    /// Space of an inode, which may be used up on an empty disk: no client loses its state for it.
    InodeSpace,
}

impl Takes {
    /// A change that writes no data takes a few blocks.
    pub(super) const SOME_BLOCKS: Self = Self::Bytes(16 << 10);

    /// The files whose space it gets.
    fn sources(self) -> &'static [SpaceSource] {
        match self {
            Self::Bytes(_) | Self::BlocksOf(_) => &SpaceSource::IN_ORDER,
            Self::InodeSpace => &[SpaceSource::Unused],
        }
    }
}

/// The want of space of an attempt.
#[derive(Clone, Copy)]
pub(super) struct Lack {
    /// That of the attempt.
    pub(super) status: Status,
    /// When the attempt began, or had just failed: space that came free since then may be enough.
    pub(super) since: Instant,
}

/// Files that have lost their last name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpaceSource {
    /// Those that are open in the cache alone.
    Unused,
    /// Those that clients have open and do not need: a client loses all its state with them.
    Held,
}

impl SpaceSource {
    /// The order in which a call that lacks space turns to them.
    pub(super) const IN_ORDER: [Self; 2] = [Self::Unused, Self::Held];
}

/// The result of an attempt that may be repeated.
pub(super) trait Outcome {
    /// Why it failed, if it did.
    fn status(&self) -> Option<Status>;
}

impl<T> Outcome for Result<T, Status> {
    fn status(&self) -> Option<Status> {
        self.as_ref().err().copied()
    }
}

impl<A, T> Outcome for Answer<A, T> {
    fn status(&self) -> Option<Status> {
        self.result.status()
    }
}
