//! Records of clients in the state directory, which let them reclaim their state after a restart,
//! and the epoch that distinguishes the ids of one start of the server from those of another.
//!
//! A record is a file of its own, replaced by rename(2) and synced with its directory, so that a
//! crash leaves the old one or the new one. What cannot be read is removed after a line in the log.
//! A record that cannot be written costs its client the reclaim, and the server goes on. A full
//! disk keeps no server from starting.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use proto::nfs4::OPAQUE_BYTES_MAX;

use crate::fs::escaped;
use crate::random::random_u64;
use crate::state::{ClientRecord, Principal, RecordChange, State};
use crate::state_dir::unless_full;

/// The records of clients.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// Held while records change, also for the disk, so that the changes keep their order. Under it
    /// the lock of `state` is taken for moments; it is not waited for under that or any other lock.
    records: Mutex<Records>,
}

/// The records that an earlier server has left, and the epoch of this one.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Another one with each start.
    pub(crate) epoch: u32,
    /// The clients that may reclaim, and when their records were written.
    pub(crate) clients: Vec<(ClientRecord, SystemTime)>,
}

#[derive(Debug)]
struct Records {
    directory: PathBuf,
    /// The file numbers of the owners.
    numbers: HashMap<Arc<[u8]>, u64>,
    /// The next file number.
    next: u64,
    /// Changes that have failed, by their owners, and when they are tried again.
    failed: HashMap<Arc<[u8]>, RecordChange>,
    retry_at: Option<Instant>,
}

impl Recovery {
    /// Reads the records in the state directory, and begins a new epoch.
    ///
    /// # Errors
    /// The directory cannot be made, read or written. That it is full is an error only where a file
    /// cannot be removed.
    pub(crate) fn open(state_dir: &Path) -> io::Result<(Self, Recovered)> {
        Self::open_at(state_dir, SystemTime::now())
    }

    fn open_at(state_dir: &Path, now: SystemTime) -> io::Result<(Self, Recovered)> {
        let directory = state_dir.join(DIRECTORY);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let epoch = next_epoch(&directory)?;
        let mut records = Records {
            directory,
            numbers: HashMap::new(),
            next: 0,
            failed: HashMap::new(),
            retry_at: None,
        };
        let clients = records.load(now)?;
        Ok((Self { records: Mutex::new(records) }, Recovered { epoch, clients }))
    }

    /// Performs the changes that `state` asks for: the effect
    /// [`Records`](crate::state::Effect::Records). Blocks for the disk. What fails keeps no other
    /// owner's change from the disk, and is tried again after [`RETRY_PERIOD`].
    pub(crate) fn settle(&self, state: &State) {
        self.settle_at(state, Instant::now());
    }

    fn settle_at(&self, state: &State, now: Instant) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = state.record_changes();
        let retries = records.retry_at.is_none_or(|at| at <= now);
        changes.retain(|change| {
            let is_due = retries || records.failed.get(change.owner()) != Some(change);
            is_due && records.perform(change)
        });
        if retries {
            records.retry_at = (!records.failed.is_empty()).then(|| now + RETRY_PERIOD);
        }
        state.records_changed(&changes);
    }
}

impl Records {
    /// Performs a change; false if it is to be tried again. An old record that stays on the disk
    /// would let its client reclaim what others have got, so its removal or replacement is not
    /// given up.
    fn perform(&mut self, change: &RecordChange) -> bool {
        let result = match change {
            RecordChange::Write(client) => self.write(client),
            RecordChange::Remove(owner) => self.remove(owner),
        };
        let owner = change.owner();
        let Err(error) = result else {
            self.failed.remove(owner);
            return true;
        };
        if let RecordChange::Write(client) = change
            && self.has_other_record(client)
        {
            // Without space, a record can be removed still.
            let _ = self.remove(owner);
        }
        let is_final = !self.numbers.contains_key(owner);
        let last = match is_final {
            true => self.failed.remove(owner),
            false => self.failed.insert(Arc::clone(owner), change.clone()),
        };
        if last.as_ref() != Some(change) {
            let path = self.directory.display();
            let owner = escaped(&owner[..owner.len().min(LOGGED_BYTES_MAX)]);
            tracing::error!(%path, %error, %owner, "cannot change the record of a client");
        }
        is_final
    }

