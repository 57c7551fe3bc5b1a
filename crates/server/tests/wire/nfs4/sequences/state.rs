//! Opens, locks, sessions, and attempts on those of others.

use proptest::prelude::*;
use proto::nfs4::*;
use proto::xdr::Decode;

use super::steps::{Kind, Step};
use super::{Actor, BYTES, Locks, Open, USERS, World};
use crate::nfs4::client::{Operations, compound, create_session_args, exchange_id};

impl World {
    pub(super) fn lock(
        &mut self,
        step: Step,
        file: usize,
        kind: LockType,
    ) -> Result<(), TestCaseError> {
        let Step { actor, at, len, .. } = step;
        let bytes = at..(at + len).min(BYTES);
        let range = LockRange { offset: at as u64, length: bytes.len() as u64 };
        let others = self.locks.iter().filter(|((holder, of), _)| *holder != actor && *of == file);
        let conflicts = |held: LockType| held == LockType::Write || kind == LockType::Write;
        let is_denied = { others }
            .any(|(_, locks)| locks.bytes[bytes.clone()].iter().flatten().any(|b| conflicts(*b)));
        let owner = LockOwner { client: ClientId(0), owner: b"l" };
        if let Kind::TestLock(_) = step.kind {
            let args = LocktArgs { kind, range, owner };
            let tested = self.on(actor, file, OperationCode::Lockt, &args).status;
            prop_assert_eq!(tested, if is_denied { Err(Status::Denied) } else { Ok(()) });
            return Ok(());
        }
        let Some(open) = self.opens.get(&(actor, file)) else { return Ok(()) };
        let needed = match kind {
            LockType::Write => ShareAccess::Write,
            _ => ShareAccess::Read,
        };
        let may = open.access() & needed.code() != 0;
        let locker = match self.locks.get(&(actor, file)) {
            Some(locks) => Locker::Existing { stateid: locks.stateid, lock_seqid: 0 },
            None => Locker::New { open_seqid: 0, open: open.stateid, lock_seqid: 0, owner },
        };
        let args = LockArgs { kind, reclaim: false, range, locker };
        let mut results = self.on(actor, file, OperationCode::Lock, &args);
        let locked = results.next::<OneStateid>(OperationCode::Lock);
        match (may, is_denied) {
            (false, _) => prop_assert_eq!(locked.map(drop), Err(Status::Openmode)),
            (true, true) => prop_assert_eq!(locked.map(drop), Err(Status::Denied)),
            (true, false) => {
                let stateid = locked.unwrap().stateid;
                let new = || Locks { stateid, bytes: [None; BYTES] };
                let locks = self.locks.entry((actor, file)).or_insert_with(new);
                locks.stateid = stateid;
                locks.bytes[bytes].fill(Some(kind));
            }
        }
        Ok(())
    }

    pub(super) fn unlock(
        &mut self,
        actor: usize,
        file: usize,
        (at, len): (usize, usize),
    ) -> Result<(), TestCaseError> {
        let Some(locks) = self.locks.get(&(actor, file)) else { return Ok(()) };
        let (bytes, stateid) = (at..(at + len).min(BYTES), locks.stateid);
        let range = LockRange { offset: at as u64, length: bytes.len() as u64 };
        let args = LockuArgs { kind: LockType::Write, seqid: 0, stateid, range };
        let mut results = self.on(actor, file, OperationCode::Locku, &args);
        let unlocked = results.next::<OneStateid>(OperationCode::Locku).unwrap();
        let locks = self.locks.get_mut(&(actor, file)).unwrap();
        locks.stateid = unlocked.stateid;
        locks.bytes[bytes].fill(None);
        Ok(())
    }

