//! The procedures that are served: one table of what the server has to know of a procedure before
//! it runs.

use std::net::{IpAddr, SocketAddr};

use proto::mount3;
use proto::nfs3;
use proto::nfs4;
use proto::oncrpc::AcceptStat;
use proto::portmap::{
    self, PortmapProcedure, RpcbindProcedure, VERSION_PORTMAP, VERSION_RPCBIND_3, VERSION_RPCBIND_4,
};

use crate::config::NfsVersions;
use crate::export::Purpose;

/// The programs that answer on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Programs {
    /// NFS, and MOUNT with version 3.
    Files(NfsVersions),
    /// The portmapper.
    Portmapper(Mapped),
}

/// The services that a portmapper answers for: NFS and MOUNT on its own listening address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// Where the files are. The host is the listening address, which may be a wildcard.
    pub(crate) nfs: SocketAddr,
    /// The address that the client has called; a wildcard where it is not known.
    pub(crate) called: IpAddr,
}

impl Programs {
    fn versions(self) -> impl Iterator<Item = &'static ProgramVersion> {
        let (versions, served): (&[ProgramVersion], _) = match self {
            Self::Files(served) => (&FILES, Some(served)),
            Self::Portmapper(_) => (&PORTMAPPER, None),
        };
        versions.iter().filter(move |version| match (served, version.version) {
            (Some(served), nfs4::VERSION) => served.serves_v4(),
            (Some(served), _) => served.v3,
            (None, _) => true,
        })
    }

    /// The programs for a connection to an address of this machine.
    pub(crate) fn called_at(self, address: SocketAddr) -> Self {
        match self {
            Self::Portmapper(mapped) => Self::Portmapper(Mapped { called: address.ip(), ..mapped }),
            Self::Files(versions) => Self::Files(versions),
        }
    }

    /// The row of a procedure.
    ///
    /// # Errors
    /// The answer to a call of a program, a version or a procedure that is not served here.
    pub(crate) fn find(
        self,
        program: u32,
        version: u32,
        code: u32,
    ) -> Result<&'static Procedure, AcceptStat> {
        let is_asked_for = |v: &&ProgramVersion| (v.program, v.version) == (program, version);
        if let Some(served) = self.versions().find(is_asked_for) {
            let row = usize::try_from(code).ok().and_then(|code| served.procedures.get(code));
            return row.ok_or(AcceptStat::ProcUnavail);
        }
        let others = || self.versions().filter(|v| v.program == program).map(|v| v.version);
        match (others().min(), others().max()) {
            (Some(low), Some(high)) => Err(AcceptStat::ProgMismatch { low, high }),
            _ => Err(AcceptStat::ProgUnavail),
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Procedure {
    pub(crate) program: u32,
    pub(crate) version: u32,
    /// The procedure's number, which is also its place in the table of its version.
    pub(crate) code: u32,
    /// The RFC's own spelling.
    pub(crate) name: &'static str,
    /// The operation that it runs.
    pub(crate) operation: Operation,
    /// The purpose of its calls: an export may be closed to some purposes.
    pub(crate) purpose: Purpose,
    /// Where the work on a call begins. Each operation makes sure itself that it blocks only where
    /// it may, so a wrong choice costs time and nothing else.
    pub(crate) thread: ThreadRule,
    /// Whether a second run gives the same result and does no harm (RFC 1813 §4.5). A procedure
    /// that is not idempotent goes through the reply cache.
    pub(crate) is_idempotent: bool,
    /// Finds the payload among the arguments of a procedure that has one.
    pub(crate) scan_payload: Option<ScanPayload>,
}

/// A procedure by its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Nfs3(nfs3::Procedure),
    Nfs4(nfs4::Procedure),
    Mount3(mount3::Procedure),
    /// Version 2 of the portmapper.
    Portmap(PortmapProcedure),
    /// Its versions 3 and 4.
    Rpcbind(RpcbindProcedure),
}

/// The thread that begins the work on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// The connection's network thread: most likely the call never waits.
    Network,
    /// The network thread until the call has to wait, then one for file data.
    NetworkThenData,
    /// The network thread until the call has to wait, then one for names and attributes.
    NetworkThenMetadata,
    /// One for file data.
    Data,
    /// One for names and attributes.
    Metadata,
}

