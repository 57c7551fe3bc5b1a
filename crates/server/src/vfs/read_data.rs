//! The data of one READ on its way out of the file: what is acquired before it, and its system
//! calls.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use io::{
    Buffer, ByteRange, FileVersion, IoPolicy, Payload, RangeGuard, RangeUse, ReadTurn, Share,
    WidenedRead,
};
use rustix::io::Errno;

use super::Vfs;
use super::descriptors::note_refused;
use super::io_plan::kernel_reads_ahead;
use crate::counters::Counter;
use crate::export::ExportRoot;
use crate::fs::Status;
use crate::inode_cache::{Attributes, DirectFile, Inode, Permitted, Reading};
use crate::trace::{CallId, Event};

/// How many READs may be missing between two that follow each other in a file: connections and
/// network threads deliver them in nearly the order in which they were sent.
const REORDERED_READS_MAX: u64 = 4;

/// A READ at work, with all that was found out before the data is touched.
pub(super) struct Read<'a> {
    pub(super) file: &'a Permitted<Reading>,
    pub(super) reader: Arc<OwnedFd>,
    pub(super) call: CallId,
    pub(super) policy: IoPolicy,
    /// Not empty, and inside the file as it was.
    pub(super) range: ByteRange,
    pub(super) attributes: Attributes,
    /// The version of the file when this READ began.
    pub(super) version: FileVersion,
}

impl Read<'_> {
    /// Bytes to read.
    pub(super) fn len(&self) -> usize {
        usize::try_from(self.range.len()).expect("at most transfer_bytes_max")
    }

    /// Whether the kernel reports which pages of the file are cached, as far as is known.
    pub(super) fn shows_cache(&self) -> bool {
        self.file.root().io_support.shows_cache() && !self.file.data().hides_cache()
    }

    /// Bytes that the kernel reads into the page cache at once for this READ, if it goes on where
    /// another ended. 0 if that is not known.
    pub(super) fn kernel_reads_bytes(&self) -> u64 {
        let device = self.file.root().kernel_read_ahead;
        device.map_or(0, |device| device.at_once_bytes(self.range.len()))
    }
}

/// Data of the file, all that was asked for unless the file was cut meanwhile.
pub(super) struct Fetched(pub(super) Option<Payload>);

impl Fetched {
    pub(super) fn new(buffer: Buffer, start: usize, len: usize) -> Self {
        Self((len > 0).then(|| Payload::new(buffer, start, len)))
    }

    pub(super) fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, Payload::len) as u64
    }
}

/// Where data comes from that is not to stay in the page cache, with the descriptor that this
/// takes.
#[derive(Clone)]
pub(super) enum Source {
    /// Through the page cache, which is left as it was.
    DropBehind,
    /// Past the page cache.
    Direct(DirectFile),
}

impl Source {
    pub(super) fn counter(&self) -> Counter {
        match self {
            Self::DropBehind => Counter::ReadsDontcache,
            Self::Direct(_) => Counter::ReadsDirect,
        }
    }
}

/// The part of a range that the page cache had: so many bytes from the start, in the buffer.
pub(super) struct Partly(pub(super) Buffer, pub(super) usize);

/// A READ through the page cache that may go ahead, with its buffer and its pages.
struct CachedRead {
    file: Arc<Inode>,
    reader: Arc<OwnedFd>,
    range: ByteRange,
    buffer: Buffer,
    /// Bytes of the range that are in the buffer.
    had: usize,
    /// Drop what reading brings into the page cache.
    drops_behind: bool,
    /// Keeps direct I/O off these pages until it is done.
    pages: RangeGuard,
}

/// A READ past the page cache that may go ahead.
struct DirectRead {
    direct: DirectFile,
    widened: WidenedRead,
    buffer: Buffer,
    /// Keeps I/O through the page cache off these pages until it is done.
    pages: RangeGuard,
}

