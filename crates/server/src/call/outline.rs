//! The subject of a call, as far as the beginning of its arguments shows it.

use proto::nfs3::{self, Procedure};
use proto::nfs4;
use proto::xdr::Reader;

use super::Call;
use crate::counters::{CallKind, Operation as Counted};
use crate::procedures::Operation;

/// The subject of a call. Its arguments need not be whole or valid: missing ones are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline<'a> {
    /// The operation that the call is counted as: of a COMPOUND, `work`. `None` for calls that are
    /// not counted by procedure.
    pub(crate) operation: Option<Counted>,
    /// Of a COMPOUND: the first operation that works on files.
    pub(crate) work: Option<nfs4::OperationCode>,
    /// The first handle.
    pub(crate) handle: Option<&'a [u8]>,
    /// The handle that the work begins on.
    pub(crate) current: Option<&'a [u8]>,
    /// Offset and bytes, or cookie and bytes of a listing. Of a COMPOUND, those of its first WRITE,
    /// if it has one.
    pub(crate) range: Option<(u64, u32)>,
    /// The bytes that a READ asks for.
    pub(crate) read_bytes: Option<u32>,
}

impl Outline<'_> {
    /// The kind of call whose phases are counted together with those of this one.
    pub(crate) fn kind(&self) -> CallKind {
        self.operation.map_or(CallKind::Other, CallKind::of)
    }
}

impl Call {
    /// The subject of the call. Not kept, because it borrows from the call.
    pub(crate) fn outline(&self) -> Outline<'_> {
        match self.procedure.map(|row| row.operation) {
            Ok(Operation::Nfs3(procedure)) => of_nfs3(procedure, self.arguments()),
            Ok(Operation::Nfs4(nfs4::Procedure::Compound)) => {
                of_compound(&nfs4::Outline::of(self.arguments()), self.compound_payload)
            }
            Ok(Operation::Mount3(procedure)) => {
                Outline { operation: Some(Counted::mount3(procedure)), ..Outline::default() }
            }
            Ok(
                Operation::Nfs4(nfs4::Procedure::Null)
                | Operation::Portmap(_)
                | Operation::Rpcbind(_),
            )
            | Err(_) => Outline::default(),
        }
    }
}

fn of_nfs3(procedure: Procedure, arguments: &[u8]) -> Outline<'_> {
    let operation = Some(Counted::nfs3(procedure));
    let mut r = Reader::new(arguments);
    let handle = match procedure {
        Procedure::Null => None,
        _ => r.opaque(nfs3::FILE_HANDLE_BYTES_MAX, "handle").ok(),
    };
    let range = handle.and_then(|_| range(procedure, &mut r));
    let is_read = procedure == Procedure::Read;
    let read_bytes = range.filter(|_| is_read).map(|(_, count)| count);
    Outline { operation, work: None, handle, current: handle, range, read_bytes }
}

/// The range behind the handle, of a procedure that has one.
fn range(procedure: Procedure, r: &mut Reader<'_>) -> Option<(u64, u32)> {
    let bytes_between = match procedure {
        Procedure::Read | Procedure::Write | Procedure::Commit => 0,
        // A verifier.
        Procedure::Readdir => 8,
        // A verifier, and the bytes of the names alone.
        Procedure::Readdirplus => 12,
        _ => return None,
    };
    let offset = r.u64("offset").ok()?;
    r.skip(bytes_between, "verifier").ok()?;
    Some((offset, r.u32("count").ok()?))
}

fn of_compound<'a>(found: &nfs4::Outline<'a>, payload: Option<nfs4::WritePayload>) -> Outline<'a> {
    let nfs4::Outline { handle, current, work, range } = *found;
    let is_read = work == Some(nfs4::OperationCode::Read);
    Outline {
        operation: work.map(Counted::nfs4),
        work,
        handle,
        current,
        range: payload.map(|data| (data.offset, data.len)).or(range),
        read_bytes: range.filter(|_| is_read).map(|(_, count)| count),
    }
}
