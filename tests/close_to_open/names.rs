//! Clients that cache names, positive and negative, and change them.
//!
//! A name has versions like data: an odd one exists, an even one does not. One thread at a time
//! changes a name.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, RwLock};
use std::thread;
use std::time::Duration;

use proto::nfs3::*;

use crate::client::{Client, mode, ok};
use crate::file::{Gate, LocalChange};
use crate::random::Random;
use crate::trust::{Change, Stamp, Trust};
use crate::workload::{Workload, count};

pub(crate) const NAMES: usize = 12;
/// Bytes of a page that holds some names, and of one that holds all.
const PAGE_BYTES: [u32; 2] = [256, 8192];
const PAGES_MAX: usize = 64;

#[derive(Default)]
struct State {
    begun: u32,
    acknowledged: u32,
    /// Which file a version is, once that is known.
    fileids: HashMap<u32, u64>,
}

#[derive(Default)]
struct Entry {
    owner: Mutex<()>,
    state: Mutex<State>,
}

/// A directory whose names come and go.
pub(crate) struct Directory {
    pub(crate) name: String,
    path: PathBuf,
    entries: Vec<Entry>,
    gate: RwLock<()>,
    local_changes: AtomicU64,
}

impl Directory {
    pub(crate) fn new(number: usize, export: &std::path::Path) -> Self {
        let name = format!("names{number}");
        let path = export.join(&name);
        fs::create_dir(&path).unwrap();
        let entries = (0..NAMES).map(|_| Entry::default()).collect();
        let (gate, local_changes) = (RwLock::default(), AtomicU64::new(0));
        Self { name, path, entries, gate, local_changes }
    }

    fn gate(&self) -> Gate<'_> {
        Gate::new(&self.gate, &self.local_changes)
    }

    fn floors(&self) -> Vec<u32> {
        self.entries.iter().map(|entry| entry.state.lock().unwrap().acknowledged).collect()
    }

    /// Whether a name may be this file, or missing, by a version from `floor` on.
    fn allows(&self, name: usize, found: Option<u64>, floor: u32) -> Result<(), String> {
        let state = self.entries[name].state.lock().unwrap();
        let fits = |version: u32| match found {
            None => version.is_multiple_of(2),
            Some(fileid) => {
                !version.is_multiple_of(2)
                    && state.fileids.get(&version).is_none_or(|known| *known == fileid)
            }
        };
        if (floor..=state.begun).any(fits) {
            return Ok(());
        }
        let wanted: Vec<_> =
            (floor..=state.begun).map(|version| (version, state.fileids.get(&version))).collect();
        Err(format!("n{name} of {}: {found:?}, may be {wanted:?}", self.name))
    }

    fn own(&self, name: usize) -> Option<Owned<'_>> {
        let owner = self.entries[name].owner.try_lock().ok()?;
        Some(Owned { directory: self, name, _owner: owner })
    }
}

/// A name that one thread changes.
struct Owned<'a> {
    directory: &'a Directory,
    name: usize,
    _owner: MutexGuard<'a, ()>,
}

impl Owned<'_> {
    fn text(&self) -> String {
        format!("n{}", self.name)
    }

    fn path(&self) -> PathBuf {
        self.directory.path.join(self.text())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.directory.entries[self.name].state.lock().unwrap()
    }

    fn fileid(&self) -> Option<u64> {
        let state = self.state();
        if state.begun.is_multiple_of(2) { None } else { state.fileids.get(&state.begun).copied() }
    }

    /// The name is about to be a file, of which the number may be known, or to be missing.
    fn begin(&self, exists: bool, fileid: Option<u64>) {
        let mut state = self.state();
        state.begun = if exists { (state.begun + 1) | 1 } else { (state.begun + 2) & !1 };
        let begun = state.begun;
        if let Some(fileid) = fileid {
            state.fileids.insert(begun, fileid);
        }
        state.fileids.retain(|version, _| version + 64 > begun);
    }

    fn acknowledge(&self, fileid: Option<u64>) {
        let mut state = self.state();
        let begun = state.begun;
        state.acknowledged = begun;
        if let Some(fileid) = fileid {
            state.fileids.insert(begun, fileid);
        }
    }
}

