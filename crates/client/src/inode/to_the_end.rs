//! Calls that go on if their caller is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use super::Superblock;

/// Makes `calls` as a part of the caller, which costs no switch of threads. If the caller is
/// dropped first they go on as a task. The end of the mount waits for them.
pub(crate) async fn to_the_end<F>(superblock: &Superblock, calls: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    let closing = superblock.begin_close();
    let calls = async move {
        let output = calls.await;
        drop(closing);
        output
    };
    ToTheEnd(Some(Box::pin(calls))).await
}

/// See [`to_the_end`]. `None` once it has ended.
struct ToTheEnd<F>(Option<Pin<Box<F>>>)
where
    F: Future<Output: Send> + Send + 'static;

impl<F> Future for ToTheEnd<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut calls = self.0.take().expect("it is not polled after its end");
        let polled = calls.as_mut().poll(context);
        // Not after a panic.
        if polled.is_pending() {
            self.0 = Some(calls);
        }
        polled
    }
}

impl<F> Drop for ToTheEnd<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(calls) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move { drop(calls.await) });
        }
    }
}
