//! Lock owners that lock through several opens of a file.

use super::*;

const LOW: LockRange = LockRange { offset: 0, length: 10 };
const HIGH: LockRange = LockRange { offset: 20, length: 10 };

impl Bed {
    /// A client that has the file open by two owners.
    fn client_with_two_opens(&mut self, owner: &[u8]) -> (ClientId, [Stateid; 2]) {
        let (client, first) = self.client_with_open(owner);
        (client, [first, self.open_by(client, b"p", ShareAccess::Both)])
    }

    fn open_by(&mut self, client: ClientId, owner: &[u8], access: ShareAccess) -> Stateid {
        let call = OpenFile { owner, access, ..open_call(client) };
        self.state.open(&call, &mut self.step).unwrap().stateid
    }

    fn grant(&mut self, client: ClientId, open: &Stateid, range: LockRange) -> LockGrant {
        let target = LockTarget::New { open, owner: b"l" };
        let (file, kind) = (FILE, LockType::Write);
        let call = Lock { client, target, file, object: object(), range, kind, is_reclaim: false };
        self.state.lock_range(&call, &mut self.step).unwrap()
    }

    fn free(&mut self, client: ClientId, stateid: &Stateid) -> Result<(), Status> {
        self.state.free_stateid(client, stateid, &mut self.step)
    }

    /// Whether the first byte of a range is locked for other clients.
    fn is_locked(&self, range: LockRange) -> bool {
        self.is_locked_for(LockKind::Read, range)
    }

    fn is_locked_for(&self, kind: LockKind, range: LockRange) -> bool {
        let range = Range::new(LockRange { length: 1, ..range }).unwrap();
        let (table, wanted) = (self.state.lock(), Piece { range, kind });
        table.files.locks(FILE).is_some_and(|locks| locks.conflict(None, wanted).is_some())
    }
}

#[test]
fn close_releases_only_what_was_locked_through_its_open() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    let of_first = bed.lock(client, &first, LockType::Write, LOW).unwrap();
    let of_second = bed.lock(client, &second, LockType::Write, HIGH).unwrap();
    assert_ne!(of_first.other, of_second.other, "a stateid for each open");
    assert_eq!((of_first.seqid, of_second.seqid), (1, 1));
    bed.taken();
    bed.close(client, &first).unwrap();
    let effects = bed.taken();
    assert!(
        matches!(effects[..], [Effect::Unlock { .. }, Effect::Unpin { .. }]),
        "the owner keeps its descriptor: {effects:?}"
    );
    assert_eq!(bed.state.test_stateid(client, &of_first), Err(Status::BadStateid));
    assert_eq!(bed.state.test_stateid(client, &of_second), Ok(()));
    assert_eq!((bed.is_locked(LOW), bed.is_locked(HIGH)), (false, true));
    bed.close(client, &second).unwrap();
    assert!(matches!(bed.taken()[..], [Effect::Release { .. }, Effect::Unpin { .. }]));
    assert!(!bed.is_locked(HIGH));
    assert_eq!(bed.state.counts().locks, 0);
}

#[test]
fn close_unlocks_all_ranges_of_its_open_by_one_effect() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    for (kind, offset) in [(LockType::Read, 0), (LockType::Write, 20), (LockType::Read, 40)] {
        bed.lock(client, &first, kind, LockRange { offset, length: 10 }).unwrap();
    }
    bed.lock(client, &second, LockType::Write, LockRange { offset: 25, length: 1 }).unwrap();
    bed.taken();
    bed.close(client, &first).unwrap();
    let effects = bed.taken();
    let [Effect::Unlock { lock, range, .. }, Effect::Unpin { .. }] = effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(range, Range { first: 0, last: 49 });
    let kept = [Range { first: 0, last: 24 }, Range { first: 26, last: 49 }];
    assert_eq!(bed.state.unheld(lock, range), kept, "the other open keeps its byte");
}

