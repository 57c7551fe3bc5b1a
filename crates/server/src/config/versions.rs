//! The versions of NFS that are served.

use std::fmt;
use std::str::FromStr;

/// The versions of NFS that are served: at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NfsVersions {
    /// Version 3, with MOUNT.
    pub v3: bool,
    /// Version 4.1.
    pub v4_1: bool,
    /// Version 4.2.
    pub v4_2: bool,
}

impl NfsVersions {
    /// All versions, the default.
    pub const ALL: Self = Self { v3: true, v4_1: true, v4_2: true };
    /// Version 3 alone.
    pub const V3: Self = Self { v3: true, v4_1: false, v4_2: false };

    /// Whether any minor version of version 4 is served.
    pub(crate) const fn serves_v4(self) -> bool {
        self.v4_1 || self.v4_2
    }

    /// Whether a minor version of version 4 is served.
    pub(crate) const fn serves_minor(self, minor_version: u32) -> bool {
        match minor_version {
            1 => self.v4_1,
            2 => self.v4_2,
            _ => false,
        }
    }
}

/// A text that is no list of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("give one or more of 3, 4.1 and 4.2, separated by commas")]
pub struct NoSuchVersions;

impl FromStr for NfsVersions {
    type Err = NoSuchVersions;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut versions = Self { v3: false, v4_1: false, v4_2: false };
        for version in text.split(',') {
            match version.trim() {
                "3" => versions.v3 = true,
                "4.1" => versions.v4_1 = true,
                "4.2" => versions.v4_2 = true,
                _ => return Err(NoSuchVersions),
            }
        }
        Ok(versions)
    }
}

impl fmt::Display for NfsVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let versions = [(self.v3, "3"), (self.v4_1, "4.1"), (self.v4_2, "4.2")];
        let served = versions.iter().filter(|(is_served, _)| *is_served).map(|(_, name)| *name);
        f.write_str(&served.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_a_list() {
        for text in ["3", "4.1", "3,4.1,4.2", "4.1,4.2"] {
            assert_eq!(text.parse::<NfsVersions>().unwrap().to_string(), text);
        }
        for text in ["", "4", "4.0", "3,", "3;4.1"] {
            assert_eq!(text.parse::<NfsVersions>(), Err(NoSuchVersions), "{text:?}");
        }
    }
}
