//! READDIR and READDIRPLUS: RFC 1813 §3.3.16 and §3.3.17.

use bytes::Bytes;
use proto::nfs3::{
    Attributes, CookieVerifier, FileHandle, Procedure, ReaddirArgs, ReaddirReply, ReaddirplusArgs,
    ReaddirplusReply, Status,
};
use proto::xdr::DecodeError;
use rpc::client::Route;

use super::{Nfs3, check_handle, decode};
use crate::{Error, Result};

/// Result of READDIR and READDIRPLUS: a part of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The attributes of the directory.
    pub dir_attributes: Option<Attributes>,
    /// To be sent with any of the cookies.
    pub verifier: CookieVerifier,
    /// The entries, in the server's order.
    pub names: Vec<Name>,
    /// Whether the directory ends behind the entries.
    pub eof: bool,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The file id.
    pub fileid: u64,
    /// Not empty, without slash and NUL; may be `.` or `..`. A slice of the received record, which
    /// it keeps allocated.
    pub name: Bytes,
    /// The position behind this entry.
    pub cookie: u64,
    /// The attributes, if the server returned them.
    pub attributes: Option<Attributes>,
    /// The handle, if the server returned it.
    pub handle: Option<FileHandle>,
}

impl Nfs3 {
    /// READDIR, RFC 1813 §3.3.16: the entries behind `cookie`, 0 for the first one, in a reply of
    /// at most `count` bytes.
    ///
    /// # Errors
    /// The server's status: NFS3ERR_BAD_COOKIE, NFS3ERR_TOOSMALL and others;
    /// [`Error::Malformed`](crate::Error::Malformed) also for an invalid name.
    pub fn readdir(
        &self,
        dir: FileHandle,
        cookie: u64,
        verifier: CookieVerifier,
        count: u32,
    ) -> impl Future<Output = Result<Listing>> + Send + use<> {
        self.rpc.expect_reply_bytes(count);
        let args = ReaddirArgs { dir, cookie, verifier, count };
        self.ask_with(Procedure::Readdir, Route::Any, &args, Bytes::new(), |results| {
            let ok = match decode::<ReaddirReply<'_>>(results)? {
                Ok(ok) => ok,
                Err(failure) => return Ok(Err(failure.status)),
            };
            let names = ok.entries.iter().map(|entry| {
                let (fileid, cookie) = (entry.fileid, entry.cookie);
                let name = checked_name(results, entry.name)?;
                Ok(Name { fileid, name, cookie, attributes: None, handle: None })
            });
            let names = names.collect::<std::result::Result<_, DecodeError>>()?;
            let (dir_attributes, verifier, eof) = (ok.dir_attributes, ok.verifier, ok.eof);
            Ok(Ok(Listing { dir_attributes, verifier, names, eof }))
        })
    }

    /// READDIRPLUS, RFC 1813 §3.3.17: like [`Self::readdir`], with the attributes and handles that
    /// the server returns. `dir_count` bounds the bytes of file ids, names and cookies, `max_count`
    /// those of the reply.
    ///
    /// # Errors
    /// Those of [`Self::readdir`], and NFS3ERR_NOTSUPP.
    pub fn readdirplus(
        &self,
        dir: FileHandle,
        cookie: u64,
        verifier: CookieVerifier,
        dir_count: u32,
        max_count: u32,
    ) -> impl Future<Output = Result<Listing>> + Send + use<> {
        self.rpc.expect_reply_bytes(max_count);
        let args = ReaddirplusArgs { dir, cookie, verifier, dir_count, max_count };
        self.ask_with(Procedure::Readdirplus, Route::Any, &args, Bytes::new(), |results| {
            let ok = match decode::<ReaddirplusReply<'_>>(results)? {
                Ok(ok) => ok,
                Err(failure) => return Ok(Err(failure.status)),
            };
            let names = ok.entries.iter().map(|entry| {
                let (fileid, cookie) = (entry.fileid, entry.cookie);
                let name = checked_name(results, entry.name)?;
                let (attributes, handle) = (entry.attributes, entry.handle);
                check_handle(handle)?;
                Ok(Name { fileid, name, cookie, attributes, handle })
            });
            let names = names.collect::<std::result::Result<_, DecodeError>>()?;
            let (dir_attributes, verifier, eof) = (ok.dir_attributes, ok.verifier, ok.eof);
            Ok(Ok(Listing { dir_attributes, verifier, names, eof }))
        })
    }
}

/// Leaves out of the arguments of READDIR or READDIRPLUS what the server has rejected with `error`.
/// Returns whether that changed them, so that the call is to be made once more.
pub fn leave_out_rejected(error: &Error, verifier: &mut CookieVerifier, plus: &mut bool) -> bool {
    // Some servers change the verifier with each change of the directory, although their cookies
    // stay valid. A verifier of zeros is accepted there.
    if error.is(Status::BadCookie) && *verifier != CookieVerifier::default() {
        *verifier = CookieVerifier::default();
        return true;
    }
    // READDIRPLUS can be disabled on a Linux server.
    error.is(Status::Notsupp) && std::mem::take(plus)
}

/// A name as a slice of the record. Rejects a slash: it would lead out of the directory into which
/// a program copies.
fn checked_name(record: &Bytes, name: &[u8]) -> std::result::Result<Bytes, DecodeError> {
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        let at_byte = name.as_ptr().addr() - record.as_ptr().addr();
        return Err(DecodeError { what: "filename3", at_byte });
    }
    Ok(record.slice_ref(name))
}
