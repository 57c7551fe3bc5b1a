//! Listening sockets: each accepted connection becomes a task.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::connection;
use crate::network_threads::NetworkThreads;
use crate::procedures::Programs;
use crate::service::Service;

/// How long to wait after a failed accept: it is out of descriptors, and asking again at once would
/// only burn the processor.
const RETRY: Duration = Duration::from_millis(100);

/// Accepts connections until the server stops. While all places are taken by connections at work,
/// new ones wait in the kernel's queue.
pub(crate) async fn accept(
    service: Arc<Service>,
    programs: Programs,
    listener: std::net::TcpListener,
    threads: Arc<NetworkThreads>,
    mut stop: watch::Receiver<bool>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot use a listening socket"),
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                service.connections.evict_one();
                service.vfs.close_some();
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let place = tokio::select! {
            place = service.connections.enter(address, !service.knows_address(address)) => place,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        // It came in on this thread and lives on another.
        let (Some(place), Ok(stream)) = (place, stream.into_std()) else { continue };
        let service = Arc::clone(&service);
        let (thread, seat) = threads.seat(place.activity.client());
        thread.spawn(connection::serve(service, programs, stream, (place, seat), stop.clone()));
    }
}
