use proptest::prelude::*;

use super::super::replies::ReplyBudget;
use super::super::tests::config;
use super::*;

const SLOTS: u32 = 4;

/// The model of a slot: all calls that began in it, as digests, and the state of the last.
#[derive(Clone, Debug, Default)]
struct Model {
    calls: Vec<u64>,
    busy_on: Option<ConnectionId>,
    reply: Option<Arc<[u8]>>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// A call: slot, distance of its number from the last, digest, connection, highest slot.
    Begin(u32, u32, u64, u64, u32),
    /// The end of the call in a slot, kept or not.
    Complete(u32, bool),
    ForgetBehind(u32),
}

fn any_action() -> impl Strategy<Value = Action> {
    let distance = prop_oneof![4 => Just(1), 3 => Just(0), 1 => Just(2), 1 => Just(u32::MAX)];
    prop_oneof![
        6 => (0..SLOTS + 1, distance, 0..2u64, 0..2u64, 0..SLOTS + 1)
            .prop_map(|(slot, far, digest, on, high)| Action::Begin(slot, far, digest, on, high)),
        4 => (0..SLOTS, any::<bool>()).prop_map(|(slot, kept)| Action::Complete(slot, kept)),
        1 => (0..SLOTS).prop_map(Action::ForgetBehind),
    ]
}

fn expected(
    model: &[Model],
    (slot, far, digest, on, high): (u32, u32, u64, u64, u32),
) -> Result<Decision, Status> {
    let Some(model) = model.get(slot as usize) else { return Err(Status::Badslot) };
    if high >= SLOTS {
        return Err(Status::BadHighSlot);
    }
    match far {
        1 if model.busy_on.is_none() => Ok(Decision::Run),
        0 if model.calls.is_empty() => Err(Status::SeqMisordered),
        0 if model.calls.last() != Some(&digest) => Err(Status::SeqFalseRetry),
        0 => match (model.busy_on, &model.reply) {
            (Some(first), _) if first == ConnectionId(on) => Ok(Decision::Duplicate),
            (Some(_), _) => Err(Status::Delay),
            (None, Some(reply)) => Ok(Decision::Replay(Arc::clone(reply))),
            (None, None) => Err(Status::RetryUncachedRep),
        },
        _ => Err(Status::SeqMisordered),
    }
}

fn check(actions: Vec<Action>, start: u32) -> Result<(), TestCaseError> {
    let budget = Arc::new(ReplyBudget::new(usize::MAX, 1));
    let mut slots = Slots::new(SLOTS);
    let mut model = vec![Model::default(); SLOTS as usize];
    // Numbers wrap to zero, so the table begins shortly before.
    slots.slot(SLOTS as usize - 1);
    slots.slots.iter_mut().for_each(|slot| slot.sequence = SequenceId(start));
    for action in actions {
        match action {
            Action::Begin(slot, far, digest, on, high) => {
                let last = model.get(slot as usize).map_or(0, |slot| slot.calls.len());
                let number = start.wrapping_add(u32::try_from(last).unwrap()).wrapping_add(far);
                let call = Sequence {
                    slot: SlotId(slot),
                    sequence: SequenceId(number),
                    highest_slot: SlotId(high),
                    cache_this: true,
                };
                let before = format!("{slots:?}");
                let step = slots.begin(&call, digest, ConnectionId(on), || budget.take(1));
                prop_assert_eq!(&step, &expected(&model, (slot, far, digest, on, high)));
                if step == Ok(Decision::Run) {
                    let slot = &mut model[slot as usize];
                    slot.calls.push(digest);
                    slot.busy_on = Some(ConnectionId(on));
                } else {
                    prop_assert_eq!(before, format!("{:?}", slots), "the table is unchanged");
                }
            }
            Action::Complete(slot, is_kept) => {
                let known = &mut model[slot as usize];
                if known.busy_on.take().is_some() {
                    let body = format!("{slot} {}", known.calls.len()).into_bytes();
                    known.reply = is_kept.then(|| body.into());
                    slots.complete(SlotId(slot), known.reply.clone());
                }
            }
            Action::ForgetBehind(slot) => {
                model.iter_mut().skip(slot as usize + 1).for_each(|slot| slot.reply = None);
                slots.forget_replies_behind(SlotId(slot));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn each_call_runs_at_most_once(
        actions in prop::collection::vec(any_action(), 1..200),
        start in prop_oneof![Just(0), Just(u32::MAX - 2)],
    ) {
        check(actions, start)?;
    }
}

#[test]
fn the_first_number_of_a_slot_is_one() {
    let mut slots = Slots::new(1);
    let mut begin = |number| {
        let (slot, sequence) = (SlotId(0), SequenceId(number));
        let call = Sequence { slot, sequence, highest_slot: slot, cache_this: false };
        slots.begin(&call, 7, ConnectionId(1), || None)
    };
    assert_eq!(begin(0), Err(Status::SeqMisordered));
    assert_eq!(begin(2), Err(Status::SeqMisordered));
    assert_eq!(begin(1), Ok(Decision::Run));
}
