//! The part of `tokio::sync::oneshot` that this crate uses, for shuttle: the same names and
//! promises, on a lock that the checker controls.

use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use shuttle::sync::{Mutex, MutexGuard};

pub(crate) struct Sender<T> {
    channel: Arc<Mutex<Channel<T>>>,
}

pub(crate) struct Receiver<T> {
    /// `None` once it has given its answer.
    channel: Option<Arc<Mutex<Channel<T>>>>,
}

/// The sender was dropped and sent nothing, or the receiver had been closed before it did.
#[derive(Debug)]
pub(crate) struct RecvError;

struct Channel<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
    receiver_gone: bool,
}

pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let channel = Channel { value: None, waker: None, sender_gone: false, receiver_gone: false };
    let channel = Arc::new(Mutex::new(channel));
    (Sender { channel: Arc::clone(&channel) }, Receiver { channel: Some(channel) })
}

impl<T> Sender<T> {
    /// Returns the value if the receiver is gone. (Dropping the sender wakes the receiver.)
    pub(crate) fn send(self, value: T) -> Result<(), T> {
        let mut channel = lock(&self.channel);
        if channel.receiver_gone {
            return Err(value);
        }
        channel.value = Some(value);
        Ok(())
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.channel).receiver_gone
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut channel = lock(&self.channel);
            channel.sender_gone = true;
            channel.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// Refuses a value from now on. One that was sent before stays, until this is dropped.
    pub(crate) fn close(&mut self) {
        if let Some(channel) = &self.channel {
            lock(channel).receiver_gone = true;
        }
    }

    pub(crate) fn is_terminated(&self) -> bool {
        self.channel.is_none()
    }

    pub(crate) fn blocking_recv(self) -> Result<T, RecvError> {
        shuttle::future::block_on(self)
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.channel.as_ref().expect("polled after it was ready");
        let answer = {
            let mut channel = lock(shared);
            match channel.value.take() {
                Some(value) => Ok(value),
                None if channel.sender_gone || channel.receiver_gone => Err(RecvError),
                None => {
                    channel.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        };
        self.channel = None;
        Poll::Ready(answer)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let Some(shared) = self.channel.take() else { return };
        // A value that was not received is dropped without the lock: its destructor may run
        // anything.
        let _unfetched = {
            let mut channel = lock(&shared);
            channel.receiver_gone = true;
            (channel.value.take(), channel.waker.take())
        };
    }
}

fn lock<T>(channel: &Mutex<Channel<T>>) -> MutexGuard<'_, Channel<T>> {
    channel.lock().unwrap_or_else(PoisonError::into_inner)
}
