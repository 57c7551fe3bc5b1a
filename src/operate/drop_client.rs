//! `spillway drop-client`: the end of a client's connections and state.

use std::net::IpAddr;

use clap::Args;
use server::report::DroppedClient;

use super::text::counted;
use super::{Done, Failure, Target};
use crate::control::Command;

/// End the connections of a client, and its opens and locks of version 4
///
/// Ends all connections of a client address, once its calls in progress are answered, and then all
/// its clients of NFS version 4 with their opens and locks, which other clients can take at once.
/// Its programs that held locks get errors. Calls that take longer than a minute are not waited
/// for: their number is printed.
///
/// The client is not barred and connects again with its next call. To keep it out, first remove it
/// from the hosts of the exports, and reload.
///
/// Exit status: 0 if something was ended, 1 if the server has nothing of that client.
#[derive(Args)]
pub(crate) struct Options {
    /// The client's IP address, as `spillway clients` shows it
    #[arg(value_name = "ADDRESS")]
    address: IpAddr,

    #[command(flatten)]
    target: Target,
}

pub(super) fn run(options: &Options) -> Result<Done, Failure> {
    let address = options.address.to_canonical();
    let done: DroppedClient = options.target.ask(Command::DropClient { address })?;
    if done.connections == 0 && done.nfs4_clients == 0 && !options.target.json {
        return Err(format!("the server has no connection and no state of {address}").into());
    }
    let written = options.target.show(&done, text);
    let failure = || format!("the server has no connection and no state of {address}").into();
    Ok(match written {
        Ok(()) if done.connections == 0 && done.nfs4_clients == 0 => Done::Failed(failure()),
        written => Done::Printed(written),
    })
}

fn text(done: &DroppedClient) -> String {
    let connections = counted(done.connections as u64, "connection");
    let clients = counted(done.nfs4_clients as u64, "client");
    let mut text = format!("ended {connections}, and {clients} of NFS version 4\n");
    if done.calls_in_progress > 0 {
        let calls = counted(done.calls_in_progress as u64, "call");
        text += &format!("after a minute the server still had {calls} of the client in progress\n");
    }
    text
}
