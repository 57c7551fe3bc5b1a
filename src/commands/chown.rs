//! `spillway chown`: changes owners and groups.

use std::io;

use clap::{ArgAction, Args};
use nix::unistd::{Group, User};
use proto::nfs3::{Attributes, SetAttributes};

use super::console::Console;
use super::failure::{Failure, Result};
use super::remote::LastLink;
use super::set_attributes::{Change, Files, Order};
use super::target::Shown;
use super::text::owners::Owners;
use super::walk::Found;

/// As coreutils' `chown`. Servers that squash root refuse it, as they refuse to other users to give
/// files away.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// The owner, the group or both: USER, USER:GROUP, :GROUP, or USER: for the user's login group;
    /// names of this machine or numbers
    #[arg(value_name = "OWNER", value_parser = Owner::parse)]
    owner: Owner,

    /// Change directories and their contents, and symbolic links themselves
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Change symbolic links themselves, not their targets
    #[arg(short = 'h', long)]
    no_dereference: bool,

    #[command(flatten)]
    files: Files,

    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// An owner as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
    /// The names or numbers that were given, for messages.
    user: String,
    group: String,
}

impl Owner {
    /// Reads `USER`, `USER:GROUP`, `:GROUP` or `USER:`. A name wins over a number, as POSIX
    /// specifies.
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let entry = User::from_name(user).ok().flatten();
        let uid = match (user, &entry) {
            ("", _) => None,
            (_, Some(entry)) => Some(entry.uid.as_raw()),
            (_, None) => Some(number(user).ok_or_else(|| format!("there is no user `{user}`"))?),
        };
        let (gid, group) = match (group, entry) {
            (None, _) | (Some(""), None) if uid.is_none() => {
                return Err("a user or a group is expected".to_owned());
            }
            (None, _) => (None, String::new()),
            (Some(""), Some(entry)) => {
                let gid = entry.gid.as_raw();
                let name = Group::from_gid(entry.gid).ok().flatten().map(|group| group.name);
                (Some(gid), name.unwrap_or_else(|| gid.to_string()))
            }
            (Some(""), None) => {
                return Err(format!("`{user}` is not a name, so it has no login group"));
            }
            (Some(group), _) => {
                let entry = Group::from_name(group).ok().flatten();
                let gid = entry.map(|entry| entry.gid.as_raw()).or_else(|| number(group));
                let gid = gid.ok_or_else(|| format!("there is no group `{group}`"))?;
                (Some(gid), group.to_owned())
            }
        };
        Ok(Self { uid, gid, user: user.to_owned(), group })
    }

    /// The same of a file, as far as this names it.
    fn of(&self, attributes: &Attributes, owners: &Owners) -> String {
        let (uid, gid) = (attributes.uid, attributes.gid);
        let user = owners.user(uid).map_or_else(|| uid.to_string(), str::to_owned);
        let group = owners.group(gid).map_or_else(|| gid.to_string(), str::to_owned);
        self.join(&user, &group)
    }

    fn join(&self, user: &str, group: &str) -> String {
        match (self.uid, self.gid) {
            (Some(_), Some(_)) => format!("{user}:{group}"),
            (_, None) => user.to_owned(),
            (None, _) => group.to_owned(),
        }
    }
}

/// An id. The highest number stands for none in chown(2).
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

/// Changes all targets.
pub(crate) async fn run(options: &Options, console: &Console) -> io::Result<()> {
    let Options { recursive, no_dereference, .. } = *options;
    let last = if recursive || no_dereference { LastLink::Keep } else { LastLink::Follow };
    let owners = if options.files.verbose { Owners::of_machine() } else { Owners::default() };
    let changer = Changer { options, console, owners };
    options.files.change(&changer, recursive, last, console).await;
    Ok(())
}

struct Changer<'a> {
    options: &'a Options,
    console: &'a Console,
    owners: Owners,
}

impl Change for Changer<'_> {
    const ORDER: Order = Order::DirectoryLast;

    fn attributes(&self, _: &Found) -> Option<SetAttributes> {
        let Owner { uid, gid, .. } = self.options.owner;
        Some(SetAttributes { uid, gid, ..SetAttributes::default() })
    }

    fn report(&self, Found { node, shown }: &Found, outcome: Result<()>) {
        let owner = &self.options.owner;
        let what = if owner.uid.is_some() { "ownership" } else { "group" };
        if let Err(failure) = outcome {
            self.console.fail(format_args!("changing {what} of {shown}: {failure}"));
        } else if self.options.files.verbose {
            let is_kept = owner.uid.is_none_or(|uid| uid == node.attributes.uid)
                && owner.gid.is_none_or(|gid| gid == node.attributes.gid);
            let (old, new) =
                (owner.of(&node.attributes, &self.owners), owner.join(&owner.user, &owner.group));
            if is_kept {
                self.console.say(format_args!("{what} of {shown} retained as {old}"));
            } else {
                self.console.say(format_args!("changed {what} of {shown} from {old} to {new}"));
            }
        }
    }

    fn dangling(shown: &Shown, failure: &Failure) -> String {
        format!("cannot dereference {shown}: {failure}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_names_or_numbers() {
        for (text, expected) in [
            ("root", Some((Some(0), None))),
            ("root:root", Some((Some(0), Some(0)))),
            ("root:", Some((Some(0), Some(0)))),
            (":root", Some((None, Some(0)))),
            ("4711", Some((Some(4711), None))),
            ("4711:4712", Some((Some(4711), Some(4712)))),
            (":4712", Some((None, Some(4712)))),
            ("root:4712", Some((Some(0), Some(4712)))),
            ("4711:", None),
            ("", None),
            (":", None),
            ("no such user", None),
            (":no such group", None),
            ("-1", None),
            ("4294967295", None),
            ("4294967296", None),
        ] {
            let owner = Owner::parse(text).ok().map(|owner| (owner.uid, owner.gid));
            assert_eq!(owner, expected, "{text}");
        }
    }
}
