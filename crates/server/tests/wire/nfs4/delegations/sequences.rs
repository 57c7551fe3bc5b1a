//! Random sequences of opens, returns and changes by two clients with delegations, a client of
//! version 3 and a local program, against a model of who holds what.

use std::collections::BTreeMap;
use std::io::Write;

use proptest::prelude::*;

use super::*;

const FILES: [&str; 4] = ["a", "b", "c", "d"];
const HOLDERS: usize = 2;

/// A change of a file.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write,
    Mode,
    Link,
    Rename,
}

/// The client or local program that changes a file.
#[derive(Clone, Copy, Debug)]
enum Who {
    Holder(usize),
    Version3,
    /// Writes alone: a local program's changes of attributes and names do not wait.
    Local,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Open { holder: usize, file: usize },
    Read { holder: usize, file: usize },
    Return { holder: usize, file: usize },
    Change { who: Who, file: usize, change: Change },
}

fn any_step() -> impl Strategy<Value = Step> {
    let who =
        prop_oneof![(0..HOLDERS).prop_map(Who::Holder), Just(Who::Version3), Just(Who::Local)];
    let change =
        prop::sample::select(&[Change::Write, Change::Mode, Change::Link, Change::Rename][..]);
    let place = || (0..HOLDERS, 0..FILES.len());
    prop_oneof![
        5 => place().prop_map(|(holder, file)| Step::Open { holder, file }),
        2 => place().prop_map(|(holder, file)| Step::Read { holder, file }),
        4 => place().prop_map(|(holder, file)| Step::Return { holder, file }),
        4 => (who, 0..FILES.len(), change)
            .prop_map(|(who, file, change)| Step::Change { who, file, change }),
    ]
}

struct Model {
    object: FileHandle,
    object_v3: nfs3::FileHandle,
    data: Vec<u8>,
    delegations: BTreeMap<usize, Stateid>,
    /// Nothing but reading has happened, so that a delegation is due.
    is_untouched: bool,
    /// Links made, for the names of the next.
    links: usize,
}

impl Model {
    /// Whether a delegation keeps a change away. What `holder` holds alone does not keep away its
    /// changes of attributes and names.
    fn is_in_the_way_of(&self, who: Who, change: Change) -> bool {
        let is_own = |holder: &usize| matches!(who, Who::Holder(own) if own == *holder);
        let mut others = self.delegations.keys().filter(|holder| !is_own(holder));
        match change {
            Change::Write => !self.delegations.is_empty(),
            Change::Mode | Change::Link | Change::Rename => others.next().is_some(),
        }
    }
}

/// OPENs of a file that is to be delegated.
const OPEN_TRIES: usize = 1500;

struct World {
    sessions: Vec<Session>,
    version_3: (Client, nfs3::FileHandle),
    export: FileHandle,
    files: Vec<Model>,
    fixture: Fixture,
}

