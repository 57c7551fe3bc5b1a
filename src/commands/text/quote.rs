//! Names between quotes that a shell takes back, as coreutils writes them on terminals and in
//! messages.

use std::borrow::Cow;

use crate::printable::reorders;

/// The name with quotes around it whatever it is, for messages: `'a'`, `"it's"`, `'a'$'\n''b'`.
pub(crate) fn always(name: &[u8]) -> String {
    quoted(name)
}

/// The name as it is where a shell would read it so, else with quotes.
pub(crate) fn as_needed(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if is_plain(text) => text.to_owned(),
        _ => quoted(name),
    }
}

/// The name as it is where a terminal would show all of it, else with quotes: for where coreutils
/// writes no quotes.
pub(crate) fn if_unprintable(name: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(name) {
        Ok(text) if text.chars().all(is_printable) => name.into(),
        _ => quoted(name).into_bytes().into(),
    }
}

/// Whether a shell reads `text` as one word that is `text`.
fn is_plain(text: &str) -> bool {
    // A leading `#` begins a comment and a leading `~` a home directory; inside they are letters.
    !matches!(text, "" | "{" | "}")
        && !text.starts_with(['#', '~'])
        && !text.contains(|c: char| c.is_ascii() && SPECIAL.contains(c) || !is_printable(c))
}

fn quoted(name: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(name)
        && text.contains('\'')
        && !text.contains(|c: char| "\"$`\\!".contains(c) || !is_printable(c))
    {
        return format!("\"{text}\"");
    }
    let mut out = String::from("'");
    // Whether the last thing written was an escape, which the next letter has to end.
    let mut escaping = false;
    let mut put = |text: &str, escape: bool| {
        match (escaping, escape) {
            (false, true) => out.push_str("'$'"),
            (true, false) => out.push_str("''"),
            _ => {}
        }
        escaping = escape;
        out.push_str(text);
    };
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' => put("'\\''", false),
                c if is_printable(c) => put(c.encode_utf8(&mut [0; 4]), false),
                c => c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| put(&escape(b), true)),
            }
        }
        chunk.invalid().iter().for_each(|&byte| put(&escape(byte), true));
    }
    out.push('\'');
    out
}

/// A byte as it stands inside `$'…'`.
fn escape(byte: u8) -> String {
    match byte {
        0x07 => "\\a".to_owned(),
        0x08 => "\\b".to_owned(),
        b'\t' => "\\t".to_owned(),
        b'\n' => "\\n".to_owned(),
        0x0b => "\\v".to_owned(),
        0x0c => "\\f".to_owned(),
        b'\r' => "\\r".to_owned(),
        byte => format!("\\{byte:03o}"),
    }
}

/// Whether a terminal shows the character. Control characters, and characters that hide or reorder
/// others, are not shown.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !reorders(c)
        && !matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{feff}'
            | '\u{e000}'..='\u{f8ff}')
}

/// The characters that a shell interprets anywhere in a word.
const SPECIAL: &str = " \t\n!\"$&'()*;<=>?[\\^`|";

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of `ls` of coreutils 9.1 with `--quoting-style=shell-escape`, and with
    /// `shell-escape-always`.
    const NAMES: &[(&[u8], &str, &str)] = &[
        (b"plain", "plain", "'plain'"),
        (b"", "''", "''"),
        (b"a b", "'a b'", "'a b'"),
        (b"it's", "\"it's\"", "\"it's\""),
        (b"it's $5", r"'it'\''s $5'", r"'it'\''s $5'"),
        (b"a\nb", r"'a'$'\n''b'", r"'a'$'\n''b'"),
        (b"\nb", r"''$'\n''b'", r"''$'\n''b'"),
        (b"a\n", r"'a'$'\n'", r"'a'$'\n'"),
        (b"a\xffb", r"'a'$'\377''b'", r"'a'$'\377''b'"),
        ("gr\u{fc}n".as_bytes(), "gr\u{fc}n", "'gr\u{fc}n'"),
        (b"#a", "'#a'", "'#a'"),
        (b"a#", "a#", "'a#'"),
        (b"~a", "'~a'", "'~a'"),
        (b"a~", "a~", "'a~'"),
        (b"a=b", "'a=b'", "'a=b'"),
        (b"{", "'{'", "'{'"),
        (b"{a,b}", "{a,b}", "'{a,b}'"),
        (b"back\\slash", r"'back\slash'", r"'back\slash'"),
        (b"\x1b[31m", r"''$'\033''[31m'", r"''$'\033''[31m'"),
    ];

    #[test]
    fn names_are_quoted_as_coreutils_does() {
        for &(name, expected, always_expected) in NAMES {
            assert_eq!(as_needed(name), expected);
            assert_eq!(always(name), always_expected);
            let is_shown = name.iter().all(|byte| *byte >= b' ' && *byte != 0xff);
            let expected = if is_shown { name } else { always_expected.as_bytes() };
            assert_eq!(if_unprintable(name), expected);
        }
    }
}
