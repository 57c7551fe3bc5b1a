//! The enumerations against the RFCs' numbers, and against all numbers that are not theirs.

use std::fmt::Debug;

use proto::mount3::{self, MountStatus};
use proto::nfs3::{FileType, Procedure, StableHow, Status};
use proto::oncrpc::AuthStat;
use proto::portmap::{PortmapProcedure, RpcbindProcedure};

#[test]
fn enumerations_contain_exactly_their_numbers() {
    fn check<T: Copy + Debug + PartialEq + TryFrom<u32>>(all: &[T], code: fn(T) -> u32) {
        for value in all {
            assert_eq!(T::try_from(code(*value)).ok(), Some(*value));
        }
        let known = (0..20_000).filter(|code| T::try_from(*code).is_ok()).count();
        assert_eq!(known, all.len());
        assert!(T::try_from(u32::MAX).is_err());
    }
    check(Status::ALL, Status::code);
    check(FileType::ALL, FileType::code);
    check(StableHow::ALL, StableHow::code);
    check(Procedure::ALL, Procedure::code);
    check(AuthStat::ALL, AuthStat::code);
    check(MountStatus::ALL, MountStatus::code);
    check(mount3::Procedure::ALL, mount3::Procedure::code);
    check(PortmapProcedure::ALL, PortmapProcedure::code);
    check(RpcbindProcedure::ALL, RpcbindProcedure::code);
    assert!(Status::try_from(0).is_err(), "success is not a failure");
}

/// In the RFCs' own notation, so that a number mistyped in an enumeration has to be mistyped twice.
#[test]
fn numbers_are_those_of_the_rfcs() {
    fn table(text: &str) -> Vec<(String, u32)> {
        let words: Vec<_> = text.split(['=', ',']).map(str::trim).collect();
        words.chunks_exact(2).map(|pair| (pair[0].into(), pair[1].parse().unwrap())).collect()
    }
    let nfsstat3 = "
        NFS3ERR_PERM = 1, NFS3ERR_NOENT = 2, NFS3ERR_IO = 5, NFS3ERR_NXIO = 6,
        NFS3ERR_ACCES = 13, NFS3ERR_EXIST = 17, NFS3ERR_XDEV = 18, NFS3ERR_NODEV = 19,
        NFS3ERR_NOTDIR = 20, NFS3ERR_ISDIR = 21, NFS3ERR_INVAL = 22, NFS3ERR_FBIG = 27,
        NFS3ERR_NOSPC = 28, NFS3ERR_ROFS = 30, NFS3ERR_MLINK = 31, NFS3ERR_NAMETOOLONG = 63,
        NFS3ERR_NOTEMPTY = 66, NFS3ERR_DQUOT = 69, NFS3ERR_STALE = 70, NFS3ERR_REMOTE = 71,
        NFS3ERR_BADHANDLE = 10001, NFS3ERR_NOT_SYNC = 10002, NFS3ERR_BAD_COOKIE = 10003,
        NFS3ERR_NOTSUPP = 10004, NFS3ERR_TOOSMALL = 10005, NFS3ERR_SERVERFAULT = 10006,
        NFS3ERR_BADTYPE = 10007, NFS3ERR_JUKEBOX = 10008";
    let mountstat3 = "
        MNT3ERR_PERM = 1, MNT3ERR_NOENT = 2, MNT3ERR_IO = 5, MNT3ERR_ACCES = 13,
        MNT3ERR_NOTDIR = 20, MNT3ERR_INVAL = 22, MNT3ERR_NAMETOOLONG = 63,
        MNT3ERR_NOTSUPP = 10004, MNT3ERR_SERVERFAULT = 10006";
    let auth_stat = "
        AUTH_OK = 0, AUTH_BADCRED = 1, AUTH_REJECTEDCRED = 2, AUTH_BADVERF = 3,
        AUTH_REJECTEDVERF = 4, AUTH_TOOWEAK = 5, AUTH_INVALIDRESP = 6, AUTH_FAILED = 7,
        AUTH_KERB_GENERIC = 8, AUTH_TIMEEXPIRE = 9, AUTH_TKT_FILE = 10, AUTH_DECODE = 11,
        AUTH_NET_ADDR = 12, RPCSEC_GSS_CREDPROBLEM = 13, RPCSEC_GSS_CTXPROBLEM = 14";
    let ftype3 = "
        NF3REG = 1, NF3DIR = 2, NF3BLK = 3, NF3CHR = 4, NF3LNK = 5, NF3SOCK = 6, NF3FIFO = 7";
    let stable_how = "UNSTABLE = 0, DATA_SYNC = 1, FILE_SYNC = 2";
    macro_rules! check {
        ($($enumeration:ident $text:ident),*) => { $(
            let ours = $enumeration::ALL.iter().map(|value| (value.name().into(), value.code()));
            assert_eq!(ours.collect::<Vec<_>>(), table($text));
        )* };
    }
    check!(
        Status nfsstat3, MountStatus mountstat3, AuthStat auth_stat, FileType ftype3,
        StableHow stable_how
    );
}
