//! Open directories between two READDIR calls.
//!
//! A listing comes in many calls, and the kernel reads more names at a time than fit one reply. The
//! names left over are kept with the descriptor for the call that continues there, so that each
//! name is read once. A directory that has changed since is read anew from the cookie on: nothing
//! is shown that the kernel would not show now.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, RawDir, SeekFrom};
use rustix::io::Errno;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::fs::{Status, Timestamp};
use crate::memory_plan::KERNEL_BUFFER_BYTES;

/// Listings of one directory that are kept going side by side.
const STREAMS_MAX: usize = 4;

/// A name as the kernel lists it.
#[derive(Clone, Copy)]
pub(crate) struct KernelEntry<'a> {
    /// Inode number.
    pub(crate) fileid: u64,
    /// `Unknown` where the file system does not list it.
    pub(crate) file_type: FileType,
    /// The name.
    pub(crate) name: &'a CStr,
    /// The kernel's offset after this entry.
    pub(crate) cookie: u64,
}

/// Entries read from the kernel and not yet taken, in no more bytes than the kernel's: inode
/// number, cookie, type with the length of the name, and name with its NUL of each.
#[derive(Default)]
struct Ahead {
    /// Also those already taken.
    bytes: Vec<u8>,
    /// Where the first that is not taken begins.
    first: usize,
}

/// Bytes of an entry before its name.
const HEAD_BYTES: usize = 18;
/// The type in the mode of a file; a name is shorter than `PATH_MAX`, 4096 bytes.
const TYPE_BITS: u16 = 0xf000;

impl Ahead {
    fn push(&mut self, entry: KernelEntry<'_>) {
        let KernelEntry { fileid, file_type, name, cookie } = entry;
        let file_type = u16::try_from(file_type.as_raw_mode()).expect("four bits below the 16th");
        let len = u16::try_from(name.count_bytes()).ok().filter(|len| len & TYPE_BITS == 0);
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&fileid.to_ne_bytes());
        head[8..16].copy_from_slice(&cookie.to_ne_bytes());
        let len = len.expect("a name is shorter than PATH_MAX");
        head[16..].copy_from_slice(&(file_type | len).to_ne_bytes());
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(name.to_bytes_with_nul());
    }

    /// Cookie, type and inode number of the first entry, and its name with the NUL.
    fn first_parts(&self) -> Option<(u64, u16, u64, &[u8])> {
        let (fileid, rest) = self.bytes[self.first..].split_first_chunk()?;
        let (cookie, rest) = rest.split_first_chunk()?;
        let (type_and_len, rest) = rest.split_first_chunk()?;
        let type_and_len = u16::from_ne_bytes(*type_and_len);
        let name = &rest[..=usize::from(type_and_len & !TYPE_BITS)];
        let (cookie, fileid) = (u64::from_ne_bytes(*cookie), u64::from_ne_bytes(*fileid));
        Some((cookie, type_and_len & TYPE_BITS, fileid, name))
    }

    fn first(&self) -> Option<KernelEntry<'_>> {
        let (cookie, file_type, fileid, name) = self.first_parts()?;
        let file_type = FileType::from_raw_mode(file_type.into());
        let name = CStr::from_bytes_with_nul(name).expect("it has its NUL");
        Some(KernelEntry { fileid, file_type, name, cookie })
    }

    /// Forgets the first entry and returns its cookie.
    fn pop(&mut self) -> Option<u64> {
        let (cookie, _, _, name) = self.first_parts()?;
        self.first += HEAD_BYTES + name.len();
        Some(cookie)
    }

    fn is_empty(&self) -> bool {
        self.first == self.bytes.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.first = 0;
    }
}

/// A listing in progress.
pub(crate) struct DirectoryStream {
    fd: OwnedFd,
    /// The cookie of the last entry that was taken.
    position: u64,
    /// Ticks since it was put back.
    idle_ticks: u64,
    ahead: Ahead,
    /// The directory's ctime before `ahead` was read.
    changed: Timestamp,
    /// It was settled then: a change of the names since has another one.
    is_settled: bool,
    at_end: bool,
    /// One of the server's places for listings that wait for their next call.
    place: Option<OwnedSemaphorePermit>,
}

impl DirectoryStream {
    /// A listing that continues after `cookie`, 0 for the first entry. `changed` is the directory's
    /// ctime, read before.
    ///
    /// # Errors
    /// `BadCookie` when the file system does not know such an offset.
    pub(crate) fn at(fd: OwnedFd, cookie: u64, changed: Timestamp) -> Result<Self, Status> {
        let mut stream = Self {
            fd,
            position: cookie,
            idle_ticks: 0,
            ahead: Ahead::default(),
            changed,
            is_settled: false,
            at_end: false,
            place: None,
        };
        stream.restart(cookie, changed)?;
        Ok(stream)
    }

