//! Where the work on a call is done: the thread, the device, and the export whose limits it is
//! charged to.

use std::net::SocketAddr;

use io::{Device, DeviceNumber};
use proto::nfs4;

use crate::call::{Call, Outline};
use crate::export::{self, Export, claimed_export_id};
use crate::procedures::{Thread, ThreadRule};
use crate::rate_limits::ExportLimits;
use crate::request::credential;
use crate::service::Service;

/// A READ up to this long is tried on the connection's thread whatever else is going on there: the
/// copy out of the page cache then costs less than a handover.
const READ_HERE_BYTES_MAX: u32 = 64 * 1024;

/// The thread that the work on a call begins on.
///
/// `alone`: the connection has no other call in progress. A long READ is then tried on its thread
/// too, for no other call waits there: 1 MiB at a time from the page cache, one client, 2,209 to
/// 2,742 MiB/s instead of 1,930 to 2,244. With more READs at work the copies are better spread.
pub(crate) fn thread(call: &Call, outline: &Outline<'_>, alone: bool) -> Thread {
    let Ok(row) = call.procedure else { return Thread::Network };
    match row.thread {
        ThreadRule::Always(thread) => thread,
        ThreadRule::ByReadBytes => read_thread(outline, alone),
        ThreadRule::ByOperations => compound_thread(outline, alone),
    }
}

/// The thread for a READ, by the bytes that it asks for.
fn read_thread(outline: &Outline<'_>, alone: bool) -> Thread {
    match outline.read_bytes {
        Some(bytes) if alone || bytes <= READ_HERE_BYTES_MAX => Thread::NetworkThenData,
        _ => Thread::Data,
    }
}

/// That of a COMPOUND, by its first operation that works on files.
fn compound_thread(outline: &Outline<'_>, alone: bool) -> Thread {
    use nfs4::OperationCode as Op;
    match outline.work {
        None => Thread::Network,
        Some(Op::Getattr | Op::Lookup | Op::Access) => Thread::NetworkThenMetadata,
        Some(Op::Write) => Thread::NetworkThenData,
        Some(Op::Read) => read_thread(outline, alone),
        Some(Op::Commit | Op::Allocate | Op::Deallocate | Op::Copy | Op::Clone) => Thread::Data,
        Some(_) => Thread::Metadata,
    }
}

/// The device whose threads do the work on a call, from the export that the handle which the work
/// begins on claims to be of. A call without a handle, or with one of no export, waits for no disk,
/// except MNT: its threads are those of no device.
pub(crate) fn claimed(
    service: &Service,
    call: &Call,
    outline: &Outline<'_>,
    address: SocketAddr,
) -> Claimed {
    let exports = service.exports.load();
    let export_of = |handle| exports.table.by_id(claimed_export_id(handle)?);
    let engine = &service.engine;
    let device = match outline.current.and_then(export_of) {
        Some(export) => exports.root(export).threads(engine).clone(),
        None => engine.own_device().clone(),
    };
    let limited = |handle| {
        let export = export_of(handle)?;
        let limited = ExportLimits::of(export)?;
        // A call that will be refused must not use up the limits of others.
        is_admitted(service, export, handle, call, address).then_some(limited)
    };
    Claimed { device, limited: outline.current.and_then(limited) }
}

/// The device of the export that a handle claims to be of; (0, 0) for that of none.
pub(crate) fn device_of(service: &Service, handle: &[u8]) -> DeviceNumber {
    let exports = service.exports.load();
    let export = claimed_export_id(handle).and_then(|id| exports.table.by_id(id));
    export.map_or((0, 0), |export| exports.root(export).device())
}

/// Whether a handle is authentic and its export admits the call.
fn is_admitted(
    service: &Service,
    export: &Export,
    handle: &[u8],
    call: &Call,
    address: SocketAddr,
) -> bool {
    let (Ok(row), Ok((flavor, _))) = (call.procedure, credential(call)) else { return false };
    let peer = export::Peer { address, purpose: row.purpose };
    service.handle_key.open(handle).is_ok() && export.admit(&peer, flavor).is_ok()
}

/// The device and the limits of the export that the handle in a call's arguments claims to be of.
pub(crate) struct Claimed {
    pub(crate) device: Device,
    /// The limits of the export that the work begins on, if it has any and admits the call.
    pub(crate) limited: Option<ExportLimits>,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proto::nfs4::{CompoundHead, FileHandle, GetattrArgs, Handle, OperationCode};
    use proto::oncrpc::{CallHeader, Credential};
    use proto::xdr::{Encode, Writer};
    use rpc::server::Record;

    use super::*;
    use crate::call::Incoming;
    use crate::config::NfsVersions;
    use crate::procedures::Programs;
    use crate::server::Server;
    use crate::skip::skip;
    use crate::test_server::{config, directory};

    /// GETATTR behind a PUTFH of each handle.
    fn getattr(handles: [FileHandle; 2]) -> Call {
        let mut w = Writer::new();
        let (program, version) = (nfs4::PROGRAM, nfs4::VERSION);
        let (procedure, credential) = (nfs4::Procedure::Compound.code(), Credential::None);
        CallHeader { xid: 7, program, version, procedure, credential, verifier_flavor: 0 }
            .encode(&mut w);
        CompoundHead { tag: b"", minor_version: 1, operations: 3 }.encode(&mut w);
        for object in handles {
            w.u32(OperationCode::Putfh.code());
            Handle { object }.encode(&mut w);
        }
        w.u32(OperationCode::Getattr.code());
        GetattrArgs { wanted: nfs4::Bitmap::EMPTY }.encode(&mut w);
        let head = w.into_vec();
        let bytes = head.len() as u64;
        let mut incoming = Incoming::new(Programs::Files(NfsVersions::ALL));
        incoming.layout(&head, |_| (0, 0));
        let record = Record { head, payload: None, moved_bytes: 0, trailing_bytes: 0, bytes };
        incoming.finish(record, None).unwrap()
    }

    #[test]
    fn operations_that_lock_a_file_for_work_on_its_data_begin_on_data_threads() {
        use OperationCode as Op;
        for operation in [Op::Commit, Op::Allocate, Op::Deallocate, Op::Copy, Op::Clone] {
            let outline = Outline { work: Some(operation), ..Outline::default() };
            assert_eq!(compound_thread(&outline, true), Thread::Data, "{operation:?}");
        }
    }

    #[tokio::test]
    async fn a_compound_waits_for_the_device_that_its_work_begins_on() {
        let memory = Path::new("/dev/shm");
        if !memory.exists() {
            return skip("no /dev/shm");
        }
        let (dir, in_memory) = (directory(), tempfile::tempdir_in(memory).unwrap());
        let more = format!("[[export]]\nname = \"/memory\"\npath = {:?}", in_memory.path());
        let server = Server::start(config(dir.path(), "", &more)).await.unwrap();
        let service = server.service();
        let exports = service.exports.load_full();
        let roots: Vec<_> = exports.table.iter().map(|export| exports.root(export)).collect();
        if roots[0].device() == roots[1].device() {
            return skip("/dev/shm is no device of its own");
        }
        for [first, last] in [[roots[0], roots[1]], [roots[1], roots[0]]] {
            let handle = |root: &std::sync::Arc<export::ExportRoot>| {
                FileHandle::new(service.seal(root, root.handle).as_bytes()).unwrap()
            };
            let call = getattr([handle(first), handle(last)]);
            let address = "127.0.0.1:700".parse().unwrap();
            let claimed = claimed(service, &call, &call.outline(), address);
            assert!(claimed.device == *last.threads(&service.engine));
        }
    }
}