impl Thread {
    /// Whether a call waits for it in a queue.
    pub(crate) fn is_queued(self) -> bool {
        matches!(self, Self::Data | Self::Metadata)
    }
}

/// How the thread is chosen that begins the work on the calls of a procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadRule {
    Always(Thread),
    /// READ: by the bytes that it asks for.
    ByReadBytes,
    /// COMPOUND: by its operations.
    ByOperations,
}

/// Finds the payload of a call from the first bytes of its arguments.
pub(crate) type ScanPayload = fn(arguments: &[u8]) -> PayloadScan;

/// The result of a search for a payload in the first bytes of a call's arguments.
pub(crate) enum PayloadScan {
    /// At least this many bytes of the arguments are needed, more than there are.
    Needs(usize),
    /// The data of a WRITE of version 3 comes next, and ends the call.
    Nfs3(nfs3::WriteHead),
    /// The data of a WRITE of version 4 comes next, and more operations may follow.
    Nfs4(nfs4::WritePayload),
    /// There is no payload.
    Nothing,
}

fn scan_nfs3(arguments: &[u8]) -> PayloadScan {
    match nfs3::WriteHead::scan(arguments) {
        nfs3::WriteScan::Needs(len) => PayloadScan::Needs(len),
        nfs3::WriteScan::Head(head) => PayloadScan::Nfs3(head),
        nfs3::WriteScan::Malformed(_) => PayloadScan::Nothing,
    }
}

fn scan_nfs4(arguments: &[u8]) -> PayloadScan {
    match nfs4::scan_payload(arguments) {
        nfs4::PayloadScan::Needs(len) => PayloadScan::Needs(len),
        nfs4::PayloadScan::Found(payload) => PayloadScan::Nfs4(payload),
        nfs4::PayloadScan::Nothing => PayloadScan::Nothing,
    }
}

/// A version of a program, with its procedures in the order of their codes.
struct ProgramVersion {
    program: u32,
    version: u32,
    procedures: &'static [Procedure],
}

static FILES: [ProgramVersion; 3] = [
    ProgramVersion { program: nfs3::PROGRAM, version: nfs3::VERSION, procedures: &NFS3 },
    ProgramVersion { program: nfs4::PROGRAM, version: nfs4::VERSION, procedures: &NFS4 },
    ProgramVersion { program: mount3::PROGRAM, version: mount3::VERSION, procedures: &MOUNT3 },
];

static PORTMAPPER: [ProgramVersion; 3] = [
    ProgramVersion { program: portmap::PROGRAM, version: VERSION_PORTMAP, procedures: &PORTMAP },
    ProgramVersion { program: portmap::PROGRAM, version: VERSION_RPCBIND_3, procedures: &RPCBIND3 },
    ProgramVersion { program: portmap::PROGRAM, version: VERSION_RPCBIND_4, procedures: &RPCBIND4 },
];

static NFS3: [Procedure; 22] = {
    use ThreadRule::{Always, ByReadBytes};
    use nfs3::Procedure as P;
    [
        nfs3(P::Null, Purpose::Data, Always(Thread::Network)),
        nfs3(P::Getattr, Purpose::Data, Always(Thread::NetworkThenMetadata)),
        nfs3(P::Setattr, Purpose::Names, Always(Thread::Metadata)).once(),
        nfs3(P::Lookup, Purpose::Names, Always(Thread::NetworkThenMetadata)),
        nfs3(P::Access, Purpose::Data, Always(Thread::NetworkThenMetadata)),
        nfs3(P::Readlink, Purpose::Names, Always(Thread::Metadata)),
        nfs3(P::Read, Purpose::Data, ByReadBytes),
        // Whose turn is next is known there, and another WRITE may hold the file.
        nfs3(P::Write, Purpose::Data, Always(Thread::NetworkThenData)).with_payload(scan_nfs3),
        nfs3(P::Create, Purpose::Names, Always(Thread::Metadata)).once(),
        nfs3(P::Mkdir, Purpose::Names, Always(Thread::Metadata)).once(),
        nfs3(P::Symlink, Purpose::Names, Always(Thread::Metadata)).once(),
        nfs3(P::Mknod, Purpose::Names, Always(Thread::Metadata)).once(),
        nfs3(P::Remove, Purpose::Names, Always(Thread::Metadata)).once(),
        nfs3(P::Rmdir, Purpose::Names, Always(Thread::Metadata)).once(),
        nfs3(P::Rename, Purpose::Names, Always(Thread::Metadata)).once(),
        nfs3(P::Link, Purpose::Names, Always(Thread::Metadata)).once(),
        nfs3(P::Readdir, Purpose::Names, Always(Thread::Metadata)),
        nfs3(P::Readdirplus, Purpose::Names, Always(Thread::Metadata)),
        nfs3(P::Fsstat, Purpose::Data, Always(Thread::NetworkThenMetadata)),
        nfs3(P::Fsinfo, Purpose::Data, Always(Thread::NetworkThenMetadata)),
        nfs3(P::Pathconf, Purpose::Data, Always(Thread::NetworkThenMetadata)),
        nfs3(P::Commit, Purpose::Data, Always(Thread::Data)),
    ]
};