    /// Whether the owner has a record on the disk that is not this one.
    fn has_other_record(&self, client: &ClientRecord) -> bool {
        let number = self.numbers.get(&client.owner);
        number.is_some_and(
            |number| !matches!(read(&self.path(*number)), Ok(Some(record)) if record == *client),
        )
    }

    /// Reads all records, in the order of their numbers, and when they were written. That is never
    /// for a record from before the last start of the machine, in which files may have lost changes
    /// and kept their times, nor where the clock was set back: then no file is known to be older.
    fn load(&mut self, now: SystemTime) -> io::Result<Vec<(ClientRecord, SystemTime)>> {
        let numbers = self.found()?;
        self.next = numbers.last().map_or(0, |last| last + 1);
        let boot = fs::read(BOOT_ID).ok();
        let boot_path = self.directory.join(BOOT_FILE);
        let first_start = boot.as_ref().and_then(|boot| first_start(&boot_path, boot, now));
        let (mut clients, mut noted) = (Vec::new(), Ok(()));
        for number in numbers {
            let path = self.path(number);
            let record = if clients.len() < RECORDS_MAX { read(&path)? } else { None };
            match record {
                Some(client) if !self.numbers.contains_key(&client.owner) => {
                    self.numbers.insert(Arc::clone(&client.owner), number);
                    let mut written = fs::metadata(&path)?.modified()?;
                    if written > now {
                        // Not synced: after a crash of the machine no record is trusted.
                        noted = noted.and_then(|()| set_modified(&path, SystemTime::UNIX_EPOCH));
                    }
                    if written > now || first_start.is_none_or(|first| written <= first) {
                        written = SystemTime::UNIX_EPOCH;
                    }
                    clients.push((client, written));
                }
                Some(_) | None => {
                    let path = path.display();
                    tracing::warn!(%path, "removing an invalid record of a client");
                    fs::remove_file(self.path(number))?;
                }
            }
        }
        if let Some(boot) = boot.filter(|_| first_start.is_none()) {
            // Each record of an earlier boot is as old or marked, whatever the clock does.
            noted = noted.and_then(|()| replace_of(&boot_path, &boot, Some(now)));
        }
        if let Err(error) = unless_full(noted)? {
            let path = self.directory.display();
            tracing::warn!(%path, %error, "the next start gives no delegation back");
            // Without it the next start trusts the time of no record.
            remove_durably(&boot_path)?;
        }
        Ok(clients)
    }