/// A change of names. Two names for what has two.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Create,
    Remove,
    Rename,
    Link,
}

/// Names to change and the change that their state permits.
fn any_change<'a>(
    workload: &'a Workload,
    random: &mut Random,
) -> Option<(Verb, Owned<'a>, Option<Owned<'a>>)> {
    let mut any = || {
        let directory = &workload.directories[random.index(workload.directories.len())];
        directory.own(random.index(NAMES))
    };
    let (first, second) = (any()?, any()?);
    let one = random.percent(50);
    match (first.fileid(), second.fileid()) {
        (None, _) => Some((Verb::Create, first, None)),
        (Some(_), _) if one => Some((Verb::Remove, first, None)),
        // Of two names of one file, rename(2) leaves both.
        (Some(from), Some(to)) if from == to => None,
        (Some(_), None) if random.percent(50) => Some((Verb::Link, first, Some(second))),
        (Some(_), _) => Some((Verb::Rename, first, Some(second))),
    }
}

#[derive(Default)]
struct Cache {
    stamp: Stamp,
    /// The files of known names; `None` for a name that is missing.
    names: HashMap<usize, Option<u64>>,
}

pub(crate) struct NameClient<'a> {
    workload: &'a Workload,
    client: Client,
    handles: Vec<FileHandle>,
    caches: Vec<Cache>,
    random: Random,
}

impl<'a> NameClient<'a> {
    /// One that uses the export by one of its names, counted around.
    pub(crate) fn new(workload: &'a Workload, export: usize, random: Random) -> Self {
        let (mut client, root) = workload.server.mounted_at(export);
        let find = |directory: &Directory| client.find(root, &directory.name);
        let handles: Vec<_> = workload.directories.iter().map(find).collect();
        let caches = handles.iter().map(|_| Cache::default()).collect();
        Self { workload, client, handles, caches, random }
    }

    pub(crate) fn run(&mut self) {
        while self.workload.goes_on() {
            if self.random.percent(35) {
                self.change();
            } else {
                self.open();
            }
        }
    }

    /// Looks at all names that are cached of a directory, and asks the server for one or all.
    fn open(&mut self) {
        let number = self.random.index(self.handles.len());
        let directory = &self.workload.directories[number];
        let floors = directory.floors();
        let attributes = self.client.getattr(self.handles[number]).unwrap();
        if self.caches[number].stamp.seen(&attributes, "GETATTR") {
            for (&name, &found) in &self.caches[number].names {
                self.judge(number, name, found, &floors, "cached");
            }
            count(&self.workload.done.names_kept);
        } else {
            self.caches[number].names.clear();
        }
        let rest = directory.gate().rest();
        match self.random.index(4) {
            0 => self.list(number, &floors, false),
            1 => self.list(number, &floors, true),
            _ => self.look_up(number, &floors),
        }
        if rest.is_none() || rest != directory.gate().rest() {
            self.caches[number].names.clear();
        }
        count(&self.workload.done.names_opened);
    }

    fn look_up(&mut self, number: usize, floors: &[u32]) {
        let name = self.random.index(NAMES);
        let text = format!("n{name}");
        let (found, attributes) = match self.client.lookup(self.handles[number], text.as_bytes()) {
            Ok(done) => {
                let attributes = done.object_attributes;
                (Some(attributes.map(|object| object.fileid)), done.dir_attributes)
            }
            Err(Failure { status: Status::Noent, body }) => (None, body),
            // A rename over the name took long; a client asks again later.
            Err(Failure { status: Status::Jukebox, .. }) => return,
            Err(failure) => panic!("LOOKUP: {failure:?}"),
        };
        // Found, but gone before its attributes could be read: of no use to a cache.
        if found == Some(None) {
            return;
        }
        let found = found.flatten();
        self.judge(number, name, found, floors, "LOOKUP");
        self.seen(number, attributes.as_ref(), "LOOKUP");
        self.caches[number].names.insert(name, found);
    }