/// Retransmissions of COMPOUND are for the slots of sessions to detect, not for the reply cache.
static NFS4: [Procedure; 2] = [
    nfs4(nfs4::Procedure::Null, ThreadRule::Always(Thread::Network)),
    nfs4(nfs4::Procedure::Compound, ThreadRule::ByOperations).with_payload(scan_nfs4),
];

static MOUNT3: [Procedure; 6] = {
    use mount3::Procedure as P;
    [
        mount3(P::Null),
        mount3(P::Mnt),
        mount3(P::Dump),
        mount3(P::Umnt),
        mount3(P::Umntall),
        mount3(P::Export),
    ]
};

static PORTMAP: [Procedure; 6] = {
    use PortmapProcedure as P;
    [
        portmap2(P::Null),
        portmap2(P::Set),
        portmap2(P::Unset),
        portmap2(P::Getport),
        portmap2(P::Dump),
        portmap2(P::Callit),
    ]
};

static RPCBIND3: [Procedure; 9] = {
    use RpcbindProcedure as P;
    [
        rpcbind(VERSION_RPCBIND_3, P::Null),
        rpcbind(VERSION_RPCBIND_3, P::Set),
        rpcbind(VERSION_RPCBIND_3, P::Unset),
        rpcbind(VERSION_RPCBIND_3, P::Getaddr),
        rpcbind(VERSION_RPCBIND_3, P::Dump),
        rpcbind(VERSION_RPCBIND_3, P::Callit),
        rpcbind(VERSION_RPCBIND_3, P::Gettime),
        rpcbind(VERSION_RPCBIND_3, P::Uaddr2taddr),
        rpcbind(VERSION_RPCBIND_3, P::Taddr2uaddr),
    ]
};

static RPCBIND4: [Procedure; 13] = {
    use RpcbindProcedure as P;
    [
        rpcbind(VERSION_RPCBIND_4, P::Null),
        rpcbind(VERSION_RPCBIND_4, P::Set),
        rpcbind(VERSION_RPCBIND_4, P::Unset),
        rpcbind(VERSION_RPCBIND_4, P::Getaddr),
        rpcbind(VERSION_RPCBIND_4, P::Dump),
        rpcbind(VERSION_RPCBIND_4, P::Callit),
        rpcbind(VERSION_RPCBIND_4, P::Gettime),
        rpcbind(VERSION_RPCBIND_4, P::Uaddr2taddr),
        rpcbind(VERSION_RPCBIND_4, P::Taddr2uaddr),
        rpcbind(VERSION_RPCBIND_4, P::Getversaddr),
        rpcbind(VERSION_RPCBIND_4, P::Indirect),
        rpcbind(VERSION_RPCBIND_4, P::Getaddrlist),
        rpcbind(VERSION_RPCBIND_4, P::Getstat),
    ]
};

const fn nfs3(procedure: nfs3::Procedure, purpose: Purpose, thread: ThreadRule) -> Procedure {
    Procedure {
        program: nfs3::PROGRAM,
        version: nfs3::VERSION,
        code: procedure.code(),
        name: procedure.name(),
        operation: Operation::Nfs3(procedure),
        purpose,
        thread,
        is_idempotent: true,
        scan_payload: None,
    }
}

