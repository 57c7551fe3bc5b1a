//! READs that go from the page cache to the socket without a copy.
//!
//! Splicing is a matter of speed alone. Whatever stands in its way, a READ that is not spliced is
//! copied, and meets errors there.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use io::{ByteRange, NowaitRead, Payload, Pipe, RangeUse, ReadTurn};

use super::read_data::{Fetched, Read};
use super::{Status, Vfs};
use crate::counters::Counter;
use crate::trace::Event;

/// READs of fewer bytes are copied. Hot READs over loopback, one at a time, copied and spliced, CPU
/// seconds of the server per GiB (Linux 6.18, 2 processors, median of 5): 16 KiB 0.78 and 0.90,
/// 32 KiB 0.47 and 0.39, 64 KiB 0.50 and 0.28, 256 KiB 0.33 and 0.12, 1 MiB 0.33 and 0.08.
const SPLICE_BYTES_MIN: u64 = 32 * 1024;

/// Data that came through the page cache.
pub(super) struct ThroughCache {
    pub(super) data: Fetched,
    /// All of it was in the page cache.
    pub(super) was_resident: bool,
}

impl Vfs {
    /// Takes the range from the page cache on this thread, if it is all there. `None` if it is not,
    /// or is to be copied.
    pub(super) fn try_spliced(&self, read: &Read<'_>) -> Option<Fetched> {
        if !read.file.root().attributes_in_memory {
            return None;
        }
        let mut pipe = self.pipe(read)?;
        if is_in_memory(read) != Some(true) {
            return None;
        }
        self.fill_here(read, &mut pipe).then(|| self.spliced(read, pipe))
    }

    /// Takes the range through the page cache, on this thread if it is all there. `None` if it is
    /// to be copied.
    pub(super) async fn fetch_spliced(
        &self,
        read: &Read<'_>,
    ) -> Result<Option<ThroughCache>, Status> {
        let Some(mut pipe) = self.pipe(read) else { return Ok(None) };
        if read.file.root().attributes_in_memory {
            match is_in_memory(read) {
                Some(true) if self.fill_here(read, &mut pipe) => {
                    let data = self.spliced(read, pipe);
                    return Ok(Some(ThroughCache { data, was_resident: true }));
                }
                Some(false) => {}
                // Copying finds out without waiting, and has the data then.
                None | Some(true) => return Ok(None),
            }
        }
        // A READ that waits for its turn holds no pipe that another could use.
        drop(pipe);
        self.fill_in_turn(read).await
    }

    /// Takes the range through the page cache when those before it in the file have been read: on
    /// this thread if it was read ahead for them, else on a data thread, to which the whole call
    /// moves if it can. `None` if it is to be copied.
    async fn fill_in_turn(&self, read: &Read<'_>) -> Result<Option<ThroughCache>, Status> {
        let turn = self.read_turn(read).await;
        let has_waited = turn.as_ref().is_some_and(ReadTurn::has_waited);
        if has_waited && is_in_memory(read) == Some(true) {
            let Some(mut pipe) = self.pipe(read) else { return Ok(None) };
            let filled = self.fill_here(read, &mut pipe).then(|| self.spliced(read, pipe));
            if filled.is_some() {
                self.prefetch(read);
            }
            return Ok(filled.map(|data| ThroughCache { data, was_resident: false }));
        }
        let pages = self.pages_on_data_thread(read, read.range, RangeUse::Cached).await;
        let Some(mut pipe) = self.pipe(read) else { return Ok(None) };
        let (reader, range) = (Arc::clone(&read.reader), read.range);
        let filled = self
            .on_data_thread_ahead(read, move || {
                let filled = fill(&mut pipe, &reader, range);
                drop(pages);
                Ok((filled && is_whole(&pipe, range)).then_some(pipe))
            })
            .await?;
        drop(turn);
        let data = filled.map(|pipe| self.spliced(read, pipe));
        Ok(data.map(|data| ThroughCache { data, was_resident: false }))
    }

    /// A pipe for a range that is worth one. `None` when the disk has lately failed to read a part
    /// of the file: the kernel counts a page that could not be read as cached, and splicing waits
    /// for another attempt of the disk, as copying without waiting does not.
    fn pipe(&self, read: &Read<'_>) -> Option<Pipe> {
        let is_on = read.policy.splice && self.switches.splice();
        let has_failed = || read.file.data().has_failed(Instant::now);
        if read.range.len() < SPLICE_BYTES_MIN || !is_on || has_failed() {
            return None;
        }
        self.pipes.try_take(read.range)
    }