    pub(super) fn stateid(&mut self, step: Step, file: usize) -> Result<(), TestCaseError> {
        let (actor, key) = (step.actor, (step.actor, file));
        match step.kind {
            Kind::Close => {
                let Some(open) = self.opens.get(&key) else { return Ok(()) };
                let args = CloseArgs { seqid: 0, stateid: open.stateid };
                let closed = self.on(actor, file, OperationCode::Close, &args).status;
                prop_assert_eq!(closed, Ok(()));
                self.opens.remove(&key);
                self.locks.remove(&key);
            }
            Kind::Downgrade => {
                let Some(open) = self.opens.get(&key) else { return Ok(()) };
                let wanted = ShareAccess::Read.code();
                let (stateid, seqid) = (open.stateid, 0);
                let may = open.asked.contains(&wanted);
                let args =
                    OpenDowngradeArgs { stateid, seqid, share_access: wanted, share_deny: 0 };
                let mut results = self.on(actor, file, OperationCode::OpenDowngrade, &args);
                let lowered = results.next::<OneStateid>(OperationCode::OpenDowngrade);
                let lowered = lowered.map(|lowered| lowered.stateid);
                prop_assert_eq!(lowered.map(drop), if may { Ok(()) } else { Err(Status::Inval) });
                if let Ok(stateid) = lowered {
                    *self.opens.get_mut(&key).unwrap() = Open { stateid, asked: [wanted].into() };
                }
            }
            Kind::FreeStateid => {
                let Some(locks) = self.locks.get(&key) else { return Ok(()) };
                let is_free = locks.bytes.iter().all(Option::is_none);
                let args = OneStateid { stateid: locks.stateid };
                let call = Operations::new().op(OperationCode::FreeStateid, &args);
                let freed = self.actors[actor].session.call(&call).status;
                prop_assert_eq!(freed, if is_free { Ok(()) } else { Err(Status::LocksHeld) });
                if is_free {
                    self.locks.remove(&key);
                }
            }
            _ => {
                let all = self.opens.iter().map(|(key, open)| (key.0, open.stateid));
                let (owners, stateids): (Vec<_>, Vec<_>) = all.unzip();
                let args = TestStateidArgs { stateids: stateids[..].into() };
                let call = Operations::new().op(OperationCode::TestStateid, &args);
                let mut results = self.actors[actor].session.ok(&call);
                let statuses = results.next_with(OperationCode::TestStateid, |r| {
                    TestStateidOk::decode(r).unwrap().statuses.iter().collect::<Vec<_>>()
                });
                let bad = Status::BadStateid.code();
                let wanted = owners.into_iter().map(|o| if o == actor { NFS4_OK } else { bad });
                prop_assert_eq!(statuses, Ok(wanted.collect()));
            }
        }
        Ok(())
    }

    pub(super) fn another_session(&mut self, actor: usize) -> Result<(), TestCaseError> {
        let Actor { session, next, .. } = &mut self.actors[actor];
        let args = create_session_args(session.client_id, *next);
        let call = Operations::new().op(OperationCode::CreateSession, &args);
        let mut results = compound(&mut session.client, 1, &call);
        let made: CreateSessionOk = results.next(OperationCode::CreateSession).unwrap();
        *next = SequenceId(next.0 + 1);
        let call = Operations::new()
            .op(OperationCode::DestroySession, &DestroySessionArgs { session: made.session });
        for wanted in [Ok(()), Err(Status::Badsession)] {
            prop_assert_eq!(compound(&mut session.client, 1, &call).status, wanted);
        }
        Ok(())
    }

    pub(super) fn rebind(&mut self, actor: usize) -> Result<(), TestCaseError> {
        let session = &mut self.actors[actor].session;
        let (id, direction) = (session.id, ChannelDirection::Both);
        let args = BindConnToSession { session: id, direction, use_rdma: false };
        let call = Operations::new().op(OperationCode::BindConnToSession, &args);
        prop_assert_eq!(compound(&mut session.client, 1, &call).status, Ok(()));
        let flavors = &[CallbackSecurity::Sys { uid: 0, gid: 0 }][..];
        let args = BackchannelCtlArgs { callback_program: 7, callback_security: flavors.into() };
        let call = Operations::new().op(OperationCode::BackchannelCtl, &args);
        prop_assert_eq!(session.call(&call).status, Ok(()));
        Ok(())
    }

    /// The state of another client is out of reach, and its name taken for other users.
    pub(super) fn intrude(&mut self, actor: usize, file: usize) -> Result<(), TestCaseError> {
        let victim = (actor + 1) % USERS.len();
        let is_same_user = USERS[actor] == USERS[victim];
        if let Some(open) = self.opens.get(&(victim, file)) {
            let stateid = open.stateid;
            let args = CloseArgs { seqid: 0, stateid };
            let closed = self.on(actor, file, OperationCode::Close, &args).status;
            prop_assert_eq!(closed, Err(Status::BadStateid));
            let (data, stable) = (&b"stolen"[..], StableHow::Unstable);
            let args = WriteArgs { stateid, offset: 0, stable, data };
            let written = self.on(actor, file, OperationCode::Write, &args).status;
            prop_assert_eq!(written, Err(Status::BadStateid));
        }
        let (client_id, boots) = (self.actors[victim].session.client_id, self.actors[victim].boots);
        let client = &mut self.actors[actor].session.client;
        let args = DestroyClientidArgs { client: client_id };
        let call = Operations::new().op(OperationCode::DestroyClientid, &args);
        let wanted = if is_same_user { Status::ClientidBusy } else { Status::WrongCred };
        prop_assert_eq!(compound(client, 1, &call).status, Err(wanted));
        if !is_same_user {
            let owner = [u8::try_from(victim).unwrap()];
            let taken = exchange_id(client, &owner, boots).map(drop);
            prop_assert_eq!(taken, Err(Status::ClidInuse));
            let args = create_session_args(client_id, SequenceId(9));
            let call = Operations::new().op(OperationCode::CreateSession, &args);
            prop_assert_eq!(compound(client, 1, &call).status, Err(Status::ClidInuse));
        }
        Ok(())
    }
}