    /// Reads the names anew, from `cookie` on.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub(crate) fn restart(&mut self, cookie: u64, changed: Timestamp) -> Result<(), Status> {
        match rustix::fs::seek(&self.fd, SeekFrom::Start(cookie)) {
            Ok(_) => {}
            Err(Errno::INVAL | Errno::OVERFLOW) => return Err(Status::BadCookie),
            Err(errno) => return Err(errno.into()),
        }
        self.ahead.clear();
        self.position = cookie;
        self.changed = changed;
        self.is_settled = changed.is_older(SystemTime::now(), SETTLED_AFTER);
        self.at_end = false;
        Ok(())
    }

    /// The next entry and the descriptor that its name is to be looked up by; `None` at the end.
    ///
    /// # Errors
    /// The disk's; `Stale` when the directory was removed.
    pub(crate) fn peek(&mut self) -> Result<Option<(KernelEntry<'_>, BorrowedFd<'_>)>, Status> {
        if self.ahead.is_empty() && !self.at_end {
            self.read_ahead()?;
        }
        Ok(self.ahead.first().map(|entry| (entry, self.fd.as_fd())))
    }

    /// Moves behind the entry that [`Self::peek`] has shown.
    pub(crate) fn advance(&mut self) {
        if let Some(cookie) = self.ahead.pop() {
            self.position = cookie;
        }
    }

    fn read_ahead(&mut self) -> Result<(), Status> {
        self.ahead.clear();
        self.ahead.bytes.reserve_exact(KERNEL_BUFFER_BYTES);
        let mut buffer = Vec::with_capacity(KERNEL_BUFFER_BYTES);
        let mut names = RawDir::new(&self.fd, buffer.spare_capacity_mut());
        loop {
            let Some(entry) = names.next() else {
                self.at_end = true;
                return Ok(());
            };
            let entry = entry.map_err(|errno| match errno {
                // Of the directory itself: no name was looked up.
                Errno::NOENT => Status::Stale,
                errno => errno.into(),
            })?;
            self.ahead.push(KernelEntry {
                fileid: entry.ino(),
                file_type: entry.file_type(),
                name: entry.file_name(),
                cookie: entry.next_entry_cookie(),
            });
            if names.is_buffer_empty() {
                return Ok(());
            }
        }
    }
}

/// The listings of one directory that may be continued.
#[derive(Default)]
pub(crate) struct DirectoryStreams(Vec<DirectoryStream>);

impl DirectoryStreams {
    /// The listing that stands at `cookie` in a directory with the same ctime since; where none
    /// does and the directory has as many as it may, its oldest, moved there. Names that were read
    /// too soon after a change for the ctime to show the next one are read anew. `None` means that
    /// the caller is to open one. Either is given back with [`Self::put_back`]. Listings from
    /// before a change are closed: no call continues them, and their places are the whole server's.
    pub(crate) fn take(&mut self, cookie: u64, changed: Timestamp) -> Option<DirectoryStream> {
        self.0.retain(|stream| stream.changed == changed);
        if let Some(index) = self.0.iter().position(|stream| stream.position == cookie) {
            let mut stream = self.0.swap_remove(index);
            if !stream.is_settled {
                stream.restart(cookie, changed).ok()?;
            }
            return Some(stream);
        }
        if self.0.len() < STREAMS_MAX {
            return None;
        }
        let mut oldest = self.0.remove(0);
        oldest.restart(cookie, changed).ok()?;
        Some(oldest)
    }

    /// Keeps a listing for the call that continues it, if there is anything left to list and one of
    /// the server's `places` for it.
    pub(crate) fn put_back(&mut self, mut stream: DirectoryStream, places: &Arc<Semaphore>) {
        let ended = stream.at_end && stream.ahead.is_empty();
        if ended || self.0.len() == STREAMS_MAX {
            return;
        }
        if stream.place.is_none() {
            stream.place = Arc::clone(places).try_acquire_owned().ok();
        }
        if stream.place.is_some() {
            stream.idle_ticks = 0;
            self.0.push(stream);
        }
    }

    /// Counts a tick. Whether no call has continued one of them for more than so many.
    pub(super) fn tick(&mut self, idle_ticks_max: u64) -> bool {
        for stream in &mut self.0 {
            stream.idle_ticks += 1;
        }
        self.0.iter().any(|stream| stream.idle_ticks > idle_ticks_max)
    }

    /// Takes those out. To close them may wait for the disk, as a change of the directory does.
    pub(super) fn take_idle(&mut self, idle_ticks_max: u64) -> Vec<DirectoryStream> {
        self.0.extract_if(.., |stream| stream.idle_ticks > idle_ticks_max).collect()
    }
}