    /// Reads all of a directory. It is kept if all pages show the same state of the directory.
    fn list(&mut self, number: usize, floors: &[u32], plus: bool) {
        let how = if plus { "READDIRPLUS" } else { "READDIR" };
        let bytes = self.random.one_of(&PAGE_BYTES);
        let mut listed = HashMap::new();
        let (mut cookie, mut stamps) = (0, Vec::new());
        for _ in 0..PAGES_MAX {
            let page = if plus {
                self.client.readdirplus(self.handles[number], cookie, (bytes, 4 * bytes))
            } else {
                self.client.readdir(self.handles[number], cookie, bytes)
            };
            let Ok(page) = page else { return };
            stamps.push(page.attributes);
            for name in &page.names {
                let text = std::str::from_utf8(&name.name).unwrap();
                if let Some(Ok(known)) = text.strip_prefix('n').map(str::parse::<usize>) {
                    listed.insert(known, name.fileid);
                }
                cookie = name.cookie;
            }
            if page.eof {
                break;
            }
        }
        for name in 0..NAMES {
            self.judge(number, name, listed.get(&name).copied(), floors, how);
        }
        let same = stamps.windows(2).all(|pair| {
            let stamp =
                |attributes: &Option<Attributes>| attributes.as_ref().map(WccAttributes::from);
            pair[0].is_some() && stamp(&pair[0]) == stamp(&pair[1])
        });
        let Some(Some(first)) = stamps.first() else { return };
        self.seen(number, Some(first), how);
        if same {
            let all = (0..NAMES).map(|name| (name, listed.get(&name).copied()));
            self.caches[number].names.extend(all);
        }
    }

    fn seen(&mut self, number: usize, attributes: Option<&Attributes>, how: &str) {
        let cache = &mut self.caches[number];
        if attributes.is_some_and(|attributes| !cache.stamp.seen(attributes, how)) {
            cache.names.clear();
        }
    }

    fn judge(&self, number: usize, name: usize, found: Option<u64>, floors: &[u32], how: &str) {
        let directory = &self.workload.directories[number];
        if let Err(why) = directory.allows(name, found, floors[name]) {
            let stamps = self.caches[number].stamp.history();
            self.workload.fail_name(&format!("{how}: {why}"), &stamps);
        }
    }

