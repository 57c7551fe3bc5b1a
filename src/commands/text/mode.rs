//! Permission bits as text: `-rwxr-xr-x` out, `755` and `u=rwx,go=rx` in.

use proto::nfs3::FileType;

/// The ten letters of `ls -l`.
pub(crate) fn letters(file_type: FileType, mode: u32) -> String {
    let mut text = String::from(type_letter(file_type));
    for (shift, set_id, letter) in [(6, SET_UID, 's'), (3, SET_GID, 's'), (0, STICKY, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & set_id != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

fn type_letter(file_type: FileType) -> char {
    match file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::BlockDevice => 'b',
        FileType::CharacterDevice => 'c',
        FileType::Symlink => 'l',
        FileType::Socket => 's',
        FileType::Fifo => 'p',
    }
}

/// The name that `stat` prints for a file type; an empty file has a name of its own.
pub(crate) fn type_name(file_type: FileType, size: u64) -> &'static str {
    match file_type {
        FileType::Regular if size == 0 => "regular empty file",
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::BlockDevice => "block special file",
        FileType::CharacterDevice => "character special file",
        FileType::Symlink => "symbolic link",
        FileType::Socket => "socket",
        FileType::Fifo => "fifo",
    }
}

/// `st_mode`: the permission bits with those of the type, as `stat -c %f` prints them.
pub(crate) fn with_type(file_type: FileType, mode: u32) -> u32 {
    let type_bits = match file_type {
        FileType::Regular => 0o10,
        FileType::Directory => 0o4,
        FileType::BlockDevice => 0o6,
        FileType::CharacterDevice => 0o2,
        FileType::Symlink => 0o12,
        FileType::Socket => 0o14,
        FileType::Fifo => 0o1,
    };
    type_bits << 12 | mode & ALL
}

/// A mode as given to `mkdir -m`: octal, or changes applied in turn to `start`. A change without a
/// class (`+w`) applies to all, except for the bits of `umask`, as POSIX specifies for chmod.
/// `None` if it is neither.
pub(crate) fn parse(text: &str, start: u32, umask: u32) -> Option<u32> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= ALL);
    }
    text.split(',').try_fold(start, |mode, clause| apply(clause, mode, umask))
}

/// One clause of a symbolic mode: who, and then one or more of an operator with permissions.
fn apply(clause: &str, mut mode: u32, umask: u32) -> Option<u32> {
    let mut rest = clause.trim_start_matches(['u', 'g', 'o', 'a']);
    let who = clause[..clause.len() - rest.len()].chars().fold(0, |who, c| who | class_bits(c));
    let reach = if who == 0 { ALL & !umask } else { who };
    if rest.is_empty() {
        return None;
    }
    while let Some(operator) = rest.chars().next() {
        let permissions = rest[operator.len_utf8()..].split(['+', '-', '=']).next()?;
        let bits = permission_bits(permissions, mode)? & reach;
        mode = match operator {
            '+' => mode | bits,
            '-' => mode & !bits,
            '=' => mode & !(if who == 0 { ALL } else { who }) | bits,
            _ => return None,
        };
        rest = &rest[operator.len_utf8() + permissions.len()..];
    }
    Some(mode)
}

/// All bits that a class of users may have.
fn class_bits(class: char) -> u32 {
    match class {
        'u' => 0o700 | SET_UID,
        'g' => 0o070 | SET_GID,
        'o' => 0o007 | STICKY,
        _ => ALL,
    }
}

/// The bits that the letters mean for all classes; a class as the only letter copies its bits.
fn permission_bits(letters: &str, mode: u32) -> Option<u32> {
    let copied = match letters {
        "u" => Some(mode >> 6 & 7),
        "g" => Some(mode >> 3 & 7),
        "o" => Some(mode & 7),
        _ => None,
    };
    if let Some(bits) = copied {
        return Some(bits * 0o111);
    }
    letters.chars().try_fold(0, |bits, letter| {
        Some(
            bits | match letter {
                'r' => 0o444,
                'w' => 0o222,
                'x' | 'X' => 0o111, // For a directory, as mkdir makes it, X is x.
                's' => SET_UID | SET_GID,
                't' => STICKY,
                _ => return None,
            },
        )
    })
}

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const ALL: u32 = 0o7777;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_show_type_permissions_and_special_bits() {
        for (file_type, mode, expected) in [
            (FileType::Regular, 0o644, "-rw-r--r--"),
            (FileType::Directory, 0o1777, "drwxrwxrwt"),
            (FileType::Directory, 0o1776, "drwxrwxrwT"),
            (FileType::Regular, 0o4755, "-rwsr-xr-x"),
            (FileType::Regular, 0o6644, "-rwSr-Sr--"),
            (FileType::Symlink, 0o777, "lrwxrwxrwx"),
            (FileType::Fifo, 0, "p---------"),
            (FileType::Socket, 0o755, "srwxr-xr-x"),
            (FileType::BlockDevice, 0o660, "brw-rw----"),
            (FileType::CharacterDevice, 0o620, "crw--w----"),
        ] {
            assert_eq!(letters(file_type, mode), expected);
        }
        assert_eq!(with_type(FileType::Regular, 0o644), 0o100_644);
        assert_eq!(with_type(FileType::Directory, 0o755), 0o40_755);
        assert_eq!(with_type(FileType::Symlink, 0o777), 0o120_777);
    }

    /// The results of `mkdir -m` of coreutils, which starts from 0777.
    #[test]
    fn modes_are_read_as_mkdir_does() {
        for (text, expected) in [
            ("700", Some(0o700)),
            ("1777", Some(0o1777)),
            ("0", Some(0)),
            ("10000", None),
            ("8", None),
            ("u=rwx,go=rx", Some(0o755)),
            ("u=rwx,go=", Some(0o700)),
            ("go-w", Some(0o755)),
            ("a=rx", Some(0o555)),
            ("=rx", Some(0o555)),
            ("=", Some(0)),
            ("g=u-w", Some(0o757)),
            ("g+s", Some(0o2777)),
            ("o=,g=o", Some(0o700)),
            ("-w", Some(0o577)),
            ("u", None),
            ("", None),
            ("z=r", None),
            ("u=q", None),
            ("u=r,", None),
        ] {
            assert_eq!(parse(text, 0o777, 0o022), expected, "{text}");
        }
    }
}