    /// Puts a range that is in memory into the pipe. Whether all of it: nothing is put there if
    /// this could wait for a READ of these pages or a WRITE of the file.
    fn fill_here(&self, read: &Read<'_>, pipe: &mut Pipe) -> bool {
        let (reader, range) = (&read.reader, read.range);
        let pages = read.file.data().ranges.try_lock(range, RangeUse::InMemory);
        let whole = pages.is_some() && fill(pipe, reader, range) && is_whole(pipe, range);
        if whole {
            read.file.root().counters.add(Counter::ReadsInline, 1);
        }
        whole
    }

    fn spliced(&self, read: &Read<'_>, pipe: Pipe) -> Fetched {
        read.file.root().counters.add(Counter::ReadsSpliced, 1);
        let (offset, len) = (read.range.offset(), read.range.len());
        self.tracer.emit(Event::ReadSplice, read.call, offset, len, format_args!(""));
        Fetched(Some(Payload::in_pipe(pipe)))
    }
}

/// Fills the pipe, waiting for the disk where the range is not in memory.
fn fill(pipe: &mut Pipe, reader: &OwnedFd, range: ByteRange) -> bool {
    match pipe.fill_from(reader.as_fd(), range) {
        Ok(_) => true,
        Err(error) => {
            tracing::debug!(%error, "cannot splice a range; it is copied");
            false
        }
    }
}

/// Whether the pipe has the range, and not less because the file was cut meanwhile.
fn is_whole(pipe: &Pipe, range: ByteRange) -> bool {
    pipe.len() as u64 == range.len()
}

