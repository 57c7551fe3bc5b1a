//! Operations that are attempted again: after room was made, or after a moment.

use std::time::Duration;

use io::DeviceNumber;

use super::{Answer, Caller, Status, Vfs};
use crate::export::ExportRoot;
use crate::inode_cache::{Changing, Inode};

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
    /// Attempts a change of names on the file system of `root`: as [`Self::with_descriptors`], for
    /// a moment while a delegation is in its way, and once more if there is space after all.
    pub(super) async fn attempt_name_change<A: Default, T, F>(
        &self,
        root: &ExportRoot,
        attempt: impl Fn() -> F,
    ) -> Answer<A, T>
    where
        F: Future<Output = Result<(A, Result<T, Status>), Status>>,
    {
        let attempt = async || self.with_descriptors(root.device(), &attempt).await.into();
        self.with_space(root, async || self.while_delegated(&attempt).await).await
    }

    /// After a call has failed for want of space: closes what has lost its last name on the device
    /// of `root`. Returns whether the call may succeed now.
    pub(super) async fn free_space(&self, root: &ExportRoot) -> bool {
        root.attributes_in_memory && self.inode_cache.free_space(root.device(), &self.engine).await
    }

    /// Attempts a change, and once more if it fails for want of space and there is some after all.
    /// An attempt that fails so can be repeated.
    pub(super) async fn with_space<F: Future<Output: Outcome>>(
        &self,
        root: &ExportRoot,
        attempt: impl Fn() -> F,
    ) -> F::Output {
        let done = attempt().await;
        if done.status().is_some_and(Status::lacks_space) && self.free_space(root).await {
            return attempt().await;
        }
        done
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
