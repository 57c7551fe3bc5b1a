//! When a client may keep what it cached, from the attributes that replies carry.

use proto::nfs3::{Attributes, WccAttributes, WccData};

/// The replies to own WRITEs that a client takes for proof that no other client changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Only attributes from before the change that are the known ones, as for every other change.
    Pairs,
    /// Also attributes from after it that come alone, as Linux does (`fs/nfs/inode.c`,
    /// `nfs_post_op_update_inode_force_wcc_locked`).
    After,
}

/// The evidence of a reply to an own change about changes of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing else happened, or the next open will find out.
    Own,
    /// Something else happened: what is cached is dropped.
    Foreign,
}

/// The state of an object that what is cached of it belongs to.
#[derive(Debug, Default)]
pub(crate) struct Stamp {
    known: Option<WccAttributes>,
    /// How the last stamps were learnt, for a report.
    history: Vec<String>,
}

const HISTORY_MAX: usize = 12;

impl Stamp {
    /// Takes the attributes of a reply to anything but an own change; whether what is cached may
    /// be kept.
    pub(crate) fn seen(&mut self, attributes: &Attributes, how: &str) -> bool {
        let seen = WccAttributes::from(attributes);
        let same = self.known == Some(seen);
        if !same {
            self.set(seen, how);
        }
        same
    }

    /// Takes both attributes of a reply to an own change.
    pub(crate) fn changed(&mut self, wcc: &WccData, trust: Trust, how: &str) -> Change {
        // Without them the next open sees other attributes than the known ones.
        let Some(after) = &wcc.after else { return Change::Own };
        let own = match wcc.before {
            Some(before) => self.known == Some(before),
            None => trust == Trust::After && self.known.is_some(),
        };
        let same = self.known == Some(WccAttributes::from(after));
        let before = wcc.before.map_or_else(|| "nothing".to_owned(), |before| text(&before));
        let verdict = if own { "own" } else { "foreign" };
        self.set(after.into(), &format!("{how}, {verdict}, before it {before}"));
        if own || same { Change::Own } else { Change::Foreign }
    }

    fn set(&mut self, stamp: WccAttributes, how: &str) {
        if self.history.len() == HISTORY_MAX {
            self.history.remove(0);
        }
        self.history.push(format!("{} by {how}", text(&stamp)));
        self.known = Some(stamp);
    }

    /// The last stamps and where they came from, oldest first.
    pub(crate) fn history(&self) -> String {
        self.history.join("\n  ")
    }
}

fn text(stamp: &WccAttributes) -> String {
    let time = |time: proto::nfs3::Time| format!("{}.{:09}", time.seconds % 1000, time.nseconds);
    format!("({} bytes, mtime {}, ctime {})", stamp.size, time(stamp.mtime), time(stamp.ctime))
}