    /// The numbers of all records, in order. Removes files that are not complete.
    fn found(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            if name.as_encoded_bytes().ends_with(UNFINISHED.as_bytes()) {
                fs::remove_file(self.directory.join(name))?;
            } else if let Some(number) = name.to_str().and_then(number_of) {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn write(&mut self, client: &ClientRecord) -> io::Result<()> {
        let known = self.numbers.get(&client.owner).copied();
        let number = known.unwrap_or(self.next);
        let path = self.path(number);
        let replaced = replace(&path, encode(client).as_bytes());
        // It counts also if it is there and was not synced: it may be there after a crash.
        if known.is_none() && (replaced.is_ok() || fs::symlink_metadata(&path).is_ok()) {
            self.numbers.insert(Arc::clone(&client.owner), number);
            self.next += 1;
        }
        replaced
    }

    fn remove(&mut self, owner: &[u8]) -> io::Result<()> {
        let Some(number) = self.numbers.get(owner) else { return Ok(()) };
        remove_durably(&self.path(*number))?;
        self.numbers.remove(owner);
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{PREFIX}{number}"))
    }
}

/// A file's number. Those that a server gives fit 32 bits.
fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse::<u32>().ok().map(u64::from)
}

/// Two lines: the principal, and the owner in hexadecimal.
fn encode(client: &ClientRecord) -> String {
    let principal = match client.principal {
        Principal::None => "none".to_owned(),
        Principal::User(uid) => format!("user {uid}"),
    };
    let owner: String = client.owner.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{principal}\n{owner}\n")
}

fn decode(text: &str) -> Option<ClientRecord> {
    let (principal, owner) = text.strip_suffix('\n')?.split_once('\n')?;
    let principal = match principal.split_once(' ') {
        None if principal == "none" => Principal::None,
        Some(("user", uid)) => Principal::User(uid.parse().ok()?),
        None | Some(_) => return None,
    };
    let digit =
        |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let byte = |pair: &[u8]| -> Option<u8> {
        let [high, low] = pair else { return None };
        Some((digit(*high)? << 4) | digit(*low)?)
    };
    let owner: Option<Arc<[u8]>> = owner.as_bytes().chunks(2).map(byte).collect();
    Some(ClientRecord { owner: owner?, principal })
}

/// The record in a file; `None` if it holds none.
fn read(path: &Path) -> io::Result<Option<ClientRecord>> {
    let mut text = Vec::new();
    File::open(path)?.take(RECORD_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > RECORD_BYTES_MAX {
        return Ok(None);
    }
    Ok(std::str::from_utf8(&text).ok().and_then(decode))
}

/// When a server started first since the last start of the machine, whose id is `boot`: the time of
/// the file that has the id. `None` if this start is the first, or the clock was set back since.
fn first_start(path: &Path, boot: &[u8], now: SystemTime) -> Option<SystemTime> {
    let first = fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?;
    (first <= now && fs::read(path).ok()? == boot).then_some(first)
}

fn set_modified(path: &Path, time: SystemTime) -> io::Result<()> {
    File::options().write(true).open(path)?.set_modified(time)
}

/// The epoch after the one on the disk. The first is random, so that a lost file does not bring an
/// old one back. So is one that a full disk does not take: no start before or after has it, but for
/// one in 2^32, and the next one that is written follows the last that was.
fn next_epoch(directory: &Path) -> io::Result<u32> {
    let path = directory.join(EPOCH_FILE);
    let last = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse::<u32>().ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => None,
        Err(error) => return Err(error),
    };
    let random = u32::try_from(random_u64()? >> 32).expect("32 bits are left");
    let epoch = last.map_or(random, |last| last.wrapping_add(1));
    let Err(error) = unless_full(replace(&path, format!("{epoch}\n").as_bytes()))? else {
        return Ok(epoch);
    };
    let path = path.display();
    tracing::warn!(%path, %error, "the ids of this start are random: clients reclaim all the same");
    Ok(random)
}

/// Removes a file, if it is there still. That is on the disk when this returns.
fn remove_durably(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => sync_directory_of(path),
    }
}

/// Replaces a file by one with these bytes, which are on the disk when this returns.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_of(path, bytes, None)
}

/// As [`replace`], by a file of this modification time.
fn replace_of(path: &Path, bytes: &[u8], modified: Option<SystemTime>) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&unfinished)?;
    file.write_all(bytes)?;
    if let Some(time) = modified {
        file.set_modified(time)?;
    }
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    sync_directory_of(path)
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    File::open(path.parent().expect("a record lies in a directory"))?.sync_all()
}

/// The directory of records below the state directory.
pub(crate) const DIRECTORY: &str = "nfs4";
const EPOCH_FILE: &str = "epoch";
/// Another one with each start of the machine, see random(4).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// That of the last start of a server. Its time is that of the first start since then.
const BOOT_FILE: &str = "boot";
/// A record's file name is this and a number.
const PREFIX: &str = "client-";
/// The end of the name of a file that is not complete.
const UNFINISHED: &str = ".new";
/// The longest record: two digits for each byte of the owner, and a user.
const RECORD_BYTES_MAX: u64 = 2 * OPAQUE_BYTES_MAX as u64 + 32;
/// Records that are read. A server makes fewer: it has no more clients.
const RECORDS_MAX: usize = 1 << 16;
/// After a failure. Each grant of a lock or an open settles what is left, which is not to try it
/// again.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// Bytes of an owner that the log shows.
const LOGGED_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests;
