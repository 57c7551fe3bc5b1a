//! Random sequences of valid operations, by several clients and users, against a model of two
//! names.

mod contents;
mod state;
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proto::nfs4::*;
use proto::xdr::{Encode, Writer};

use self::steps::{Kind, Step, any_step};
use super::client::{
    ALL_VERSIONS, Operations, Results, Session, compound, create_session_args, exchange_id,
    open_args,
};
use crate::client::Ids;
use crate::fixture::{Fixture, set_mode};

const NAMES: [&[u8]; 2] = [b"a", b"b"];
/// Two clients of one user, and one of another.
const USERS: [u32; 3] = [1000, 1001, 1000];
/// Bytes that are locked.
const BYTES: usize = 8;

struct Actor {
    session: Session,
    boots: u8,
    /// The number of its next CREATE_SESSION.
    next: SequenceId,
}

struct File {
    handle: FileHandle,
    data: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct Open {
    stateid: Stateid,
    /// The access of each OPEN since it was opened or downgraded.
    asked: BTreeSet<u32>,
}

struct Locks {
    stateid: Stateid,
    bytes: [Option<LockType>; BYTES],
}

impl Open {
    fn access(&self) -> u32 {
        self.asked.iter().fold(0, |all, access| all | access)
    }

    fn writes(&self) -> bool {
        self.access() & ShareAccess::Write.code() != 0
    }
}

struct World {
    fixture: Fixture,
    export: FileHandle,
    actors: Vec<Actor>,
    names: [Option<usize>; 2],
    files: Vec<File>,
    /// By client and file.
    opens: BTreeMap<(usize, usize), Open>,
    locks: BTreeMap<(usize, usize), Locks>,
}

fn connect(fixture: &Fixture, actor: usize, boots: u8) -> Actor {
    let mut client = fixture.client();
    client.ids = Some(Ids::user(USERS[actor]));
    let owner = [u8::try_from(actor).unwrap()];
    let (client_id, sequence, _) = exchange_id(&mut client, &owner, boots).unwrap();
    let args = create_session_args(client_id, sequence);
    let call = Operations::new().op(OperationCode::CreateSession, &args);
    let made: CreateSessionOk =
        compound(&mut client, 1, &call).next(OperationCode::CreateSession).unwrap();
    let (id, fore) = (made.session, made.fore);
    let mut session =
        Session { client, id, minor_version: 2, client_id, fore, sequence: 0, cache_this: false };
    let done = ReclaimCompleteArgs { one_fs: false };
    session.ok(&Operations::new().op(OperationCode::ReclaimComplete, &done));
    Actor { session, boots, next: SequenceId(sequence.0 + 1) }
}

struct Encoded(Vec<u8>);

impl Encode for Encoded {
    fn encode(&self, w: &mut Writer) {
        w.array(&self.0);
    }
}

impl World {
    fn new() -> Self {
        // With delegations a client answers calls between its own, and waits for others.
        let fixture = Fixture::with(&format!("delegations = false\n{ALL_VERSIONS}"));
        set_mode(&fixture.exported(""), 0o777);
        let mut actors: Vec<_> =
            (0..USERS.len()).map(|actor| connect(&fixture, actor, 1)).collect();
        let export = actors[0].session.export();
        let (files, opens, locks) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { fixture, export, actors, names: [None; 2], files, opens, locks }
    }

    /// An operation on a file.
    fn on(&mut self, actor: usize, file: usize, op: OperationCode, args: &impl Encode) -> Results {
        let call = Operations::new().at(self.files[file].handle).op(op, args);
        let mut results = self.actors[actor].session.call(&call);
        results.skip(&[OperationCode::Putfh]);
        results
    }

    /// An operation on the directory.
    fn in_export(&mut self, actor: usize, op: OperationCode, args: &impl Encode) -> Results {
        let call = Operations::new().at(self.export).op(op, args);
        let mut results = self.actors[actor].session.call(&call);
        results.skip(&[OperationCode::Putfh]);
        results
    }

    /// The stateid for data of a file, and whether it lets the client write.
    fn for_data(&self, actor: usize, file: usize) -> (Stateid, bool) {
        match self.opens.get(&(actor, file)) {
            Some(open) => (open.stateid, open.writes()),
            None => (Stateid::ANONYMOUS, true),
        }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let Step { actor, name, kind, at, len } = step;
        match kind {
            Kind::Open(access) => return self.open(actor, name, access),
            Kind::Remove | Kind::Rename | Kind::Link => return self.change_name(step),
            Kind::Boot => {
                let boots = self.actors[actor].boots + 1;
                self.actors[actor] = connect(&self.fixture, actor, boots);
                self.opens.retain(|key, _| key.0 != actor);
                self.locks.retain(|key, _| key.0 != actor);
                return Ok(());
            }
            Kind::AnotherSession => return self.another_session(actor),
            Kind::Rebind => return self.rebind(actor),
            _ => {}
        }
        let Some(file) = self.names[name] else { return Ok(()) };
        match kind {
            Kind::Read | Kind::Write | Kind::Cut | Kind::Seek => self.data(step, file),
            Kind::Allocate | Kind::Deallocate | Kind::Copy => self.space(step, file),
            Kind::Lock(kind) | Kind::TestLock(kind) => self.lock(step, file, kind),
            Kind::Unlock => self.unlock(actor, file, (at, len)),
            Kind::SetXattr | Kind::GetXattr | Kind::RemoveXattr | Kind::ListXattrs => {
                self.xattr(step, file)
            }
            Kind::Intrude => self.intrude(actor, file),
            _ => self.stateid(step, file),
        }
    }

