//! `spillway clients`: lists the clients of a server.

use clap::Args;
use server::report::{ClientSample, Sample};

use super::table::{row, table};
use super::text::bytes;
use super::{Done, Failure, Target};
use crate::control::Command;

/// List the clients of a running server
///
/// Lists client addresses with their connections, calls and bytes since the server's start, and
/// their clients of NFS version 4. `others` are hosts that no export admits, and clients for whom
/// the server's table has no place, together. Clients that left long ago are not listed.
///
/// Exit status: 0 if the server answered, 1 if none runs or it takes no commands of this user.
#[derive(Args)]
pub(crate) struct Options {
    /// Also list the clients of NFS version 4 one by one
    #[arg(short, long)]
    long: bool,

    #[command(flatten)]
    target: Target,
}

pub(super) fn run(options: &Options) -> Result<Done, Failure> {
    let sample: Sample = options.target.ask(Command::Sample { time_calls_seconds: 0 })?;
    let text = |clients: &Vec<ClientSample>| {
        let mut text = table(&rows(clients), usize::MAX);
        if options.long {
            text += &nfs4(clients);
        }
        text
    };
    Ok(Done::Printed(options.target.show(&sample.clients, text)))
}

fn rows(clients: &[ClientSample]) -> Vec<Vec<String>> {
    let head = ["CLIENT", "CONNECTIONS", "IN PROGRESS", "CALLS", "FAILED", "RECEIVED", "SENT"];
    let mut rows = vec![[&row(head)[..], &row(["NFS4", "OPENS", "LOCKS"])].concat()];
    rows.extend(clients.iter().filter(|client| is_shown(client)).map(|client| {
        let sum = |of: fn(&server::report::Nfs4Client) -> u64| {
            client.nfs4.iter().map(of).sum::<u64>().to_string()
        };
        vec![
            name(client),
            client.connections.to_string(),
            client.calls_in_flight.to_string(),
            client.calls.to_string(),
            client.failures.to_string(),
            bytes(client.received_bytes),
            bytes(client.sent_bytes),
            client.nfs4.len().to_string(),
            sum(|nfs4| nfs4.opens),
            sum(|nfs4| nfs4.locks),
        ]
    }));
    rows
}

fn nfs4(clients: &[ClientSample]) -> String {
    let head = ["NFS4 CLIENT", "SESSIONS", "OPENS", "LOCKS", "STATE", "ADDRESS", "OWNER"];
    let mut rows = vec![row(head)];
    for client in clients {
        rows.extend(client.nfs4.iter().map(|nfs4| {
            let state = match (nfs4.is_confirmed, nfs4.is_expired) {
                (false, _) => "unconfirmed",
                (true, true) => "expired",
                (true, false) => "active",
            };
            vec![
                nfs4.id.clone(),
                nfs4.sessions.to_string(),
                nfs4.opens.to_string(),
                nfs4.locks.to_string(),
                state.to_owned(),
                name(client),
                nfs4.owner.clone(),
            ]
        }));
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", table(&rows, 4)) }
}

/// Whether there is anything of it to show.
pub(super) fn is_shown(client: &ClientSample) -> bool {
    let has_state = !client.nfs4.is_empty();
    client.address.is_some() || client.calls + client.connections > 0 || has_state
}

pub(super) fn name(client: &ClientSample) -> String {
    client.address.map_or_else(|| "others".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use server::report::Nfs4Client;

    use super::*;

    #[test]
    fn others_are_shown_if_they_have_anything() {
        let nfs4 = vec![Nfs4Client::default()];
        for (others, count) in [
            (ClientSample::default(), 0),
            (ClientSample { calls: 1, ..ClientSample::default() }, 1),
            (ClientSample { connections: 1, ..ClientSample::default() }, 1),
            (ClientSample { nfs4, ..ClientSample::default() }, 1),
        ] {
            assert_eq!(rows(std::slice::from_ref(&others)).len(), 1 + count, "{others:?}");
        }
    }
}