enum DirectOutcome {
    Done(Fetched),
    /// Less than was asked for. A file system may deliver less although the file goes on; a client
    /// would take a short READ for the end.
    Short,
    /// An error that may be that of a write-back anywhere in the file, which the kernel reports to
    /// the next direct read. The page cache has the truth about the range.
    Failed(Status),
    /// The kernel refused what fits the alignment that it has reported.
    Refused,
}

impl Vfs {
    /// Reads what the page cache did not have of the range through it, on a data thread. Short only
    /// if the file was cut meanwhile.
    pub(super) async fn fetch_cached(
        &self,
        read: &Read<'_>,
        Partly(buffer, had): Partly,
    ) -> Result<Fetched, Status> {
        let _turn = self.read_turn(read).await;
        let job = self.acquire_cached(read, buffer, had).await;
        self.on_data_thread_ahead(read, move || job.perform()).await
    }

    /// Reads the range from `source` on a data thread. Short only if the file was cut meanwhile.
    /// Comes with the counter of the bytes that came the same way.
    pub(super) async fn fetch_uncached(
        &self,
        read: &Read<'_>,
        source: Source,
    ) -> Result<(Fetched, Counter), Status> {
        if let Source::Direct(direct) = source {
            let align = direct.align;
            if let Some(job) = self.acquire_direct(read, direct).await? {
                let performed = self.on_data_thread(read.file.root(), move || job.perform());
                match performed.await? {
                    DirectOutcome::Done(done) => return Ok((done, Counter::ReadDirectBytes)),
                    DirectOutcome::Short => {}
                    DirectOutcome::Failed(status) => note_failed(read.file, status),
                    DirectOutcome::Refused => note_refused(read.file, align),
                }
            }
        }
        Ok((self.fetch_and_drop(read).await?, Counter::ReadDropBehindBytes))
    }

    /// The turn of a READ through the page cache that waits for the disk, after those of its client
    /// before it in the file. `None` where the file is not read far enough ahead for taking turns
    /// to pay, and where it is not known what is in memory.
    pub(super) async fn read_turn(&self, read: &Read<'_>) -> Option<ReadTurn> {
        let at_once_bytes = read.kernel_reads_bytes();
        let is_prefetched = self.prefetches(read);
        let is_stream = kernel_reads_ahead(at_once_bytes) || is_prefetched;
        if !is_stream || !read.file.root().attributes_in_memory {
            return None;
        }
        let reach_bytes = at_once_bytes.min(read.range.len().saturating_mul(REORDERED_READS_MAX));
        let order = &read.file.data().read_order;
        Some(order.turn(Share::current_client(), read.range, reach_bytes).await)
    }

    async fn fetch_and_drop(&self, read: &Read<'_>) -> Result<Fetched, Status> {
        let job = self.acquire_dropped_behind(read).await?;
        self.on_data_thread(read.file.root(), move || job.perform()).await
    }

    async fn acquire_cached(&self, read: &Read<'_>, buffer: Buffer, had: usize) -> CachedRead {
        self.emit_vector(read);
        CachedRead {
            pages: self.pages_on_data_thread(read, read.range, RangeUse::Cached).await,
            file: Arc::clone(read.file),
            reader: Arc::clone(&read.reader),
            range: read.range,
            buffer,
            had,
            drops_behind: false,
        }
    }

    async fn acquire_dropped_behind(&self, read: &Read<'_>) -> Result<CachedRead, Status> {
        let quiet = self.quiet_reader(read.file).await?;
        let reader = quiet.unwrap_or_else(|| Arc::clone(&read.reader));
        self.emit_vector(read);
        let buffer = self.buffer_on_data_thread(read.len()).await?;
        Ok(CachedRead {
            pages: self.pages_on_data_thread(read, read.range, RangeUse::Cached).await,
            file: Arc::clone(read.file),
            reader,
            range: read.range,
            buffer,
            had: 0,
            // The kernel refuses such reads of files that are never in the page cache.
            drops_behind: !read.attributes.is_dax,
        })
    }

