//! The procedures and operations that are counted, each with a place in tables.

use proto::{mount3, nfs3, nfs4};

/// Procedures of MOUNT and of NFS version 3, and the operations of version 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation(u8);

/// NULL of version 3, which cannot fail.
const NULL3: Operation = Operation::nfs3(nfs3::Procedure::Null);
/// The one procedure of MOUNT whose results begin with a status.
const MNT: Operation = Operation::mount3(mount3::Procedure::Mnt);
/// The first place of each group.
const MOUNT3_AT: usize = nfs3::Procedure::ALL.len();
const NFS4_AT: usize = MOUNT3_AT + mount3::Procedure::ALL.len();
/// One behind the greatest code of an operation (REMOVEXATTR).
const NFS4_CODES: usize = 76;

impl Operation {
    /// Places in a table of all: one more for ILLEGAL.
    pub(crate) const COUNT: usize = NFS4_AT + NFS4_CODES + 1;

    pub(crate) const fn nfs3(procedure: nfs3::Procedure) -> Self {
        Self::at(procedure.code() as usize)
    }

    pub(crate) const fn mount3(procedure: mount3::Procedure) -> Self {
        Self::at(MOUNT3_AT + procedure.code() as usize)
    }

    /// An operation of a COMPOUND.
    pub(crate) const fn nfs4(operation: nfs4::OperationCode) -> Self {
        let code = operation.code() as usize;
        Self::at(NFS4_AT + if code < NFS4_CODES { code } else { NFS4_CODES })
    }

    #[expect(clippy::cast_possible_truncation, reason = "there are fewer than 256 places")]
    const fn at(place: usize) -> Self {
        assert!(place < Self::COUNT && Self::COUNT <= 256);
        Self(place as u8)
    }

    /// The operation at a place, if it is one.
    pub(crate) fn at_place(place: u8) -> Option<Self> {
        (usize::from(place) < Self::COUNT).then_some(Self(place))
    }

    pub(crate) fn place(self) -> usize {
        usize::from(self.0)
    }

    /// All of them, in the order of their places.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let nfs3 = nfs3::Procedure::ALL.iter().map(|procedure| Self::nfs3(*procedure));
        let mount3 = mount3::Procedure::ALL.iter().map(|procedure| Self::mount3(*procedure));
        let nfs4 = nfs4::OperationCode::ALL.iter().map(|operation| Self::nfs4(*operation));
        nfs3.chain(mount3).chain(nfs4)
    }

    /// `nfs3`, `mount3` or `nfs4`.
    pub(crate) fn program(self) -> &'static str {
        match self.place() {
            place if place < MOUNT3_AT => "nfs3",
            place if place < NFS4_AT => "mount3",
            _ => "nfs4",
        }
    }

    /// The RFC's own spelling.
    pub(crate) fn name(self) -> &'static str {
        let code = |at: usize| u32::try_from(self.place() - at).unwrap_or(u32::MAX);
        let name = match self.program() {
            "nfs3" => nfs3::Procedure::from_code(code(0)).map(nfs3::Procedure::name),
            "mount3" => mount3::Procedure::from_code(code(MOUNT3_AT)).map(mount3::Procedure::name),
            _ => nfs4::OperationCode::from_code(code(NFS4_AT)).map(nfs4::OperationCode::name),
        };
        name.unwrap_or("ILLEGAL")
    }

    /// The status in front of its results; 0 for a success, and for a procedure that cannot fail.
    pub(crate) fn status_in(self, results: &[u8]) -> u32 {
        let status = results.first_chunk().filter(|_| self.has_status());
        status.map_or(0, |status| u32::from_be_bytes(*status))
    }

    fn has_status(self) -> bool {
        let is_of_mount = (MOUNT3_AT..NFS4_AT).contains(&self.place());
        self != NULL3 && (!is_of_mount || self == MNT)
    }

    /// The name of the status of a success, in the RFC of the program.
    pub(crate) fn success_name(self) -> &'static str {
        match self.program() {
            _ if !self.has_status() => "OK",
            "nfs3" => "NFS3_OK",
            "nfs4" => "NFS4_OK",
            _ => "MNT3_OK",
        }
    }

    /// The name of a status that it ended in.
    pub(crate) fn status_name(self, code: u32) -> &'static str {
        if !self.has_status() {
            return "OK";
        }
        let name = match self.program() {
            "nfs3" => nfs3::Status::from_code(code).map(nfs3::Status::name),
            "mount3" => mount3::MountStatus::from_code(code).map(mount3::MountStatus::name),
            _ => nfs4::Status::from_code(code).map(nfs4::Status::name),
        };
        name.unwrap_or("unknown")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_operation_has_a_place_and_a_name() {
        let places: BTreeSet<_> = Operation::all().map(Operation::place).collect();
        assert_eq!(places.len(), Operation::all().count());
        assert!(places.iter().all(|place| *place < Operation::COUNT));
        for operation in nfs4::OperationCode::ALL {
            let counted = Operation::nfs4(*operation);
            assert_eq!((counted.program(), counted.name()), ("nfs4", operation.name()));
        }
        let read = Operation::nfs3(nfs3::Procedure::Read);
        assert_eq!((read.program(), read.name()), ("nfs3", "READ"));
        let mnt = Operation::mount3(mount3::Procedure::Mnt);
        assert_eq!((mnt.program(), mnt.name()), ("mount3", "MNT"));
        assert_eq!((mnt.success_name(), read.success_name()), ("MNT3_OK", "NFS3_OK"));
        // Its results begin with a list, not with a status.
        let dump = Operation::mount3(mount3::Procedure::Dump);
        assert_eq!((dump.success_name(), dump.status_name(1)), ("OK", "OK"));
    }
}
