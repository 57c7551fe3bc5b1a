//! A thread that stays with a connection whose client has one call in flight at a time.
//!
//! A call that may wait for the disk is handed from the network thread to a thread of a lane. With
//! one in flight, two threads are woken for each then, which takes longer than a small WRITE or a
//! part of a listing. So after a few calls in a row, all for one device, a thread of its lanes
//! takes the socket over: it receives the next call, by [polling](crate::busy_poll) if it comes
//! soon, performs it and answers it. A call that is not for its lane ends the stay, and so do a
//! refused one and a client that does not wait for its answer.
//!
//! The network thread never waits for a disk, and no call waits for one that does. While the stay
//! waits for its thread, and while that is at work on a call, the receiver lies in
//! [`Stay::reading`], from where the network thread takes it back when that takes long.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use io::{Device, LaneKind, Share};
use rpc::server::{Receiver, SocketReader, Transport};
use tokio::sync::oneshot;

use super::{Accepted, Intake, Next, Transfer};
use crate::busy_poll::Waits;
use crate::counters::Counter;
use crate::moment::Moment;
use crate::procedures::Thread;
use crate::stay_permits::Purpose;

/// Calls in a row, each alone, after which a thread stays.
const STREAK_MIN: u32 = 4;
/// Calls in a row before a stay if the last one gained nothing.
const STREAK_AFTER_FAILURE: u32 = 64;
/// Two calls are of one streak if no more time than this is between them; for so long a thread
/// waits for the next one.
const GAP_MAX: Duration = Duration::from_millis(1);
/// Longer READs and WRITEs have more to gain from several threads than from one that stays.
const DATA_BYTES_MAX: u64 = 256 * 1024;
/// After so many calls of a light stay it is asked anew whether it pays.
const SAMPLE_CALLS: u64 = 64;
/// Parts that a call may come in while a thread waits for it.
const PARTS_MAX: usize = 256;
/// [`Stay::check_interval`].
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Calls of a connection that came in a row, each when the one before it was answered, and each for
/// the same device.
#[derive(Default)]
pub(super) struct Streak {
    /// The purpose of a thread that can perform each of them.
    purpose: Option<Purpose>,
    device: Option<Device>,
    len: u32,
    /// Calls more than [`STREAK_MIN`] that it takes.
    handicap: u32,
    last: Option<Moment>,
    /// The calls of the server before it.
    all_before: u64,
}

impl Streak {
    /// Notes a call. What a thread should stay with the connection for, from this call on.
    pub(super) fn worth_a_stay(&mut self, intake: &Intake, call: &Accepted) -> Option<Purpose> {
        let purpose = purpose(call);
        let goes_on = self.device.as_ref() == Some(call.share.device())
            && self.last.is_some_and(|last| call.received.since(last) <= GAP_MAX);
        (self.len, self.purpose) = match (self.purpose.filter(|_| goes_on), purpose) {
            (Some(former), Some(purpose)) => (self.len + 1, Some(former.and(purpose))),
            _ => (0, purpose),
        };
        if self.len == 0 {
            self.device = purpose.map(|_| call.share.device().clone());
            self.all_before = purpose.map_or(0, |_| intake.all_calls());
        }
        self.last = Some(call.received);
        let purpose = self.purpose.filter(|_| self.len >= STREAK_MIN + self.handicap)?;
        let all = intake.all_calls() - self.all_before;
        if purpose.is_light && !intake.service.stays.light_one_pays(self.len.into(), all) {
            self.end(true);
            return None;
        }
        intake.has_read_all().then_some(purpose)
    }

    /// A stay is over. If it has not paid, the next one takes a longer streak.
    pub(super) fn end(&mut self, has_failed: bool) {
        self.purpose = None;
        self.handicap = if has_failed { STREAK_AFTER_FAILURE } else { 0 };
    }
}

/// The purpose of a stay if all calls were as this one; `None` if no thread would stay.
fn purpose(call: &Accepted) -> Option<Purpose> {
    let lane = match (call.thread, call.transfer) {
        _ if !call.is_alone => return None,
        (_, Transfer::Read(bytes) | Transfer::Write(bytes)) if bytes > DATA_BYTES_MAX => {
            return None;
        }
        (Thread::NetworkThenData, Transfer::Read(_) | Transfer::Write(_)) => LaneKind::Data,
        (Thread::NetworkThenMetadata | Thread::Metadata, _) => LaneKind::Metadata,
        _ => return None,
    };
    Some(Purpose { lane, is_light: call.is_light() })
}