    /// `None` for a range that cannot be widened to the alignment: at the largest file offset, or
    /// where no buffer holds the largest transfer, widened to sectors beyond a page.
    async fn acquire_direct(
        &self,
        read: &Read<'_>,
        direct: DirectFile,
    ) -> Result<Option<DirectRead>, Status> {
        let fits = |len: u64| len <= self.buffers.len_max() as u64;
        let Some(widened) =
            direct.align.widen_read(read.range).filter(|widened| fits(widened.range().len()))
        else {
            return Ok(None);
        };
        let (offset, len) = (read.range.offset(), read.range.len());
        self.tracer.emit(Event::ReadVectorDio, read.call, offset, len, widened);
        self.tracer.emit(Event::ReadDirect, read.call, offset, len, format_args!(""));
        if widened.range() != read.range {
            read.file.root().counters.add(Counter::ReadsWidened, 1);
        }
        let len = usize::try_from(widened.range().len()).expect("a transfer and two extras");
        let buffer = self.buffer_on_data_thread(len).await?;
        let pages = self.pages_on_data_thread(read, widened.range(), RangeUse::Direct).await;
        Ok(Some(DirectRead { direct, widened, buffer, pages }))
    }

    /// A buffer, for a call that goes on on a data thread if it can: one that waits in the queue of
    /// its client holds none.
    ///
    /// # Errors
    /// As [`Self::take_buffer`].
    async fn buffer_on_data_thread(&self, len: usize) -> Result<Buffer, Status> {
        self.engine.ask_for_data_thread().await;
        self.take_buffer(len).await
    }

    /// The right to pages, for a call that goes on on a data thread if it can: others do not wait
    /// for pages whose holder waits in the queue of its client.
    pub(super) async fn pages_on_data_thread(
        &self,
        read: &Read<'_>,
        range: ByteRange,
        range_use: RangeUse,
    ) -> RangeGuard {
        self.engine.ask_for_data_thread().await;
        read.file.data().ranges.lock(range, range_use).await
    }

    /// Runs what blocks on the disk, with pages that others may wait for, moving the whole call to
    /// a data thread if it can.
    pub(super) async fn on_data_thread<T: Send + 'static>(
        &self,
        root: &ExportRoot,
        job: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        root.counters.add(Counter::ReadsQueued, 1);
        self.engine.move_to_data_thread().await;
        self.engine.data(job).await
    }

    /// A buffer within the share of the client whose call is at work.
    ///
    /// # Errors
    /// [`Status::ServerFault`] when there are no buffers as large.
    pub(super) async fn take_buffer(&self, len: usize) -> Result<Buffer, Status> {
        let taken = self.buffers.take(Share::current_holder(), len).await;
        taken.map_err(|_| Status::ServerFault)
    }

    pub(super) fn emit_vector(&self, read: &Read<'_>) {
        let (offset, len) = (read.range.offset(), read.range.len());
        self.tracer.emit(Event::ReadVector, read.call, offset, len, format_args!(""));
    }
}

impl CachedRead {
    /// Reads the rest of the range. A short read happens only when the file was cut meanwhile.
    fn perform(self) -> Result<Fetched, Status> {
        let Self { file, reader, range, mut buffer, had, drops_behind, pages } = self;
        let wanted = usize::try_from(range.len()).expect("at most transfer_bytes_max");
        let rest = &mut buffer.as_mut_slice()[had..wanted];
        let got = if drops_behind {
            read_and_drop(&file, &reader, rest, range)?
        } else {
            io::read_at(reader.as_fd(), rest, range.offset() + had as u64)?
        };
        drop(pages);
        Ok(Fetched::new(buffer, 0, had + got))
    }
}

