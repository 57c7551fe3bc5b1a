//! Current and saved filehandles: PUTFH, PUTROOTFH, GETFH.

use std::num::NonZeroU64;
use std::sync::Arc;

use proto::nfs3;
use proto::nfs4::{FileHandle, Status};

use super::compound::Compound;
use super::resolved_handle::{Current, Located, Pseudo, ResolvedHandle};
use super::{Outcome, Refused};
use crate::counters::Counter;
use crate::export::{Object, PseudoRoot, pseudo_id};
use crate::fs::{self, Caller, Shown};
use crate::trace::CallId;

impl Compound<'_> {
    /// Replaces the current filehandle.
    pub(super) fn go(&mut self, handle: ResolvedHandle) {
        self.current = Some(Current { handle, stateid: None });
    }

    /// The current filehandle.
    ///
    /// # Errors
    /// `Nofilehandle`.
    pub(super) fn current_handle(&self) -> Outcome<&ResolvedHandle> {
        let current = self.current.as_ref().ok_or(Status::Nofilehandle)?;
        Ok(&current.handle)
    }

    /// The current object of an export, to be changed or read.
    ///
    /// # Errors
    /// `Nofilehandle`; `otherwise` for a directory above the exports.
    pub(super) fn object_or(&self, otherwise: Status) -> Outcome<Located> {
        match self.current_handle()? {
            ResolvedHandle::Object(located) => Ok(located.clone()),
            ResolvedHandle::Pseudo(_) => Err(otherwise.into()),
        }
    }

    /// The saved filehandle.
    ///
    /// # Errors
    /// `Nofilehandle`.
    pub(super) fn saved_handle(&self) -> Outcome<&ResolvedHandle> {
        let saved = self.saved.as_ref().ok_or(Status::Nofilehandle)?;
        Ok(&saved.handle)
    }

    /// The saved object of an export.
    ///
    /// # Errors
    /// As [`Self::object_or`].
    pub(super) fn saved_object_or(&self, otherwise: Status) -> Outcome<Located> {
        match self.saved_handle()? {
            ResolvedHandle::Object(located) => Ok(located.clone()),
            ResolvedHandle::Pseudo(_) => Err(otherwise.into()),
        }
    }

    /// PUTFH, RFC 8881 §18.19.
    pub(super) fn put_handle(&mut self, handle: &FileHandle) -> Outcome<()> {
        let (request, service) = (self.request, self.request.service);
        let opened = service.handle_key.open(handle.as_bytes())?;
        let handle = if pseudo_id(&opened).is_some() {
            let tree = self.pseudo_root();
            let place = tree.place_of(&opened).ok_or(Status::Stale)?;
            self.enter(Pseudo { tree, place })?
        } else {
            let (xid, peer, flavor) = (request.xid, &request.peer, request.flavor);
            let found = service.resolve_opened(xid, &opened, peer, flavor, request.credential);
            let (caller, object) = found?;
            ResolvedHandle::Object(Located { caller: self.named(caller), object })
        };
        self.go(handle);
        Ok(())
    }

    /// PUTROOTFH and PUTPUBFH, RFC 8881 §18.20 and §18.21.
    pub(super) fn put_root(&mut self) -> Outcome<()> {
        let handle = self.enter(Pseudo { tree: self.pseudo_root(), place: 0 })?;
        self.go(handle);
        Ok(())
    }

    /// The directories above the exports that are served now.
    fn pseudo_root(&self) -> Arc<PseudoRoot> {
        Arc::clone(&self.request.service.exports.load().pseudo_root)
    }

    /// The export at a place, or the directory if there is none.
    ///
    /// # Errors
    /// `Access` for an export that does not admit the peer, unless one below does.
    pub(super) fn enter(&self, pseudo: Pseudo) -> Outcome<ResolvedHandle> {
        let handle = self.handle_at(&pseudo);
        handle.inspect_err(|refused| self.log_refused(&pseudo, refused.status))
    }

    /// As [`Self::enter`], for a listing, which neither counts nor logs a refusal: the client did
    /// not ask for the export.
    pub(super) fn handle_at(&self, pseudo: &Pseudo) -> Outcome<ResolvedHandle> {
        let Some(id) = pseudo.node().export else {
            return Ok(ResolvedHandle::Pseudo(pseudo.clone()));
        };
        match self.root_of(pseudo, id) {
            Ok(root) => Ok(ResolvedHandle::Object(root)),
            Err(_) if self.is_visible(pseudo) => Ok(ResolvedHandle::Pseudo(pseudo.clone())),
            Err(refused) => Err(refused),
        }
    }

    /// Counts and logs that no export at a place or below it admits the peer, as MNT does.
    pub(super) fn log_refused(&self, pseudo: &Pseudo, status: Status) {
        self.request.service.counters.add(Counter::DeniedCalls, 1);
        let (tree, peer) = (&pseudo.tree, &self.request.peer);
        let ids = tree.exports_below(pseudo.place);
        let mut below = ids.iter().filter_map(|id| tree.table.by_id(*id));
        let Some(export) = below.next() else { return };
        let Err(denied) = export.admit(peer, self.request.flavor) else { return };
        let (client, path) = (peer.address.ip().to_canonical(), Shown(export.name.as_bytes()));
        let (status, refusal) = (status.name(), format_args!("export {}: {denied}", export.name));
        tracing::info!(%client, %path, status, %refusal, "mount refused");
    }

    /// The root of the export at a place, as it is served now.
    ///
    /// # Errors
    /// `Stale` if a reload has taken the export away, or given its id to another; `Access`.
    fn root_of(&self, pseudo: &Pseudo, id: u32) -> Outcome<Located> {
        let (request, service) = (self.request, self.request.service);
        let exports = service.exports.load();
        let before = pseudo.tree.table.by_id(id).map(|export| &export.name);
        let now = exports.table.by_id(id).filter(|export| Some(&export.name) == before);
        let export = now.ok_or(Status::Stale)?;
        let admitted = exports
            .admit(export, &request.peer, request.flavor)
            .map_err(|_| Refused::from(fs::Status::Access))?;
        let caller = service
            .caller(admitted.access(), request.credential)
            .map_err(|_| Refused::from(fs::Status::Access))?;
        Ok(Located { caller: self.named(caller), object: admitted.root() })
    }

    /// The caller with the client behind it.
    fn named(&self, caller: Caller) -> Caller {
        let client = self.running.as_ref().map(|running| running.session().client().0);
        Caller { client: client.and_then(NonZeroU64::new), ..caller }
    }

    /// Whether an export at the place or below it admits the peer.
    pub(super) fn is_visible(&self, pseudo: &Pseudo) -> bool {
        let (tree, request) = (&pseudo.tree, self.request);
        let ids = tree.exports_below(pseudo.place);
        let mut below = ids.iter().filter_map(|id| tree.table.by_id(*id));
        below.any(|export| export.admit(&request.peer, request.flavor).is_ok())
    }

    /// The place of an export among the directories above.
    pub(super) fn pseudo_of(&self, located: &Located) -> Option<Pseudo> {
        let tree = self.pseudo_root();
        let place = tree.place_of_export(located.object.root().id)?;
        Some(Pseudo { tree, place })
    }

    /// GETFH, RFC 8881 §18.8.
    pub(super) fn handle_of(&self, handle: &ResolvedHandle) -> FileHandle {
        let service = self.request.service;
        match handle {
            ResolvedHandle::Object(Located { object, .. }) => {
                let sealed = service.seal(object.root(), *object.handle());
                FileHandle::new(sealed.as_bytes()).expect("version 4 has longer handles")
            }
            ResolvedHandle::Pseudo(pseudo) => {
                let sealed = service.handle_key.seal(&pseudo.node().handle());
                FileHandle::new(sealed.as_bytes()).expect("version 4 has longer handles")
            }
        }
    }

    /// The subject of trace events on an object.
    pub(super) fn call_id(&self, object: &Object) -> CallId {
        let service = self.request.service;
        self.request.call_id(|| service.seal(object.root(), *object.handle()))
    }

    /// The subject of trace events on the current filehandle, if there is one.
    pub(super) fn current_call_id(&self) -> CallId {
        let service = self.request.service;
        match self.current_handle() {
            Ok(ResolvedHandle::Object(located)) => self.call_id(&located.object),
            Ok(ResolvedHandle::Pseudo(pseudo)) => {
                let sealed = service.handle_key.seal(&pseudo.node().handle());
                let handle = nfs3::FileHandle::new(sealed.as_bytes());
                self.request.call_id(|| handle.expect("a sealed handle fits 64 bytes"))
            }
            Err(_) => self.request.call_id_without_handle(),
        }
    }
}
