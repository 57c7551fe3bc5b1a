//! Listening sockets: each accepted connection becomes a task.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::connection;
use crate::dispatch::Programs;
use crate::network_threads::NetworkThreads;
use crate::service::Service;

/// How long to wait after a failed accept: it is out of descriptors, and asking again at once would
/// only burn the processor.
const RETRY: Duration = Duration::from_millis(100);

/// Accepts connections until the server stops. At the limit new ones wait in the kernel's queue.
pub(crate) async fn accept(
    service: Arc<Service>,
    programs: Programs,
    listener: std::net::TcpListener,
    threads: Arc<NetworkThreads>,
    connections: Arc<Semaphore>,
    mut stop: watch::Receiver<bool>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "a listening socket is of no use"),
    };
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&connections).acquire_owned() => permit,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let permit = permit.expect("the semaphore stays open");
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        match accepted {
            Ok((stream, _)) => {
                // It came in on this thread and lives on another.
                let Ok(stream) = stream.into_std() else { continue };
                let connection =
                    connection::serve(Arc::clone(&service), programs, stream, stop.clone());
                threads.next().spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                service.vfs.open_files.shrink(&service.vfs.engine).await;
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
