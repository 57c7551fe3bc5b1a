//! Data on its way to a socket, without being copied there: that of a file from the page cache, or
//! some of our own.
//!
//! A pipe holds references to pages. `splice` puts those of a file into it, `vmsplice` those of our
//! memory, and `splice` hands them from there to a socket. In between, the length of what is in the
//! pipe is known and cannot change, so a message may announce it.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::param::page_size;
use rustix::pipe::{
    IoSliceRaw, PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, vmsplice,
};

use crate::byte_range::ByteRange;

/// How long no pipe is asked for after the system refused one. Asking costs four system calls, and
/// the limits that refuse (of pages in the pipes of a user, of descriptors) stay reached for a
/// while.
const REFUSAL_LASTS: Duration = Duration::from_secs(1);

/// A bounded number of pipes.
///
/// Each takes two descriptors while it is open, and pins as many bytes of the page cache as are in
/// it. There is no waiting for one: a caller that gets none copies.
pub struct PipePool {
    pipes_max: usize,
    /// Sizes to ask for, in bytes, the best first.
    sizes: [usize; 2],
    state: Mutex<State>,
}

struct State {
    /// Empty pipes, the most recently used last.
    idle: Vec<Ends>,
    /// On loan and idle together, and those that are being opened.
    open: usize,
    refused_at: Option<Instant>,
}

/// Both ends of a pipe.
struct Ends {
    output: OwnedFd,
    input: OwnedFd,
    /// Pages it holds, at most; a part of a page takes the place of a whole one.
    slots: usize,
}

/// A pipe on loan from a [`PipePool`], which takes an empty one back when this is dropped. One with
/// data in it is closed instead, which releases its pages: a pipe can be emptied only by reading
/// it.
pub struct Pipe {
    /// `None` only while being dropped.
    ends: Option<Ends>,
    /// Bytes in it.
    len: usize,
    pool: Arc<PipePool>,
}

impl PipePool {
    /// A pool of at most `pipes_max` pipes, opened as they are wanted, each for ranges of at most
    /// `len_max` bytes.
    pub fn new(pipes_max: usize, len_max: usize) -> Arc<Self> {
        let state = State { idle: Vec::new(), open: 0, refused_at: None };
        // A range that begins inside a page touches one page more. Linux rounds the size up to a
        // power of two, and without CAP_SYS_RESOURCE stops at `fs.pipe-max-size`, by default 1 MiB:
        // ranges of that length that begin with a page are better than none.
        let sizes = [len_max.saturating_add(page_size()), len_max];
        Arc::new(Self { pipes_max, sizes, state: Mutex::new(state) })
    }

    /// An empty pipe that has room for `range` of a file. `None` if all are on loan, the system
    /// refuses another, or `range` has more pages than it lets a pipe have.
    pub fn try_take(self: &Arc<Self>, range: ByteRange) -> Option<Pipe> {
        let slots = slots_for(range);
        let idle = {
            let mut state = self.lock();
            let place = state.idle.iter().rposition(|ends| ends.slots >= slots);
            let idle = place.map(|place| state.idle.remove(place));
            if idle.is_none() {
                let refused = state.refused_at.is_some_and(|at| at.elapsed() < REFUSAL_LASTS);
                if refused || state.open == self.pipes_max {
                    return None;
                }
                state.open += 1;
            }
            idle
        };
        let ends = match idle {
            Some(ends) => ends,
            None => self.open()?,
        };
        let fits = ends.slots >= slots;
        let pipe = Pipe { ends: Some(ends), len: 0, pool: Arc::clone(self) };
        fits.then_some(pipe)
    }

    /// Pipes open now, each with two descriptors.
    pub fn pipes_open(&self) -> usize {
        self.lock().open
    }

