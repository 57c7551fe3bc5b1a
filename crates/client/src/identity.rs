//! Who a call is made for: the AUTH_SYS credential, RFC 5531 Appendix A.

/// The user and groups that the server is told, as AUTH_SYS carries them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups. AUTH_SYS has room for 16; those behind them are not sent.
    pub groups: Vec<u32>,
}

impl Identity {
    /// That of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        }
    }
}
