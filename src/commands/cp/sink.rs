//! Where the data of a copy goes.

use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use client::nfs3::Nfs3;
use proto::nfs3::{FileHandle, SetAttributes, StableHow, WriteVerifier};
use rustix::io::Errno;
use tokio::task::spawn_blocking;

use super::super::failure::{Failure, Result};
use super::super::window::Window;
use super::source::{WINDOW_BYTES, window_len};

/// A file that is written in chunks, several at once.
pub(super) enum Sink {
    /// On a server.
    Remote(Box<RemoteSink>),
    /// Here, a regular file, written at any offset. `is_empty`: it held nothing when it was opened.
    /// `safe_end`: the kernel has all data before this offset.
    Local { file: Arc<File>, is_empty: bool, safe_end: u64 },
    /// Here, a pipe or a device, written without a gap from 0 to `end`.
    Stream { file: Arc<File>, end: u64 },
}

/// A write that is under way.
type Writing = Pin<Box<dyn Future<Output = Result<Written>> + Send>>;

/// A chunk that was taken.
pub(super) struct Written {
    range: Range<u64>,
    /// The instance of the server that holds it in memory; none when it is safe. Two for one chunk
    /// that came in parts to a server that was started anew between them.
    unsafe_with: Vec<WriteVerifier>,
}

impl Sink {
    /// A file of this machine that is open for writing.
    pub(super) fn local(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let file = Arc::new(file);
        Ok(if metadata.is_file() {
            Self::Local { file, is_empty: metadata.len() == 0, safe_end: 0 }
        } else {
            Self::Stream { file, end: 0 }
        })
    }

    /// The open file, if it is here.
    pub(super) fn file(&self) -> Option<Arc<File>> {
        match self {
            Self::Remote(_) => None,
            Self::Local { file, .. } | Self::Stream { file, .. } => Some(Arc::clone(file)),
        }
    }

    /// Whether ranges that are not written read as zeros: only in a regular file that held nothing
    /// when it was opened. A pipe has no such ranges, and a block device keeps its old data there.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Remote(sink) => sink.is_empty,
            Self::Local { is_empty, .. } => *is_empty,
            Self::Stream { .. } => false,
        }
    }

    /// Begins to write `data` at `offset`.
    pub(super) fn write(&self, offset: u64, data: Bytes) -> Writing {
        let end = offset + u64::try_from(data.len()).unwrap_or(u64::MAX);
        let written = Written { range: offset..end, unsafe_with: Vec::new() };
        match self {
            Self::Remote(sink) => sink.write(data, written),
            Self::Local { file, .. } => {
                let file = Arc::clone(file);
                blocking(move || file.write_all_at(&data, offset), written)
            }
            Self::Stream { file, end } => {
                let (file, is_next) = (Arc::clone(file), offset == *end);
                let write = move || match is_next {
                    true => (&*file).write_all(&data),
                    // Everything behind the gap would be shifted.
                    false => Err(Errno::SPIPE.into()),
                };
                blocking(write, written)
            }
        }
    }

    /// Writes under way at once.
    pub(super) fn writes_max(&self, chunk_bytes: u32) -> usize {
        match self {
            Self::Remote(_) => window_len(chunk_bytes),
            // A file is written by one at a time anyway; the others have their data ready.
            Self::Local { .. } => 3,
            Self::Stream { .. } => 1,
        }
    }

    /// Takes note of a chunk that was written, in the order of the file.
    pub(super) async fn settle(&mut self, written: Written) -> Result<()> {
        match self {
            Self::Remote(sink) => sink.settle(written).await,
            Self::Local { safe_end: end, .. } | Self::Stream { end, .. } => {
                *end = written.range.end;
                Ok(())
            }
        }
    }

    /// Whether a write that ends at `end` has to wait until all data before it is safe, because
    /// `--resume` would not look for the first byte that is not.
    pub(super) fn must_wait(&self, end: u64) -> bool {
        match self {
            Self::Remote(sink) => end.saturating_sub(sink.safe_end) > REMOTE_UNSAFE_BYTES_MAX,
            Self::Local { safe_end, .. } => end.saturating_sub(*safe_end) > LOCAL_UNSAFE_BYTES_MAX,
            // It is not resumed.
            Self::Stream { .. } => false,
        }
    }

    /// Takes note that all data before `offset` is safe.
    pub(super) fn note_safe(&mut self, offset: u64) {
        match self {
            Self::Remote(sink) => sink.safe_end = offset,
            Self::Local { safe_end, .. } => *safe_end = offset,
            Self::Stream { .. } => {}
        }
    }

    /// Commits the written data, and returns the parts that have to be written again.
    pub(super) async fn commit(&mut self) -> Result<Vec<Range<u64>>> {
        match self {
            Self::Remote(sink) => sink.commit_all().await,
            Self::Local { .. } | Self::Stream { .. } => Ok(Vec::new()),
        }
    }

    /// Removes all data. A pipe or a device has none to remove.
    pub(super) async fn truncate(&mut self) -> Result<()> {
        if matches!(self, Self::Stream { .. }) {
            return Ok(());
        }
        self.set_size(0).await?;
        match self {
            Self::Remote(sink) => sink.is_empty = true,
            Self::Local { is_empty, .. } => *is_empty = true,
            Self::Stream { .. } => {}
        }
        Ok(())
    }

    /// Ends the file at `size`.
    pub(super) async fn set_size(&mut self, size: u64) -> Result<()> {
        match self {
            Self::Remote(sink) => {
                let size = SetAttributes { size: Some(size), ..SetAttributes::default() };
                sink.nfs.setattr(sink.file, size, None).await?;
                Ok(())
            }
            Self::Local { file, .. } => {
                let file = Arc::clone(file);
                let set = spawn_blocking(move || file.set_len(size));
                Ok(set.await.expect("it does not panic")?)
            }
            Self::Stream { .. } => Err(Failure::refused(Errno::SPIPE)),
        }
    }

    /// Write errors that the kernel of this machine reports no earlier than at close(2).
    pub(super) async fn check_close(&mut self) -> Result<()> {
        let Some(file) = self.file() else { return Ok(()) };
        let checked = spawn_blocking(move || ::io::check_close(&file));
        Ok(checked.await.expect("it does not panic")?)
    }
}

fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static, written: Written) -> Writing {
    let work = spawn_blocking(work);
    Box::pin(async move {
        work.await.expect("writing does not panic")?;
        Ok(written)
    })
}

/// A file on a server: written UNSTABLE and committed piece by piece, so that never more than two
/// pieces are in the server's memory only. A piece whose COMMIT comes from another instance of the
/// server than its WRITEs may be lost (RFC 1813 §3.3.21), and is to be written again.
pub(super) struct RemoteSink {
    nfs: Nfs3,
    file: FileHandle,
    stable: StableHow,
    /// Whether it held nothing when it was opened.
    is_empty: bool,
    /// The data written since the last COMMIT began.
    piece: Option<Piece>,
    commits: Window<Result<Commit>>,
    lost: Vec<Range<u64>>,
    /// All data before this offset is on the server's stable storage.
    safe_end: u64,
}

/// A part of the file, without holes but for those of the source.
struct Piece {
    range: Range<u64>,
    verifiers: Vec<WriteVerifier>,
}

/// An answered COMMIT.
struct Commit {
    range: Range<u64>,
    is_lost: bool,
}

impl RemoteSink {
    /// With [`StableHow::FileSync`] every WRITE is safe when it is answered: for data that cannot
    /// be had again, and for files of one WRITE, which saves them the COMMIT.
    pub(super) fn new(nfs: Nfs3, file: FileHandle, stable: StableHow, is_empty: bool) -> Self {
        let commits = Window::new(COMMITS_MAX);
        let (piece, lost, safe_end) = (None, Vec::new(), 0);
        Self { nfs, file, stable, is_empty, piece, commits, lost, safe_end }
    }

    fn write(&self, mut data: Bytes, mut written: Written) -> Writing {
        let (nfs, file, stable) = (self.nfs.clone(), self.file, self.stable);
        let mut offset = written.range.start;
        // Handed over now, so that the order of the calls is that of the file.
        let mut call = nfs.write(file, offset, data.clone(), stable);
        Box::pin(async move {
            loop {
                let ok = call.await?;
                if ok.committed == StableHow::Unstable
                    && !written.unsafe_with.contains(&ok.verifier)
                {
                    written.unsafe_with.push(ok.verifier);
                }
                let count = usize::try_from(ok.count).unwrap_or(usize::MAX).min(data.len());
                data = data.slice(count..);
                if data.is_empty() {
                    return Ok(written);
                }
                offset += u64::from(ok.count);
                call = nfs.write(file, offset, data.clone(), stable);
            }
        })
    }

    async fn settle(&mut self, written: Written) -> Result<()> {
        let Written { range, unsafe_with } = written;
        if unsafe_with.is_empty() {
            if self.piece.is_none() && self.commits.is_empty() && self.lost.is_empty() {
                self.safe_end = range.end;
            }
            return Ok(());
        }
        let piece = self.piece.get_or_insert_with(|| Piece {
            range: range.start..range.start,
            verifiers: Vec::new(),
        });
        piece.range.end = range.end;
        for verifier in unsafe_with {
            if !piece.verifiers.contains(&verifier) {
                piece.verifiers.push(verifier);
            }
        }
        if piece.range.end - piece.range.start >= PIECE_BYTES {
            self.begin_commit().await
        } else {
            Ok(())
        }
    }

    /// Sends a COMMIT for what was written since the last. Goes on while it is answered.
    async fn begin_commit(&mut self) -> Result<()> {
        let Some(Piece { range, verifiers }) = self.piece.take() else { return Ok(()) };
        if let Some(commit) = self.commits.make_room().await {
            self.settle_commit(commit?);
        }
        // A piece that grew over a hole may be longer than a count can express; 0 means to the end.
        let count = u32::try_from(range.end - range.start).unwrap_or(0);
        let commit = self.nfs.commit(self.file, range.start, count);
        self.commits.push(async move {
            let verifier = commit.await?.verifier;
            Ok(Commit { range, is_lost: verifiers != [verifier] })
        });
        Ok(())
    }

    fn settle_commit(&mut self, Commit { range, is_lost }: Commit) {
        if is_lost {
            self.lost.push(range);
        } else if self.lost.is_empty() {
            self.safe_end = range.end;
        }
    }

    async fn commit_all(&mut self) -> Result<Vec<Range<u64>>> {
        self.begin_commit().await?;
        while let Some(commit) = self.commits.next().await {
            self.settle_commit(commit?);
        }
        Ok(std::mem::take(&mut self.lost))
    }
}

/// Bytes between two COMMITs.
const PIECE_BYTES: u64 = 32 << 20;
/// COMMITs of a file that are under way at once.
const COMMITS_MAX: usize = 1;
/// Bytes from the first that is not safe to the end of the file at most, whatever the holes between
/// them, so that an interrupted copy can go on that far before its end. Here, the chunks under way,
/// with room to spare.
pub(super) const LOCAL_UNSAFE_BYTES_MAX: u64 = 4 * WINDOW_BYTES;
/// The same on a server, which may be restarted as well: also the piece that awaits its COMMIT and
/// the next one.
pub(super) const REMOTE_UNSAFE_BYTES_MAX: u64 = 2 * PIECE_BYTES + LOCAL_UNSAFE_BYTES_MAX;
