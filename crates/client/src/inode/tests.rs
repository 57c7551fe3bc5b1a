//! Orders of replies, and of what threads do with them, that no server makes on demand.

use std::sync::mpsc;
use std::thread;

use proto::nfs3::{
    Procedure, RenameOk, SetattrOk, StableHow, Time, WccData, WriteOk, WriteVerifier,
};

use super::*;
use crate::MountOptions;
use crate::cache::change::Evidence;
use crate::fixture::{file_attributes, fsinfo};
use crate::trace::Tracer;

/// A file that was last changed at `seconds`.
fn changed_at(seconds: u32) -> Attributes {
    file_attributes(0, Time { seconds, nseconds: 0 })
}

/// The inode of the file as changed at 1.
fn inode(tracer: Arc<Tracer>) -> Arc<Inode> {
    inode_of(&changed_at(1), tracer)
}

fn inode_of(attributes: &Attributes, tracer: Arc<Tracer>) -> Arc<Inode> {
    let superblock = Superblock::new(MountOptions::default(), &fsinfo(), tracer);
    let handle = FileHandle::new(b"file").unwrap();
    InodeTable::new(superblock).inode(handle, attributes, Sent::now())
}

#[test]
fn an_open_for_which_a_foreign_change_is_known_finds_the_caches_dropped() {
    let tracer = Arc::new(Tracer::default());
    let inode = inode(Arc::clone(&tracer));
    assert!(inode.opened(), "the caches are valid");
    let (noticed, notices) = mpsc::channel();
    tracer.listen(move |_, _, _| {
        noticed.send(()).unwrap();
        thread::sleep(A_WHILE);
    });
    tracer.set(Event::CacheInvalidate.into());
    let by_another = Arc::clone(&inode);
    let opened = thread::spawn(move || {
        notices.recv().unwrap();
        by_another.note(Some(&changed_at(2)), by_another.sent());
        by_another.opened()
    });
    inode.note(Some(&changed_at(2)), inode.sent());
    assert!(!opened.join().unwrap(), "data from before the change is cached");
}

#[test]
fn a_lookup_sent_before_the_attributes_expired_does_not_make_them_valid() {
    let inode = inode(Arc::default());
    thread::sleep(Duration::from_millis(1));
    let sent = Sent::now();
    inode.expire();
    inode.note(Some(&changed_at(1)), sent);
    assert_eq!(inode.fresh_attributes(), None);
    inode.note(Some(&changed_at(1)), inode.sent());
    assert!(inode.fresh_attributes().is_some());
}

/// Time for another thread to overtake this one.
const A_WHILE: Duration = Duration::from_millis(200);

#[test]
fn an_earlier_state_in_a_late_reply_is_no_foreign_change() {
    let inode = inode(Arc::default());
    let sent = Sent::now();
    inode.note(Some(&changed_at(2)), inode.sent());
    assert!(!inode.opened(), "another client has changed the file");
    inode.note(Some(&changed_at(1)), sent);
    assert!(inode.opened(), "the caches are those of the later state");
}

#[test]
fn only_changes_that_can_be_foreign_outdate_what_a_call_has_found() {
    let inode = inode(Arc::default());
    let before = inode.before_call();
    let own = |from, to| {
        let wcc = WccData { before: Some((&changed_at(from)).into()), after: Some(changed_at(to)) };
        Ok(SetattrOk { wcc })
    };
    inode.begin_change().finish(&own(1, 2), Evidence::of_setattr);
    assert!(inode.is_latest(before, None));
    assert!(inode.is_latest(before, Some(&changed_at(1))));
    let change = inode.begin_change();
    inode.note(Some(&changed_at(3)), inode.sent());
    assert!(!inode.is_latest(before, None), "the reply does not show whose change it is");
    assert!(inode.is_latest(before, Some(&changed_at(3))));
    change.finish(&own(2, 3), Evidence::of_setattr);
    assert!(inode.is_latest(before, None));
    inode.note(Some(&changed_at(4)), inode.sent());
    assert!(!inode.is_latest(before, Some(&changed_at(3))), "another client has changed it");
    assert!(!inode.is_latest(before, Some(&changed_at(4))), "the call may have searched before");
    assert!(inode.is_latest(inode.before_call(), None));
}

#[test]
fn an_earlier_state_in_a_late_reply_does_not_outdate_what_a_later_call_finds() {
    let inode = inode(Arc::default());
    let late = inode.sent();
    inode.note(Some(&changed_at(2)), inode.sent());
    inode.note(Some(&changed_at(1)), late);
    assert_eq!(inode.change_stamp(), Change::from(&changed_at(2)));
    assert!(inode.is_latest(inode.before_call(), None));
}

#[test]
fn an_own_rename_after_a_refused_call_keeps_the_caches() {
    let inode = inode(Arc::default());
    let refused =
        Err::<SetattrOk, _>(Error::Nfs { procedure: Procedure::Setattr, status: Status::Perm });
    inode.begin_change().finish(&refused, Evidence::of_setattr);
    let (from_wcc, to_wcc) = (WccData::default(), WccData::default());
    inode.begin_change().finish(&Ok(RenameOk { from_wcc, to_wcc }), Evidence::of_renamed_file);
    let after = Attributes { mtime: changed_at(1).mtime, ..changed_at(2) };
    inode.note(Some(&after), inode.sent());
    assert!(inode.opened(), "the caches are valid");
}

#[test]
fn attributes_from_before_a_write_in_the_same_tick_are_not_taken_for_later_ones() {
    let before = changed_at(1);
    let after = Attributes { size: 4, ..before };
    let written = Ok(WriteOk {
        wcc: WccData { before: Some((&before).into()), after: Some(after) },
        count: 4,
        committed: StableHow::FileSync,
        verifier: WriteVerifier::default(),
    });
    for is_answered_first in [true, false] {
        let inode = inode(Arc::default());
        let write = inode.begin_write();
        // The server executes this call before the WRITE.
        let overtaking = inode.sent();
        let evidence = |written: &_| Evidence::of_write(written, inode.superblock().write_pairs());
        if is_answered_first {
            inode.note(Some(&before), overtaking);
            write.finish(&written, evidence);
        } else {
            write.finish(&written, evidence);
            inode.note(Some(&before), overtaking);
        }
        assert_eq!(inode.fresh_attributes(), Some(after));
    }
}

#[test]
fn foreign_changes_of_a_directory_are_noted_after_its_rename() {
    let dir_at = |seconds| Attributes { file_type: FileType::Directory, ..changed_at(seconds) };
    let renamed = || Ok(RenameOk { from_wcc: WccData::default(), to_wcc: WccData::default() });
    for is_changed in [false, true] {
        let dir = inode_of(&dir_at(1), Arc::default());
        dir.begin_change().finish(&renamed(), Evidence::of_renamed_file);
        if is_changed {
            // A RENAME in it, whose reply has no stamps, and one of it.
            dir.begin_change().finish(&renamed(), Evidence::of_rename_from_dir);
            dir.begin_change().finish(&renamed(), Evidence::of_renamed_file);
        }
        dir.note(Some(&dir_at(2)), dir.sent());
        assert_eq!(dir.foreign_change_at().is_none(), is_changed);
    }
}
