//! The surroundings of an experiment: servers, their memory and page cache, devices, networks, and
//! the facts about the machine.
//!
//! Processes, mounts, groups and name spaces of an experiment are undone when their value is
//! dropped, and also if this process is killed ([`undo`]).

mod device;
mod file_system;
mod free_memory;
mod limits;
mod machine;
mod memory_group;
mod network_link;
mod page_cache;
mod process;
mod program;
mod quantity;
mod relay;
mod scratch_disk;
mod server_process;
mod socket_buffers;
mod throttle;
mod undo;
mod work_directory;

pub use device::{BlockDevice, DeviceTraffic};
pub use file_system::FileSystem;
pub use free_memory::touch_free_memory;
pub use limits::{DeviceLimits, NetworkLimits};
pub use machine::begin_run;
pub use memory_group::{MemoryGroup, PageCache};
pub use network_link::{NetworkLink, NetworkNamespace};
pub use page_cache::{CachedFiles, cached_files, drop_caches, may_drop_caches};
pub use process::{CpuSecs, CpuTime, Watched, machine_cpu_secs};
pub use quantity::{Delay, NotAQuantity, Rate};
pub use relay::Relay;
pub use scratch_disk::{NotAScratchKind, ScratchDisk, ScratchKind};
pub use server_process::{ServerOptions, ServerProcess};
pub use socket_buffers::free_socket_buffers;
pub use throttle::Throttle;
pub(crate) use undo::Undo;
pub use work_directory::WorkDirectory;