    fn change(&mut self) {
        let Some((verb, first, second)) = any_change(self.workload, &mut self.random) else {
            return;
        };
        let at = |owned: &Owned<'_>| {
            self.workload.directories.iter().position(|each| each.name == owned.directory.name)
        };
        let number = at(&first).expect("one of them");
        let other = second.as_ref().map(|second| at(second).expect("one of them"));
        let _gates = self.gates(number, other);
        match (verb, second) {
            (Verb::Create, _) => self.create(number, &first),
            (Verb::Remove, _) => self.remove(number, &first),
            (Verb::Rename, Some(second)) => {
                self.rename((number, &first), (other.expect("two names"), &second));
            }
            (Verb::Link, Some(second)) => self.link(number, &first, other.expect("two"), &second),
            (Verb::Rename | Verb::Link, None) => unreachable!("they have two names"),
        }
        count(&self.workload.done.names_changed);
    }

    /// No local change in these directories while ours is at work.
    fn gates(&self, one: usize, other: Option<usize>) -> Vec<std::sync::RwLockReadGuard<'a, ()>> {
        let mut numbers = vec![one];
        numbers.extend(other.filter(|other| *other != one));
        numbers.sort_unstable();
        let directories = &self.workload.directories;
        numbers.into_iter().map(|number| directories[number].gate().remote()).collect()
    }

    fn create(&mut self, number: usize, name: &Owned<'_>) {
        let how = match self.random.index(3) {
            0 => CreateHow::Unchecked(mode(0o666)),
            1 => CreateHow::Guarded(mode(0o666)),
            _ => CreateHow::Exclusive(self.random.next().to_be_bytes()),
        };
        name.begin(true, None);
        let done = ok(self.client.create_how(self.handles[number], name.text().as_bytes(), how));
        let fileid = match done.attributes {
            Some(attributes) => attributes.fileid,
            None => self.client.getattr(done.object.unwrap()).unwrap().fileid,
        };
        name.acknowledge(Some(fileid));
        self.changed(number, &done.dir_wcc, "CREATE", &[(name.name, Some(fileid))]);
    }

    fn remove(&mut self, number: usize, name: &Owned<'_>) {
        name.begin(false, None);
        let done = ok(self.client.remove(self.handles[number], name.text().as_bytes()));
        name.acknowledge(None);
        self.changed(number, &done.dir_wcc, "REMOVE", &[(name.name, None)]);
    }

    fn rename(&mut self, (from, source): (usize, &Owned<'_>), (to, target): (usize, &Owned<'_>)) {
        let fileid = source.fileid();
        source.begin(false, None);
        target.begin(true, fileid);
        let (old, new) = (source.text(), target.text());
        let old = (self.handles[from], old.as_bytes());
        let done = ok(self.client.rename(old, (self.handles[to], new.as_bytes())));
        source.acknowledge(None);
        target.acknowledge(fileid);
        if from == to {
            let names = [(source.name, None), (target.name, fileid)];
            self.changed(from, &done.from_wcc, "RENAME", &names);
        } else {
            self.changed(from, &done.from_wcc, "RENAME", &[(source.name, None)]);
            self.changed(to, &done.to_wcc, "RENAME", &[(target.name, fileid)]);
        }
    }

    fn link(&mut self, from: usize, source: &Owned<'_>, to: usize, target: &Owned<'_>) {
        let fileid = source.fileid();
        let file = self.client.find(self.handles[from], &source.text());
        target.begin(true, fileid);
        let done = ok(self.client.link(file, self.handles[to], target.text().as_bytes()));
        target.acknowledge(fileid);
        self.changed(to, &done.dir_wcc, "LINK", &[(target.name, fileid)]);
    }

    fn changed(&mut self, number: usize, wcc: &WccData, how: &str, names: &[(usize, Option<u64>)]) {
        let cache = &mut self.caches[number];
        match cache.stamp.changed(wcc, Trust::Pairs, how) {
            Change::Own => cache.names.extend(names.iter().copied()),
            Change::Foreign => cache.names.clear(),
        }
    }
}

/// Changes names as programs of the server's machine do, until the end.
pub(crate) fn change_locally(workload: &Workload, random: &mut Random) {
    while workload.goes_on() {
        if let Some((verb, first, second)) = any_change(workload, random) {
            let mut directories = vec![first.directory];
            directories.extend(second.as_ref().map(|second| second.directory));
            directories.sort_by(|one, other| one.name.cmp(&other.name));
            directories.dedup_by(|one, other| one.name == other.name);
            let changes: Vec<LocalChange<'_>> =
                directories.iter().map(|directory| directory.gate().local()).collect();
            change_one_locally(verb, &first, second.as_ref());
            drop(changes);
            count(&workload.done.names_changed_locally);
        }
        thread::sleep(Duration::from_millis(random.within(0..15)));
    }
}

fn change_one_locally(verb: Verb, first: &Owned<'_>, second: Option<&Owned<'_>>) {
    use std::os::unix::fs::MetadataExt;
    let second = || second.expect("it has two names");
    let fileid = first.fileid();
    match verb {
        Verb::Create => {
            first.begin(true, None);
            let file = fs::File::create_new(first.path()).unwrap();
            first.acknowledge(Some(file.metadata().unwrap().ino()));
        }
        Verb::Remove => {
            first.begin(false, None);
            fs::remove_file(first.path()).unwrap();
            first.acknowledge(None);
        }
        Verb::Rename => {
            first.begin(false, None);
            second().begin(true, fileid);
            fs::rename(first.path(), second().path()).unwrap();
            first.acknowledge(None);
            second().acknowledge(fileid);
        }
        Verb::Link => {
            second().begin(true, fileid);
            fs::hard_link(first.path(), second().path()).unwrap();
            second().acknowledge(fileid);
        }
    }
}
