//! A call from its first bytes to its arguments. Its header is decoded once, on the thread of the
//! connection, and travels with the call from there on.

mod outline;

use io::{DeviceNumber, WriteData};
use proto::oncrpc::{
    self, AcceptStat, CREDENTIAL_AT, CallError, CallHeader, Gids, call_header_len, call_target,
    decode_call,
};
use proto::xdr::Reader;
use proto::{nfs3, nfs4};
use rpc::server::{Layout, Record};

use crate::procedures::{Operation, PayloadScan, Procedure, Programs};
use crate::state::Receiving;
pub(crate) use outline::Outline;

/// Where in the head the host name of an AUTH_SYS credential is: behind its stamp and its length.
const MACHINE_NAME_AT: usize = CREDENTIAL_AT + 8;

/// A call whose header is decoded.
pub(crate) struct Call {
    /// The message without the payload.
    head: Vec<u8>,
    /// Where in `head` the arguments begin.
    arguments_at: usize,
    /// Transaction id.
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    /// The number of the procedure.
    pub(crate) code: u32,
    /// Its row in the table, or the answer to a call of what is not served.
    pub(crate) procedure: Result<&'static Procedure, AcceptStat>,
    pub(crate) credential: Credential,
    /// The arguments of a WRITE of version 3 without its data.
    pub(crate) write: Option<nfs3::WriteHead>,
    /// Where in the arguments of a COMPOUND the data of its first WRITE was.
    pub(crate) compound_payload: Option<nfs4::WritePayload>,
    /// The data of a WRITE; `None` if there is none, or more than the server takes.
    pub(crate) payload: Option<WriteData>,
    /// Bytes that followed the arguments.
    pub(crate) trailing_bytes: u64,
    /// Length of the message as it came, payload included.
    pub(crate) bytes: u64,
    /// Keeps the lease of its client until it is executed, if its session was found when it was
    /// received. It goes before the reply is sent: CREATE_SESSION of a client that has the reply,
    /// and has booted again, waits for no such call.
    pub(crate) receiving: Option<Receiving>,
}

/// The credential of a call, without the bytes that it borrows from the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(AuthSys),
    /// A flavor that is not interpreted.
    Other { flavor: u32 },
}

/// `authsys_parms` without the stamp (RFC 5531 appendix A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AuthSys {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) gids: Gids,
    machine_name_bytes: usize,
}

impl Call {
    /// The arguments as they were received, without the payload.
    pub(crate) fn arguments(&self) -> &[u8] {
        &self.head[self.arguments_at..]
    }

    /// The host name of an AUTH_SYS credential.
    pub(crate) fn machine_name(&self) -> Option<&[u8]> {
        match &self.credential {
            Credential::Sys(sys) => Some(&self.head[MACHINE_NAME_AT..][..sys.machine_name_bytes]),
            Credential::None | Credential::Other { .. } => None,
        }
    }

    /// The procedure if it is one of NFS version 3.
    pub(crate) fn nfs3(&self) -> Option<nfs3::Procedure> {
        match self.procedure.ok()?.operation {
            Operation::Nfs3(procedure) => Some(procedure),
            Operation::Nfs4(_)
            | Operation::Mount3(_)
            | Operation::Portmap(_)
            | Operation::Rpcbind(_) => None,
        }
    }

    /// Whether the procedure is COMPOUND.
    pub(crate) fn is_compound(&self) -> bool {
        let compound = Operation::Nfs4(nfs4::Procedure::Compound);
        self.procedure.is_ok_and(|row| row.operation == compound)
    }
}

/// A call that is being received: finds its payload, and keeps what it decodes for that.
pub(crate) struct Incoming {
    programs: Programs,
    /// Set when the first words are there.
    procedure: Option<Result<&'static Procedure, AcceptStat>>,
    write: Option<nfs3::WriteHead>,
    compound_payload: Option<nfs4::WritePayload>,
}

