use std::sync::{Mutex, PoisonError, mpsc};

use io::{EngineConfig, Share};
use tokio::sync::oneshot;

use super::*;
use crate::fs::OpenedFor;

#[test]
fn pieces_end_at_multiples_and_the_end_of_the_data() {
    let cut = |offset, end, data_end| -> Vec<_> {
        let range = ByteRange::between(offset, end);
        pieces(range, data_end).map(|piece| (piece.offset(), piece.end())).collect()
    };
    let piece = PIECE_BYTES;
    assert_eq!(cut(5, 5, 9), []);
    assert_eq!(cut(5, 9, 9), [(5, 9)]);
    assert_eq!(cut(5, 2 * piece, u64::MAX), [(5, piece), (piece, 2 * piece)]);
    assert_eq!(cut(0, 1 << 62, piece + 1), [(0, piece), (piece, 2 * piece), (2 * piece, 1 << 62)]);
    assert_eq!(cut(7, 1 << 62, 7), [(7, 1 << 62)]);
    let last = i64::MAX as u64;
    assert_eq!(cut(last - 1, last, u64::MAX), [(last - 1, last)]);
}

/// A client that works in pieces leaves the only data thread to another between two of them.
#[tokio::test]
async fn another_client_has_its_turn_between_two_pieces() {
    let config = EngineConfig { data_threads: 1, metadata_threads: 1, queue_max: 8 };
    let engine = Arc::new(Engine::new(config));
    let device = engine.device((0, 1));
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |who: &'static str| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap_or_else(PoisonError::into_inner).push(who)
    };
    let (begun, has_begun) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let (done, is_done) = oneshot::channel();
    let caller = Caller {
        uid: 0,
        gid: 0,
        groups: Arc::default(),
        read_only: false,
        opened: OpenedFor::default(),
        identity: Identity::Server,
    };
    let (large, may_go_on) = (note("piece"), Arc::new(Mutex::new(may_go_on)));
    let work = {
        let engine = Arc::clone(&engine);
        async move {
            let job = move |_| {
                large();
                let _ = begun.send(());
                // Ends when the test drops its end: only the first piece waits for it.
                let _ = may_go_on.lock().unwrap_or_else(PoisonError::into_inner).recv();
                Ok(())
            };
            let range = ByteRange::between(0, 3 * PIECE_BYTES);
            let result = in_pieces(&engine, &caller, pieces(range, range.end()), job).await;
            let _ = done.send(result);
        }
    };
    Share::new(&device, 1).begin_data(work).await;
    tokio::task::spawn_blocking(move || has_begun.recv()).await.unwrap().unwrap();
    let (other, other_done) = (note("other"), oneshot::channel());
    let work = async move {
        other();
        let _ = other_done.0.send(());
    };
    Share::new(&device, 2).begin_data(work).await;
    drop(go_on);
    is_done.await.unwrap().unwrap();
    other_done.1.await.unwrap();
    let order = order.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(order, ["piece", "other", "piece", "piece"]);
}