impl Purpose {
    /// The purpose that covers both.
    fn and(self, other: Self) -> Self {
        Self { lane: self.lane.max(other.lane), is_light: self.is_light && other.is_light }
    }
}

/// Where a call is counted that a staying thread performs.
fn counter(call: &Accepted) -> Counter {
    match call.transfer {
        Transfer::Read(_) => Counter::ReadsByStayingThread,
        Transfer::Write(_) => Counter::WritesByStayingThread,
        Transfer::None => Counter::MetadataCallsByStayingThread,
    }
}

impl Intake {
    /// The calls of the server so far.
    fn all_calls(&self) -> u64 {
        self.service.counters.general().value(Counter::Calls)
    }

    /// Whether the socket has nothing more to read.
    fn has_read_all(&self) -> bool {
        self.socket.unread_bytes().is_ok_and(|bytes| bytes == 0)
    }
}

/// How a stay has ended.
pub(super) enum Stayed {
    /// There is no thread for it.
    Refused(Receiver<SocketReader>, Accepted),
    /// The network thread goes on with the next call, unless the connection is over. `has_failed`:
    /// a call took long, or to stay did not pay.
    Ended { received: Received, has_failed: bool },
}

/// The receiver, on its way to the next record.
type Reading = Pin<Box<dyn Future<Output = Received> + Send>>;
pub(super) type Received = (Receiver<SocketReader>, Next);

/// The receiver, as the staying thread hands it back.
enum End {
    /// The record is not for it, or the connection is over.
    Received(Box<Received>),
    /// The next call has not come yet. `has_failed`: a call took long, or to stay did not pay.
    Reading { reading: Reading, has_failed: bool },
}

/// The last calls of a stay.
struct Sample {
    own: u64,
    /// The calls of the server before them.
    all_before: u64,
}

impl Sample {
    fn new(intake: &Intake) -> Self {
        Self { own: 0, all_before: intake.all_calls() }
    }
}

struct Stay {
    intake: Arc<Intake>,
    purpose: Purpose,
    /// The client's, of the device of its thread.
    share: Share,
    /// The interval at which the network thread checks the staying thread for progress.
    check_interval: Duration,
    /// The receiver until the thread begins, and while it performs a call.
    reading: Mutex<Option<Reading>>,
    /// Calls begun.
    begun: AtomicU64,
    /// The network thread does not wait any more.
    is_over: AtomicBool,
}

/// Ends the stay when the network thread gives the connection up.
struct EndsStay<'a>(&'a Stay);

impl Drop for EndsStay<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

/// Has a thread stay with the connection from `call` on, and waits until it hands it back. `None`
/// if the connection cannot go on.
pub(super) async fn stay(
    intake: &Arc<Intake>,
    purpose: Purpose,
    receiver: Receiver<SocketReader>,
    call: Accepted,
) -> Option<Stayed> {
    Stay::new(intake, purpose, call.share.clone()).run(receiver, call).await
}