impl DirectRead {
    /// # Errors
    /// `Io` of a device that has failed.
    fn perform(self) -> Result<DirectOutcome, Status> {
        let Self { direct, widened, mut buffer, pages } = self;
        let got = match read_direct(&direct, buffer.as_mut_slice(), &widened) {
            Ok(Some(got)) => got,
            Ok(None) => return Ok(DirectOutcome::Refused),
            // A write-back elsewhere in the file has left EIO or ENOSPC. Another number is that of
            // the device; but some file systems refuse direct I/O by EOPNOTSUPP.
            Err(status @ Status::Io(errno)) if !matches!(errno, Errno::IO | Errno::OPNOTSUPP) => {
                return Err(status);
            }
            Err(status) => return Ok(DirectOutcome::Failed(status)),
        };
        drop(pages);
        let asked_of = widened.asked_of(got as u64);
        if asked_of < widened.asked().len() {
            return Ok(DirectOutcome::Short);
        }
        let len = usize::try_from(asked_of).expect("less than it got");
        let start = usize::try_from(widened.start_extra).expect("less than an alignment");
        Ok(DirectOutcome::Done(Fetched::new(buffer, start, len)))
    }
}

/// Counts and logs an error of a direct READ. The client does not get it if the page cache has the
/// data.
fn note_failed(file: &Inode, status: Status) {
    file.root().counters.add(Counter::DirectReadsFailed, 1);
    // Want of space is the failure of a WRITE, whose flush reports it.
    if !status.lacks_space() {
        let (export, path) = (file.root().name(), file.shown_path().unwrap_or_default());
        tracing::warn!(export, path, error = %status, "a direct READ failed; the page cache is read");
    }
}