impl Incoming {
    /// Of a connection to a port where `programs` answer.
    pub(crate) fn new(programs: Programs) -> Self {
        Self { programs, procedure: None, write: None, compound_payload: None }
    }

    /// How the record goes on behind the bytes in `head`, which are at least [`CREDENTIAL_AT`].
    /// `device_of` returns the device of the file with a handle.
    pub(crate) fn layout(
        &mut self,
        head: &[u8],
        device_of: impl FnOnce(&[u8]) -> DeviceNumber,
    ) -> Layout {
        let find = || {
            let (program, version, code) = call_target(head).unwrap_or_default();
            self.programs.find(program, version, code)
        };
        let procedure = *self.procedure.get_or_insert_with(find);
        let Some(scan) = procedure.ok().and_then(|row| row.scan_payload) else {
            return Layout::Head;
        };
        let arguments_at = call_header_len(head);
        // Until the arguments begin, the scan asks for the least of them.
        match scan(head.get(arguments_at..).unwrap_or_default()) {
            PayloadScan::Needs(len) => Layout::HeadUntil(arguments_at + len),
            PayloadScan::Nfs3(write) => {
                self.write = Some(write);
                let head_bytes = arguments_at + write.wire_bytes();
                let (len, offset) = (write.data_len, write.offset);
                let device = device_of(write.file.as_bytes());
                Layout::Payload { head_bytes, len, offset, device, has_tail: false }
            }
            PayloadScan::Nfs4(payload) => {
                self.compound_payload = Some(payload);
                let head_bytes = arguments_at + payload.at;
                let (len, offset) = (payload.len, payload.offset);
                let device = payload.file(&head[arguments_at..]).map_or((0, 0), device_of);
                Layout::Payload { head_bytes, len, offset, device, has_tail: true }
            }
            PayloadScan::Nothing => Layout::Head,
        }
    }

    /// The WRITE whose data [`Self::layout`] has found behind `head`: the handle of its file, its
    /// offset and its length.
    pub(crate) fn write<'a>(&'a self, head: &'a [u8]) -> Option<(&'a [u8], u64, u32)> {
        if let Some(write) = &self.write {
            return Some((write.file.as_bytes(), write.offset, write.count));
        }
        let data = self.compound_payload?;
        let file = data.file(&head[call_header_len(head)..])?;
        Some((file, data.offset, data.len))
    }

    /// The session of the COMPOUND whose data [`Self::layout`] has found behind `head`.
    pub(crate) fn session(&self, head: &[u8]) -> Option<nfs4::SessionId> {
        self.compound_payload?.session(&head[call_header_len(head)..])
    }

    /// Decodes the header of the whole record, whose call is `receiving` in its session.
    ///
    /// # Errors
    /// It is no call, or one to be denied.
    pub(crate) fn finish(
        self,
        record: Record,
        receiving: Option<Receiving>,
    ) -> Result<Call, CallError> {
        let Record { head, payload, trailing_bytes, bytes, .. } = record;
        let mut reader = Reader::new(&head);
        let CallHeader { xid, program, version, procedure: code, credential, .. } =
            decode_call(&mut reader)?;
        let credential = match credential {
            oncrpc::Credential::None => Credential::None,
            oncrpc::Credential::Sys(sys) => Credential::Sys(AuthSys {
                uid: sys.uid,
                gid: sys.gid,
                gids: sys.gids,
                machine_name_bytes: sys.machine_name.len(),
            }),
            oncrpc::Credential::Other { flavor, .. } => Credential::Other { flavor },
        };
        let arguments_at = reader.position();
        let find = || self.programs.find(program, version, code);
        let procedure = self.procedure.unwrap_or_else(find);
        Ok(Call {
            head,
            arguments_at,
            xid,
            program,
            version,
            code,
            procedure,
            credential,
            write: self.write,
            compound_payload: self.compound_payload,
            payload,
            trailing_bytes,
            bytes,
            receiving,
        })
    }
}

#[cfg(test)]
mod tests;
