//! The steps of a random sequence.

use proptest::prelude::*;
use proto::nfs4::{LockType, ShareAccess};

use super::{BYTES, NAMES, USERS};

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Open(ShareAccess),
    Close,
    Read,
    Write,
    Cut,
    Lock(LockType),
    TestLock(LockType),
    Unlock,
    Remove,
    Rename,
    Link,
    SetXattr,
    GetXattr,
    RemoveXattr,
    ListXattrs,
    Allocate,
    Deallocate,
    Seek,
    Copy,
    TestStateid,
    FreeStateid,
    Downgrade,
    /// The client begins anew.
    Boot,
    /// Another session of the client, and its end.
    AnotherSession,
    Rebind,
    /// The client uses what belongs to the next one.
    Intrude,
}

/// An action of a client on a name or the file behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) actor: usize,
    pub(super) name: usize,
    pub(super) kind: Kind,
    pub(super) at: usize,
    pub(super) len: usize,
}

pub(super) fn any_step() -> impl Strategy<Value = Step> {
    use Kind::*;
    let open = prop::sample::select(ShareAccess::ALL).prop_map(Open);
    let lock = prop::sample::select(&[LockType::Read, LockType::Write][..]);
    let other = prop::sample::select(
        &[
            Close,
            Read,
            Read,
            Write,
            Write,
            Write,
            Cut,
            Unlock,
            Unlock,
            Remove,
            Rename,
            Link,
            SetXattr,
            GetXattr,
            RemoveXattr,
            ListXattrs,
            Allocate,
            Deallocate,
            Seek,
            Copy,
            TestStateid,
            FreeStateid,
            Downgrade,
            Boot,
            AnotherSession,
            Rebind,
            Intrude,
        ][..],
    );
    let kind = prop_oneof![
        6 => open,
        5 => lock.clone().prop_map(Lock),
        1 => lock.prop_map(TestLock),
        14 => other,
    ];
    (0..USERS.len(), 0..NAMES.len(), kind, 0..BYTES, 1..BYTES)
        .prop_map(|(actor, name, kind, at, len)| Step { actor, name, kind, at, len })
}
