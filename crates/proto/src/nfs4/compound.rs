//! COMPOUND, RFC 8881 §16.2: what stands in front of its operations and of their results.

use super::types::{FILE_HANDLE_BYTES_MAX, NFS4_OK, OPAQUE_BYTES_MAX, Reply};
use super::{OperationCode, ReadArgs, ReaddirArgs};
use crate::xdr::{Decode, DecodeError, Encode, Reader, Writer, xdr_struct};

/// `COMPOUND4args` up to the operations, which follow one by one: an [`OperationCode`] and its
/// arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CompoundHead<'a> {
    /// For the client's use; comes back in the reply.
    pub tag: &'a [u8],
    /// The minor version.
    pub minor_version: u32,
    /// The operations that follow.
    pub operations: u32,
}

xdr_struct!(CompoundHead<'a> {
    tag: opaque(OPAQUE_BYTES_MAX),
    minor_version: u32,
    operations: u32,
});

/// `COMPOUND4res` up to the results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CompoundResult<'a> {
    /// That of the last operation performed; [`NFS4_OK`] if there was none.
    pub status: u32,
    /// That of the call.
    pub tag: &'a [u8],
    /// The results that follow: an [`OperationCode`], and a status with what belongs to it.
    pub results: u32,
}

xdr_struct!(CompoundResult<'a> { status: u32, tag: opaque(OPAQUE_BYTES_MAX), results: u32 });

/// The next operation's number; `Err` holds one that is none of the protocol's.
///
/// # Errors
/// Fewer than four bytes remain.
pub fn next_operation(r: &mut Reader<'_>) -> Result<Result<OperationCode, u32>, DecodeError> {
    let code = r.u32("nfs_opnum4")?;
    Ok(match OperationCode::from_code(code) {
        Some(OperationCode::Illegal) | None => Err(code),
        Some(operation) => Ok(operation),
    })
}

/// Appends the result of an operation without a body for its failures.
pub fn encode_result<T: Encode>(w: &mut Writer, operation: OperationCode, reply: &Reply<T>) {
    operation.encode(w);
    reply.encode(w);
}

/// Appends what stands in front of the body of an operation that succeeded.
pub fn encode_success(w: &mut Writer, operation: OperationCode) {
    operation.encode(w);
    w.u32(NFS4_OK);
}

/// The handles and the main operation of a COMPOUND, as far as its first operations show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outline<'a> {
    /// That of the first PUTFH.
    pub handle: Option<&'a [u8]>,
    /// The current filehandle of the work, if a PUTFH has set it.
    pub current: Option<&'a [u8]>,
    /// The first operation that is none of sessions and none of current filehandles.
    pub work: Option<OperationCode>,
    /// If that is READ or COMMIT: the offset and the bytes that it asks for; if READDIR, the cookie
    /// and the bytes.
    pub range: Option<(u64, u32)>,
}

impl<'a> Outline<'a> {
    /// Of a COMPOUND with these arguments, which need not be whole or valid.
    #[must_use]
    pub fn of(arguments: &'a [u8]) -> Self {
        let mut outline = Self::default();
        // An end too early leaves what was found until then.
        let _ = outline.find(&mut Reader::new(arguments));
        outline
    }

    fn find(&mut self, r: &mut Reader<'a>) -> Result<(), DecodeError> {
        let operations = CompoundHead::decode(r)?.operations.min(OUTLINE_OPERATIONS_MAX);
        let mut saved = None;
        for _ in 0..operations {
            match next_operation(r)? {
                Ok(OperationCode::Sequence) => r.skip(SEQUENCE_BYTES, "SEQUENCE4args")?,
                Ok(OperationCode::Putfh) => {
                    let handle = r.opaque(FILE_HANDLE_BYTES_MAX, "nfs_fh4")?;
                    self.handle.get_or_insert(handle);
                    self.current = Some(handle);
                }
                Ok(OperationCode::Putrootfh | OperationCode::Putpubfh) => self.current = None,
                Ok(OperationCode::Savefh) => saved = self.current,
                Ok(OperationCode::Restorefh) => self.current = saved,
                Ok(OperationCode::Getfh) => {}
                Ok(work) => {
                    self.work = Some(work);
                    self.range = range(work, r)?;
                    return Ok(());
                }
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

/// The range in the arguments of an operation that has one; WRITE's is that of its payload.
fn range(work: OperationCode, r: &mut Reader<'_>) -> Result<Option<(u64, u32)>, DecodeError> {
    Ok(match work {
        OperationCode::Read => {
            let args = ReadArgs::decode(r)?;
            Some((args.offset, args.count))
        }
        OperationCode::Commit => Some((r.u64("COMMIT4args.offset")?, r.u32("COMMIT4args.count")?)),
        OperationCode::Readdir => {
            let args = ReaddirArgs::decode(r)?;
            Some((args.cookie, args.bytes_max))
        }
        _ => None,
    })
}

/// Operations that an outline is found in.
const OUTLINE_OPERATIONS_MAX: u32 = 8;
/// The arguments of SEQUENCE.
pub(super) const SEQUENCE_BYTES: usize = 32;
