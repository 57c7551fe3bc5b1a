//! EXCHANGE_ID, CREATE_SESSION, SEQUENCE and their like.

use std::sync::Arc;

use proto::nfs4::{
    BackchannelCtlArgs, BindConnToSession, CALLBACK_SECURITY_MAX, CREATE_SESSION_CONN_BACK_CHAN,
    CREATE_SESSION_CONN_RDMA, CREATE_SESSION_PERSIST, CallbackSecurity, ChannelAttributes,
    ChannelDirection, CreateSessionArgs, CreateSessionOk, DestroyClientidArgs, DestroySessionArgs,
    EXCHGID_CALL_FLAGS, EXCHGID_CONFIRMED_R, EXCHGID_SUPP_FENCE_OPS, EXCHGID_UPD_CONFIRMED_REC_A,
    EXCHGID_USE_NON_PNFS, ExchangeIdArgs, ExchangeIdOk, OperationCode, ReclaimCompleteArgs,
    SequenceArgs, SequenceOk, StateProtectHow, StateProtection, Status,
};
use proto::xdr::{Array, Encode, Reader};

use super::compound::{Compound, Sequenced};
use super::operation::decoded;
use super::{Outcome, Refused};
use crate::export::Flavor;
use crate::state::{
    self, Begin, CallbackParameters, CreateSession, ExchangeId, ExchangedId, Principal, Sequence,
    State, Step,
};

/// Bytes of the result of a SEQUENCE that succeeds, RFC 8881 §18.46.2.
const SEQUENCE_BYTES: usize = 44;