    fn open(
        &mut self,
        actor: usize,
        name: usize,
        access: ShareAccess,
    ) -> Result<(), TestCaseError> {
        let mode = 0o666_u32.to_be_bytes();
        let raw = RawAttributes { bitmap: Bitmap::of(&[attribute::MODE]), values: &mode };
        let args = open_args(access, OpenHow::Unchecked(raw), OpenClaim::Null(NAMES[name]));
        let call = Operations::new().at(self.export).op(OperationCode::Open, &args).getfh();
        let mut results = self.actors[actor].session.ok(&call);
        results.skip(&[OperationCode::Putfh]);
        let opened: OpenOk = results.next(OperationCode::Open).unwrap();
        let handle = results.handle();
        let file = self.names[name].unwrap_or_else(|| {
            self.files.push(File { handle, data: Vec::new(), xattrs: BTreeMap::new() });
            self.files.len() - 1
        });
        prop_assert_eq!(handle, self.files[file].handle);
        self.names[name] = Some(file);
        let new = || Open { stateid: opened.stateid, asked: BTreeSet::new() };
        let open = self.opens.entry((actor, file)).or_insert_with(new);
        prop_assert_eq!(open.stateid.other, opened.stateid.other);
        open.stateid = opened.stateid;
        open.asked.insert(access.code());
        Ok(())
    }

    fn change_name(&mut self, step: Step) -> Result<(), TestCaseError> {
        let Step { actor, name, kind, .. } = step;
        let (old, new) = (NAMES[name], NAMES[1 - name]);
        let (file, other) = (self.names[name], self.names[1 - name]);
        let status = match kind {
            Kind::Remove => {
                let args = NameArgs { name: old };
                self.in_export(actor, OperationCode::Remove, &args).status
            }
            Kind::Rename => {
                let call = Operations::new().at(self.export).op(OperationCode::Savefh, &());
                let call = call.op(OperationCode::Rename, &RenameArgs { old, new });
                self.actors[actor].session.call(&call).status
            }
            _ => {
                let Some(file) = file else { return Ok(()) };
                let call = Operations::new().at(self.files[file].handle);
                let call = call.op(OperationCode::Savefh, &()).at(self.export);
                let call = call.op(OperationCode::Link, &NameArgs { name: new });
                self.actors[actor].session.call(&call).status
            }
        };
        match (kind, file, other) {
            (Kind::Link, _, Some(_)) => prop_assert_eq!(status, Err(Status::Exist)),
            (_, None, _) => prop_assert_eq!(status, Err(Status::Noent)),
            (Kind::Remove, Some(_), _) => {
                prop_assert_eq!(status, Ok(()));
                self.names[name] = None;
            }
            // Two names of one file stay, as rename(2) has it.
            (Kind::Rename, Some(file), other) => {
                prop_assert_eq!(status, Ok(()));
                if other != Some(file) {
                    self.names = [None; 2];
                    self.names[1 - name] = Some(file);
                }
            }
            _ => {
                // A user may only link what is his own, where the kernel protects links.
                if status == Ok(()) {
                    self.names[1 - name] = file;
                } else {
                    prop_assert!([Err(Status::Perm), Err(Status::Access)].contains(&status));
                }
            }
        }
        Ok(())
    }

    /// The files are as the model has them, and no state is left behind.
    fn compare(&self) -> Result<(), TestCaseError> {
        for (name, file) in NAMES.iter().zip(self.names) {
            let path = self.fixture.exported(std::str::from_utf8(name).unwrap());
            let found = std::fs::read(path).ok();
            prop_assert_eq!(found.as_ref(), file.map(|file| &self.files[file].data));
        }
        prop_assert_eq!(self.fixture.figure("nfs4_opens"), self.opens.len() as u64);
        prop_assert_eq!(self.fixture.figure("nfs4_sessions"), USERS.len() as u64);
        prop_assert_eq!(self.fixture.figure("nfs4_clients"), USERS.len() as u64);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(48)
    })]

    #[test]
    fn operations_of_several_clients_are_as_the_model_has_them(
        steps in proptest::collection::vec(any_step(), 1..80),
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
        world.compare()?;
    }
}