#[test]
fn a_range_belongs_to_the_open_of_its_last_lock() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    bed.lock(client, &first, LockType::Write, ALL).unwrap();
    bed.lock(client, &second, LockType::Read, LOW).expect("an owner is not in its own way");
    assert_eq!(bed.state.counts().locks, 4, "two lock states and two ranges");
    bed.close(client, &first).unwrap();
    assert_eq!((bed.is_locked(HIGH), bed.state.counts().locks), (false, 2));
    let other = bed.client(b"other");
    let open = bed.open(other, ShareAccess::Both, ShareDeny::None).stateid;
    assert!(matches!(bed.lock(other, &open, LockType::Write, LOW), Err(LockFailure::Denied(_))));
    bed.close(client, &second).unwrap();
    bed.lock(other, &open, LockType::Write, LOW).unwrap();
}

#[test]
fn locku_unlocks_what_the_owner_has_locked_through_any_open() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    let of_first = bed.lock(client, &first, LockType::Write, LOW).unwrap();
    let of_second = bed.lock(client, &second, LockType::Write, HIGH).unwrap();
    let step = &mut bed.step;
    let unlocked = bed.state.unlock_range(client, &of_first, FILE, ALL, step).unwrap();
    assert_eq!(unlocked, Stateid { seqid: 2, ..of_first });
    assert_eq!(bed.state.test_stateid(client, &of_second), Ok(()), "its seqid did not change");
    assert_eq!((bed.is_locked(LOW), bed.is_locked(HIGH)), (false, false));
    assert_eq!(bed.free(client, &unlocked), Ok(()));
    assert_eq!(bed.free(client, &of_second), Ok(()));
    assert_eq!(bed.state.counts().locks, 0);
}

#[test]
fn free_stateid_asks_for_the_ranges_of_its_own_open() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    let of_first = bed.lock(client, &first, LockType::Write, LOW).unwrap();
    let of_second = bed.lock(client, &second, LockType::Write, ALL).unwrap();
    assert_eq!(bed.free(client, &of_second), Err(Status::LocksHeld));
    assert_eq!(bed.free(client, &of_first), Ok(()), "the other open has its range now");
    assert!(bed.is_locked(LOW));
    let of_first = bed.lock(client, &first, LockType::Write, LOW).unwrap();
    assert_eq!(of_first.seqid, 1, "a new lock state");
}

#[test]
fn io_by_a_lock_stateid_has_the_access_of_its_open() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, first) = bed.client_with_open(b"c");
    let second = bed.open_by(client, b"p", ShareAccess::Read);
    let writing = bed.lock(client, &first, LockType::Write, LOW).unwrap();
    let openmode = Err(LockFailure::Status(Status::Openmode));
    assert_eq!(bed.lock(client, &second, LockType::Write, HIGH), openmode);
    let reading = bed.lock(client, &second, LockType::Read, HIGH).unwrap();
    let (read, write) = (ShareAccess::Read, ShareAccess::Write);
    assert_eq!(bed.check_io(client, &writing, write), Ok(IoState::Opened));
    assert_eq!(bed.check_io(client, &reading, write), Err(Status::Openmode));
    assert_eq!(bed.check_io(client, &reading, read), Ok(IoState::Opened));
    bed.close(client, &first).unwrap();
    assert_eq!(bed.check_io(client, &writing, read), Err(Status::BadStateid));
    assert_eq!(bed.check_io(client, &reading, read), Ok(IoState::Opened));
}

#[test]
fn a_denied_lock_ends_only_the_lock_state_that_it_made() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    let of_first = bed.lock(client, &first, LockType::Write, ALL).unwrap();
    let grant = bed.grant(client, &second, LOW);
    bed.taken();
    bed.state.undo_lock(grant, &mut bed.step);
    let effects = bed.taken();
    assert!(matches!(effects[..], [Effect::Unlock { .. }]), "{effects:?}");
    assert_eq!(bed.state.test_stateid(client, &of_first), Ok(()));
    assert_eq!(bed.state.counts().locks, 2, "a lock state and its range, whole again");
    bed.close(client, &second).unwrap();
    assert!(bed.is_locked(LOW));
    bed.close(client, &first).unwrap();
    assert!(!bed.is_locked(LOW));
}

