//! LOOKUP, LOOKUPP, READLINK, CREATE, REMOVE, RENAME, LINK, SECINFO.

use io::{Buffer, Payload};
use proto::nfs4::{
    ChangedOk, CreateArgs, CreateKind, CreateOk, NameArgs, OperationCode, RenameArgs, RenameOk,
    SecinfoNoNameArgs, SecinfoOk, SecinfoStyle, Status,
};
use proto::xdr::Array;

use super::compound::Compound;
use super::resolved_handle::{Located, Pseudo, ResolvedHandle};
use super::{Outcome, Refused, convert};
use crate::fs;
use crate::vfs::{EntryName, NodeKind};

/// The RPC flavours that files can be used with: AUTH_SYS.
const FLAVORS: [u32; 1] = [1];
/// The longest target of a link that is sent with the head of the reply, outside the budget.
const SHORT_TARGET_BYTES_MAX: usize = 512;
/// Room for the longest target that Linux allows.
const LONG_TARGET_BYTES: usize = 4096;

impl Compound<'_> {
    /// LOOKUP, RFC 8881 §18.13.
    pub(super) async fn lookup(&mut self, args: NameArgs<'_>) -> Outcome<()> {
        let found = self.find(args.name).await?;
        self.go(found);
        Ok(())
    }

    /// The handle behind a name in the current directory.
    async fn find(&self, name: &[u8]) -> Outcome<ResolvedHandle> {
        check_name(name)?;
        let directory = self.current_handle()?;
        if let Some(found) = self.find_mounted(directory, name)? {
            return Ok(found);
        }
        match directory {
            ResolvedHandle::Pseudo(pseudo) => {
                if let Some(hidden) = pseudo.child(name) {
                    self.log_refused(&hidden, Status::Noent);
                }
                Err(Status::Noent.into())
            }
            ResolvedHandle::Object(located) => {
                let Located { caller, object } = located;
                let answer = self.request.service.vfs.lookup(caller, object, name).await;
                match answer.result {
                    Ok(found) => Ok(ResolvedHandle::Object(located.found(&found))),
                    Err(status) => Err(self.not_a_directory(located, status).await),
                }
            }
        }
    }

    /// The handle that LOOKUP finds in place of a directory's own entry. In a directory above the
    /// exports it is any child that the client may see; in the root of an export, an export that is
    /// named one component below it.
    ///
    /// # Errors
    /// `Access` for an export below another one that does not admit the peer.
    fn find_mounted(
        &self,
        directory: &ResolvedHandle,
        name: &[u8],
    ) -> Outcome<Option<ResolvedHandle>> {
        let child = match directory {
            ResolvedHandle::Pseudo(pseudo) => {
                pseudo.child(name).filter(|child| self.is_visible(child))
            }
            ResolvedHandle::Object(located) => {
                let pseudo = located.is_root().then(|| self.pseudo_of(located)).flatten();
                let child = pseudo.and_then(|pseudo| pseudo.child(name));
                child.filter(|child| child.node().export.is_some())
            }
        };
        child.map(|child| self.enter(child)).transpose()
    }

    /// Refuses a name for which LOOKUP does not find the directory's own entry.
    ///
    /// # Errors
    /// `otherwise`; those of [`Self::find_mounted`].
    pub(super) fn refuse_mounted(
        &self,
        directory: &ResolvedHandle,
        name: &[u8],
        otherwise: Status,
    ) -> Outcome<()> {
        match self.find_mounted(directory, name)? {
            Some(_) => Err(otherwise.into()),
            None => Ok(()),
        }
    }

    /// A symbolic link where a directory is needed has a status of its own (RFC 8881 §15.1.2.8).
    async fn not_a_directory(&self, located: &Located, status: fs::Status) -> Refused {
        if status == fs::Status::NotDirectory {
            let attributes = self.request.service.vfs.getattr(&located.object).await;
            let is_link =
                |a: crate::inode_cache::Attributes| a.file_type == rustix::fs::FileType::Symlink;
            if attributes.is_ok_and(is_link) {
                return Status::Symlink.into();
            }
        }
        status.into()
    }

    /// LOOKUPP, RFC 8881 §18.14.
    pub(super) async fn lookup_parent(&mut self) -> Outcome<()> {
        let parent = self.parent().await?;
        self.go(parent);
        Ok(())
    }

    async fn parent(&self) -> Outcome<ResolvedHandle> {
        let above = |pseudo: &Pseudo| {
            let parent = pseudo.at(pseudo.node().parent);
            if pseudo.place == 0 { Err(Status::Noent.into()) } else { self.enter(parent) }
        };
        match self.current_handle()? {
            ResolvedHandle::Pseudo(pseudo) => above(pseudo),
            ResolvedHandle::Object(located) if located.is_root() => match self.pseudo_of(located) {
                Some(pseudo) => above(&pseudo),
                None => Err(Status::Noent.into()),
            },
            ResolvedHandle::Object(located) => {
                let Located { caller, object } = located;
                match self.request.service.vfs.lookup(caller, object, b"..").await.result {
                    Ok(found) => Ok(ResolvedHandle::Object(located.found(&found))),
                    Err(status) => Err(self.not_a_directory(located, status).await),
                }
            }
        }
    }

    /// READLINK, RFC 8881 §18.24. A long target is sent behind the head.
    pub(super) async fn readlink(&mut self) -> Result<(), Status> {
        let outcome = self.read_target().await;
        self.put_with(OperationCode::Readlink, outcome, |(target, buffer), results| {
            match buffer {
                Some(buffer) => {
                    let len = u32::try_from(target.len()).expect("a target is short");
                    results.writer().u32(len);
                    results.set_payload(Payload::copied(buffer, &target));
                }
                None => results.put_inline(&target),
            }
            Ok(())
        })
    }

    /// The target of the current link, and memory of the budget for a long one that is not part of
    /// the head.
    async fn read_target(&self) -> Outcome<(Vec<u8>, Option<Buffer>)> {
        let located = self.object_or(Status::WrongType)?;
        let room = self.results.data_room()?;
        let vfs = &self.request.service.vfs;
        let mut target = vfs.readlink(&located.object).await.result.map_err(wrong_type)?;
        let mut buffer = None;
        if target.len() > SHORT_TARGET_BYTES_MAX && self.results.sends_payload() {
            // Read again once there is memory to keep it in: what waits for memory holds none.
            drop(target);
            buffer = self.request.service.take_buffer(LONG_TARGET_BYTES).await.ok();
            target = vfs.readlink(&located.object).await.result.map_err(wrong_type)?;
        }
        if buffer.is_none() && target.len() > room {
            return Err(self.results.too_big().into());
        }
        Ok((target, buffer))
    }

    /// CREATE, RFC 8881 §18.4.
    pub(super) async fn create(&mut self, args: CreateArgs<'_>) -> Outcome<CreateOk> {
        self.refuse_mounted(self.current_handle()?, args.name, Status::Exist)?;
        let located = self.object_or(Status::Rofs)?;
        check_name(args.name)?;
        let kind = match args.kind {
            CreateKind::Directory => NodeKind::Directory,
            CreateKind::Symlink([]) => return Err(Status::Inval.into()),
            CreateKind::Symlink(target) => NodeKind::Symlink(target.to_vec()),
            CreateKind::BlockDevice(spec) => NodeKind::BlockDevice(spec.major, spec.minor),
            CreateKind::CharacterDevice(spec) => NodeKind::CharacterDevice(spec.major, spec.minor),
            CreateKind::Socket => NodeKind::Socket,
            CreateKind::Fifo => NodeKind::Fifo,
            CreateKind::Other(_) => return Err(Status::Badtype.into()),
        };
        let change = convert::new_attributes(&args.attributes)?;
        let Located { caller, object } = &located;
        let vfs = &self.request.service.vfs;
        let answer = vfs.make_node(caller, object, args.name, kind, change).await;
        let found = answer.result?;
        self.go(ResolvedHandle::Object(located.found(&found)));
        let requested = args.attributes.bitmap;
        let attributes_set = convert::set_at_creation(&change, requested, &found.attributes);
        Ok(CreateOk { change: convert::change_info(&answer.attributes), attributes_set })
    }

    /// REMOVE, RFC 8881 §18.25, of an object of any kind.
    pub(super) async fn remove(&mut self, args: NameArgs<'_>) -> Outcome<ChangedOk> {
        let Located { caller, object } = &self.object_or(Status::Rofs)?;
        check_name(args.name)?;
        self.refuse_mounted(self.current_handle()?, args.name, Status::FileOpen)?;
        let vfs = &self.request.service.vfs;
        let mut answer = vfs.remove(caller, object, args.name, false).await;
        if answer.result == Err(fs::Status::IsDirectory) {
            answer = vfs.remove(caller, object, args.name, true).await;
        }
        answer.result?;
        Ok(ChangedOk { change: convert::change_info(&answer.attributes) })
    }

    /// RENAME, RFC 8881 §18.26.
    pub(super) async fn rename(&mut self, args: RenameArgs<'_>) -> Outcome<RenameOk> {
        let from = self.saved_object_or(Status::Rofs)?;
        let to = self.object_or(Status::Rofs)?;
        check_name(args.old)?;
        check_name(args.new)?;
        self.refuse_mounted(self.saved_handle()?, args.old, Status::FileOpen)?;
        self.refuse_mounted(self.current_handle()?, args.new, Status::FileOpen)?;
        let old = EntryName { dir: &from.object, name: args.old };
        let new = EntryName { dir: &to.object, name: args.new };
        let answer = self.request.service.vfs.rename(&to.caller, old, new).await;
        answer.result?;
        let (source, target) = &answer.attributes;
        let (source, target) = (convert::change_info(source), convert::change_info(target));
        Ok(RenameOk { source, target })
    }

    /// LINK, RFC 8881 §18.9. A directory is refused here: the kernel's EPERM is no status of LINK.
    pub(super) async fn link(&mut self, args: NameArgs<'_>) -> Outcome<ChangedOk> {
        let file = self.saved_object_or(Status::Isdir)?;
        let Located { caller, object } = &self.object_or(Status::Rofs)?;
        check_name(args.name)?;
        self.refuse_mounted(self.current_handle()?, args.name, Status::Exist)?;
        let vfs = &self.request.service.vfs;
        if vfs.hold(&file.object).await?.file_type().is_dir() {
            return Err(Status::Isdir.into());
        }
        let answer = vfs.link(caller, &file.object, object, args.name).await;
        answer.result?;
        Ok(ChangedOk { change: convert::change_info(&answer.attributes.1) })
    }

    /// SECINFO, RFC 8881 §18.29. The current filehandle is used up.
    pub(super) async fn secinfo(&mut self, args: NameArgs<'_>) -> Outcome<SecinfoOk<'static>> {
        self.find(args.name).await?;
        self.current = None;
        Ok(SecinfoOk { flavors: Array::from(&FLAVORS[..]) })
    }

    /// SECINFO_NO_NAME, RFC 8881 §18.45. The current filehandle is used up.
    pub(super) async fn secinfo_no_name(
        &mut self,
        args: SecinfoNoNameArgs,
    ) -> Outcome<SecinfoOk<'static>> {
        match args.style {
            SecinfoStyle::CurrentFh => drop(self.current_handle()?),
            SecinfoStyle::Parent => drop(self.parent().await?),
        }
        self.current = None;
        Ok(SecinfoOk { flavors: Array::from(&FLAVORS[..]) })
    }
}

/// READLINK of what is no symbolic link (RFC 8881 §18.24.4).
fn wrong_type(status: fs::Status) -> Refused {
    match status {
        fs::Status::Invalid => Status::WrongType.into(),
        status => status.into(),
    }
}

/// Refuses names that have a status of their own (RFC 8881 §14.5); the others are for `vfs` to
/// check.
///
/// # Errors
/// `Inval` for an empty name, `Badname` for `.` and `..`, `Badchar` for a slash or a NUL.
pub(super) fn check_name(name: &[u8]) -> Outcome<()> {
    let status = match name {
        b"" => Status::Inval,
        b"." | b".." => Status::Badname,
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Status::Badchar,
        _ => return Ok(()),
    };
    Err(status.into())
}