impl World {
    fn new() -> Self {
        let fixture = fixture();
        let holders = [&b"first"[..], b"second"].map(|owner| Holder::new(&fixture, owner));
        let export = holders[0].export;
        let mut sessions = Vec::new();
        for Holder { session, mut back, .. } in holders {
            // Answers recalls for as long as the server runs; the steps return.
            let id = session.id;
            thread::spawn(move || {
                while let Some(record) = back.receive_record() {
                    answer_record(&mut back, id, &record);
                }
            });
            sessions.push(session);
        }
        let (mut client, root) = fixture.mounted();
        let mut model = |name: &&str| {
            let mut results =
                sessions[0].ok(&Operations::new().at(export).lookup(name.as_bytes()).getfh());
            let object = results.skip(&[OperationCode::Putfh, OperationCode::Lookup]).handle();
            Model {
                object,
                object_v3: client.find(root, name),
                data: b"data".to_vec(),
                delegations: BTreeMap::new(),
                is_untouched: true,
                links: 0,
            }
        };
        let files = FILES.iter().map(&mut model).collect();
        Self { sessions, version_3: (client, root), export, files, fixture }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Open { holder, file } => self.open(holder, file),
            Step::Read { holder, file } => self.read(holder, file),
            Step::Return { holder, file } => {
                let model = &mut self.files[file];
                let Some(stateid) = model.delegations.remove(&holder) else { return Ok(()) };
                let args = OneStateid { stateid };
                let call = Operations::new().at(model.object).op(OperationCode::Delegreturn, &args);
                prop_assert_eq!(self.sessions[holder].call(&call).status, Ok(()));
                Ok(())
            }
            Step::Change { who, file, change } => self.change(who, file, change),
        }
    }

    fn open(&mut self, holder: usize, file: usize) -> Result<(), TestCaseError> {
        // The kernel refuses a lease while a process that another test has just made has a copy of
        // a descriptor for writing.
        for _ in 0..OPEN_TRIES {
            self.open_once(holder, file)?;
            let model = &self.files[file];
            if model.delegations.contains_key(&holder) || !model.is_untouched {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        prop_assert!(false, "nothing is in its way");
        Ok(())
    }

    fn open_once(&mut self, holder: usize, file: usize) -> Result<(), TestCaseError> {
        let session = &mut self.sessions[holder];
        let name = FILES[file].as_bytes();
        let (_, opened) = open(session, self.export, name, ShareAccess::Read).unwrap();
        let model = &mut self.files[file];
        let has_one = model.delegations.contains_key(&holder);
        if let OpenDelegation::Read { stateid, recall } = opened.delegation {
            prop_assert!(!recall && !has_one);
            model.delegations.insert(holder, stateid);
        }
        let args = CloseArgs { seqid: 0, stateid: opened.stateid };
        session.ok(&Operations::new().at(model.object).op(OperationCode::Close, &args));
        Ok(())
    }

    fn read(&mut self, holder: usize, file: usize) -> Result<(), TestCaseError> {
        let model = &self.files[file];
        let Some(&stateid) = model.delegations.get(&holder) else { return Ok(()) };
        let args = ReadArgs { stateid, offset: 0, count: 100 };
        let call = Operations::new().at(model.object).op(OperationCode::Read, &args);
        let mut results = self.sessions[holder].ok(&call);
        let data = results
            .skip(&[OperationCode::Putfh])
            .next_with(OperationCode::Read, |r| ReadOk::decode(r).unwrap().data.to_vec());
        prop_assert_eq!(data.as_ref(), Ok(&model.data));
        Ok(())
    }

    fn change(&mut self, who: Who, file: usize, change: Change) -> Result<(), TestCaseError> {
        let is_local = matches!(who, Who::Local);
        let change = if is_local { Change::Write } else { change };
        let is_kept_away = self.files[file].is_in_the_way_of(who, change);
        let is_done = match who {
            Who::Holder(holder) => self.change_by_holder(holder, file, change),
            Who::Version3 => self.change_by_version_3(file, change),
            Who::Local => self.write_locally(file),
        };
        prop_assert_eq!(is_done, !is_kept_away);
        let model = &mut self.files[file];
        model.is_untouched = false;
        match change {
            Change::Write if is_done => model.data.push(b'+'),
            Change::Link => model.links += 1,
            Change::Write | Change::Mode | Change::Rename => {}
        }
        let data = fs::read(self.fixture.exported(FILES[file])).unwrap();
        prop_assert_eq!(&data, &model.data);
        Ok(())
    }

    /// Returns whether it was done; else it is to be tried later.
    fn change_by_holder(&mut self, holder: usize, file: usize, change: Change) -> bool {
        let session = &mut self.sessions[holder];
        let (model, name) = (&self.files[file], FILES[file]);
        let link = format!("{name}{}", model.links);
        let mode = 0o600_u32.to_be_bytes();
        let calls = match change {
            Change::Write => {
                let (offset, stable) = (model.data.len() as u64, StableHow::Unstable);
                let stateid = Stateid::ANONYMOUS;
                let args = WriteArgs { stateid, offset, stable, data: &b"+"[..] };
                vec![Operations::new().at(model.object).op(OperationCode::Write, &args)]
            }
            Change::Mode => {
                let attributes =
                    RawAttributes { bitmap: Bitmap::of(&[attribute::MODE]), values: &mode };
                let args = SetattrArgs { stateid: Stateid::ANONYMOUS, attributes };
                vec![Operations::new().at(model.object).op(OperationCode::Setattr, &args)]
            }
            Change::Link => {
                let call = Operations::new().at(model.object).op(OperationCode::Savefh, &());
                let args = NameArgs { name: link.as_bytes() };
                vec![call.at(self.export).op(OperationCode::Link, &args)]
            }
            // There and back: the second is done if the first was.
            Change::Rename => [(name, "moved"), ("moved", name)]
                .map(|(old, new)| {
                    let args = RenameArgs { old: old.as_bytes(), new: new.as_bytes() };
                    let call = Operations::new().at(self.export).op(OperationCode::Savefh, &());
                    call.op(OperationCode::Rename, &args)
                })
                .to_vec(),
        };
        calls.iter().all(|call| match session.call(call).status {
            Ok(()) => true,
            Err(Status::Delay) => false,
            Err(status) => panic!("{change:?}: {status:?}"),
        })
    }

    /// As [`Self::change_by_holder`].
    fn change_by_version_3(&mut self, file: usize, change: Change) -> bool {
        let (client, root) = (&mut self.version_3.0, self.version_3.1);
        let (model, name) = (&self.files[file], FILES[file]);
        let status = match change {
            Change::Write => {
                let written = client.write(model.object_v3, model.data.len() as u64, b"+");
                written.map(drop).map_err(|failure| failure.status)
            }
            Change::Mode => {
                let set = client.setattr(model.object_v3, client::mode(0o600));
                set.map(drop).map_err(|failure| failure.status)
            }
            Change::Link => {
                let link = format!("{name}{}", model.links);
                let linked = client.link(model.object_v3, root, link.as_bytes());
                linked.map(drop).map_err(|failure| failure.status)
            }
            Change::Rename => {
                let mut rename = |old: &[u8], new: &[u8]| {
                    let renamed = client.rename((root, old), (root, new));
                    renamed.map(drop).map_err(|failure| failure.status)
                };
                rename(name.as_bytes(), b"moved").and_then(|()| rename(b"moved", name.as_bytes()))
            }
        };
        match status {
            Ok(()) => true,
            Err(nfs3::Status::Jukebox) => false,
            Err(status) => panic!("{change:?}: {status:?}"),
        }
    }

    /// As [`Self::change_by_holder`].
    fn write_locally(&self, file: usize) -> bool {
        let path = self.fixture.exported(FILES[file]);
        match OpenOptions::new().append(true).custom_flags(NONBLOCK).open(path) {
            Ok(mut file) => {
                file.write_all(b"+").unwrap();
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                false
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(24)
    })]

    #[test]
    fn no_change_passes_a_delegation_and_none_waits_without_one(
        steps in proptest::collection::vec(any_step(), 1..40),
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
        let held: usize = world.files.iter().map(|model| model.delegations.len()).sum();
        prop_assert_eq!(world.fixture.figure("nfs4_delegations"), held as u64);
        prop_assert_eq!(world.fixture.figure("nfs4_delegations_revoked"), 0);
    }
}
