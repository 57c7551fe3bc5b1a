//! GETXATTR, SETXATTR, LISTXATTRS and REMOVEXATTR, RFC 8276.

use io::Payload;
use proto::nfs4::{
    ChangedOk, ListxattrsArgs, ListxattrsOk, NameArgs, OperationCode, SetxattrHead, SetxattrOption,
    Status, XATTR_BYTES_MAX, XattrName,
};
use proto::xdr::{Array, Encode, Reader};

use super::compound::Compound;
use super::operation::decoded;
use super::resolved_handle::{Located, ResolvedHandle};
use super::{Outcome, convert};
use crate::vfs::{SetXattr, XattrNames};

/// `LISTXATTR4resok` without names: its cookie, their number and its end.
const LIST_BYTES_MIN: usize = 16;

impl Compound<'_> {
    /// GETXATTR, RFC 8276 §8.4.1. The value is sent from the buffer that it was read into, unless
    /// the reply is to be kept.
    pub(super) async fn getxattr(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let outcome = match decoded::<NameArgs<'_>>(reader) {
            Ok(args) => self.read_value(args.name).await,
            Err(refused) => Err(refused),
        };
        self.put_with(OperationCode::Getxattr, outcome, |value, results| {
            match value {
                None => results.writer().u32(0),
                Some((buffer, len)) if results.sends_payload() => {
                    results.writer().u32(u32::try_from(len).expect("at most 64 KiB"));
                    results.set_payload(Payload::new(buffer.trimmed(len), 0, len));
                }
                Some((buffer, len)) => results.put_inline(&buffer.as_slice()[..len]),
            }
            Ok(())
        })
    }

    /// The value, unless it is empty.
    async fn read_value(&self, name: &[u8]) -> Outcome<Option<(io::Buffer, usize)>> {
        check_name(name)?;
        let Located { caller, object } = &self.object_or(Status::Noxattr)?;
        let room = self.results.data_room()?;
        let bytes_max = room.min(XATTR_BYTES_MAX);
        let service = self.request.service;
        let buffer = service.take_buffer(XATTR_BYTES_MAX).await.map_err(|_| Status::Delay)?;
        let read = service.vfs.getxattr(caller, object, name, buffer, bytes_max).await;
        match read {
            // It exists and does not fit into this reply.
            Err(crate::fs::Status::AttributeTooLarge) if bytes_max < XATTR_BYTES_MAX => {
                Err(self.results.too_big().into())
            }
            read => Ok(Some(read?).filter(|(_, len)| *len > 0)),
        }
    }

    /// SETXATTR, RFC 8276 §8.4.2. The value was received apart, as the data of a WRITE is.
    pub(super) async fn setxattr(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let outcome = match decoded::<SetxattrHead<'_>>(reader) {
            Ok(args) => self.write_value(&args, reader).await,
            Err(refused) => Err(refused),
        };
        self.put(OperationCode::Setxattr, outcome)
    }

    async fn write_value(
        &mut self,
        args: &SetxattrHead<'_>,
        reader: &mut Reader<'_>,
    ) -> Outcome<ChangedOk> {
        let SetxattrHead { option, name, value_len } = *args;
        if usize::try_from(value_len).is_ok_and(|len| len > XATTR_BYTES_MAX) {
            return Err(Status::Xattr2Big.into());
        }
        let value = self.data_behind(reader, value_len, 0).await?;
        check_name(name)?;
        let Located { caller, object } = &self.object_or(Status::Rofs)?;
        let how = match option {
            SetxattrOption::Either => SetXattr::Either,
            SetxattrOption::Create => SetXattr::Create,
            SetxattrOption::Replace => SetXattr::Replace,
        };
        let answer = self.request.service.vfs.setxattr(caller, object, name, value, how).await;
        answer.result?;
        Ok(ChangedOk { change: convert::change_info(&answer.attributes) })
    }

    /// REMOVEXATTR, RFC 8276 §8.4.4.
    pub(super) async fn removexattr(&mut self, args: NameArgs<'_>) -> Outcome<ChangedOk> {
        check_name(args.name)?;
        let Located { caller, object } = &self.object_or(Status::Rofs)?;
        let answer = self.request.service.vfs.removexattr(caller, object, args.name).await;
        answer.result?;
        Ok(ChangedOk { change: convert::change_info(&answer.attributes) })
    }

    /// LISTXATTRS, RFC 8276 §8.4.3.
    pub(super) async fn listxattrs(&mut self, reader: &mut Reader<'_>) -> Result<(), Status> {
        let outcome = match decoded(reader) {
            Ok(args) => self.list_names(args).await,
            Err(refused) => Err(refused),
        };
        self.put_with(OperationCode::Listxattrs, outcome, |listed, results| {
            let names: Vec<_> = listed.names.iter().map(|name| XattrName { name }).collect();
            let (cookie, eof) = (listed.cookie, listed.eof);
            let before = results.writer().len();
            let names = Array::from(&names[..]);
            ListxattrsOk { cookie, names, eof }.encode(results.writer());
            let len = results.writer().len() - before;
            results.note_inline(len);
            Ok(())
        })
    }

    async fn list_names(&mut self, args: ListxattrsArgs) -> Outcome<XattrNames> {
        let ListxattrsArgs { cookie, bytes_max } = args;
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let mut left = bytes_max.checked_sub(LIST_BYTES_MIN).ok_or(Status::Toosmall)?;
        left = left.min(self.results.inline_room()?);
        self.charge(left)?;
        match self.current_handle()? {
            ResolvedHandle::Pseudo(_) => Ok(XattrNames { names: Vec::new(), cookie, eof: true }),
            ResolvedHandle::Object(Located { caller, object }) => {
                let fits = move |name_bytes: usize| {
                    let rest = left.checked_sub(4 + name_bytes.next_multiple_of(4));
                    left = rest.unwrap_or(left);
                    rest.is_some()
                };
                Ok(self.request.service.vfs.listxattrs(caller, object, cookie, fits).await?)
            }
        }
    }
}

/// Refuses names that have a status of their own.
///
/// # Errors
/// `Inval` for an empty name, `Badchar` for a NUL.
fn check_name(name: &[u8]) -> Outcome<()> {
    match name {
        b"" => Err(Status::Inval.into()),
        _ if name.contains(&0) => Err(Status::Badchar.into()),
        _ => Ok(()),
    }
}
