//! OPEN, OPEN_DOWNGRADE and CLOSE.

use std::sync::Arc;

use proto::nfs4::{
    Bitmap, ChangeInfo, CloseArgs, OPEN_RESULT_LOCKTYPE_POSIX, OPEN_RESULT_MAY_NOTIFY_LOCK,
    OneStateid, OpenArgs, OpenClaim, OpenDowngradeArgs, OpenHow, OpenOk, RawAttributes,
    SHARE_ACCESS_MASK, SHARE_WANT_MASK, SHARE_WHEN_MASK, ShareAccess, ShareDeny, Status, Verifier,
    attribute,
};

use super::compound::Compound;
use super::namespace::check_name;
use super::resolved_handle::{Located, ResolvedHandle};
use super::{Outcome, Refused, convert};
use crate::fs;
use crate::held_files::Pin;
use crate::inode_cache::{AccessRights, Inode, NameChange};
use crate::state::{OpenFailure, OpenFile, OpenRoom, Running, State, Step};
use crate::vfs::{AttributeChange, CreateMode, Created};

/// A name can come and go between the looks that UNCHECKED4 takes.
const ATTEMPTS: usize = 8;
/// Attributes in which an exclusive OPEN keeps its verifier: the client sets them afterwards.
const VERIFIER_ATTRIBUTES: Bitmap = Bitmap::of(&[attribute::TIME_ACCESS, attribute::TIME_MODIFY]);

const SIZE: Bitmap = Bitmap::of(&[attribute::SIZE]);

/// The file that an OPEN is of.
struct Target<'a> {
    located: Located,
    change: ChangeInfo,
    attributes_set: Bitmap,
    /// It was made by this OPEN: the caller may open it whatever its mode is. Not set by exclusive
    /// ones, which may be retries.
    is_new: bool,
    /// It is cut to nothing.
    cuts: bool,
    /// The room that was taken before it was made.
    room: Option<OpenRoom<'a>>,
    /// It was made by this OPEN, and is to be opened before any client gets a delegation of it.
    undelegated: Option<NameChange>,
}

impl<'a> Compound<'a> {
    /// OPEN, RFC 8881 §18.16.
    pub(super) async fn open(&mut self, args: OpenArgs<'_>) -> Outcome<OpenOk> {
        let known = SHARE_ACCESS_MASK | SHARE_WANT_MASK | SHARE_WHEN_MASK;
        if args.share_access & !known != 0 {
            return Err(Status::Inval.into());
        }
        let (access, deny) = share(args.share_access, args.share_deny)?;
        let (service, client) = (self.request.service, self.client()?);
        let is_reclaim = matches!(args.claim, OpenClaim::Previous(_));
        service.state.check_claim(client, is_reclaim)?;
        let mut target = self.target(&args).await?;
        let inode = service.vfs.hold(&target.located.object).await?;
        let pin = service.held_files.pin(&inode);
        let (file, export) = (pin.file(), pin.export());
        let delegated_to = self.check_claimed_delegation(&args.claim, file)?;
        let user = if target.is_new {
            Some(target.located.caller.uid())
        } else {
            // The file's owner may reclaim it, or retry an exclusive OPEN, whatever its mode is.
            let owner_may = is_reclaim || matches!(args.how, OpenHow::Exclusive { .. });
            self.permitted_user(&target.located, access, owner_may, delegated_to).await?
        };
        if target.cuts {
            self.check_permission(&target.located, ShareAccess::Write, false).await?;
        }
        let (owner, cuts) = (args.owner.owner, target.cuts);
        let call = OpenFile { client, owner, file, export, access, deny, cuts, is_reclaim, user };
        let (mut room, mut pin) = (target.room.take(), Some(pin));
        let open = |state: &State, step: &mut Step| {
            let opened = match room.take() {
                Some(room) => room.open(&call, step),
                None => state.open(&call, step),
            };
            if opened.as_ref().is_ok_and(|opened| opened.is_new) {
                pin.take().into_iter().for_each(Pin::keep);
            }
            opened
        };
        let opened = service.change_state_undelegated(open, &OpenFailure::Delegated).await?;
        drop(pin);
        drop(target.undelegated.take());
        if let Err(refused) = self.cut(&target).await {
            let undo = |state: &State, step: &mut Step| {
                state.undo_open(client, &opened, file, step);
            };
            service.change_state(undo).await;
            return Err(refused);
        }
        let delegation = Box::pin(self.delegation(&args, &target.located, &inode)).await;
        self.go(ResolvedHandle::Object(target.located));
        self.set_stateid(opened.stateid);
        Ok(OpenOk {
            stateid: opened.stateid,
            change: target.change,
            flags: OPEN_RESULT_LOCKTYPE_POSIX | self.lock_notices(),
            attributes_set: target.attributes_set,
            delegation,
        })
    }

