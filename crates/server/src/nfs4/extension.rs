//! SEEK, ALLOCATE, DEALLOCATE, COPY and CLONE, RFC 7862.

use proto::nfs4::{
    AllocateArgs, CloneArgs, Content, CopyArgs, CopyOk, SeekArgs, SeekOk, ShareAccess, Stateid,
    Status, Verifier,
};

use super::Outcome;
use super::compound::Compound;
use super::convert;
use super::resolved_handle::Located;
use crate::fs::Caller;
use crate::vfs::{Allocation, CopyRange, Sought};

impl Compound<'_> {
    /// SEEK, RFC 7862 §15.11.
    pub(super) async fn seek(&mut self, args: SeekArgs) -> Outcome<SeekOk> {
        let located = self.object_or(Status::WrongType)?;
        let sought = match Content::from_code(args.what).ok_or(Status::UnionNotsupp)? {
            Content::Data => Sought::Data,
            Content::Hole => Sought::Hole,
        };
        let caller = self.check_file_io(&located, &args.stateid, ShareAccess::Read).await?;
        let (vfs, object) = (&self.request.service.vfs, &located.object);
        let (offset, eof) = vfs.seek(&caller, object, args.offset, sought).await?;
        Ok(SeekOk { eof, offset })
    }

    /// ALLOCATE and DEALLOCATE, RFC 7862 §15.1 and §15.4.
    pub(super) async fn allocate(
        &mut self,
        args: AllocateArgs,
        allocation: Allocation,
    ) -> Outcome<()> {
        let located = self.object_or(Status::WrongType)?;
        let caller = self.check_file_io(&located, &args.stateid, ShareAccess::Write).await?;
        let (vfs, object) = (&self.request.service.vfs, &located.object);
        Ok(vfs.allocate(&caller, object, (args.offset, args.length), allocation).await?)
    }

    /// CLONE, RFC 7862 §15.13.
    pub(super) async fn clone_range(&mut self, args: CloneArgs) -> Outcome<()> {
        let (source, destination, range) = self.copy_range(&args).await?;
        let vfs = &self.request.service.vfs;
        Ok(vfs.clone_range(source.end(), destination.end(), range).await?)
    }

    /// COPY, RFC 7862 §15.2, within this server. The reply comes when the bytes are copied, whether
    /// or not the client would wait for a callback. It is short if that takes long, or once the
    /// stateids do not allow it any more.
    pub(super) async fn copy(&mut self, args: CopyArgs) -> Outcome<CopyOk> {
        if args.is_between_servers {
            return Err(Status::Notsupp.into());
        }
        let (source, destination, range) = self.copy_range(&args.range).await?;
        let vfs = &self.request.service.vfs;
        let (this, range_args) = (&*self, &args.range);
        let is_allowed = || async move { this.copy_range(range_args).await.is_ok() };
        let done = vfs.copy(source.end(), destination.end(), range, is_allowed).await?;
        let (committed, verifier) = (convert::committed(done.committed), Verifier(done.verifier));
        Ok(CopyOk { count: done.count, committed, verifier })
    }

    /// The source, the destination and the bytes of a copy that the stateids allow.
    async fn copy_range(&self, args: &CloneArgs) -> Outcome<(Located, Located, CopyRange)> {
        let mut source = self.saved_object_or(Status::WrongType)?;
        let mut destination = self.object_or(Status::WrongType)?;
        // As in RENAME, neither device waits for the other; nor does the kernel copy between two.
        if source.object.root().device() != destination.object.root().device() {
            return Err(Status::Xdev.into());
        }
        source.caller =
            self.check_file_io(&source, &args.source_stateid, ShareAccess::Read).await?;
        destination.caller =
            self.check_file_io(&destination, &args.destination_stateid, ShareAccess::Write).await?;
        let (from, to) = (args.source_offset, args.destination_offset);
        Ok((source, destination, CopyRange { from, to, count: args.count }))
    }

    /// As [`Self::check_io`], and that the object is a regular file: RFC 7862 has one status for
    /// all others.
    async fn check_file_io(
        &self,
        located: &Located,
        stateid: &Stateid,
        access: ShareAccess,
    ) -> Outcome<Caller> {
        let (caller, inode) = self.check_io(located, stateid, access).await?;
        if inode.file_type().is_file() { Ok(caller) } else { Err(Status::WrongType.into()) }
    }
}
