//! The conflicts of local programs with delegations. Programs that open a file wait for the client
//! behind a lease of the kernel's, and changes of names and attributes are detected by watches.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ::io::{AttributeWatch, AttributeWatches, Lease, Leases, lease_break_time};
use rustix::fs::OFlags;

use crate::inode_cache::RecallRequests;

/// How long clients have to return a delegation that a local program waits for: this part of the
/// kernel's time, so that it is revoked well before the kernel lets the program pass.
const RECALL_PART: (u32, u32) = (2, 3);
/// A shorter time of the kernel's leaves a client too little to answer.
const BREAK_TIME_MIN: Duration = Duration::from_secs(15);
/// How soon the kernel has to report that a lease is broken.
const REPORT_MAX: Duration = Duration::from_secs(2);
/// The file in the state directory that it is tried with.
const PROBE_NAME: &str = "lease-probe";

/// Tries in a directory whether a local program that opens a file for writing waits for the holder
/// of a lease, and whether the kernel reports it. Returns how long a client then has to return a
/// delegation. May block.
///
/// # Errors
/// They do not, or the system refuses.
pub(crate) fn probe(directory: &Path) -> io::Result<Duration> {
    let break_time = lease_break_time()?;
    if break_time < BREAK_TIME_MIN {
        let secs = break_time.as_secs();
        return Err(io::Error::other(format!("/proc/sys/fs/lease-break-time is {secs} s")));
    }
    let path = directory.join(PROBE_NAME);
    drop(File::create(&path)?);
    let tried = try_lease(&path);
    fs::remove_file(&path)?;
    tried.map(|()| break_time * RECALL_PART.0 / RECALL_PART.1)
}

fn try_lease(path: &Path) -> io::Result<()> {
    let (broken, breaks) = mpsc::sync_channel(1);
    let leases = Leases::start(move |_| {
        // Once is enough.
        let _ = broken.try_send(());
    })?;
    let lease = leases.take(Arc::new(File::open(path)?.into()), 0)?;
    let lease = lease.ok_or_else(|| io::Error::other("a new file is open for writing"))?;
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("flags fit");
    let open = || OpenOptions::new().write(true).custom_flags(flags).open(path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => return Err(error),
        Ok(_) => return Err(io::Error::other("a local program does not wait for a lease")),
    }
    let reported = breaks.recv_timeout(REPORT_MAX);
    reported.map_err(|_| io::Error::other("the kernel does not report a broken lease"))?;
    drop(lease);
    open().map(drop)
}

/// The leases and watches that detect conflicts of local programs with delegations. Each conflict
/// is a request for a recall.
pub(crate) struct LocalConflicts {
    leases: Arc<Leases>,
    /// Missing where the kernel lacks them or the system refuses.
    watches: Option<Arc<AttributeWatches>>,
    requests: Arc<RecallRequests>,
}

/// The same of one file, until it is dropped.
pub(crate) struct LocalHold {
    _lease: Lease,
    watch: Option<AttributeWatch>,
}

/// Starts the threads that detect local programs.
///
/// # Errors
/// The thread of leases cannot be started.
pub(crate) fn start(requests: &Arc<RecallRequests>) -> io::Result<Arc<LocalConflicts>> {
    let request = |is_waiting| {
        let requests = Arc::clone(requests);
        move |file| {
            if let Ok(file) = usize::try_from(file) {
                requests.add(file, is_waiting);
            }
        }
    };
    let refused = |error: &io::Error| {
        tracing::info!(
            %error,
            "delegations outlast changes of names and attributes by local programs"
        );
    };
    let watches = AttributeWatches::start(request(false)).inspect_err(refused).ok();
    Ok(Arc::new(LocalConflicts {
        leases: Leases::start(request(true))?,
        watches,
        requests: Arc::clone(requests),
    }))
}

impl LocalConflicts {
    /// Takes a lease by a descriptor that is open for reading alone, and watches the file; `None`
    /// while it is open for writing. `file` is its address, as [`RecallRequests`] names it.
    ///
    /// # Errors
    /// As [`Leases::take`]; `ENOSPC` at the limit of watches.
    pub(crate) fn hold(&self, fd: OwnedFd, file: usize) -> io::Result<Option<LocalHold>> {
        let fd = Arc::new(fd);
        let file = u64::try_from(file).expect("an address has at most 64 bits");
        let watch = match &self.watches {
            None => None,
            Some(watches) => match watches.watch(Arc::clone(&fd), file) {
                Ok(watch) => Some(watch),
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "cannot watch a delegated file");
                    None
                }
            },
        };
        let lease = self.leases.take(fd, file)?;
        Ok(lease.map(|lease| LocalHold { _lease: lease, watch }))
    }

    /// Has a delegation recalled that was given under `hold`, if the file has changed before it was
    /// given: its event found nothing to recall. `file` as in [`Self::hold`].
    pub(crate) fn recall_if_changed(&self, hold: &LocalHold, file: usize) {
        if hold.watch.as_ref().is_some_and(AttributeWatch::has_changed) {
            self.requests.add(file, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_tried_in_a_directory_and_leave_nothing() {
        let dir = tempfile::TempDir::new().unwrap();
        let within = probe(dir.path()).unwrap();
        assert!(within >= BREAK_TIME_MIN / 2 && within < lease_break_time().unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(probe(&dir.path().join("none")).is_err());
    }
}
