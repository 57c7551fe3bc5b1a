//! Changes at the gate of an object that clients may have delegated.

use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use io::KernelHandle;

use super::Inode;
use super::delegation_gate::{Changing, Creations, Holder, Holders};
use super::state::{InodeState, InodeStates};
use crate::fs::{Status, attributes_of_linked_or_not};

/// A change of an object's names at work, or an object that its maker is still to open. No client
/// gets a delegation of it meanwhile.
pub(crate) struct NameChange {
    of: Counted,
}

enum Counted {
    One(Arc<InodeState>),
    Any(Arc<InodeStates>),
}

impl NameChange {
    fn of_any(states: &Arc<InodeStates>) -> Self {
        states.gates.name_changes.fetch_add(1, Ordering::SeqCst);
        Self { of: Counted::Any(Arc::clone(states)) }
    }

    fn of_one(state: Arc<InodeState>) -> Self {
        state.gate.name_changes.fetch_add(1, Ordering::SeqCst);
        Self { of: Counted::One(state) }
    }
}

/// A creation of a file at work.
struct Creation<'a> {
    creations: &'a Creations,
    number: u64,
}

impl<'a> Creation<'a> {
    /// Begins one in this directory.
    fn begin(directory: &'a InodeState) -> Self {
        let creations = &directory.states.gates.creations;
        Self { creations, number: creations.begin(directory.file_system_address()) }
    }
}

impl Drop for Creation<'_> {
    fn drop(&mut self) {
        self.creations.end(self.number);
    }
}

impl Drop for NameChange {
    fn drop(&mut self) {
        let counter = match &self.of {
            Counted::One(state) => &state.gate.name_changes,
            Counted::Any(states) => &states.gates.name_changes,
        };
        counter.fetch_sub(1, Ordering::SeqCst);
    }
}

impl InodeState {
    /// Sets who has the object delegated. One caller at a time.
    pub(crate) fn set_holders(&self, holders: Holders) {
        let delegated = &self.states.gates.delegated;
        // Counted before it shows, and as long as it does.
        if holders != Holders::None {
            delegated.fetch_add(1, Ordering::SeqCst);
        }
        if self.gate.set(holders) {
            delegated.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether names of the object may be changing, by a call that has not seen its holders. So may
    /// those of one that was first seen while a file is made: it may be that file.
    pub(crate) fn has_name_changes(&self) -> bool {
        let is_changing = |changes: &AtomicUsize| changes.load(Ordering::SeqCst) > 0;
        let gates = &self.states.gates;
        // The object's own last: what begins as a creation, or a change of any object, goes on as
        // one of its own.
        gates.creations.may_make(self.file_system_address(), self.creations_begun)
            || is_changing(&gates.name_changes)
            || is_changing(&self.gate.name_changes)
    }

    /// Checks whether a call may change the object now. Otherwise its delegations are recalled.
    ///
    /// # Errors
    /// `Delegated`.
    fn may_change(&self, by: Option<Holder>, what: Changing) -> Result<(), Status> {
        if self.gate.admits(by, what) {
            return Ok(());
        }
        self.states.gates.requests.add(ptr::from_ref(self).addr(), false);
        Err(Status::Delegated)
    }

    /// Makes a regular file in this directory, of which no client gets a delegation before what
    /// this returns is dropped: one would put off the OPEN that has made the file, and the file
    /// would be in the way of its retry. `handle` is that of the file, if one was made.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn make_undelegated<T, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
        handle: impl FnOnce(&T) -> Option<KernelHandle>,
    ) -> Result<(T, Option<NameChange>), E> {
        let _creation = Creation::begin(self);
        let made = make()?;
        let undelegated = handle(&made).map(|handle| NameChange::of_one(self.of_file(handle)));
        Ok((made, undelegated))
    }

    /// Begins a change of the object's names. One that would wait for others is checked before:
    /// they have nothing to return for a call that is refused.
    ///
    /// # Errors
    /// Those of `check`; as [`Self::may_change`].
    fn begin_name_change(
        self: &Arc<Self>,
        by: Option<Holder>,
        check: impl FnOnce() -> Result<(), Status>,
    ) -> Result<NameChange, Status> {
        let change = NameChange::of_one(Arc::clone(self));
        // Admitted or checked, by one look at the gate: none recalls unchecked.
        if !self.gate.admits(by, Changing::Attributes) {
            check()?;
            self.may_change(by, Changing::Attributes)?;
        }
        Ok(change)
    }
}

impl Inode {
    /// Checks whether a call, of this client of version 4 if it is one, may change the object now.
    /// Otherwise its delegations are recalled.
    ///
    /// # Errors
    /// `Delegated`.
    pub(crate) fn may_change(
        &self,
        client: Option<NonZeroU64>,
        what: Changing,
    ) -> Result<(), Status> {
        self.state.may_change(self.holder(client), what)
    }

    /// Whether a call, as for [`Self::may_change`], may change the object now. Nothing is recalled.
    pub(crate) fn admits(&self, client: Option<NonZeroU64>, what: Changing) -> bool {
        self.state.gate.admits(self.holder(client), what)
    }

    fn holder(&self, client: Option<NonZeroU64>) -> Option<Holder> {
        client.map(|client| Holder { client, export: self.root_address() })
    }

