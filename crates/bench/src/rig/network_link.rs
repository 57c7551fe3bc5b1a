//! Two network name spaces of our own.

use std::ffi::OsString;

/// A network name space.
#[derive(Debug)]
pub struct NetworkNamespace {
    name: String,
}

impl NetworkNamespace {
    /// What goes before a command so that it runs in the name space. Unlike `ip netns exec` it
    /// leaves the mounts alone: that would hide the cgroups.
    #[must_use]
    pub fn prefix(&self) -> [OsString; 2] {
        ["nsenter".into(), format!("--net=/run/netns/{}", self.name).into()]
    }
}