/// Whether the range seems to be in memory, which costs little to ask. `None` if the kernel does
/// not report it.
pub(super) fn is_in_memory(read: &Read<'_>) -> Option<bool> {
    let (reader, range) = (read.reader.as_fd(), read.range);
    let resident = match io::cache_state(reader, range).ok()? {
        Some(state) => state.cached == state.pages,
        None => io::resident_ranges(reader, range).ok()??.covers(range),
    };
    if !resident {
        return Some(false);
    }
    // A page counts from the moment that its reading begins. Read-ahead reads upwards, so where the
    // last byte has come, the others most likely have. The kernel also refuses while a local
    // program that writes the file holds the lock that splicing takes.
    let last = io::try_read_at_nowait(reader, &mut [0], range.end() - 1, read.attributes.size);
    Some(matches!(last, Ok(NowaitRead::Done(1))))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use io::{IoMode, RangeUse};
    use rustix::io::Errno;

    use super::super::readable::{Readable, object, open, root_caller, serve};
    use super::*;
    use crate::loop_device::LoopDevice;
    use crate::skip::skip_in_ci_too;
    use crate::trace::CallId;

    const PAGE: u64 = 4096;
    const LEN: u64 = 64 * 1024;
    const FILE_BYTES: usize = 256 * 1024;
    const FAILING_BYTES: u64 = (1 << 20) + (1 << 18);
    const BAD_PAGE: u64 = 100;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn range_is_spliced_at_once_only_if_nothing_in_flight_may_make_it_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("export/f");
        std::fs::create_dir(dir.path().join("export")).unwrap();
        std::fs::write(&path, vec![7; FILE_BYTES]).unwrap();
        let server = serve(dir.path()).await;
        let file = open(&server, &path).await;
        let (vfs, ranges) = (&server.service().vfs, file.ranges().unwrap());
        let readable = Readable::of(vfs, &file).await;
        let read = readable.read(IoMode::Buffered, ByteRange::between(0, LEN));
        let splices = || vfs.try_spliced(&read).is_some();
        assert!(splices());
        let (last, next) =
            (ByteRange::between(LEN - PAGE, LEN), ByteRange::between(LEN, LEN + PAGE));
        for (pages, range_use, is_spliced) in [
            (last, RangeUse::Cached, false),
            (next, RangeUse::Cached, true),
            (next, RangeUse::Direct, true),
            (next, RangeUse::CachedWrite, false),
            (next, RangeUse::Exclusive, false),
        ] {
            let other = ranges.try_lock(pages, range_use).unwrap();
            assert_eq!(splices(), is_spliced, "{range_use:?} of {pages:?}");
            drop(other);
            assert!(splices());
        }
    }

    /// A btrfs at `at` with a file of [`FAILING_BYTES`] there, a page of which fails its checksum.
    struct Failing(PathBuf);

    impl Failing {
        fn at(at: &Path, image: &Path) -> Result<Self, String> {
            let failed = |error: std::io::Error| error.to_string();
            std::fs::File::create(image).and_then(|it| it.set_len(128 << 20)).map_err(failed)?;
            let device = LoopDevice::on(image, 4096)?;
            let path = device.path().to_str().expect("UTF-8");
            run("mkfs.btrfs", &["-q", "-m", "single", "-d", "single", path])?;
            run("mount", &[path, at.to_str().expect("UTF-8")])?;
            let mounted = Self(at.to_owned());
            let pages = FAILING_BYTES / PAGE;
            let content: Vec<u8> =
                (0..pages).flat_map(|page| [page_mark(page); 512]).flatten().collect();
            std::fs::write(mounted.file(), content).map_err(failed)?;
            mounted.forget();
            let disk = std::fs::read(image).map_err(failed)?;
            let bad = [page_mark(BAD_PAGE); 512].concat();
            let place = disk.chunks(4096).position(|page| page == bad).ok_or("it is not there")?;
            let disk = std::fs::File::options().write(true).open(image).map_err(failed)?;
            disk.write_all_at(b"bad", place as u64 * PAGE).map_err(failed)?;
            mounted.forget();
            Ok(mounted)
        }

        fn file(&self) -> PathBuf {
            self.0.join("f")
        }

        /// Drops the file from the page cache.
        fn forget(&self) {
            let file = std::fs::File::open(self.file()).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }

    impl Drop for Failing {
        fn drop(&mut self) {
            let _ = run("umount", &["--lazy", self.0.to_str().expect("UTF-8")]);
        }
    }

    fn page_mark(page: u64) -> [u8; 8] {
        (page ^ 0x5b1d_77a0_c3e4_9f26).to_ne_bytes()
    }

    fn run(program: &str, args: &[&str]) -> Result<(), String> {
        let output =
            Command::new(program).args(args).output().map_err(|error| error.to_string())?;
        let error = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(error()) }
    }

    /// Bytes that this thread has had read from disks.
    fn disk_bytes_of_this_thread() -> u64 {
        let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let bytes = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap();
        bytes.parse().unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn network_thread_does_not_wait_for_a_page_that_the_disk_could_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("export");
        std::fs::create_dir(&at).unwrap();
        let mounted = match Failing::at(&at, &dir.path().join("image")) {
            Ok(mounted) => mounted,
            Err(error) => return skip_in_ci_too(&error),
        };
        let server = serve(dir.path()).await;
        let file = open(&server, &mounted.file()).await;
        let vfs = &server.service().vfs;
        let mut object = object(&server, &file);
        object.policy.read = IoMode::Buffered;
        let read = async |offset, count| {
            let call = CallId::local(1, 1);
            let answer = vfs.read(&root_caller(), (&object, &file), call, offset, count).await;
            answer.result.map(|done| done.count())
        };
        assert_eq!(read(0, 1 << 20).await, Err(Status::Io(Errno::IO)));
        assert_eq!(read(1 << 20, 1 << 18).await, Ok(1 << 18));
        let range = ByteRange::between(1 << 18, FAILING_BYTES);
        let local = std::fs::File::open(mounted.file()).unwrap();
        let whole = io::cache_state(local.as_fd(), range).unwrap();
        let Some(whole) = whole else { return skip_in_ci_too("the kernel shows no cached pages") };
        if whole.cached < whole.pages {
            return skip_in_ci_too("memory is short: pages have left the cache");
        }
        let before = disk_bytes_of_this_thread();
        for _ in 0..3 {
            assert_eq!(read(range.offset(), 1 << 20).await, Err(Status::Io(Errno::IO)));
        }
        assert_eq!(disk_bytes_of_this_thread(), before);
        mounted.forget();
        assert_eq!(read(1 << 20, 1 << 18).await, Ok(1 << 18));
        assert_eq!(disk_bytes_of_this_thread(), before, "nor does it begin to read what is absent");
    }
}