    /// Whether the client is notified when a lock that it waits for can be granted.
    fn lock_notices(&self) -> u32 {
        let session = self.running.as_ref().map(Running::session);
        let has_path = session.is_some_and(|session| session.has_callback_path());
        if has_path { OPEN_RESULT_MAY_NOTIFY_LOCK } else { 0 }
    }

    /// The file that an OPEN is of, which is made if the client asks for that.
    async fn target(&self, args: &OpenArgs<'_>) -> Outcome<Target<'a>> {
        match (&args.claim, &args.how) {
            (OpenClaim::Null(name), how) => {
                let directory = self.directory_of(name, how)?;
                match how {
                    OpenHow::NoCreate => self.existing(&directory, name).await,
                    OpenHow::Unchecked(raw) => {
                        self.make_unchecked(&directory, name, raw, args.owner.owner).await
                    }
                    OpenHow::Guarded(raw) => {
                        self.make_guarded(&directory, name, raw, args.owner.owner).await
                    }
                    OpenHow::Exclusive { verifier, attributes } => {
                        let attributes = attributes.as_ref();
                        self.make_exclusive(&directory, name, *verifier, attributes).await
                    }
                }
            }
            (OpenClaim::DelegateCurrent(_, name), how @ OpenHow::NoCreate) => {
                let directory = self.directory_of(name, how)?;
                self.existing(&directory, name).await
            }
            (
                OpenClaim::Handle | OpenClaim::Previous(_) | OpenClaim::DelegateCurrentHandle(_),
                OpenHow::NoCreate,
            ) => {
                let located = self.object_or(Status::Isdir)?;
                let attributes = self.request.service.vfs.getattr(&located.object).await?;
                convert::check_regular(attributes.file_type)?;
                Ok(found(located))
            }
            (
                OpenClaim::Handle
                | OpenClaim::Previous(_)
                | OpenClaim::DelegateCurrent(..)
                | OpenClaim::DelegateCurrentHandle(_),
                _,
            ) => Err(Status::Inval.into()),
            // Delegations do not outlive the client's restart.
            (OpenClaim::DelegatePrevious(_) | OpenClaim::DelegatePreviousHandle, _) => {
                Err(Status::Notsupp.into())
            }
        }
    }

    /// The directory that a file is opened in by its name.
    ///
    /// # Errors
    /// `Isdir` or `Exist` for a name that LOOKUP finds an export or a directory above others by;
    /// `Noent` or `Rofs` for another name in a directory above the exports.
    fn directory_of(&self, name: &[u8], how: &OpenHow<'_>) -> Outcome<Located> {
        let (mounted, above) = match how {
            OpenHow::NoCreate => (Status::Isdir, Status::Noent),
            OpenHow::Unchecked(_) => (Status::Isdir, Status::Rofs),
            OpenHow::Guarded(_) | OpenHow::Exclusive { .. } => (Status::Exist, Status::Rofs),
        };
        self.refuse_mounted(self.current_handle()?, name, mounted)?;
        let directory = self.object_or(above)?;
        check_name(name)?;
        Ok(directory)
    }

    /// Takes room for an open by an owner.
    async fn take_room(&self, owner: &[u8]) -> Outcome<OpenRoom<'a>> {
        let (service, client) = (self.request.service, self.client()?);
        let bytes = owner.len();
        Ok(service.change_state(|state, step| state.take_open_room(client, bytes, step)).await?)
    }

