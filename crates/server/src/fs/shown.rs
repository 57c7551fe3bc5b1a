//! Names in lines of the log.

use std::ascii::escape_default;
use std::fmt;

/// Bytes of a name or path that [`Shown`] shows.
const SHOWN_BYTES_MAX: usize = 256;

/// The beginning of a name or path that a client sent, as [`escaped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES_MAX)];
        let rest = if shown.len() < self.0.len() { "..." } else { "" };
        write!(f, "{}{rest}", escaped(shown))
    }
}

/// A name or path in printable characters of ASCII, without spaces: a field of a line ends at one,
/// and no name may pass for further fields.
pub(crate) fn escaped(name: &[u8]) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        name.iter().try_for_each(|&byte| match byte {
            b' ' => f.write_str("\\x20"),
            byte => write!(f, "{}", escape_default(byte)),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_in_one_word_of_bounded_length() {
        assert_eq!(Shown(b"a b=1\xff").to_string(), "a\\x20b=1\\xff");
        assert_eq!(Shown(&[b'a'; SHOWN_BYTES_MAX]).to_string(), "a".repeat(SHOWN_BYTES_MAX));
        let cut = "\\n".repeat(SHOWN_BYTES_MAX) + "...";
        assert_eq!(Shown(&[b'\n'; 1024]).to_string(), cut);
    }
}
