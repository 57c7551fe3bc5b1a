//! How a mount behaves, in the names and with the defaults of nfs(5).

use std::time::Duration;

/// How a file system is mounted. [`Default`] gives what nfs(5) gives for `proto=tcp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// `port`: TCP port of the NFS service; asked of the portmapper when absent, and 2049 when that
    /// does not answer.
    pub port: Option<u16>,
    /// `mountport`: TCP port of the MOUNT service; looked for on the NFS port and then asked of the
    /// portmapper when absent.
    pub mount_port: Option<u16>,
    /// `nconnect`: TCP connections, 1 to [`NCONNECT_MAX`].
    pub nconnect: usize,
    /// `resvport`: call from a port below 1024 where that is permitted. Falls back to any port.
    pub reserved_port: bool,
    /// `rsize`: bytes of a READ at most; the server's limit when absent or larger than it.
    pub rsize: Option<u32>,
    /// `wsize`: bytes of a WRITE at most; the server's limit when absent or larger than it.
    pub wsize: Option<u32>,
    /// `timeo`: how long a reply may take until the call is sent again, at first.
    pub timeout: Duration,
    /// `retrans`: how often a call is sent again until it fails ([`Recovery::Soft`]) or is
    /// reported (`Hard`).
    pub retransmissions: u32,
    /// `hard`, `soft`.
    pub recovery: Recovery,
    /// `acregmin`: how long attributes of a file are believed at least.
    pub file_attributes_min: Duration,
    /// `acregmax`: how long attributes of a file that does not change are believed at most.
    pub file_attributes_max: Duration,
    /// `acdirmin`.
    pub dir_attributes_min: Duration,
    /// `acdirmax`.
    pub dir_attributes_max: Duration,
    /// `cto`: ask for the attributes of a file whenever it is opened.
    pub close_to_open: bool,
    /// `ro`.
    pub read_only: bool,
    /// `sync`: a write returns when the server has the data on stable storage.
    pub sync: bool,
    /// `rdirplus=force`, `nordirplus`.
    pub readdirplus: UseReaddirplus,
    /// Bytes of written data that all files together hold until the server has committed them.
    pub write_back_bytes: usize,
    /// Bytes of data that was written in parts of pages, which all files together keep for readers
    /// after the server has committed it.
    pub kept_bytes: usize,
    /// WRITE calls of one file that await their reply at once.
    pub writes_in_flight: usize,
    /// Bytes of directory listings kept.
    pub listing_bytes: usize,
    /// Bytes that all files together hold of data fetched before it was asked for.
    pub read_ahead_bytes: usize,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            port: None,
            mount_port: None,
            nconnect: 1,
            reserved_port: true,
            rsize: None,
            wsize: None,
            timeout: Duration::from_secs(60),
            retransmissions: 2,
            recovery: Recovery::Hard,
            file_attributes_min: Duration::from_secs(3),
            file_attributes_max: Duration::from_secs(60),
            dir_attributes_min: Duration::from_secs(30),
            dir_attributes_max: Duration::from_secs(60),
            close_to_open: true,
            read_only: false,
            sync: false,
            readdirplus: UseReaddirplus::Learned,
            write_back_bytes: 64 << 20,
            kept_bytes: 96 << 20,
            writes_in_flight: 16,
            listing_bytes: 64 << 20,
            read_ahead_bytes: 64 << 20,
        }
    }
}

/// What happens to a call that the server does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It is sent again for ever.
    Hard,
    /// It fails with [`crate::Error::TimedOut`] after the retransmissions.
    Soft,
}

/// When a listing asks for attributes and handles of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseReaddirplus {
    /// Where they turn out to be wanted, directory by directory.
    Learned,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Connections of a mount at most, as in the Linux kernel's client.
pub const NCONNECT_MAX: usize = 16;
