//! Permission bits as text: `-rwxr-xr-x`.

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

pub(super) const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
/// Both set-id bits.
pub(crate) const SET_ID: u32 = SET_UID | SET_GID;
pub(super) const STICKY: u32 = 0o1000;
/// All permission bits.
pub(crate) const ALL: u32 = 0o7777;

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
}
