//! Tasks that ask for a thread of a lane, or give theirs to others.

use std::future::poll_fn;
use std::mem::replace;
use std::task::Poll;
use std::time::Instant;

use super::super::wait;
use super::noted::{Destination, note_ask};
use super::{LaneKind, MAY_WAIT, Rank, may_block_here};

/// Resolves at once on a thread that may block for as long as `purpose` takes, if only for another
/// device: a task hands over what waits for the disks of others. Elsewhere, and in a task that
/// others wait for within [`wake_here`](super::wake_here), it is pending once, so that a task of a
/// lane goes on there, until it waits for something else; any other goes on where it is.
///
/// `to` is its place in the queue, made only if it is pending.
pub(in crate::engine) async fn ask_for_lane(purpose: LaneKind, to: impl Fn() -> Destination) {
    let mut asked: Option<Instant> = None;
    poll_fn(|context| {
        if let Some(asked) = asked {
            // A task that goes on outside a lane was in no queue: it has no wait to note.
            if MAY_WAIT.get().is_some() {
                wait::note(asked.elapsed());
            }
            return Poll::Ready(());
        }
        if may_block_here(purpose) {
            return Poll::Ready(());
        }
        asked = Some(Instant::now());
        note_ask(to());
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Lets a task of a lane, which holds nothing that others wait for, go on behind the work that its
/// client has queued there. A thread that stays with the task goes on with it.
pub(in crate::engine) async fn give_way() {
    let mut has_given_way = false;
    poll_fn(|context| {
        if replace(&mut has_given_way, true) {
            return Poll::Ready(());
        }
        note_ask(Destination::own(Rank::Asker));
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