    /// Begins a change of the names of an object in this directory, known by a descriptor. Looked
    /// at more closely only while some object is delegated; `check` refuses a call that would be
    /// refused once the delegations are returned.
    ///
    /// # Errors
    /// `Delegated`; those of `check`, and of identifying the object.
    pub(crate) fn begin_name_change_in(
        &self,
        object: &impl AsFd,
        client: Option<NonZeroU64>,
        check: impl FnOnce() -> Result<(), Status>,
    ) -> Result<NameChange, Status> {
        let any = NameChange::of_any(&self.state.states);
        if self.state.states.gates.delegated.load(Ordering::SeqCst) == 0 {
            return Ok(any);
        }
        let handle = self.root.identify(object.as_fd())?;
        let state = match self.state.other(&handle) {
            Some(state) => state,
            // Only regular files are delegated, and the others are not held off any longer.
            None if attributes_of_linked_or_not(object)?.is_regular() => self.state.of_file(handle),
            None => return Ok(any),
        };
        state.begin_name_change(self.holder(client), check)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rustix::fs::FileType;

    use super::*;
    use crate::export::FileSystems;

    fn state() -> Arc<InodeState> {
        let (states, systems) = (InodeStates::new(), FileSystems::default());
        let handle = KernelHandle::from_parts(1, &[1; 8]).unwrap();
        states.state(&systems.on((8, 1)).unwrap(), handle, FileType::RegularFile)
    }

    fn client(number: u64, export: u64) -> Option<Holder> {
        Some(Holder { client: NonZeroU64::new(number)?, export })
    }

    #[tokio::test]
    async fn others_wait_for_holders_and_a_holder_for_its_own_writing() {
        use Changing::{Attributes, Data, Nothing};
        let state = state();
        let one = Holders::One(client(7, 1).unwrap());
        for (holders, by, what, may) in [
            (Holders::None, None, Data, true),
            (one, None, Nothing, true),
            (one, None, Attributes, false),
            (one, client(8, 1), Attributes, false),
            (one, client(7, 1), Attributes, true),
            (one, client(7, 2), Attributes, false),
            (one, client(7, 1), Data, false),
            (Holders::Several, client(7, 1), Attributes, false),
            (Holders::None, client(7, 1), Data, true),
        ] {
            state.set_holders(holders);
            let result = state.may_change(by, what);
            assert_eq!(result.is_ok(), may, "{holders:?} {by:?} {what:?}");
            if !may {
                let requests = state.states.gates.requests.next().await;
                let address = Arc::as_ptr(&state).addr();
                assert_eq!(requests, BTreeMap::from([(address, false)]));
            }
        }
        assert_eq!(state.states.gates.delegated.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_file_is_not_delegated_between_its_creation_and_its_first_open() {
        let directory = state();
        let [made, other] = [2, 3].map(|seed| KernelHandle::from_parts(1, &[seed; 8]).unwrap());
        let is_held_off = |handle| directory.of_file(handle).has_name_changes();
        let make = || {
            assert!(is_held_off(made), "its name may show");
            Ok::<_, ()>(made)
        };
        let (_, undelegated) = directory.make_undelegated(make, |made| Some(*made)).unwrap();
        assert!(is_held_off(made) && !is_held_off(other));
        drop(undelegated);
        assert!(!is_held_off(made));
        assert!(directory.make_undelegated(|| Err::<(), _>(()), |()| None).is_err());
        assert!(!is_held_off(made));
    }

    #[test]
    fn a_file_is_held_off_whenever_it_is_seen_while_it_is_made() {
        let steps = 5;
        for (seen_after, checked_after) in
            (2..=steps).flat_map(|seen| (seen..=steps).map(move |checked| (seen, checked)))
        {
            let directory = state();
            let made = KernelHandle::from_parts(1, &[2; 8]).unwrap();
            let (mut creation, mut undelegated, mut seen) = (None, None, None);
            for step in 1..=steps {
                match step {
                    1 => creation = Some(Creation::begin(&directory)),
                    // The name shows.
                    2 => {}
                    3 => undelegated = Some(NameChange::of_one(directory.of_file(made))),
                    4 => creation = None,
                    // The OPEN that has made it is done.
                    _ => undelegated = None,
                }
                if step == seen_after {
                    seen = Some(directory.of_file(made));
                }
                if step == checked_after {
                    let is_held_off = seen.as_ref().is_some_and(|seen| seen.has_name_changes());
                    assert_eq!(is_held_off, step < steps, "seen after {seen_after}");
                }
            }
            assert!(creation.is_none() && undelegated.is_none());
        }
    }

    #[test]
    fn a_creation_holds_off_no_file_that_was_known_before_or_is_elsewhere() {
        let directory = state();
        let elsewhere = FileSystems::default().on((8, 2)).unwrap();
        let [before, between] = [3, 4].map(|seed| KernelHandle::from_parts(1, &[seed; 8]).unwrap());
        let begin = || Creation::begin(&directory);
        let known_before = directory.of_file(before);
        let first = begin();
        let known_between = directory.of_file(between);
        let second = begin();
        assert!(!known_before.has_name_changes());
        assert!(known_between.has_name_changes(), "the first may make it");
        let other = directory.states.state(&elsewhere, between, FileType::RegularFile);
        assert!(!other.has_name_changes());
        drop(first);
        assert!(!known_between.has_name_changes());
        drop(second);
    }

    #[test]
    fn name_changes_are_seen_until_they_end() {
        let state = state();
        assert!(!state.has_name_changes());
        let known = state.begin_name_change(None, || Ok(())).unwrap();
        assert!(state.has_name_changes());
        drop(known);
        let any = NameChange::of_any(&state.states);
        assert!(state.has_name_changes(), "it may be this object");
        drop(any);
        assert!(!state.has_name_changes());
        state.set_holders(Holders::Several);
        assert!(state.begin_name_change(None, || Ok(())).is_err() && !state.has_name_changes());
        let refused = state.begin_name_change(None, || Err(Status::Access)).map(drop);
        assert_eq!(refused, Err(Status::Access));
    }
}