/// Changes that come so long after a ctime have another one: no file system has times in coarser
/// steps than the 2 seconds of FAT.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::attributes_of;
    use rustix::fs::{CWD, Mode, OFlags, openat};
    use std::path::Path;
    use std::time::UNIX_EPOCH;

    fn directory(path: &Path) -> (OwnedFd, Timestamp) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = openat(CWD, path, flags, Mode::empty()).unwrap();
        let changed = attributes_of(&fd).unwrap().ctime;
        (fd, changed)
    }

    #[test]
    fn continues_from_any_cookie_with_the_same_entries() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..3000 {
            std::fs::write(dir.path().join(format!("file-{i}")), "").unwrap();
        }
        let (fd, changed) = directory(dir.path());
        let mut whole = DirectoryStream::at(fd, 0, changed).unwrap();
        let mut all = Vec::new();
        while let Some((entry, _)) = whole.peek().unwrap() {
            all.push((entry.cookie, entry.name.to_owned()));
            whole.advance();
        }
        assert_eq!(all.len(), 3002);
        for start in [0, 1, 700, 3000] {
            let (fd, changed) = directory(dir.path());
            let mut part = DirectoryStream::at(fd, all[start].0, changed).unwrap();
            for (_, expected) in &all[start + 1..] {
                assert_eq!(part.peek().unwrap().unwrap().0.name, expected.as_c_str());
                part.advance();
            }
            assert!(part.peek().unwrap().is_none());
        }
    }

    #[test]
    fn a_changed_directory_is_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let (fd, changed) = directory(dir.path());
        let places = Arc::new(Semaphore::new(1));
        let mut streams = DirectoryStreams::default();
        let mut stream = DirectoryStream::at(fd, 0, changed).unwrap();
        stream.peek().unwrap();
        streams.put_back(stream, &places);
        assert!(streams.take(1, changed).is_none(), "it stands elsewhere");
        let stream = streams.take(0, changed).unwrap();
        let (fd, changed) = directory(dir.path());
        let mut second = DirectoryStream::at(fd, 0, changed).unwrap();
        second.peek().unwrap();
        streams.put_back(second, &places);
        assert!(streams.take(0, changed).is_none(), "the one place is taken");
        streams.put_back(stream, &places);
        assert_eq!(places.available_permits(), 0);
        let later = Timestamp { seconds: changed.seconds + 1, ..changed };
        assert!(streams.take(0, later).is_none(), "what it read ahead may be wrong now");
        assert_eq!(places.available_permits(), 1, "no call will continue it");
    }

    #[test]
    fn listing_of_a_directory_that_is_removed_meanwhile_is_stale() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("d");
        std::fs::create_dir(&path).unwrap();
        let (fd, changed) = directory(&path);
        std::fs::remove_dir(&path).unwrap();
        let mut stream = DirectoryStream::at(fd, 0, changed).unwrap();
        assert_eq!(stream.peek().err(), Some(Status::Stale));
    }

    #[test]
    fn entries_read_ahead_take_no_more_memory_than_the_plan_has_for_them() {
        let dir = tempfile::tempdir().unwrap();
        // The shorter the names, the more of them one call returns.
        (0..3000).for_each(|i| drop(std::fs::File::create(dir.path().join(format!("{i:x}")))));
        let (fd, changed) = directory(dir.path());
        let mut stream = DirectoryStream::at(fd, 0, changed).unwrap();
        let mut entries = 0;
        while let Some((entry, _)) = stream.peek().unwrap() {
            assert_ne!(entry.fileid, 0);
            stream.advance();
            entries += 1;
            assert!(stream.ahead.bytes.capacity() <= KERNEL_BUFFER_BYTES);
        }
        assert_eq!(entries, 3002);
    }

    /// File systems without fine-grained times give changes of one tick one ctime.
    #[test]
    fn names_that_were_read_in_the_tick_of_a_change_are_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        for (age_secs, is_kept) in [(0, false), (4, true)] {
            std::fs::write(dir.path().join("f"), "").unwrap();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let seconds = i64::try_from(now.as_secs()).unwrap() - age_secs;
            let changed = Timestamp { seconds, nanoseconds: now.subsec_nanos().max(1) };
            let mut streams = DirectoryStreams::default();
            let mut stream = DirectoryStream::at(directory(dir.path()).0, 0, changed).unwrap();
            stream.peek().unwrap();
            streams.put_back(stream, &Arc::new(Semaphore::new(1)));
            std::fs::remove_file(dir.path().join("f")).unwrap();
            let mut stream = streams.take(0, changed).unwrap();
            let mut names = Vec::new();
            while let Some((entry, _)) = stream.peek().unwrap() {
                names.push(entry.name.to_owned());
                stream.advance();
            }
            assert_eq!(names.contains(&c"f".to_owned()), is_kept, "{age_secs} s");
        }
    }
}
