//! Read delegations: the part of OPEN, and DELEGRETURN.

use std::sync::Arc;

use proto::nfs4::{
    DelegationType, OneStateid, OpenArgs, OpenClaim, OpenDelegation, SHARE_WANT_CANCEL,
    SHARE_WANT_MASK, SHARE_WANT_NO_DELEGATION, SHARE_WANT_WRITE_DELEGATION, ShareAccess, Stateid,
    Status, WhyNoDelegation,
};

use super::Outcome;
use super::compound::Compound;
use super::resolved_handle::{Located, ResolvedHandle};
use crate::held_files::{export_id, file_id};
use crate::inode_cache::Inode;
use crate::state::{Delegate, FileId, NotDelegated, Running, State, Step};

impl Compound<'_> {
    /// Checks the delegation that an OPEN claims to open under, if it claims one. Returns the user
    /// whose right it was given for.
    pub(super) fn check_claimed_delegation(
        &self,
        claim: &OpenClaim<'_>,
        file: FileId,
    ) -> Outcome<Option<u32>> {
        let (OpenClaim::DelegateCurrent(stateid, _) | OpenClaim::DelegateCurrentHandle(stateid)) =
            claim
        else {
            return Ok(None);
        };
        let stateid = self.known_stateid(stateid)?;
        Ok(Some(self.request.service.state.check_delegation(self.client()?, &stateid, file)?))
    }

    /// The delegation that comes with an OPEN of a file, or why there is none if the client said
    /// what it wants.
    pub(super) async fn delegation(
        &self,
        args: &OpenArgs<'_>,
        located: &Located,
        inode: &Arc<Inode>,
    ) -> OpenDelegation {
        let want = args.share_access & SHARE_WANT_MASK;
        let why = match want {
            SHARE_WANT_NO_DELEGATION => WhyNoDelegation::NotWanted,
            SHARE_WANT_CANCEL => WhyNoDelegation::Cancelled,
            _ => match self.delegate(args, located, inode).await {
                Ok((stateid, recall)) => return OpenDelegation::Read { stateid, recall },
                Err(_) if want == SHARE_WANT_WRITE_DELEGATION => WhyNoDelegation::WriteNotSupported,
                Err(why) => why,
            },
        };
        if want == 0 { OpenDelegation::None } else { OpenDelegation::Why(why) }
    }

    /// A delegation, and whether it is to be returned at once.
    async fn delegate(
        &self,
        args: &OpenArgs<'_>,
        located: &Located,
        inode: &Arc<Inode>,
    ) -> Result<(Stateid, bool), WhyNoDelegation> {
        let service = self.request.service;
        let is_reclaim = match args.claim {
            OpenClaim::Null(_) | OpenClaim::Handle => false,
            OpenClaim::Previous(DelegationType::Read) => true,
            // A client that reclaims an open alone had no read delegation. One that claims an open
            // under a delegation is about to return the delegation.
            _ => return Err(WhyNoDelegation::Contention),
        };
        let access = args.share_access & proto::nfs4::SHARE_ACCESS_MASK;
        if access != ShareAccess::Read.code() {
            return Err(WhyNoDelegation::Contention);
        }
        // Elsewhere a file may change without a trace that this machine's kernel leaves.
        if !located.object.root().attributes_in_memory {
            return Err(WhyNoDelegation::NotSupported);
        }
        let session = self.running.as_ref().map(Running::session);
        let session = session.ok_or(WhyNoDelegation::Resource)?;
        let is_proved = session.is_callback_path_proved();
        if service.gives_delegations() && !is_proved && session.has_callback_path() {
            service.probe(session);
        }
        if !service.gives_delegations() || (!is_proved && !is_reclaim) {
            return Err(WhyNoDelegation::Resource);
        }
        let call = Delegate {
            client: session.client(),
            file: file_id(inode),
            export: export_id(inode),
            object: self.handle_of(&ResolvedHandle::Object(located.clone())),
            user: located.caller.uid(),
            is_reclaim,
        };
        let recall = !session.has_callback_path();
        match service.delegate(inode, call).await {
            Ok(stateid) => Ok((stateid, recall)),
            Err(NotDelegated::Contention) => Err(WhyNoDelegation::Contention),
            Err(NotDelegated::Resource) => Err(WhyNoDelegation::Resource),
        }
    }

    /// DELEGRETURN, RFC 8881 §18.6.
    pub(super) async fn return_delegation(&mut self, args: OneStateid) -> Outcome<()> {
        let stateid = self.known_stateid(&args.stateid)?;
        let located = self.object_or(Status::BadStateid)?;
        let (inode, file) = self.hold(&located).await?;
        let (service, client) = (self.request.service, self.client()?);
        let give_back =
            |state: &State, step: &mut Step| state.return_delegation(client, &stateid, file, step);
        let returned = service.change_state(give_back).await;
        self.let_go(inode).await;
        Ok(returned?)
    }
}
