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

fn as_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.first().is_some_and(|name| is_name_of_helper(name)) {
        arguments.splice(..1, ["spillway".into(), "mount".into()]);
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
}
