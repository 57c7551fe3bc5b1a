//! A batch of WRITEs that waited for one file: those that are adjacent become one write.

use std::collections::VecDeque;
use std::sync::Arc;

use io::{Clients, Lengths};
use tokio::sync::oneshot;

use super::write_data::{PermittedWrite, WriteTarget, Written, unperformed};
use super::write_vectors::{shares, vectors};
use super::{Status, Vfs, Wcc};
use crate::counters::{CallKind, Counter, PhaseTimer};
use crate::inode_cache::{BatchDuty, Change, Inode, WaitingWrite, Woken, WriteRequest, WriteTurn};

/// The outcomes of the WRITEs of a turn.
struct Outcomes {
    /// By their places. A WRITE has those of one that was refused until it is performed.
    turns: Vec<WriteTurn>,
    /// The places of those that were performed, whatever their results, in the order in which they
    /// took effect, and where what they wrote ends.
    performed: Vec<(usize, u64)>,
}

impl Vfs {
    /// Has a WRITE performed together with others that wait for the file.
    ///
    /// # Errors
    /// `ServerFault` if the task that performs the batch has panicked.
    pub(super) async fn write_in_batch(
        &self,
        file: &Arc<Inode>,
        request: Box<WriteRequest>,
    ) -> Result<WriteTurn, Status> {
        let writes = file.writes().expect("what may be written to is a regular file");
        let (write, mut woken) = WaitingWrite::new(request);
        let mut duty = writes.join(write, &file.lock);
        loop {
            if let Some(duty) = duty {
                // On the heap: a WRITE that finds its file free does not need the room.
                Box::pin(self.perform_batch(file, duty)).await;
            }
            match woken.await.map_err(|_| Status::ServerFault)? {
                Woken::Turn(turn) => return Ok(turn),
                Woken::Duty(again, next) => (duty, woken) = (Some(next), again),
            }
        }
    }

    /// Performs the batch that has waited longest, and gives its WRITEs their outcomes. Those that
    /// need no flush have only a reply to send, which is done on this thread.
    async fn perform_batch(&self, file: &Arc<Inode>, mut duty: BatchDuty) {
        let guard = duty.lock().await;
        let (waiting, next) = duty.take(&file.lock);
        count_batch(file, &waiting);
        let end = waiting.iter().map(|write| write.request.end()).max().unwrap_or(0);
        let waiting = waiting.into_iter().enumerate();
        let (requests, waiters): (Vec<_>, Vec<_>) =
            waiting.map(|(place, write)| ((place, write.request), write.task)).unzip();
        let turns = match self.begin_exclusive(file, guard, Lengths::up_to(end)).await {
            Ok(change) => self.perform_requests(file, change, requests).await,
            Err(status) => requests.iter().map(|_| WriteTurn::refused(status)).collect(),
        };
        // The task that goes on with those that were left is woken before calls are answered here:
        // where one of them waits for a flush, another thread takes it.
        drop(next);
        let turns = waiters.into_iter().zip(turns);
        let (stable, unstable): (Vec<_>, Vec<_>) =
            turns.partition(|(_, turn)| turn.flush.is_some());
        // A call that was given up has no receiver.
        let send = |(waiter, turn): (oneshot::Sender<_>, _)| drop(waiter.send(Woken::Turn(turn)));
        self.engine.wake_here(|| unstable.into_iter().for_each(send));
        stable.into_iter().for_each(send);
    }

    /// Performs WRITEs of a file, which come with their places, within one change, which it ends.
    /// Returns their outcomes, in their order.
    ///
    /// Each is permitted by itself. The attributes of those that are performed form a chain of
    /// pairs, in the order in which they took effect; the others have those from before the change.
    async fn perform_requests(
        &self,
        file: &Arc<Inode>,
        change: Change,
        mut requests: Vec<(usize, Box<WriteRequest>)>,
    ) -> Vec<WriteTurn> {
        if requests.len() == 1 {
            let (_, request) = requests.remove(0);
            return vec![self.take_turn(file, change, request).await];
        }
        self.engine.move_to_data_thread().await;
        let timer = self.timer(file.root(), CallKind::Write);
        let strongest = requests.iter().filter_map(|(_, request)| request.flush).max();
        let flushes = requests.iter().map(|(_, request)| request.flush.and(strongest));
        let mut turns: Vec<_> = flushes.map(|flush| unperformed(file, &change, flush)).collect();
        let permitted = self.permit_writes(file, &change, requests, &mut turns, timer).await;
        let (target, writes) = permitted;
        match target {
            Some(target) => self.perform_permitted(target, change, writes, turns).await,
            None => turns,
        }
    }

    /// Permits each WRITE to its own caller, by the attributes at the beginning of the change.
    async fn permit_writes(
        &self,
        file: &Arc<Inode>,
        change: &Change,
        requests: Vec<(usize, Box<WriteRequest>)>,
        turns: &mut [WriteTurn],
        mut timer: PhaseTimer<'_>,
    ) -> (Option<WriteTarget>, Vec<PermittedWrite>) {
        let before = *change.before();
        let (mut target, mut writes) = (None, Vec::with_capacity(requests.len()));
        for (place, request) in requests {
            match self.may_write(file, &before, &request, &mut timer).await {
                Ok((permitted, range)) => {
                    target = Some(permitted);
                    writes.push(PermittedWrite::new(place, range, request));
                }
                Err(status) => turns[place].result = Err(status),
            }
        }
        (target, writes)
    }

