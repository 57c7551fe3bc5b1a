//! How file data goes to and from the disk.

use std::fmt;
use std::str::FromStr;

/// How READs or WRITEs of an export treat the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IoMode {
    /// Through the page cache, which keeps what it likes.
    Buffered,
    /// Through the page cache, which is left as it was found.
    DontCache,
    /// Past the page cache where size and alignment allow; nothing stays in it.
    Direct,
    /// Whatever of these serves the request at hand best.
    #[default]
    Auto,
}

impl IoMode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Buffered, Self::DontCache, Self::Direct, Self::Auto];

    /// The name in configurations and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered",
            Self::DontCache => "dontcache",
            Self::Direct => "direct",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for IoMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the data of an export goes to and from the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoPolicy {
    /// The mode of READs.
    pub read: IoMode,
    /// The mode of WRITEs.
    pub write: IoMode,
    /// Sequential READs are read ahead.
    pub read_ahead: bool,
    /// READs from the page cache are spliced to the socket.
    pub splice: bool,
}

impl Default for IoPolicy {
    fn default() -> Self {
        Self { read: IoMode::Auto, write: IoMode::Auto, read_ahead: true, splice: true }
    }
}

/// A word that names no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not an I/O mode; the modes are buffered, dontcache, direct and auto", .0.escape_debug())]
pub struct NotAnIoMode(pub String);

impl FromStr for IoMode {
    type Err = NotAnIoMode;

    fn from_str(text: &str) -> Result<Self, NotAnIoMode> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| NotAnIoMode(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for mode in IoMode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!("Direct".parse::<IoMode>().is_err());
        assert!("".parse::<IoMode>().is_err());
    }

    #[test]
    fn an_error_names_every_mode() {
        let error = "fast\n".parse::<IoMode>().unwrap_err().to_string();
        assert!(error.starts_with("`fast\\n` is not an I/O mode"), "{error}");
        assert!(IoMode::ALL.iter().all(|mode| error.contains(mode.name())), "{error}");
    }
}