const fn nfs4(procedure: nfs4::Procedure, thread: ThreadRule) -> Procedure {
    Procedure {
        program: nfs4::PROGRAM,
        version: nfs4::VERSION,
        code: procedure.code(),
        name: procedure.name(),
        operation: Operation::Nfs4(procedure),
        purpose: Purpose::Version4,
        thread,
        is_idempotent: true,
        scan_payload: None,
    }
}

const fn mount3(procedure: mount3::Procedure) -> Procedure {
    Procedure {
        program: mount3::PROGRAM,
        version: mount3::VERSION,
        code: procedure.code(),
        name: procedure.name(),
        operation: Operation::Mount3(procedure),
        purpose: Purpose::Names,
        thread: ThreadRule::Always(Thread::Network),
        is_idempotent: true,
        scan_payload: None,
    }
}

const fn portmap2(procedure: PortmapProcedure) -> Procedure {
    Procedure {
        program: portmap::PROGRAM,
        version: VERSION_PORTMAP,
        code: procedure.code(),
        name: procedure.name(),
        operation: Operation::Portmap(procedure),
        purpose: Purpose::Names,
        thread: ThreadRule::Always(Thread::Network),
        is_idempotent: true,
        scan_payload: None,
    }
}

const fn rpcbind(version: u32, procedure: RpcbindProcedure) -> Procedure {
    Procedure {
        program: portmap::PROGRAM,
        version,
        code: procedure.code(),
        name: procedure.name(),
        operation: Operation::Rpcbind(procedure),
        purpose: Purpose::Names,
        thread: ThreadRule::Always(Thread::Network),
        is_idempotent: true,
        scan_payload: None,
    }
}

impl Procedure {
    /// The row of a procedure that is not idempotent.
    const fn once(self) -> Self {
        Self { is_idempotent: false, ..self }
    }

