//! SEEK, ALLOCATE, DEALLOCATE, COPY and CLONE, RFC 7862.

use proto::nfs4::{
    AllocateArgs, CloneArgs, Content, CopyArgs, CopyOk, SeekArgs, SeekOk, ShareAccess, StableHow,
    Status, Verifier,
};

use super::Outcome;
use super::compound::Compound;
use super::location::Located;
use crate::fs::{Caller, OpenedFor};
use crate::vfs::{Allocation, CopyRange, Sought};

impl Compound<'_> {
    /// SEEK, RFC 7862 §15.11.
    pub(super) async fn seek(&mut self, args: SeekArgs) -> Outcome<SeekOk> {
        let located = self.object_or(Status::Isdir)?;
        let sought = match Content::from_code(args.what).ok_or(Status::UnionNotsupp)? {
            Content::Data => Sought::Data,
            Content::Hole => Sought::Hole,
        };
        let (caller, _) = self.check_io(&located, &args.stateid, ShareAccess::Read).await?;
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
        let located = self.object_or(Status::Isdir)?;
        let (caller, _) = self.check_io(&located, &args.stateid, ShareAccess::Write).await?;
        let (vfs, object) = (&self.request.service.vfs, &located.object);
        Ok(vfs.allocate(&caller, object, (args.offset, args.length), allocation).await?)
    }

    /// CLONE, RFC 7862 §15.13.
    pub(super) async fn clone_range(&mut self, args: CloneArgs) -> Outcome<()> {
        let (source, located, range) = self.copy_range(&args).await?;
        let (vfs, Located { caller, object }) = (&self.request.service.vfs, &located);
        Ok(vfs.clone_range(caller, &source.object, object, range).await?)
    }

    /// COPY, RFC 7862 §15.2, within this server. The reply comes when the bytes are copied, whether or
    /// not the client would wait for a callback.
    pub(super) async fn copy(&mut self, args: CopyArgs) -> Outcome<CopyOk> {
        if args.is_between_servers {
            return Err(Status::Notsupp.into());
        }
        let (source, located, range) = self.copy_range(&args.range).await?;
        let (vfs, Located { caller, object }) = (&self.request.service.vfs, &located);
        let done = vfs.copy(caller, &source.object, object, range).await?;
        let verifier = Verifier(done.verifier);
        Ok(CopyOk { count: done.count, committed: StableHow::Unstable, verifier })
    }

    /// The source, the destination and the bytes of a copy that the stateids allow.
    async fn copy_range(&self, args: &CloneArgs) -> Outcome<(Located, Located, CopyRange)> {
        let source = self.saved_object_or(Status::Isdir)?;
        let mut located = self.object_or(Status::Isdir)?;
        // As in RENAME, neither device waits for the other; nor does the kernel copy between two.
        if source.object.root().device() != located.object.root().device() {
            return Err(Status::Xdev.into());
        }
        let (reader, _) = self.check_io(&source, &args.source_stateid, ShareAccess::Read).await?;
        let (writer, _) =
            self.check_io(&located, &args.destination_stateid, ShareAccess::Write).await?;
        let OpenedFor { reading, .. } = reader.opened;
        // One user reads and writes, unless the exports squash it differently.
        let reading = reading && reader.uid == writer.uid;
        located.caller = Caller { opened: OpenedFor { reading, ..writer.opened }, ..writer };
        let (from, to) = (args.source_offset, args.destination_offset);
        Ok((source, located, CopyRange { from, to, count: args.count }))
    }
}
