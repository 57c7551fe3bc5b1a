//! Aligned memory and Linux file I/O.
//!
//! This crate handles bytes, descriptors and threads, and no network protocol:
//!
//! - [`BufferPool`]: page-aligned buffers under one hard memory budget;
//! - [`RangeLock`]: excludes cached and direct I/O on the same pages of a file from each other;
//! - [`WriteBehind`]: written data leaves the page cache in time, in large runs;
//! - [`PipePool`]: pipes that carry data from the page cache, or from memory, to a socket without a
//!   copy;
//! - [`Engine`]: operating-system threads that run blocking file calls for asynchronous callers;
//! - [`Identity`]: acting on the file system as another user, one thread at a time;
//! - [`check_access`]: what that user may do;
//! - [`set_ofd_lock`]: byte-range locks that local programs see;
//! - [`Leases`]: local programs wait before they write to a file;
//! - [`KernelHandle`]: names for files that survive a rename and a restart;
//! - [`read_at`], [`write_at`], [`write_parts_at`], [`try_read_at_nowait`]: positioned reads and
//!   writes that handle short results;
//! - [`DioAlign`], [`read_direct`], [`write_segments`]: the same past the page cache, for ranges
//!   that need not be aligned;
//! - [`resident_ranges`], [`drop_clean`]: the pages of a file that are in the page cache;
//! - [`ChangeWatches`]: whether a file was changed since;
//! - [`take_short_slices`]: how soon a thread runs after it has woken;
//! - [`probe!`]: static probes for bpftrace.
//!
//! All unsafe code of the workspace is here; each block states its invariants and what upholds
//! them. File calls that rustix already offers as safe functions are not wrapped again.
#![warn(unsafe_op_in_unsafe_fn)]

mod access;
mod align;
mod attribute_watch;
mod buffer_pool;
mod byte_range;
mod change_stamps;
mod change_watch;
mod clone_range;
mod close;
mod closed_stdout;
mod data_file;
mod descriptor_path;
mod descriptor_table;
mod direct;
mod dontcache_probe;
mod engine;
mod file_size_limit;
pub mod file_system_magic;
mod fronts;
mod identity;
mod io_mode;
mod kernel_handle;
mod kernel_read_ahead;
mod lease;
#[cfg(test)]
#[path = "../../../tests/loop_device/mod.rs"]
mod loop_device;
mod memory;
mod ofd_lock;
#[cfg(test)]
#[path = "../../../tests/own_process/mod.rs"]
mod own_process;
mod payload;
mod per_device;
mod pipe;
mod prefetch;
pub mod probe;
mod process_clock;
mod range_lock;
mod read_ahead;
mod read_history;
mod read_order;
mod residency;
#[cfg(test)]
#[path = "../../../tests/skip/mod.rs"]
mod skip;
mod slab;
mod socket;
mod streams;
mod sync;
mod time_slice;
#[cfg(test)]
#[path = "../../../tests/user_namespace/mod.rs"]
mod user_namespace;
mod write_behind;

pub use access::check_access;
pub use align::{DioAlign, WidenedRead, WriteSplit};
pub use attribute_watch::{AttributeWatch, AttributeWatches};
pub use buffer_pool::{Buffer, BufferPool, BufferTooLarge};
pub use byte_range::ByteRange;
pub use change_stamps::{
    ChangeClock, ChangeStamps, Clients, Done, Lengths, Moment, Mtime, Pair, Stamp, StampTime,
    stamps_between,
};
pub use change_watch::{ChangeWatch, ChangeWatches};
pub use clone_range::clone_range;
pub use close::check_close;
pub use closed_stdout::stdout_was_closed;
pub use data_file::{
    DataError, NowaitRead, WriteError, read_at, read_dontcache, read_into_cache,
    try_read_at_nowait, write_at, write_dontcache, write_parts_at,
};
pub use descriptor_path::path_of;
pub use descriptor_table::{raise_open_file_limit, reserve_descriptors};
pub use direct::{Route, Segment, SegmentsWritten, dio_align, read_direct, write_segments};
pub use dontcache_probe::{DontCacheVerdict, dontcache_writes_pay};
pub use engine::{
    ClientId, Device, DeviceNumber, Engine, EngineConfig, Holder, LaneKind, Share, rouse_owed,
};
pub use file_size_limit::survive_file_size_limit;
pub use fronts::Fronts;
pub use identity::{Identity, ProbeFailure, can_assume_users, probe_users};
pub use io_mode::{IoMode, IoPolicy, NotAnIoMode};
pub use kernel_handle::{
    KERNEL_HANDLE_BYTES_MAX, KernelHandle, can_open_by_handle, name_to_handle, open_by_handle,
};
pub use kernel_read_ahead::KernelReadAhead;
pub use lease::{Lease, Leases, lease_break_time};
pub use memory::Memory;
pub use ofd_lock::{ForeignLock, OfdLock, foreign_lock, set_ofd_lock};
pub use payload::{Payload, WriteData};
pub use per_device::PerDevice;
pub use pipe::{Pipe, PipePool};
pub use prefetch::{Prefetch, PrefetchRun};
pub use process_clock::process_cpu_time;
pub use range_lock::{RangeGuard, RangeLock, RangeUse};
pub use read_ahead::{Ahead, Chunk, FileVersion, Fill, ReadAhead, ReadAheadBudget, WatchedFill};
pub use read_history::ReadHistory;
pub use read_order::{ReadOrder, ReadTurn};
pub use residency::{CacheState, Residency, cache_state, drop_clean, resident_ranges};
pub use slab::BUFFER_ALIGN;
pub use socket::{acknowledged_bytes, unacknowledged_bytes, watch_socket};
pub use streams::{CHUNK_BYTES, Stream, Streams};
pub use time_slice::take_short_slices;
pub use write_behind::{
    Reservation, WriteBehind, WriteBehindConfig, WriteBehindCounts, WriteBehindFile, WriteIntent,
    discard_error,
};