    const fn with_payload(self, scan: ScanPayload) -> Self {
        Self { scan_payload: Some(scan), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const FILES_3: Programs = Programs::Files(NfsVersions::V3);
    const FILES_4: Programs = Programs::Files(NfsVersions { v3: false, v4_1: true, v4_2: false });
    const ON_PORT_111: Programs = Programs::Portmapper(Mapped {
        nfs: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 2049),
        called: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    });

    fn rows() -> impl Iterator<Item = (&'static ProgramVersion, &'static Procedure)> {
        let versions = FILES.iter().chain(&PORTMAPPER);
        versions.flat_map(|version| version.procedures.iter().map(move |row| (version, row)))
    }

    fn rows_of(operation: Operation) -> Vec<u32> {
        rows().filter(|(_, row)| row.operation == operation).map(|(_, row)| row.version).collect()
    }

    #[test]
    fn each_row_stands_at_its_code_in_the_table_of_its_version() {
        for version in FILES.iter().chain(&PORTMAPPER) {
            for (code, row) in version.procedures.iter().enumerate() {
                let key = (row.program, row.version, usize::try_from(row.code).unwrap());
                assert_eq!(key, (version.program, version.version, code), "{}", row.name);
            }
        }
    }

    #[test]
    fn each_procedure_of_a_version_has_one_row() {
        for procedure in nfs3::Procedure::ALL {
            assert_eq!(rows_of(Operation::Nfs3(*procedure)), [3], "{}", procedure.name());
        }
        for procedure in nfs4::Procedure::ALL {
            assert_eq!(rows_of(Operation::Nfs4(*procedure)), [4], "{}", procedure.name());
        }
        for procedure in mount3::Procedure::ALL {
            assert_eq!(rows_of(Operation::Mount3(*procedure)), [3], "{}", procedure.name());
        }
        for procedure in PortmapProcedure::ALL {
            assert_eq!(rows_of(Operation::Portmap(*procedure)), [2], "{}", procedure.name());
        }
        for procedure in RpcbindProcedure::ALL {
            let in_both = *procedure <= RpcbindProcedure::Taddr2uaddr;
            let versions: &[u32] = if in_both { &[3, 4] } else { &[4] };
            assert_eq!(rows_of(Operation::Rpcbind(*procedure)), versions, "{}", procedure.name());
        }
        let expected = nfs3::Procedure::ALL.len()
            + nfs4::Procedure::ALL.len()
            + mount3::Procedure::ALL.len()
            + PortmapProcedure::ALL.len()
            + RpcbindProcedure::ALL.len()
            + 9;
        assert_eq!(rows().count(), expected);
    }

    #[test]
    fn codes_of_the_table_are_those_of_the_protocol() {
        for code in 0..100 {
            let found = |programs: Programs, program, version| {
                programs.find(program, version, code).ok().map(|row| row.operation)
            };
            let nfs = nfs3::Procedure::from_code(code).map(Operation::Nfs3);
            assert_eq!(found(FILES_3, nfs3::PROGRAM, 3), nfs);
            let nfs = nfs4::Procedure::from_code(code).map(Operation::Nfs4);
            assert_eq!(found(FILES_4, nfs4::PROGRAM, 4), nfs);
            let mount = mount3::Procedure::from_code(code).map(Operation::Mount3);
            assert_eq!(found(FILES_3, mount3::PROGRAM, 3), mount);
            let portmap = PortmapProcedure::from_code(code).map(Operation::Portmap);
            assert_eq!(found(ON_PORT_111, portmap::PROGRAM, 2), portmap);
            let rpcbind = RpcbindProcedure::from_code(code).map(Operation::Rpcbind);
            assert_eq!(found(ON_PORT_111, portmap::PROGRAM, 4), rpcbind);
        }
    }

    #[test]
    fn only_served_versions_are_found() {
        for code in 0..30 {
            for version in (0..100).chain([u32::MAX]).filter(|version| *version != 3) {
                let mismatch = Some(AcceptStat::ProgMismatch { low: 3, high: 3 });
                let found = FILES_3.find(nfs3::PROGRAM, version, code).err();
                assert_eq!(found, mismatch, "NFS version {version} procedure {code}");
                let found = FILES_3.find(mount3::PROGRAM, version, code).err();
                assert_eq!(found, mismatch, "MOUNT version {version} procedure {code}");
            }
            for version in [0, 1, 5, u32::MAX] {
                let found = ON_PORT_111.find(portmap::PROGRAM, version, code).err();
                assert_eq!(found, Some(AcceptStat::ProgMismatch { low: 2, high: 4 }));
            }
        }
        let mismatch = Some(AcceptStat::ProgMismatch { low: 4, high: 4 });
        assert_eq!(FILES_4.find(nfs3::PROGRAM, 3, 0).err(), mismatch);
        assert_eq!(FILES_4.find(mount3::PROGRAM, 3, 0).err(), Some(AcceptStat::ProgUnavail));
        let unknown = Some(AcceptStat::ProcUnavail);
        assert_eq!(FILES_3.find(nfs3::PROGRAM, 3, 22).err(), unknown);
        assert_eq!(ON_PORT_111.find(portmap::PROGRAM, 3, 9).err(), unknown);
        let elsewhere = Some(AcceptStat::ProgUnavail);
        assert_eq!(FILES_3.find(portmap::PROGRAM, 2, 3).err(), elsewhere);
        assert_eq!(ON_PORT_111.find(nfs3::PROGRAM, 3, 0).err(), elsewhere);
    }

    #[test]
    fn procedures_that_change_names_run_once() {
        use nfs3::Procedure as P;
        let once = [
            P::Setattr,
            P::Create,
            P::Mkdir,
            P::Symlink,
            P::Mknod,
            P::Remove,
            P::Rmdir,
            P::Rename,
            P::Link,
        ];
        for (_, row) in rows() {
            let runs_once = once.iter().any(|p| row.operation == Operation::Nfs3(*p));
            assert_eq!(row.is_idempotent, !runs_once, "{}", row.name);
            let has_payload =
                [Operation::Nfs3(P::Write), Operation::Nfs4(nfs4::Procedure::Compound)]
                    .contains(&row.operation);
            assert_eq!(row.scan_payload.is_some(), has_payload, "{}", row.name);
        }
    }
}
