//! The arguments of the process, also as the helper of mount(8), which it is by its name.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The arguments of this process; as the helper of mount(8), those of `spillway mount`.
pub(crate) fn of_process() -> Vec<OsString> {
    as_command(env::args_os().collect())
}

/// Whether mount(8) has called this process as its helper for `-t spillway` or, to change a mounted
/// file system, for the type that the kernel shows.
pub(crate) fn are_of_mount_helper() -> bool {
    env::args_os().next().is_some_and(|name| is_name_of_helper(&name))
}

fn is_name_of_helper(program: &OsStr) -> bool {
    let name = Path::new(program).file_name();
    name.is_some_and(|name| name == "mount.spillway" || name == "mount.fuse.spillway")
}

/// Whether this is `stat` with no file but numbers, or nothing: as with other programs of that
/// name, what a server has counted.
fn is_nfsstat(arguments: &[OsString]) -> bool {
    let is_number = |word: &OsString| {
        word.to_str()
            .is_some_and(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()))
    };
    match arguments {
        [_, command] => command == "stat",
        [_, command, words @ ..] if command == "stat" => match words {
            [first, ..] => is_number(first) || is_option_of_nfsstat(first),
            [] => true,
        },
        _ => false,
    }
}

/// Whether this is an option, also with its value, that only nfsstat has.
fn is_option_of_nfsstat(word: &OsString) -> bool {
    let name = word.to_str().map(|word| word.split_once('=').map_or(word, |(name, _)| name));
    matches!(name, Some("--json" | "--socket" | "--export"))
}

fn as_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.first().is_some_and(|name| is_name_of_helper(name)) {
        arguments.splice(..1, ["spillway".into(), "mount".into()]);
    }
    if is_nfsstat(&arguments) {
        arguments[1] = "nfsstat".into();
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_of_mount_mounts() {
        let of = |name: &str| as_command([name, "h:/e", "/mnt"].map(OsString::from).to_vec());
        for name in ["/sbin/mount.spillway", "/sbin/mount.fuse.spillway"] {
            assert_eq!(of(name), ["spillway", "mount", "h:/e", "/mnt"]);
        }
        assert_eq!(of("/usr/bin/spillway"), ["/usr/bin/spillway", "h:/e", "/mnt"]);
    }

    #[test]
    fn stat_without_a_file_is_of_the_server() {
        let command = |words: &str| as_command(words.split(' ').map(OsString::from).collect());
        for words in [
            "spillway stat",
            "spillway stat 1",
            "spillway stat 1 5",
            "spillway stat --json",
            "spillway stat --socket=/run/spillway 1",
            "spillway stat --export /data",
        ] {
            assert_eq!(command(words)[1], "nfsstat", "{words}");
        }
        for words in ["spillway stat nfs://h/e", "spillway stat --help", "spillway stat -c %s"] {
            assert_eq!(command(words)[1], "stat", "{words}");
        }
    }
}