impl Compound<'_> {
    /// The user behind the call.
    fn principal(&self) -> Principal {
        match (self.request.flavor, &self.request.credential) {
            (Flavor::Sys, Some(credential)) => Principal::User(credential.uid),
            (Flavor::None | Flavor::Sys, _) => Principal::None,
        }
    }

    /// SEQUENCE, RFC 8881 §18.46.
    pub(super) fn sequence(&mut self, reader: &mut Reader<'_>) -> Outcome<Sequenced> {
        let args: SequenceArgs = decoded(reader)?;
        let service = self.request.service;
        let session = match &self.call.receiving {
            Some(call) if call.session().id() == args.session => Arc::clone(call.session()),
            Some(_) | None => service.state.session(args.session)?,
        };
        let fore = *session.fore();
        if self.operations > fore.operations_max {
            return Err(Status::TooManyOps.into());
        }
        if self.call_bytes() > u64::from(fore.request_bytes_max) {
            return Err(Status::ReqTooBig.into());
        }
        let SequenceArgs { sequence, slot, highest_slot, cache_this, .. } = args;
        let call = Sequence { slot, sequence, highest_slot, cache_this };
        let bytes_max = if cache_this { fore.cached_bytes_max } else { fore.response_bytes_max };
        self.results.limit(bytes_max, cache_this);
        // An error of SEQUENCE leaves the slot and the lease as they are.
        if self.results.room() < SEQUENCE_BYTES {
            return Err(self.results.too_big().into());
        }
        let (digest, connection) = (self.digest(reader.position()), self.peer.connection);
        let running = match session.begin(&call, digest, connection, service.now())? {
            Begin::Run(running) => running,
            Begin::Replay(body) => return Ok(Sequenced::Replay(body)),
            Begin::Duplicate => return Ok(Sequenced::Duplicate),
        };
        let answer = running.sequenced();
        self.running = Some(running);
        let result = SequenceOk {
            session: args.session,
            sequence,
            slot,
            highest_slot: answer.highest_slot,
            target_highest_slot: answer.target_highest_slot,
            status_flags: answer.status_flags,
        };
        Ok(Sequenced::Run(self.put(OperationCode::Sequence, Ok(result))))
    }

    /// EXCHANGE_ID, RFC 8881 §18.35, without state protection.
    pub(super) async fn exchange_id(&mut self, args: ExchangeIdArgs<'_>) -> Outcome<ExchangedId> {
        let added = if self.minor_version >= 2 { EXCHGID_SUPP_FENCE_OPS } else { 0 };
        if args.flags & !(EXCHGID_CALL_FLAGS | added) != 0 {
            return Err(Status::Inval.into());
        }
        match args.protection {
            StateProtection::None => {}
            StateProtection::MachCred(_) => return Err(Status::Inval.into()),
            StateProtection::Ssv => return Err(Status::HashAlgUnsupp.into()),
        }
        let call = ExchangeId {
            owner: args.owner.owner_id,
            verifier: args.owner.verifier,
            is_update: args.flags & EXCHGID_UPD_CONFIRMED_REC_A != 0,
            principal: self.principal(),
            peer: self.peer.address.ip().to_canonical(),
        };
        let service = self.request.service;
        Ok(service.change_state(|state, step| state.exchange_id(&call, step)).await?)
    }

    /// Appends the result of EXCHANGE_ID.
    pub(super) fn put_exchanged(&mut self, outcome: Outcome<ExchangedId>) -> Result<(), Status> {
        let server_id = self.request.service.server_id();
        self.put_with(OperationCode::ExchangeId, outcome, |exchanged, results| {
            let ExchangedId { client, sequence, is_confirmed } = exchanged;
            let confirmed = if is_confirmed { EXCHGID_CONFIRMED_R } else { 0 };
            ExchangeIdOk {
                client,
                sequence,
                flags: EXCHGID_USE_NON_PNFS | confirmed,
                protection: StateProtectHow::None,
                server_minor: 0,
                server_major: server_id.as_bytes(),
                server_scope: server_id.as_bytes(),
                implementation: None,
            }
            .encode(results.writer());
            Ok(())
        })
    }

    /// CREATE_SESSION, RFC 8881 §18.36.
    pub(super) async fn create_session(
        &mut self,
        args: CreateSessionArgs<'_>,
    ) -> Outcome<CreateSessionOk> {
        let flags =
            CREATE_SESSION_PERSIST | CREATE_SESSION_CONN_BACK_CHAN | CREATE_SESSION_CONN_RDMA;
        if args.flags & !flags != 0 {
            return Err(Status::Inval.into());
        }
        let call = CreateSession {
            client: args.client,
            sequence: args.sequence,
            fore: channel(&args.fore),
            back: channel(&args.back),
            wants_backchannel: args.flags & CREATE_SESSION_CONN_BACK_CHAN != 0,
            callbacks: self.callbacks(args.callback_program, &args.callback_security),
            principal: self.principal(),
            connection: self.peer.connection,
            within: self.running.as_ref().map(|running| running.session().client()),
        };
        let service = self.request.service;
        let created = service.change_state(|state, step| state.create_session(&call, step)).await?;
        Ok(CreateSessionOk {
            session: created.session,
            sequence: created.sequence,
            flags: if created.has_backchannel { CREATE_SESSION_CONN_BACK_CHAN } else { 0 },
            fore: wire_channel(&created.fore),
            back: wire_channel(&created.back),
        })
    }

    /// DESTROY_SESSION, RFC 8881 §18.37.
    pub(super) async fn destroy_session(&mut self, args: DestroySessionArgs) -> Outcome<()> {
        let is_own = self.running.as_ref().is_some_and(|r| r.session().id() == args.session);
        if is_own && !self.is_last() {
            return Err(Status::NotOnlyOp.into());
        }
        Ok(self.request.service.state.destroy_session(args.session)?)
    }

    /// DESTROY_CLIENTID, RFC 8881 §18.50.
    pub(super) async fn destroy_clientid(&mut self, args: DestroyClientidArgs) -> Outcome<()> {
        let (service, principal) = (self.request.service, self.principal());
        let destroy =
            |state: &State, step: &mut Step| state.destroy_clientid(args.client, principal, step);
        Ok(service.change_state(destroy).await?)
    }

    /// BIND_CONN_TO_SESSION, RFC 8881 §18.34. Every connection carries calls of every session.
    ///
    /// # Errors
    /// `Badsession`. `Inval` if the client demands a backchannel (`Back`, `BackOrBoth`) and the
    /// session has no flavour of callbacks that the server can send.
    pub(super) async fn bind_connection(
        &mut self,
        args: BindConnToSession,
    ) -> Outcome<BindConnToSession> {
        let service = self.request.service;
        service.state.session(args.session)?;
        use ChannelDirection::{Back, BackOrBoth, Both, Fore};
        let wants_back = args.direction != Fore;
        let is_back =
            wants_back && service.state.bind_backchannel(args.session, self.peer.connection)?;
        let direction = match (args.direction, is_back) {
            (Fore, _) | (Both, false) => Fore,
            (Back, true) => Back,
            (Both | BackOrBoth, true) => Both,
            (Back | BackOrBoth, false) => return Err(Status::Inval.into()),
        };
        Ok(BindConnToSession { direction, use_rdma: false, ..args })
    }

    /// BACKCHANNEL_CTL, RFC 8881 §18.33.
    pub(super) async fn backchannel_ctl(&mut self, args: BackchannelCtlArgs<'_>) -> Outcome<()> {
        let callbacks = self.callbacks(args.callback_program, &args.callback_security);
        let running = self.running.as_ref().ok_or(Status::OpNotInSession)?;
        running.session().set_callbacks(callbacks);
        Ok(())
    }

    /// How to send callbacks: as AUTH_SYS if the client takes it, because Linux takes nothing but
    /// NULL as AUTH_NONE.
    fn callbacks(
        &self,
        program: u32,
        security: &Array<'_, CallbackSecurity, CALLBACK_SECURITY_MAX>,
    ) -> Option<CallbackParameters> {
        let sys = security.iter().find_map(|flavor| match flavor {
            CallbackSecurity::Sys { uid, gid } => Some((uid, gid)),
            CallbackSecurity::None | CallbackSecurity::Gss => None,
        });
        let takes_none = || security.iter().any(|flavor| flavor == CallbackSecurity::None);
        let is_possible = sys.is_some() || takes_none();
        let minor_version = self.minor_version;
        is_possible.then_some(CallbackParameters { minor_version, program, ids: sys })
    }

    /// RECLAIM_COMPLETE, RFC 8881 §18.51.
    pub(super) async fn reclaim_complete(&mut self, args: ReclaimCompleteArgs) -> Outcome<()> {
        if args.one_fs {
            self.current_handle()?;
        }
        let (service, client) = (self.request.service, self.client()?);
        let complete =
            |state: &State, step: &mut Step| state.reclaim_complete(client, args.one_fs, step);
        Ok(service.change_state(complete).await?)
    }
}

fn channel(wire: &ChannelAttributes) -> state::ChannelAttributes {
    state::ChannelAttributes {
        request_bytes_max: wire.request_bytes_max,
        response_bytes_max: wire.response_bytes_max,
        cached_bytes_max: wire.cached_bytes_max,
        operations_max: wire.operations_max,
        slots_max: wire.requests_max,
    }
}

fn wire_channel(channel: &state::ChannelAttributes) -> ChannelAttributes {
    ChannelAttributes {
        header_pad_bytes: 0,
        request_bytes_max: channel.request_bytes_max,
        response_bytes_max: channel.response_bytes_max,
        cached_bytes_max: channel.cached_bytes_max,
        operations_max: channel.operations_max,
        requests_max: channel.slots_max,
        rdma_ird: None,
    }
}

/// An operation that needs a session has one, as `Compound::check` has seen.
impl Compound<'_> {
    pub(super) fn client(&self) -> Outcome<proto::nfs4::ClientId> {
        let running = self.running.as_ref().ok_or(Refused::from(Status::OpNotInSession))?;
        Ok(running.session().client())
    }
}
