//! Names of users and groups.

use std::collections::HashMap;
use std::fs;

/// This machine's names of owner ids. Taken from `/etc/passwd` and `/etc/group`; an id that is not
/// there, because it comes from a directory service or belongs to another machine, has no name.
#[derive(Default)]
pub(crate) struct Owners {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Owners {
    /// Reads this machine's names. A file that cannot be read yields none.
    pub(crate) fn of_machine() -> Self {
        let read = |path| names(&fs::read_to_string(path).unwrap_or_default());
        Self { users: read("/etc/passwd"), groups: read("/etc/group") }
    }

    /// The name of a user, if it is known.
    pub(crate) fn user(&self, uid: u32) -> Option<&str> {
        self.users.get(&uid).map(String::as_str)
    }

    /// The name of a group, if it is known.
    pub(crate) fn group(&self, gid: u32) -> Option<&str> {
        self.groups.get(&gid).map(String::as_str)
    }
}

/// Third field to first of each line; the first line of an id wins, as in the C library.
fn names(text: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(id)) = (fields.next(), fields.nth(1))
            && let Ok(id) = id.parse()
        {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_an_id_counts() {
        let owners = Owners {
            users: names("root:x:0:0::/root:/bin/sh\ntoor:x:0:0:::\n#\nbad:x:y\nann:x:7:7:::\n"),
            groups: names("wheel:x:0:root,ann\n"),
        };
        assert_eq!(owners.user(0), Some("root"));
        assert_eq!(owners.user(7), Some("ann"));
        assert_eq!(owners.user(8), None);
        assert_eq!(owners.group(0), Some("wheel"));
    }
}