impl Stay {
    fn new(intake: &Arc<Intake>, purpose: Purpose, share: Share) -> Self {
        Self {
            intake: Arc::clone(intake),
            purpose,
            share,
            check_interval: CHECK_INTERVAL,
            reading: Mutex::new(None),
            begun: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// As [`stay`].
    async fn run(self, receiver: Receiver<SocketReader>, call: Accepted) -> Option<Stayed> {
        let (client, permits) = (self.intake.activity.client(), &self.intake.service.stays);
        let Some(permit) = permits.of(self.purpose).try_acquire(client) else {
            return Some(Stayed::Refused(receiver, call));
        };
        let stay = Arc::new(self);
        let intake = &stay.intake;
        let (hand_back, handed_back) = oneshot::channel();
        let (give, given) = mpsc::sync_channel(1);
        let staying = Arc::clone(&stay);
        let job = move || {
            if let Ok(call) = given.recv() {
                staying.serve(call, hand_back);
            }
        };
        if !stay.share.leave_to(stay.purpose.lane, job) {
            return Some(Stayed::Refused(receiver, call));
        }
        intake.socket.stop_watching();
        let _ends = EndsStay(&stay);
        stay.lay_down(receiver);
        give.send(call).ok()?;
        let end = stay.end(handed_back).await?;
        // A thread that has lost the receiver ends the call as any other does.
        drop(permit);
        if let Err(error) = intake.socket.watch() {
            let client = intake.peer.address;
            let why = "cannot register its socket with epoll";
            tracing::warn!(%client, %error, "connection closed: {why}");
            return None;
        }
        Some(match end {
            End::Received(received) => Stayed::Ended { received: *received, has_failed: false },
            End::Reading { reading, has_failed } => {
                Stayed::Ended { received: reading.await, has_failed }
            }
        })
    }

    /// Waits for the end of the stay, or takes the receiver away from a thread that has not begun,
    /// or is at work on a call, for long. `None` if that thread has panicked.
    async fn end(&self, mut handed_back: oneshot::Receiver<End>) -> Option<End> {
        let mut seen = 0;
        loop {
            tokio::select! {
                end = &mut handed_back => return end.ok(),
                () = tokio::time::sleep(self.check_interval) => {}
            }
            let begun = self.begun.load(Ordering::Relaxed);
            if std::mem::replace(&mut seen, begun) == begun
                && let Some(reading) = self.take_reading()
            {
                return Some(End::Reading { reading, has_failed: true });
            }
        }
    }

    /// Leaves the receiver to the network thread or the staying thread, whichever takes it first.
    fn lay_down(&self, mut receiver: Receiver<SocketReader>) {
        let intake = Arc::clone(&self.intake);
        let reading: Reading = Box::pin(async move {
            let next = intake.next(&mut receiver, None).await;
            (receiver, next)
        });
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
    }

    fn take_reading(&self) -> Option<Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Performs calls on this thread, `call` first.
    fn serve(self: Arc<Self>, mut call: Accepted, hand_back: oneshot::Sender<End>) {
        let (lane, counters) = (self.purpose.lane, &self.intake.service.counters);
        let kept = || self.intake.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waits = std::mem::take(&mut *kept()).of_next_stay();
        let mut sample = Sample::new(&self.intake);
        loop {
            counters.add(counter(&call), 1);
            self.begun.fetch_add(1, Ordering::Relaxed);
            let has_ended = self.share.run_here(lane, call.work, GAP_MAX);
            self.intake.replies.flush();
            // The network thread has taken it.
            let Some(reading) = self.take_reading() else { return };
            let end = if !has_ended || !self.pays(&mut sample) {
                End::Reading { reading, has_failed: true }
            } else if self.intake.dues.are_set() || self.share.wants_thread(lane) || self.is_owed()
            {
                End::Reading { reading, has_failed: false }
            } else {
                match self.receive(reading, &mut waits) {
                    Err(reading) => End::Reading { reading, has_failed: false },
                    Ok((receiver, Next::Call(next))) if self.goes_on_with(&next) => {
                        self.lay_down(receiver);
                        call = next;
                        continue;
                    }
                    Ok(received) => End::Received(Box::new(received)),
                }
            };
            *kept() = waits;
            // No task waits for it if the connection was given up.
            drop(hand_back.send(end));
            return;
        }
    }

    /// Whether it pays as far as is known, by the sample after the call that was performed.
    fn pays(&self, sample: &mut Sample) -> bool {
        sample.own += 1;
        if !self.purpose.is_light || sample.own < SAMPLE_CALLS {
            return true;
        }
        let Sample { own, all_before } = std::mem::replace(sample, Sample::new(&self.intake));
        self.intake.service.stays.light_one_pays(own, sample.all_before - all_before)
    }

    /// Whether another client is to have this stay.
    fn is_owed(&self) -> bool {
        self.intake.service.stays.of(self.purpose).is_owed_by(self.intake.activity.client())
    }

    fn goes_on_with(&self, next: &Accepted) -> bool {
        purpose(next).is_some_and(|purpose| purpose.lane <= self.purpose.lane)
            && next.share.device() == self.share.device()
            && self.intake.has_read_all()
    }

    /// Waits for the next call, but not long.
    fn receive(&self, mut reading: Reading, waits: &mut Waits) -> Result<Received, Reading> {
        let Intake { service, socket, .. } = &*self.intake;
        let mut context = Context::from_waker(Waker::noop());
        let began = Instant::now();
        service.busy_polls.poll(waits, || socket.wait_readable(Duration::ZERO));
        // Bounded, because it may wait for something else than bytes: for memory.
        for _ in 0..PARTS_MAX {
            let left = GAP_MAX.saturating_sub(began.elapsed());
            let is_over = self.is_over.load(Ordering::Acquire);
            if is_over || left.is_zero() || !socket.wait_readable(left) {
                break;
            }
            if let Poll::Ready(received) = reading.as_mut().poll(&mut context) {
                return Ok(received);
            }
        }
        Err(reading)
    }
}

#[cfg(test)]
mod tests;
