//! The versions of NFS that loads speak.

use std::fmt;

use clap::ValueEnum;

/// A version of NFS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Version {
    /// RFC 1813.
    #[default]
    #[value(name = "3")]
    V3,
    /// RFC 8881.
    #[value(name = "4.1")]
    V4_1,
    /// RFC 7862.
    #[value(name = "4.2")]
    V4_2,
}

impl Version {
    /// The minor version of version 4.
    #[must_use]
    pub const fn minor(self) -> Option<u32> {
        match self {
            Self::V3 => None,
            Self::V4_1 => Some(1),
            Self::V4_2 => Some(2),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V3 => "3",
            Self::V4_1 => "4.1",
            Self::V4_2 => "4.2",
        })
    }
}