    /// Opens a pipe that is counted already.
    fn open(&self) -> Option<Ends> {
        match Ends::open(self.sizes) {
            Ok(ends) => Some(ends),
            Err(error) => {
                tracing::debug!(%error, "cannot create a pipe; data is copied");
                let mut state = self.lock();
                state.open -= 1;
                state.refused_at = Some(Instant::now());
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PipePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("PipePool")
            .field("pipes_max", &self.pipes_max)
            .field("open", &state.open)
            .field("idle", &state.idle.len())
            .finish_non_exhaustive()
    }
}

impl Ends {
    /// A pipe of the first of `sizes` that the system grants.
    fn open(sizes: [usize; 2]) -> Result<Self, Errno> {
        let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
        let set = |size| fcntl_setpipe_size(&input, size);
        let granted = set(sizes[0]).or_else(|_| set(sizes[1]))?;
        Ok(Self { output, input, slots: granted / page_size() })
    }
}

impl Pipe {
    /// Puts `range` of a file into the empty pipe, by reference to the page cache; returns the
    /// bytes now in it. Short at the end of the file. Pages that are not cached are read from the
    /// disk first, which blocks.
    ///
    /// The pages stay the file's: a write before they are read at the other end changes the data
    /// read there.
    ///
    /// # Errors
    /// Of reading, or the file system does not do this (`EINVAL`). The pipe is then unusable;
    /// copying the range may still work, or return the true error.
    ///
    /// # Panics
    /// The pipe is not empty.
    pub fn fill_from(&mut self, file: BorrowedFd<'_>, range: ByteRange) -> io::Result<usize> {
        assert_eq!(self.len, 0, "only an empty pipe is filled");
        let mut offset = range.offset();
        while offset < range.end() {
            let wanted = usize::try_from(range.end() - offset).unwrap_or(usize::MAX);
            let ends = ends(&self.ends);
            // The kernel moves `offset` on. Not waiting is about room in the pipe alone.
            let flags = SpliceFlags::NONBLOCK;
            match splice(file, Some(&mut offset), &ends.input, None, wanted, flags) {
                Ok(0) => break,
                Ok(moved) => self.len += moved,
                Err(Errno::INTR) => {}
                // Out of slots, because some file system puts a page in by parts.
                Err(Errno::AGAIN) if self.len > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.len)
    }

    /// Puts `data` into the empty pipe, by reference to its pages; returns the bytes now in it,
    /// from the front, as many as there is room for.
    ///
    /// The pages stay the caller's, also after this value and `data` are gone, until the peer has
    /// them: what is stored there meanwhile may be what it gets.
    ///
    /// # Errors
    /// `ENOMEM`; or the system does not do this (`ENOSYS`, a sandbox).
    ///
    /// # Panics
    /// There is something in the pipe.
    pub fn fill_with(&mut self, data: &[u8]) -> io::Result<usize> {
        assert_eq!(self.len, 0, "only an empty pipe is filled");
        while self.len < data.len() {
            let rest = [IoSliceRaw::from_slice(&data[self.len..])];
            let input = &ends(&self.ends).input;
            // SAFETY: `input` is the end for writing, so the kernel only reads `rest`, and it holds
            // references of its own to the pages that it goes on reading. They are not given away
            // (no `SPLICE_F_GIFT`), so their owner may change them.
            match unsafe { vmsplice(input, &rest, SpliceFlags::NONBLOCK) } {
                Ok(moved) => self.len += moved,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.len > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.len)
    }

    /// Moves bytes to `socket`; returns how many, at least one. `more`: the message continues after
    /// the last byte of the pipe, so TCP need not send a short segment.
    ///
    /// # Errors
    /// Of the socket: `WouldBlock` when it is full and in non-blocking mode. `UnexpectedEof` when a
    /// page has lost its content since, as after an error of the disk.
    ///
    /// # Panics
    /// The pipe is empty. (The kernel would return `EAGAIN`, as if the socket were full.)
    pub fn send_to(&mut self, socket: BorrowedFd<'_>, more: bool) -> io::Result<usize> {
        assert!(self.len > 0, "an empty pipe has nothing to send");
        let flags = if more { SpliceFlags::MORE } else { SpliceFlags::empty() };
        let flags = flags | SpliceFlags::NONBLOCK;
        match splice(&ends(&self.ends).output, None, socket, None, self.len, flags)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            moved => {
                self.len -= moved;
                Ok(moved)
            }
        }
    }

    /// Moves bytes to `into`, for a receiver that is no socket; returns how many, at least one.
    ///
    /// # Errors
    /// Those of read(2), as when a page has lost its content since.
    ///
    /// # Panics
    /// The pipe is empty, which the call would wait for, or `into` is.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        assert!(self.len > 0 && !into.is_empty(), "there is something to read");
        let moved = rustix::io::read(&ends(&self.ends).output, into)?;
        self.len -= moved;
        Ok(moved)
    }

    /// Bytes in the pipe.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in the pipe.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Not a method, so that the other fields stay free.
fn ends(ends: &Option<Ends>) -> &Ends {
    ends.as_ref().expect("a pipe has its ends until it is dropped")
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        if self.len == 0 {
            self.pool.lock().idle.push(ends);
        } else {
            // Closed before it is no longer counted: there are never more descriptors than
            // promised.
            drop(ends);
            self.pool.lock().open -= 1;
        }
    }
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipe").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The pages that a range touches.
fn slots_for(range: ByteRange) -> usize {
    let page_bytes = page_size() as u64;
    let bytes = range.widened_to(page_bytes).len();
    usize::try_from(bytes.div_ceil(page_bytes)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