/// Reads past the page cache on this thread, as [`io::read_direct`]. `None` if the kernel refused
/// what fits the alignment that it has reported: neither the client's fault nor the disk's.
///
/// # Errors
/// Not all are to be given to a client: see [`DirectOutcome::Failed`].
pub(super) fn read_direct(
    direct: &DirectFile,
    buffer: &mut [u8],
    widened: &WidenedRead,
) -> Result<Option<usize>, Status> {
    match io::read_direct(direct.fd.as_fd(), buffer, widened) {
        Ok(got) => Ok(Some(got)),
        Err(io::DataError(Errno::INVAL)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads through the page cache on this thread and drops what was not in it before; after an error,
/// the whole range.
pub(super) fn read_and_drop(
    file: &Inode,
    reader: &OwnedFd,
    slice: &mut [u8],
    range: ByteRange,
) -> Result<usize, Status> {
    let support = &file.root().io_support;
    if support.drops_behind() {
        match io::read_dontcache(reader.as_fd(), slice, range.offset()) {
            Ok(Some(len)) => return Ok(len),
            Ok(None) => support.note_no_drop_behind(|| file.root().name()),
            Err(error) => {
                // The kernel drops what it delivers. It is not known which of the rest was cached.
                drop_pages(reader, range);
                return Err(error.into());
            }
        }
    }
    drop_behind(reader, range, || Ok(io::read_at(reader.as_fd(), slice, range.offset())?))
}

/// Does `work`, which reads the range through the page cache, on this thread, and drops what was
/// not in it before, also where `work` fails.
pub(super) fn drop_behind<T>(
    reader: &OwnedFd,
    range: ByteRange,
    work: impl FnOnce() -> Result<T, Status>,
) -> Result<T, Status> {
    // Where the kernel does not report what was cached before, nothing is dropped. Some file
    // systems answer that question with an error, which is none of the data.
    let before = io::resident_ranges(reader.as_fd(), range).unwrap_or(None);
    let result = work();
    before
        .iter()
        .flat_map(|before| before.absent_in(range))
        .for_each(|rest| drop_pages(reader, rest));
    result
}

fn drop_pages(reader: &OwnedFd, range: ByteRange) {
    if let Err(error) = io::drop_clean(reader.as_fd(), range) {
        tracing::debug!(%error, "pages were not dropped");
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::time::Instant;

    use io::{IoMode, cache_state};
    use rustix::fs::{Advice, fadvise};

    use super::super::readable::{Readable, object, open, root_caller, serve};
    use super::*;
    use crate::fs::LiveAttributes;
    use crate::loop_device::LoopDevice;
    use crate::skip::{skip, skip_in_ci_too};

    /// A file in memory stands for the one on DAX: the kernel refuses the same reads of it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn file_on_dax_leaves_the_other_files_of_its_export_their_way_to_read() {
        let memory = Path::new("/dev/shm");
        if !memory.exists() {
            return skip("no /dev/shm");
        }
        let dir = tempfile::tempdir_in(memory).unwrap();
        let path = dir.path().join("export/f");
        std::fs::create_dir(dir.path().join("export")).unwrap();
        std::fs::write(&path, [7; 8192]).unwrap();
        let server = serve(dir.path()).await;
        let file = open(&server, &path).await;
        let vfs = &server.service().vfs;
        for is_dax in [true, false] {
            let readable = Readable::of(vfs, &file).await;
            let range = ByteRange::between(0, 8192);
            let mut read = readable.read(IoMode::DontCache, range);
            let live = vfs.live_attributes(&file).await.unwrap();
            read.attributes = file.lock.attributes(LiveAttributes { is_dax, ..live });
            let (fetched, _) = vfs.fetch_uncached(&read, Source::DropBehind).await.unwrap();
            assert_eq!(fetched.len(), 8192);
            assert_eq!(file.root().io_support.drops_behind(), is_dax);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn read_that_fails_leaves_no_pages_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("export/f");
        std::fs::create_dir(dir.path().join("export")).unwrap();
        std::fs::write(&path, [7; 8192]).unwrap();
        let server = serve(dir.path()).await;
        let file = open(&server, &path).await;
        let local = File::open(&path).unwrap();
        local.sync_all().unwrap();
        let range = ByteRange::between(0, 8192);
        let reader = OwnedFd::from(local.try_clone().unwrap());
        assert_eq!(read_and_drop(&file, &reader, &mut [0; 8192], range), Ok(8192));
        match cache_state(local.as_fd(), range).unwrap() {
            Some(state) if state.cached > 0 && file.root().io_support.drops_behind() => {}
            _ => return skip_in_ci_too("the kernel shows no cached pages, or drops none"),
        }
        // The kernel refuses to read with this descriptor.
        let writer = OwnedFd::from(File::options().write(true).open(&path).unwrap());
        let failed = read_and_drop(&file, &writer, &mut [0; 8192], range);
        assert_eq!(failed, Err(Status::Io(Errno::BADF)));
        assert_eq!(cache_state(local.as_fd(), range).unwrap().unwrap().cached, 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn number_that_no_write_back_leaves_fails_a_direct_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("export/f");
        std::fs::create_dir(dir.path().join("export")).unwrap();
        std::fs::write(&path, [7; 8192]).unwrap();
        let server = serve(dir.path()).await;
        let file = open(&server, &path).await;
        let vfs = &server.service().vfs;
        let readable = Readable::of(vfs, &file).await;
        let read = readable.read(IoMode::Direct, ByteRange::between(0, 8192));
        // The kernel refuses to read with this descriptor.
        let fd = Arc::new(File::options().write(true).open(&path).unwrap().into());
        let align = io::DioAlign::new(512, 512, 512).unwrap();
        let failed = vfs.fetch_uncached(&read, Source::Direct(DirectFile { fd, align })).await;
        assert_eq!(failed.err(), Some(Status::Io(Errno::BADF)));
        assert_eq!(file.root().counters.value(Counter::DirectReadsFailed), 0);
    }

    /// An ext4 at `export` in `dir` with a file `f`, on a disk that takes no more than it has.
    struct FullDisk {
        mounts: [PathBuf; 2],
        device: LoopDevice,
    }

    impl FullDisk {
        const FILE_BYTES: usize = 2 << 20;

        fn at(dir: &Path) -> Result<Self, String> {
            let failed = |error: std::io::Error| error.to_string();
            let [export, backing] = ["export", "backing"].map(|name| dir.join(name));
            for at in [&export, &backing] {
                std::fs::create_dir(at).map_err(failed)?;
            }
            run("mount", &["-t", "tmpfs", "-o", "size=16m", "tmpfs", text(&backing)])?;
            let image = backing.join("image");
            let attached = File::create(&image)
                .and_then(|image| image.set_len(64 << 20))
                .map_err(failed)
                .and_then(|()| LoopDevice::on(&image, 4096));
            let device = attached.inspect_err(|_| unmount(&backing))?;
            let disk = Self { mounts: [export, backing], device };
            let device = text(disk.device.path());
            run("mkfs.ext4", &["-q", "-O", "^has_journal", "-E", "lazy_itable_init=1", device])?;
            run("mount", &[device, text(&disk.mounts[0])])?;
            let file = File::create(disk.file()).map_err(failed)?;
            file.write_all_at(&vec![7; Self::FILE_BYTES], 0).map_err(failed)?;
            rustix::fs::syncfs(&file).map_err(|error| error.to_string())?;
            // Not all of it fits.
            let _ = std::fs::write(disk.mounts[1].join("filling"), vec![0; 16 << 20]);
            Ok(disk)
        }

        fn file(&self) -> PathBuf {
            self.mounts[0].join("f")
        }
    }

    impl Drop for FullDisk {
        fn drop(&mut self) {
            self.mounts.iter().for_each(|at| unmount(at));
        }
    }

    fn unmount(at: &Path) {
        let _ = run("umount", &["--lazy", text(at)]);
    }

    fn text(path: &Path) -> &str {
        path.to_str().expect("UTF-8")
    }

    fn run(program: &str, args: &[&str]) -> Result<(), String> {
        let output =
            Command::new(program).args(args).output().map_err(|error| error.to_string())?;
        let error = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(error()) }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn direct_read_does_not_get_the_error_of_a_write_back_elsewhere_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let disk = match FullDisk::at(dir.path()) {
            Ok(disk) => disk,
            Err(error) => return skip(&error),
        };
        let first = ByteRange::between(0, 8192);
        let server = serve(dir.path()).await;
        let file = open(&server, &disk.file()).await;
        let (vfs, mut object) = (&server.service().vfs, object(&server, &file));
        object.policy.read = IoMode::Direct;
        let local = File::options().read(true).write(true).open(disk.file()).unwrap();
        local.write_all_at(&[8; 1 << 20], FullDisk::FILE_BYTES as u64).unwrap();
        // As the kernel's own write-back does, this leaves the error to the file.
        assert!(rustix::fs::syncfs(&local).is_err(), "the disk is full");
        fadvise(&local, 0, None, Advice::DontNeed).unwrap();
        let call = CallId::local(1, 1);
        let answer = vfs.read(&root_caller(), (&object, &file), call, 0, 8192).await;
        assert_eq!(answer.result.map(|done| done.count()), Ok(8192));
        let data = Readable::of(vfs, &file).await;
        assert!(!data.read(IoMode::Direct, first).file.data().has_failed(Instant::now));
        let counted = |counter| file.root().counters.value(counter);
        if counted(Counter::ReadsDirect) == 0 || counted(Counter::ReadDirectBytes) > 0 {
            return skip_in_ci_too("no direct read here has failed");
        }
        assert_eq!(counted(Counter::DirectReadsFailed), 1);
        if let Some(state) = cache_state(local.as_fd(), first).unwrap() {
            assert_eq!(state.cached, 0, "dropped behind");
        }
        assert!(local.sync_data().is_err(), "a flush still gets the error");
    }
}
