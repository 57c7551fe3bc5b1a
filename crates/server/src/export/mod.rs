//! The exports and the clients that they admit: the table, the directory behind each export, the
//! handles of the objects below it, and the gate to them.

mod exports;
mod file_system;
mod generations;
mod handle;
mod io_support;
mod kind;
mod limits;
mod mount_table;
mod places;
mod pseudo_root;
mod root;
mod table;
mod write_verifier;

pub use exports::ExportError;
pub(crate) use exports::{Admitted, Exports, Object};
pub(crate) use file_system::{FileSystem, FileSystems};
pub(crate) use generations::Generations;
pub use handle::HandleKeyError;
pub(crate) use handle::{FileHandle, HandleKey, claimed_export_id};
pub(crate) use io_support::IoSupport;
pub use limits::{Limits, Rate};
pub(crate) use pseudo_root::{PseudoNode, PseudoRoot, pseudo_id};
pub(crate) use root::ExportRoot;
pub use table::{
    ANONYMOUS_ID, Access, CallerIds, Conflict, Credential, Denied, Export, ExportTable, Flavor,
    GROUPS_MAX, HostSpec, Peer, Purpose, Rule, RulePlace, Shared, Squash,
};
pub(crate) use write_verifier::WriteVerifier;
