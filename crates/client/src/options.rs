//! Mount options, with the names and defaults of nfs(5).

use std::time::Duration;

pub(crate) use rpc::client::CONNECTIONS_MAX as NCONNECT_MAX;
pub use rpc::client::Recovery;
use rpc::client::RpcOptions;

/// The options of a mount. [`Default`] is that of nfs(5) for `proto=tcp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// `port`: TCP port of the NFS service. If absent, that of the portmapper, or 2049 if that does
    /// not reply.
    pub port: Option<u16>,
    /// `mountport`: TCP port of the MOUNT service. If absent, the NFS port is tried, then that of
    /// the portmapper.
    pub mount_port: Option<u16>,
    /// `nconnect`: TCP connections, 1 to [`NCONNECT_MAX`].
    pub nconnect: usize,
    /// `resvport`: call from a port below 1024 where that is permitted. Falls back to any port.
    pub reserved_port: bool,
    /// `rsize`: bytes of a READ at most. The server's limit if absent or larger than that.
    pub rsize: Option<u32>,
    /// `wsize`: bytes of a WRITE at most. The server's limit if absent or larger than that.
    pub wsize: Option<u32>,
    /// `timeo`: time without a reply until the first retransmission.
    pub timeout: Duration,
    /// `retrans`: retransmissions until a call fails ([`Recovery::Soft`]) or is reported (`Hard`).
    pub retransmissions: u32,
    /// `hard`, `soft`.
    pub recovery: Recovery,
    /// `acregmin`: minimum timeout of the attributes of a file.
    pub file_attributes_min: Duration,
    /// `acregmax`: maximum timeout of the attributes of a file.
    pub file_attributes_max: Duration,
    /// `acdirmin`: minimum timeout of the attributes of a directory.
    pub dir_attributes_min: Duration,
    /// `acdirmax`: maximum timeout of the attributes of a directory.
    pub dir_attributes_max: Duration,
    /// `cto`: fetch the attributes of a file at each open.
    pub close_to_open: bool,
    /// `ro`.
    pub read_only: bool,
    /// `sync`: a write returns when the data is on the server's stable storage.
    pub sync: bool,
    /// `rdirplus=force`, `nordirplus`.
    pub readdirplus: UseReaddirplus,
    /// Bytes of uncommitted written data of all files.
    pub write_back_bytes: usize,
    /// Bytes of committed data of all files that was written in parts of pages and is kept for
    /// later reads.
    pub kept_bytes: usize,
    /// WRITE calls in flight for one file.
    pub writes_in_flight: usize,
    /// Bytes of all cached directory listings.
    pub listing_bytes: usize,
    /// Bytes of data read ahead of all files.
    pub read_ahead_bytes: usize,
}

impl MountOptions {
    /// How the calls of the mount reach the server.
    pub(crate) fn rpc(&self) -> RpcOptions {
        RpcOptions {
            connections: self.nconnect,
            timeout: self.timeout,
            retransmissions: self.retransmissions,
            recovery: self.recovery,
            reserved_port: self.reserved_port,
        }
    }
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

/// When READDIRPLUS is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseReaddirplus {
    /// In directories whose entries are looked up.
    Learned,
    /// Always.
    Always,
    /// Never.
    Never,
}