#[test]
fn a_denied_lock_keeps_a_lock_state_that_the_kernel_is_asked_for_another_lock_through() {
    for is_granted in [true, false] {
        let mut bed = Bed::new(Limits::default(), Vec::new());
        let (client, [first, second]) = bed.client_with_two_opens(b"c");
        let of_first = bed.lock(client, &first, LockType::Write, LOW).unwrap();
        let [low, high] = [LOW, HIGH].map(|range| bed.grant(client, &second, range));
        bed.unlock(client, &of_first, ALL);
        bed.state.undo_lock(low, &mut bed.step);
        if is_granted {
            let of_second = bed.state.confirm_lock(high, &mut bed.step).unwrap();
            assert_eq!(bed.state.test_stateid(client, &of_second), Ok(()));
            assert_eq!(bed.free(client, &of_second), Ok(()), "it was unlocked meanwhile");
        } else {
            bed.state.undo_lock(high, &mut bed.step);
        }
        assert_eq!(bed.state.counts().locks, 1, "the lock state of the first open");
    }
}

/// Its client has guessed the stateid.
#[test]
fn an_open_that_was_locked_through_stays_when_its_open_call_fails_after_all() {
    for is_granted in [true, false] {
        let mut bed = Bed::new(Limits::default(), Vec::new());
        let (client, first) = bed.client_with_open(b"c");
        bed.lock(client, &first, LockType::Read, LOW).unwrap();
        let call = OpenFile { owner: b"p", access: ShareAccess::Both, ..open_call(client) };
        let failed = bed.state.open(&call, &mut bed.step).unwrap();
        let grant = bed.grant(client, &failed.stateid, LOW);
        bed.state.undo_open(client, &failed, FILE, &mut bed.step);
        if is_granted {
            bed.state.confirm_lock(grant, &mut bed.step).unwrap();
        } else {
            bed.state.undo_lock(grant, &mut bed.step);
        }
        bed.close(client, &failed.stateid).unwrap();
        assert_eq!(bed.is_locked_for(LockKind::Write, LOW), !is_granted);
        bed.close(client, &first).unwrap();
        assert_eq!(bed.state.counts().locks, 0);
    }
}

/// A lock that the kernel denies gives back what it has taken over from other opens, in the kernel
/// too.
#[test]
fn opens_of_a_lock_owner_are_not_closed_while_the_kernel_is_asked_for_its_lock() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    let unrelated = bed.open_by(client, b"q", ShareAccess::Both);
    let of_first = bed.lock(client, &first, LockType::Write, LOW).unwrap();
    let grant = bed.grant(client, &second, ALL);
    assert_eq!(bed.close(client, &first), Err(Status::Delay));
    assert_eq!(bed.close(client, &second), Err(Status::Delay));
    assert_eq!(bed.free(client, &of_first), Err(Status::Delay), "it may have its range again");
    bed.close(client, &unrelated).unwrap();
    bed.state.undo_lock(grant, &mut bed.step);
    assert_eq!(bed.free(client, &of_first), Err(Status::LocksHeld));
    bed.close(client, &second).unwrap();
    let grant = bed.grant(client, &first, ALL);
    bed.close(client, &first).expect("the owner has no lock through another open");
    assert_eq!(bed.state.confirm_lock(grant, &mut bed.step), Err(Status::BadStateid));
    assert_eq!(bed.state.counts().locks, 0);
}

