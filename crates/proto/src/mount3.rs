//! MOUNT version 3, RFC 1813 appendix I: from the name of an exported directory to its handle.

use crate::nfs3::FileHandle;
use crate::xdr::{Array, Decode, DecodeError, Encode, List, Reader, Writer, xdr_enum, xdr_struct};

/// The MOUNT program.
pub const PROGRAM: u32 = 100_005;
/// The version described here, the one that belongs to NFS version 3.
pub const VERSION: u32 = 3;

xdr_enum! {
    /// The procedures of MOUNT version 3, RFC 1813 §5.2.
    pub enum Procedure: "MOUNT3 procedure" {
        /// NULL, §5.2.0: do nothing.
        Null = 0 "NULL",
        /// MNT, §5.2.1: [`DirectoryArgs`] to [`MountReply`].
        Mnt = 1 "MNT",
        /// DUMP, §5.2.2: list each [`MountEntry`].
        Dump = 2 "DUMP",
        /// UMNT, §5.2.3: [`DirectoryArgs`] to nothing.
        Umnt = 3 "UMNT",
        /// UMNTALL, §5.2.4.
        Umntall = 4 "UMNTALL",
        /// EXPORT, §5.2.5: list each [`ExportNode`].
        Export = 5 "EXPORT",
    }
}

xdr_enum! {
    /// `mountstat3` without its success, RFC 1813 §5.1.5.
    pub enum MountStatus: "mountstat3" {
        /// Not owner, and not permitted.
        Perm = 1 "MNT3ERR_PERM",
        /// No such file or directory.
        Noent = 2 "MNT3ERR_NOENT",
        /// A hard I/O error.
        Io = 5 "MNT3ERR_IO",
        /// Permission denied.
        Acces = 13 "MNT3ERR_ACCES",
        /// Not a directory.
        Notdir = 20 "MNT3ERR_NOTDIR",
        /// Invalid argument.
        Inval = 22 "MNT3ERR_INVAL",
        /// Name too long.
        Nametoolong = 63 "MNT3ERR_NAMETOOLONG",
        /// Not supported.
        Notsupp = 10_004 "MNT3ERR_NOTSUPP",
        /// An error that fits no other value.
        Serverfault = 10_006 "MNT3ERR_SERVERFAULT",
    }
}

/// Arguments of MNT and UMNT: `dirpath`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DirectoryArgs<'a> {
    /// A path on the server, at most [`PATH_BYTES_MAX`].
    pub directory: &'a [u8],
}

xdr_struct!(DirectoryArgs<'a> { directory: opaque(PATH_BYTES_MAX) });

/// `mountres3`: what MNT answers.
pub type MountReply<'a> = Result<MountOk<'a>, MountStatus>;

impl<'a> Decode<'a> for MountReply<'a> {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        // MNT3_OK is the one number that is not a `MountStatus`.
        if r.clone().u32("mountstat3")? == MNT3_OK {
            r.u32("mountstat3")?;
            return Ok(Ok(MountOk::decode(r)?));
        }
        Ok(Err(MountStatus::decode(r)?))
    }
}

impl Encode for MountReply<'_> {
    fn encode(&self, w: &mut Writer) {
        match self {
            Ok(ok) => {
                w.u32(MNT3_OK);
                ok.encode(w);
            }
            Err(status) => status.encode(w),
        }
    }
}

/// `mountres3_ok`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MountOk<'a> {
    /// The directory's handle.
    pub file_handle: FileHandle,
    /// The flavors that the export accepts, best first; at most [`AUTH_FLAVORS_MAX`].
    pub auth_flavors: Array<'a, u32, AUTH_FLAVORS_MAX>,
}

xdr_struct!(MountOk<'a> { file_handle, auth_flavors });

/// `mountbody`: one line of DUMP.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MountEntry<'a> {
    /// The client, at most [`NAME_BYTES_MAX`].
    pub hostname: &'a [u8],
    /// The mounted directory, at most [`PATH_BYTES_MAX`].
    pub directory: &'a [u8],
}

xdr_struct!(MountEntry<'a> {
    hostname: opaque(NAME_BYTES_MAX),
    directory: opaque(PATH_BYTES_MAX),
});

/// Result of DUMP. A server may write the same with [`crate::xdr::encode_list`].
pub type MountList<'a> = List<'a, MountEntry<'a>>;

/// `exportnode`: one line of EXPORT.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExportNode<'a> {
    /// The exported directory, at most [`PATH_BYTES_MAX`].
    pub directory: &'a [u8],
    /// The clients that may mount it; all clients when empty.
    pub groups: List<'a, Group<'a>>,
}

xdr_struct!(ExportNode<'a> { directory: opaque(PATH_BYTES_MAX), groups });

/// Result of EXPORT. A server may write the same with [`crate::xdr::encode_list`].
pub type ExportList<'a> = List<'a, ExportNode<'a>>;

/// `groupnode`: a host, network or netgroup, as text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Group<'a> {
    /// Its name, at most [`NAME_BYTES_MAX`].
    pub name: &'a [u8],
}

xdr_struct!(Group<'a> { name: opaque(NAME_BYTES_MAX) });

/// `MNTPATHLEN`.
pub const PATH_BYTES_MAX: usize = 1024;
/// `MNTNAMLEN`.
pub const NAME_BYTES_MAX: usize = 255;

/// Flavors of an export, which the RFC leaves open: more than are registered.
pub const AUTH_FLAVORS_MAX: usize = 256;

const MNT3_OK: u32 = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::decode_all;

    #[test]
    fn bounds_of_paths_and_names() {
        let decoded = |len: usize| {
            let mut w = Writer::new();
            w.opaque(&vec![b'a'; len]);
            decode_all::<DirectoryArgs<'_>>(w.as_slice()).map(|args| args.directory.len())
        };
        assert_eq!(decoded(PATH_BYTES_MAX), Ok(PATH_BYTES_MAX));
        let failure = DecodeError { what: "DirectoryArgs.directory", at_byte: 0 };
        assert_eq!(decoded(PATH_BYTES_MAX + 1), Err(failure));

        let mut w = Writer::new();
        w.opaque(&[b'a'; NAME_BYTES_MAX + 1]);
        let failure = DecodeError { what: "Group.name", at_byte: 0 };
        assert_eq!(decode_all::<Group<'_>>(w.as_slice()), Err(failure));
    }

    #[test]
    fn exports_nest_their_groups() {
        let groups = [Group { name: b"a" }, Group { name: b"b" }];
        let nodes = [
            ExportNode { directory: b"/x", groups: List::from(groups.as_slice()) },
            ExportNode { directory: b"/y", groups: List::from([].as_slice()) },
        ];
        let mut w = Writer::new();
        crate::xdr::encode_list(&mut w, nodes);
        let exports: ExportList<'_> = decode_all(w.as_slice()).unwrap();
        let names: Vec<Vec<_>> = exports
            .iter()
            .map(|node| node.groups.iter().map(|group| group.name).collect())
            .collect();
        assert_eq!(names, [vec![b"a".as_slice(), b"b"], vec![]]);
    }
}
