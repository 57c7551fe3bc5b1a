//! From a peer and a wire handle to the caller and the object, through the gate.

use std::net::SocketAddr;

use io::Identity;

use super::Service;
use crate::counters::Counter;
use crate::export::{
    self, Access, Admitted, CallerIds, Credential, Denied, Export, ExportRoot, Exports, FileHandle,
    Flavor, Object, Purpose,
};
use crate::fs::{Caller, OpenedFor, Status};

impl Service {
    /// Whether there is any export that admits a peer at all.
    pub(crate) fn knows_address(&self, address: SocketAddr) -> bool {
        self.knows(&export::Peer { address, purpose: Purpose::Data })
    }

    /// Whether there is any export that admits a peer for its purpose.
    pub(crate) fn knows(&self, peer: &export::Peer) -> bool {
        self.exports.load().table.iter().any(|export| export.admit(peer, Flavor::Sys).is_ok())
    }

    /// Counts and logs a call of a peer that no export admits, with the rule that comes closest.
    pub(crate) fn refuse_stranger(&self, peer: &export::Peer, status: &str) {
        self.counters.add(Counter::DeniedCalls, 1);
        let exports = self.exports.load();
        let closest = exports.table.iter().find_map(|export| {
            let denied = export.admit(peer, Flavor::Sys).err()?;
            (denied != Denied::NotAllowed).then_some((&export.name, denied))
        });
        let refusal = match closest {
            Some((export, denied)) => format!("export {export}: {denied}"),
            None => "no rule of any export names this client".to_owned(),
        };
        let client = peer.address.ip().to_canonical();
        tracing::info!(%client, status, %refusal, "mount refused");
    }

    /// Passes a call through the gate of an export.
    ///
    /// # Errors
    /// [`Denied`] for a peer that the export does not admit: the status `Access`.
    pub(crate) fn admit<'a>(
        &self,
        exports: &'a Exports,
        export: &'a Export,
        peer: &export::Peer,
        flavor: Flavor,
    ) -> Result<Admitted<'a>, Denied> {
        exports.admit(export, peer, flavor).inspect_err(|why| {
            self.counters.add(Counter::DeniedCalls, 1);
            tracing::debug!(client = %peer.address, export = export.name, %why, "denied");
        })
    }

    /// The object behind a wire handle and what its export makes of the caller.
    ///
    /// # Errors
    /// Those of [`HandleKey::open`](export::HandleKey::open), `Stale` for an export that is gone or
    /// leads to another directory now, `Access` from the gate.
    pub(crate) fn resolve(
        &self,
        xid: u32,
        handle: &[u8],
        peer: &export::Peer,
        flavor: Flavor,
        credential: Option<Credential<'_>>,
    ) -> Result<(Caller, Object), Status> {
        let handle = self.handle_key.open(handle)?;
        self.resolve_opened(xid, &handle, peer, flavor, credential)
    }

    /// As [`Self::resolve`], for a handle that was opened.
    pub(crate) fn resolve_opened(
        &self,
        xid: u32,
        handle: &FileHandle,
        peer: &export::Peer,
        flavor: Flavor,
        credential: Option<Credential<'_>>,
    ) -> Result<(Caller, Object), Status> {
        let exports = self.exports.load();
        let export = exports.table.by_id(handle.export_id).ok_or(Status::Stale)?;
        let admitted = self.admit(&exports, export, peer, flavor).map_err(|_| Status::Access)?;
        let object = admitted.object(handle)?;
        let caller = self.caller(admitted.access(), credential).map_err(|why| {
            tracing::debug!(client = %peer.address, export = export.name, %why, "denied");
            Status::Access
        })?;
        let Caller { identity, read_only, .. } = &caller;
        let (uid, gid) = (identity.uid(), identity.gid());
        let (xid, export) = (format_args!("0x{xid:08x}"), &export.name);
        tracing::trace!(%xid, export, uid, gid, read_only, "resolved");
        Ok((caller, object))
    }

    /// Where the object of a wire handle is, for the log; known only while it is open.
    pub(crate) fn path_of(&self, handle: &[u8]) -> Option<String> {
        let handle = self.handle_key.open(handle).ok()?;
        let exports = self.exports.load();
        let root = exports.root(exports.table.by_id(handle.export_id)?);
        self.vfs.find_open(root, handle.kernel)?.shown_path()
    }

    /// The wire handle of an object.
    pub(crate) fn seal(
        &self,
        root: &ExportRoot,
        kernel: io::KernelHandle,
    ) -> proto::nfs3::FileHandle {
        let handle = FileHandle { export_id: root.id, tree: root.tree, kernel };
        let sealed = self.handle_key.seal(&handle);
        proto::nfs3::FileHandle::new(sealed.as_bytes()).expect("a sealed handle fits 64 bytes")
    }

    /// The caller of `credential` after squashing, and the identity of its threads. Here alone
    /// groups that do not exist in the server's user namespace are left out, so that the kernel and
    /// all checks of the server's own see the same ones.
    ///
    /// # Errors
    /// [`Denied::NoUser`]: the status `Access`.
    pub(crate) fn caller(
        &self,
        access: &Access,
        credential: Option<Credential<'_>>,
    ) -> Result<Caller, Denied> {
        let identity = if self.assumes_users {
            let CallerIds { uid, gid, groups } = access.identity(credential);
            Identity::of_client(uid, gid, &groups).ok_or(Denied::NoUser { uid, gid })?
        } else {
            Identity::Server
        };
        let (opened, client) = (OpenedFor::default(), None);
        Ok(Caller { identity, read_only: access.read_only, opened, client })
    }
}