    async fn existing(&self, directory: &Located, name: &[u8]) -> Outcome<Target<'a>> {
        let Located { caller, object } = directory;
        let answer = self.request.service.vfs.lookup(caller, object, name).await;
        let change = answer.attributes.as_ref().map_or(0, convert::change);
        let child = answer.result?;
        convert::check_regular(child.attributes.file_type)?;
        let change = ChangeInfo { atomic: true, before: change, after: change };
        Ok(Target { change, ..found(directory.found(&child)) })
    }

    /// UNCHECKED4: of an existing file no attribute is used but a length of zero.
    async fn make_unchecked(
        &self,
        directory: &Located,
        name: &[u8],
        raw: &RawAttributes<'_>,
        owner: &[u8],
    ) -> Outcome<Target<'a>> {
        let change = convert::new_attributes(raw)?;
        for _ in 0..ATTEMPTS {
            match self.existing(directory, name).await {
                Ok(target) => {
                    let cuts = change.size == Some(0);
                    let attributes_set = if cuts { SIZE } else { Bitmap::EMPTY };
                    return Ok(Target { cuts, attributes_set, ..target });
                }
                Err(Refused { status: Status::Noent, .. }) => {}
                Err(refused) => return Err(refused),
            }
            match self.make_guarded(directory, name, raw, owner).await {
                Err(Refused { status: Status::Exist, .. }) => {}
                made => return made,
            }
        }
        Err(Status::Delay.into())
    }

    /// GUARDED4, with room for an open by `owner`. A file that was made for an OPEN without room
    /// would be in the way of its retry, by its name or by its mode.
    async fn make_guarded(
        &self,
        directory: &Located,
        name: &[u8],
        raw: &RawAttributes<'_>,
        owner: &[u8],
    ) -> Outcome<Target<'a>> {
        let mode = CreateMode::Guarded(convert::new_attributes(raw)?);
        let room = Some(self.take_room(owner).await?);
        let target = self.make(directory, name, mode, raw.bitmap).await?;
        Ok(Target { room, ..target })
    }

    /// Cuts the file if UNCHECKED4 asks for that.
    async fn cut(&self, target: &Target<'_>) -> Outcome<()> {
        if !target.cuts {
            return Ok(());
        }
        let Located { caller, object } = &target.located;
        let change = AttributeChange { size: Some(0), ..AttributeChange::default() };
        self.request.service.setattr(caller, object, change, None).await.result?;
        Ok(())
    }

    /// EXCLUSIVE4 and EXCLUSIVE4_1.
    async fn make_exclusive(
        &self,
        directory: &Located,
        name: &[u8],
        Verifier(verifier): Verifier,
        raw: Option<&RawAttributes<'_>>,
    ) -> Outcome<Target<'a>> {
        let change = raw.map(convert::new_attributes).transpose()?.unwrap_or_default();
        let set = raw.map_or(Bitmap::EMPTY, |raw| raw.bitmap);
        if !set.intersection(convert::SET_TIMES).is_empty() {
            return Err(Status::Inval.into());
        }
        let mode = CreateMode::Exclusive(verifier, change);
        self.make(directory, name, mode, set.union(VERIFIER_ATTRIBUTES)).await
    }

    async fn make(
        &self,
        directory: &Located,
        name: &[u8],
        mode: CreateMode,
        requested: Bitmap,
    ) -> Outcome<Target<'a>> {
        let Located { caller, object } = directory;
        let is_new = !matches!(mode, CreateMode::Exclusive(..));
        let answer = self.request.service.vfs.create(caller, object, name, mode).await;
        let Created { found, undelegated } = answer.result?;
        let attributes_set = convert::set_at_creation(&mode.change(), requested, &found.attributes);
        let change = convert::change_info(&answer.attributes);
        let located = directory.found(&found);
        let (cuts, room) = (false, None);
        Ok(Target { located, change, attributes_set, is_new, cuts, room, undelegated })
    }

    /// The user who may do I/O by an OPEN of a file without a check of each call. To read, the
    /// client has opened the file by a delegation `delegated_to` a user when its mode allowed that,
    /// and cannot return the delegation before this OPEN succeeds: another user's opens it then
    /// without a right.
    async fn permitted_user(
        &self,
        located: &Located,
        access: ShareAccess,
        owner_may: bool,
        delegated_to: Option<u32>,
    ) -> Outcome<Option<u32>> {
        let user = Some(located.caller.uid());
        let delegated_to = delegated_to.filter(|_| access == ShareAccess::Read);
        if delegated_to == user {
            return Ok(user);
        }
        match self.check_permission(located, access, owner_may).await {
            Ok(()) => Ok(user),
            Err(Refused { status: Status::Access, .. }) if delegated_to.is_some() => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    /// A program that may be executed may be read. With `owner_may`, the mode does not bind the
    /// owner.
    async fn check_permission(
        &self,
        located: &Located,
        access: ShareAccess,
        owner_may: bool,
    ) -> Outcome<()> {
        let Located { caller, object } = located;
        if access.writes() {
            caller.may_change()?;
        }
        let (attributes, rights) = self.request.service.vfs.access(caller, object).await?;
        if owner_may && caller.identity.is_owner(attributes.uid) == Some(true) {
            return Ok(());
        }
        let AccessRights { read, write, execute } = rights;
        let may = (!access.reads() || read || execute) && (!access.writes() || write);
        if may { Ok(()) } else { Err(fs::Status::Access.into()) }
    }
}

impl Compound<'_> {
    /// CLOSE, RFC 8881 §18.2.
    pub(super) async fn close(&mut self, args: CloseArgs) -> Outcome<OneStateid> {
        let stateid = self.known_stateid(&args.stateid)?;
        let located = self.object_or(Status::BadStateid)?;
        let (inode, file) = self.hold(&located).await?;
        let (service, client) = (self.request.service, self.client()?);
        let close = |state: &State, step: &mut Step| state.close(client, &stateid, file, step);
        let closed = service.change_state(close).await;
        self.let_go(inode).await;
        let stateid = closed?;
        self.set_stateid(stateid);
        Ok(OneStateid { stateid })
    }

    /// OPEN_DOWNGRADE, RFC 8881 §18.18.
    pub(super) async fn open_downgrade(&mut self, args: OpenDowngradeArgs) -> Outcome<OneStateid> {
        let stateid = self.known_stateid(&args.stateid)?;
        let (access, deny) = share(args.share_access, args.share_deny)?;
        let located = self.object_or(Status::BadStateid)?;
        let (_inode, file) = self.hold(&located).await?;
        let (state, client) = (&self.request.service.state, self.client()?);
        let stateid = state.open_downgrade(client, &stateid, file, access, deny)?;
        self.set_stateid(stateid);
        Ok(OneStateid { stateid })
    }

    /// After a hold of a file may have ended: the blocks of a removed file are free before the
    /// reply, as with REMOVE.
    pub(super) async fn let_go(&self, inode: Arc<Inode>) {
        let service = self.request.service;
        let gone = inode.is_over().then(|| inode.key());
        // The cache has another reference, or else the last one is closed by the device's threads.
        service.settlement.close(inode);
        if let Some(gone) = gone {
            service.vfs.let_go(&gone).await;
        }
    }
}

/// The access and the deny mode of an open, without the wants.
///
/// # Errors
/// `Inval`.
fn share(access: u32, deny: u32) -> Outcome<(ShareAccess, ShareDeny)> {
    let access = ShareAccess::from_code(access & SHARE_ACCESS_MASK).ok_or(Status::Inval)?;
    let deny = ShareDeny::from_code(deny).ok_or(Status::Inval)?;
    Ok((access, deny))
}

/// A file that no name led to, or that was there.
fn found<'a>(located: Located) -> Target<'a> {
    Target {
        located,
        change: ChangeInfo::default(),
        attributes_set: Bitmap::EMPTY,
        is_new: false,
        cuts: false,
        room: None,
        undelegated: None,
    }
}
