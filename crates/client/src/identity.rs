//! The user of a call: the AUTH_SYS credential, RFC 5531 Appendix A.

/// The user and groups of an AUTH_SYS credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups. AUTH_SYS carries the first 16.
    pub groups: Vec<u32>,
}

impl Identity {
    /// The identity of this process.
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