    /// Performs WRITEs that are permitted, those that are adjacent together, within one change,
    /// which it ends. `turns` are the outcomes of those that are not performed, by their places.
    async fn perform_permitted(
        &self,
        target: WriteTarget,
        change: Change,
        writes: Vec<PermittedWrite>,
        turns: Vec<WriteTurn>,
    ) -> Vec<WriteTurn> {
        let mut outcomes = Outcomes { turns, performed: Vec::with_capacity(writes.len()) };
        let clients = writes.iter().map(|write| write.request.client);
        let by = clients.fold(Clients::None, Clients::and);
        let (mut waiting, mut last) = (in_vectors(writes), None);
        while let Some(vector) = waiting.pop_front() {
            let places: Vec<_> = vector.iter().map(|write| write.place).collect();
            let identity = vector[0].request.caller.identity.clone();
            match self.perform_vector(&target, &change, vector).await {
                Ok((written, vector)) => {
                    for again in outcomes.share_out(written, vector).into_iter().rev() {
                        if !again.is_empty() {
                            waiting.push_front(again);
                        }
                    }
                    last = Some(identity);
                }
                Err(status) => {
                    for place in places {
                        outcomes.turns[place].result = Err(status);
                    }
                }
            }
        }
        if let Some(identity) = last {
            let end = outcomes.performed.iter().map(|&(_, end)| end).max().unwrap_or(0);
            outcomes.divide(self.end_written(target, change, (identity, by), end).await);
        }
        outcomes.turns
    }

    /// Performs adjacent WRITEs of one identity and mode as one.
    ///
    /// # Errors
    /// They were not performed.
    async fn perform_vector(
        &self,
        target: &WriteTarget,
        change: &Change,
        vector: Vec<PermittedWrite>,
    ) -> Result<(Written, Vec<PermittedWrite>), Status> {
        let timer = self.timer(target.file.root(), CallKind::Write);
        let end = |written, vector| (written, vector);
        let done = self.perform_as_one(target, change.system_calls(), vector, timer, end).await?;
        // Of several, the first without a byte is attempted alone, and meets the lack by itself.
        if done.1.len() > 1 {
            return Ok(done);
        }
        self.repeat_lacking(target, change, done).await
    }
}

impl Outcomes {
    /// Divides the attributes before and after all WRITEs that were performed among them.
    fn divide(&mut self, pair: Wcc) {
        let mut length = pair.before.map_or(0, |before| before.size);
        let grow = |&(_, end): &(usize, u64)| {
            length = length.max(end);
            length
        };
        let lengths: Vec<_> = self.performed.iter().map(grow).collect();
        for ((place, _), pair) in self.performed.iter().zip(pair.divided(&lengths)) {
            self.turns[*place].attributes = pair;
        }
    }

    /// Takes down the outcome of adjacent WRITEs that were performed as one, up to the first that
    /// failed or is short. Returns what is to be attempted next: of several the one that would get
    /// the error, and those behind it.
    ///
    /// An error is given only to a WRITE that was attempted alone. The kernel may have refused
    /// several for what one of them would not have met: XFS reserves the blocks of all at once.
    fn share_out(
        &mut self,
        written: Written,
        mut vector: Vec<PermittedWrite>,
    ) -> [Vec<PermittedWrite>; 2] {
        let bytes = written.count();
        let is_alone = vector.len() == 1;
        let mut error = written.result.err().map(|failed| failed.error);
        let mut shares = shares(vector.iter().map(|write| write.request.len()), bytes);
        let rest = vector.split_off(shares.len());
        let failed = error.is_some() && shares.last() == Some(&0);
        let alone = if failed && !is_alone {
            shares.pop();
            vector.split_off(shares.len())
        } else {
            Vec::new()
        };
        for (write, share) in vector.into_iter().zip(shares) {
            // A write that fails after some bytes is a short one: the client sends the rest again
            // and then gets the error.
            let result = match error.take_if(|_| share == 0) {
                Some(error) => Err(error.into()),
                None => Ok(share),
            };
            let end = write.written_up_to(share);
            self.turns[write.place].result = result;
            self.performed.push((write.place, end));
        }
        [alone, rest]
    }
}

fn count_batch(file: &Inode, writes: &[WaitingWrite]) {
    if writes.len() > 1 {
        let bytes: usize = writes.iter().map(|write| write.request.len()).sum();
        let counters = &file.root().counters;
        counters.add(Counter::WriteBatches, 1);
        counters.add(Counter::WritesInBatches, writes.len() as u64);
        counters.add(Counter::WriteBatchBytes, bytes as u64);
    }
}

/// WRITEs as they are to be performed, one vector after the other.
fn in_vectors(writes: Vec<PermittedWrite>) -> VecDeque<Vec<PermittedWrite>> {
    let kinds = writes.iter().map(|write| {
        let request = &write.request;
        // Those without data have nothing to be performed.
        (write.range, (&request.caller.identity, request.mode, request.data.is_some()))
    });
    let vectors = vectors(&kinds.collect::<Vec<_>>());
    let mut writes: Vec<_> = writes.into_iter().map(Some).collect();
    let mut take = |index: usize| writes[index].take().expect("each is in one vector");
    vectors.into_iter().map(|vector| vector.into_iter().map(&mut take).collect()).collect()
}

#[cfg(test)]
mod tests;