#[test]
fn an_open_is_closed_while_the_kernel_is_asked_for_a_lock_that_takes_none_from_it() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    let third = bed.open_by(client, b"q", ShareAccess::Both);
    bed.lock(client, &first, LockType::Write, LOW).unwrap();
    let of_third = bed.lock(client, &third, LockType::Write, HIGH).unwrap();
    let grant = bed.grant(client, &second, HIGH);
    bed.close(client, &first).unwrap();
    assert_eq!(bed.free(client, &of_third), Err(Status::Delay), "it may have its range again");
    bed.unlock(client, &of_third, HIGH);
    assert_eq!(bed.free(client, &Stateid { seqid: 0, ..of_third }), Ok(()));
    bed.state.confirm_lock(grant, &mut bed.step).unwrap();
    bed.close(client, &second).unwrap();
    assert_eq!(bed.state.counts().locks, 0);
}

#[test]
fn a_lock_owner_counts_for_each_open_that_it_locks_through() {
    let limits = Limits { file_lock_owners_max: 2, ..Limits::default() };
    let mut bed = Bed::new(limits, Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    let third = bed.open_by(client, b"q", ShareAccess::Both);
    bed.lock(client, &first, LockType::Write, LOW).unwrap();
    bed.lock(client, &second, LockType::Write, HIGH).unwrap();
    let delay = Err(LockFailure::Status(Status::Delay));
    assert_eq!(bed.lock(client, &third, LockType::Write, LOW), delay);
    bed.lock(client, &first, LockType::Write, HIGH).expect("its lock state is there");
    bed.close(client, &second).unwrap();
    bed.lock(client, &third, LockType::Write, LOW).unwrap();
}

#[test]
fn a_client_that_is_forgotten_leaves_no_lock_state_of_any_open() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    bed.lock(client, &first, LockType::Write, ALL).unwrap();
    let grant = bed.grant(client, &second, LOW);
    bed.taken();
    bed.step.now = LEASE + Limits::default().courtesy + Duration::from_secs(1);
    bed.state.expire(&mut bed.step);
    let is_of_owner = |e: &Effect| matches!(e, Effect::Release { .. } | Effect::Unlock { .. });
    let effects: Vec<_> = bed.taken().into_iter().filter(is_of_owner).collect();
    assert!(
        matches!(effects[..], [Effect::Release { .. }]),
        "the owner has one descriptor: {effects:?}"
    );
    assert_eq!(bed.state.confirm_lock(grant, &mut bed.step), Err(Status::BadStateid));
    assert!(bed.state.is_empty());
}

#[test]
fn lock_states_of_a_retired_export_are_revoked_with_their_opens() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    let locks = [(first, LOW), (second, HIGH)]
        .map(|(open, range)| bed.lock(client, &open, LockType::Write, range).unwrap());
    bed.state.release_files(&[(FILE, EXPORT)], &mut bed.step);
    for stateid in [first, second].into_iter().chain(locks) {
        assert_eq!(bed.state.test_stateid(client, &stateid), Err(Status::AdminRevoked));
        assert_eq!(bed.free(client, &stateid), Ok(()));
    }
}

#[test]
fn requests_that_wait_are_notified_when_the_open_of_a_lock_is_closed() {
    let mut bed = Bed::new(Limits::default(), Vec::new());
    let (client, [first, second]) = bed.client_with_two_opens(b"c");
    let [low, high] = [b"low".as_slice(), b"high"].map(|owner| bed.client_with_open(owner));
    bed.lock(client, &first, LockType::Write, LOW).unwrap();
    bed.lock(client, &second, LockType::Write, HIGH).unwrap();
    let blocking = LockType::WriteBlocking;
    bed.lock(low.0, &low.1, blocking, LOW).unwrap_err();
    bed.lock(high.0, &high.1, blocking, HIGH).unwrap_err();
    bed.taken();
    bed.close(client, &first).unwrap();
    assert_eq!(bed.notified(), [low.0]);
    bed.close(client, &second).unwrap();
    assert_eq!(bed.notified(), [high.0]);
}
