//! A relay in front of a server, which reads the calls and replies that pass.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use proto::nfs3::{self, Procedure};
use proto::oncrpc::decode_call;
use proto::xdr::Reader;
use rpc::record;

use crate::fixture::Server;

/// More than any WRITE of the program.
const RECORD_BYTES_MAX: usize = 4 << 20;

/// A message that passes.
pub(crate) enum Message<'a> {
    /// A call by its program and procedure, with its arguments, and all of its bytes.
    Call { xid: u32, program: u32, procedure: u32, arguments: Reader<'a>, bytes: &'a [u8] },
    /// The reply to the call of that number.
    Reply { xid: u32 },
}

/// Is called with each message before that is sent on. A record that it returns for a call is sent
/// to the client instead.
type Watch = dyn Fn(Message<'_>) -> Option<Vec<u8>> + Send + Sync;

/// Starts a relay to `server`, which ends with the test, and returns the URL of its export.
pub(crate) fn relay(
    server: &Server,
    watch: impl Fn(Message<'_>) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, server_port) = (listener.local_addr().unwrap().port(), server.port());
    let watch: Arc<Watch> = Arc::new(watch);
    thread::spawn(move || {
        for client in listener.incoming() {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server_port)).unwrap();
            connect(client.unwrap(), server, &watch);
        }
    });
    format!("nfs://127.0.0.1:{port}/e")
}

/// As [`relay`], for the calls of one procedure by number and arguments.
pub(crate) fn intercept(
    server: &Server,
    procedure: Procedure,
    watch: impl Fn(u32, Reader<'_>) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> String {
    relay(server, move |message| match message {
        Message::Call { xid, program: nfs3::PROGRAM, procedure: called, arguments, .. }
            if called == procedure as u32 =>
        {
            watch(xid, arguments)
        }
        _ => None,
    })
}

/// Lets the server of this port execute a call, and drops the reply. The server does not recognise
/// the call when that is sent on, as if it was started anew between the two.
pub(crate) fn execute(port: u16, call: &[u8]) {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut call = call.to_vec();
    // The xid.
    call[0] ^= 0xff;
    server.write_all(&record::in_fragments(&call, &[])).unwrap();
    record::read_blocking(&mut server, RECORD_BYTES_MAX).unwrap().unwrap();
}

/// Relays both ways on threads of their own. The end of one is the end of both.
fn connect(client: TcpStream, server: TcpStream, watch: &Arc<Watch>) {
    let back = (server.try_clone().unwrap(), client.try_clone().unwrap(), Arc::clone(watch));
    let watch = Arc::clone(watch);
    thread::spawn(move || end(&client, &server, relay_calls(&client, &server, &*watch)));
    thread::spawn(move || {
        let (server, client, watch) = back;
        end(&client, &server, relay_replies(&client, &server, &*watch));
    });
}

/// A connection that is closed in the middle is as good as one that has ended.
fn end(client: &TcpStream, server: &TcpStream, _: io::Result<()>) {
    for stream in [client, server] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn relay_calls(mut client: &TcpStream, mut server: &TcpStream, watch: &Watch) -> io::Result<()> {
    while let Some(call) = record::read_blocking(&mut client, RECORD_BYTES_MAX)? {
        let mut arguments = Reader::new(&call);
        let header = decode_call(&mut arguments).unwrap();
        let (xid, program, procedure) = (header.xid, header.program, header.procedure);
        match watch(Message::Call { xid, program, procedure, arguments, bytes: &call }) {
            Some(reply) => client.write_all(&reply)?,
            None => server.write_all(&record::in_fragments(&call, &[]))?,
        }
    }
    Ok(())
}

fn relay_replies(mut client: &TcpStream, mut server: &TcpStream, watch: &Watch) -> io::Result<()> {
    while let Some(reply) = record::read_blocking(&mut server, RECORD_BYTES_MAX)? {
        let xid = Reader::new(&reply).u32("xid").unwrap();
        watch(Message::Reply { xid });
        client.write_all(&record::in_fragments(&reply, &[]))?;
    }
    Ok(())
}
