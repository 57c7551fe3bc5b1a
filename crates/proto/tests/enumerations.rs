//! The enumerations against the RFCs' numbers, and against all numbers that are not theirs.

use std::fmt::Debug;

use proto::mount3::{self, MountStatus};
use proto::nfs3::{FileType, Procedure, StableHow, Status};
use proto::nfs4::{self, Bitmap, attribute};
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
    check(nfs4::Procedure::ALL, nfs4::Procedure::code);
    check(nfs4::Status::ALL, nfs4::Status::code);
    check(nfs4::OperationCode::ALL, nfs4::OperationCode::code);
    check(nfs4::FileType::ALL, nfs4::FileType::code);
    check(nfs4::StableHow::ALL, nfs4::StableHow::code);
    check(nfs4::Content::ALL, nfs4::Content::code);
    check(nfs4::LockType::ALL, nfs4::LockType::code);
    check(nfs4::ShareAccess::ALL, nfs4::ShareAccess::code);
    check(nfs4::ShareDeny::ALL, nfs4::ShareDeny::code);
    check(nfs4::DelegationType::ALL, nfs4::DelegationType::code);
    check(nfs4::WhyNoDelegation::ALL, nfs4::WhyNoDelegation::code);
    check(nfs4::StateProtectHow::ALL, nfs4::StateProtectHow::code);
    check(nfs4::ChannelDirection::ALL, nfs4::ChannelDirection::code);
    check(nfs4::SecinfoStyle::ALL, nfs4::SecinfoStyle::code);
    check(nfs4::ChangeAttributeType::ALL, nfs4::ChangeAttributeType::code);
    check(nfs4::SetxattrOption::ALL, nfs4::SetxattrOption::code);
    assert!(Status::try_from(0).is_err(), "success is not a failure");
    assert!(nfs4::Status::try_from(nfs4::NFS4_OK).is_err(), "success is not a failure");
}

/// In the RFCs' own notation, so that a number mistyped in an enumeration has to be mistyped twice.
fn table(text: &str) -> Vec<(String, u32)> {
    let words: Vec<_> = text.split(['=', ',']).map(str::trim).collect();
    let number = |text: &str| text.parse().expect("the tables hold decimal numbers");
    words.chunks_exact(2).map(|pair| (pair[0].into(), number(pair[1]))).collect()
}

macro_rules! check_names {
    ($($enumeration:ty = $text:expr),* $(,)?) => { $(
        let ours = <$enumeration>::ALL.iter().map(|value| (value.name().into(), value.code()));
        assert_eq!(ours.collect::<Vec<_>>(), table($text));
    )* };
}

#[test]
fn numbers_are_those_of_the_rfcs() {
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
    check_names!(
        Status = nfsstat3,
        MountStatus = mountstat3,
        AuthStat = auth_stat,
        FileType = ftype3,
        StableHow = stable_how,
    );
}

/// RFC 7863 and, for extended attributes, RFC 8276 §8.3 and §8.6. NFS4ERR_RESOURCE, 10018, is of
/// minor version 0 alone.
#[test]
fn statuses_of_version_4_are_those_of_the_rfcs() {
    let nfsstat4 = "
        NFS4ERR_PERM = 1, NFS4ERR_NOENT = 2, NFS4ERR_IO = 5, NFS4ERR_NXIO = 6,
        NFS4ERR_ACCESS = 13, NFS4ERR_EXIST = 17, NFS4ERR_XDEV = 18, NFS4ERR_NOTDIR = 20,
        NFS4ERR_ISDIR = 21, NFS4ERR_INVAL = 22, NFS4ERR_FBIG = 27, NFS4ERR_NOSPC = 28,
        NFS4ERR_ROFS = 30, NFS4ERR_MLINK = 31, NFS4ERR_NAMETOOLONG = 63, NFS4ERR_NOTEMPTY = 66,
        NFS4ERR_DQUOT = 69, NFS4ERR_STALE = 70, NFS4ERR_BADHANDLE = 10001,
        NFS4ERR_BAD_COOKIE = 10003, NFS4ERR_NOTSUPP = 10004, NFS4ERR_TOOSMALL = 10005,
        NFS4ERR_SERVERFAULT = 10006, NFS4ERR_BADTYPE = 10007, NFS4ERR_DELAY = 10008,
        NFS4ERR_SAME = 10009, NFS4ERR_DENIED = 10010, NFS4ERR_EXPIRED = 10011,
        NFS4ERR_LOCKED = 10012, NFS4ERR_GRACE = 10013, NFS4ERR_FHEXPIRED = 10014,
        NFS4ERR_SHARE_DENIED = 10015, NFS4ERR_WRONGSEC = 10016, NFS4ERR_CLID_INUSE = 10017,
        NFS4ERR_MOVED = 10019, NFS4ERR_NOFILEHANDLE = 10020, NFS4ERR_MINOR_VERS_MISMATCH = 10021,
        NFS4ERR_STALE_CLIENTID = 10022, NFS4ERR_STALE_STATEID = 10023,
        NFS4ERR_OLD_STATEID = 10024, NFS4ERR_BAD_STATEID = 10025, NFS4ERR_BAD_SEQID = 10026,
        NFS4ERR_NOT_SAME = 10027, NFS4ERR_LOCK_RANGE = 10028, NFS4ERR_SYMLINK = 10029,
        NFS4ERR_RESTOREFH = 10030, NFS4ERR_LEASE_MOVED = 10031, NFS4ERR_ATTRNOTSUPP = 10032,
        NFS4ERR_NO_GRACE = 10033, NFS4ERR_RECLAIM_BAD = 10034, NFS4ERR_RECLAIM_CONFLICT = 10035,
        NFS4ERR_BADXDR = 10036, NFS4ERR_LOCKS_HELD = 10037, NFS4ERR_OPENMODE = 10038,
        NFS4ERR_BADOWNER = 10039, NFS4ERR_BADCHAR = 10040, NFS4ERR_BADNAME = 10041,
        NFS4ERR_BAD_RANGE = 10042, NFS4ERR_LOCK_NOTSUPP = 10043, NFS4ERR_OP_ILLEGAL = 10044,
        NFS4ERR_DEADLOCK = 10045, NFS4ERR_FILE_OPEN = 10046, NFS4ERR_ADMIN_REVOKED = 10047,
        NFS4ERR_CB_PATH_DOWN = 10048, NFS4ERR_BADIOMODE = 10049, NFS4ERR_BADLAYOUT = 10050,
        NFS4ERR_BAD_SESSION_DIGEST = 10051, NFS4ERR_BADSESSION = 10052, NFS4ERR_BADSLOT = 10053,
        NFS4ERR_COMPLETE_ALREADY = 10054, NFS4ERR_CONN_NOT_BOUND_TO_SESSION = 10055,
        NFS4ERR_DELEG_ALREADY_WANTED = 10056, NFS4ERR_BACK_CHAN_BUSY = 10057,
        NFS4ERR_LAYOUTTRYLATER = 10058, NFS4ERR_LAYOUTUNAVAILABLE = 10059,
        NFS4ERR_NOMATCHING_LAYOUT = 10060, NFS4ERR_RECALLCONFLICT = 10061,
        NFS4ERR_UNKNOWN_LAYOUTTYPE = 10062, NFS4ERR_SEQ_MISORDERED = 10063,
        NFS4ERR_SEQUENCE_POS = 10064, NFS4ERR_REQ_TOO_BIG = 10065, NFS4ERR_REP_TOO_BIG = 10066,
        NFS4ERR_REP_TOO_BIG_TO_CACHE = 10067, NFS4ERR_RETRY_UNCACHED_REP = 10068,
        NFS4ERR_UNSAFE_COMPOUND = 10069, NFS4ERR_TOO_MANY_OPS = 10070,
        NFS4ERR_OP_NOT_IN_SESSION = 10071, NFS4ERR_HASH_ALG_UNSUPP = 10072,
        NFS4ERR_CLIENTID_BUSY = 10074, NFS4ERR_PNFS_IO_HOLE = 10075,
        NFS4ERR_SEQ_FALSE_RETRY = 10076, NFS4ERR_BAD_HIGH_SLOT = 10077,
        NFS4ERR_DEADSESSION = 10078, NFS4ERR_ENCR_ALG_UNSUPP = 10079,
        NFS4ERR_PNFS_NO_LAYOUT = 10080, NFS4ERR_NOT_ONLY_OP = 10081, NFS4ERR_WRONG_CRED = 10082,
        NFS4ERR_WRONG_TYPE = 10083, NFS4ERR_DIRDELEG_UNAVAIL = 10084, NFS4ERR_REJECT_DELEG = 10085,
        NFS4ERR_RETURNCONFLICT = 10086, NFS4ERR_DELEG_REVOKED = 10087,
        NFS4ERR_PARTNER_NOTSUPP = 10088, NFS4ERR_PARTNER_NO_AUTH = 10089,
        NFS4ERR_UNION_NOTSUPP = 10090, NFS4ERR_OFFLOAD_DENIED = 10091, NFS4ERR_WRONG_LFS = 10092,
        NFS4ERR_BADLABEL = 10093, NFS4ERR_OFFLOAD_NO_REQS = 10094, NFS4ERR_NOXATTR = 10095,
        NFS4ERR_XATTR2BIG = 10096";
    check_names!(nfs4::Status = nfsstat4);
    assert_eq!(nfs4::NFS4_OK, 0);
}

/// RFC 7863, and RFC 8276 §8.4 for the last four; their names there begin with `OP_`.
#[test]
fn operations_of_version_4_are_those_of_the_rfcs() {
    let nfs_opnum4 = "
        ACCESS = 3, CLOSE = 4, COMMIT = 5, CREATE = 6, DELEGPURGE = 7, DELEGRETURN = 8,
        GETATTR = 9, GETFH = 10, LINK = 11, LOCK = 12, LOCKT = 13, LOCKU = 14, LOOKUP = 15,
        LOOKUPP = 16, NVERIFY = 17, OPEN = 18, OPENATTR = 19, OPEN_CONFIRM = 20,
        OPEN_DOWNGRADE = 21, PUTFH = 22, PUTPUBFH = 23, PUTROOTFH = 24, READ = 25, READDIR = 26,
        READLINK = 27, REMOVE = 28, RENAME = 29, RENEW = 30, RESTOREFH = 31, SAVEFH = 32,
        SECINFO = 33, SETATTR = 34, SETCLIENTID = 35, SETCLIENTID_CONFIRM = 36, VERIFY = 37,
        WRITE = 38, RELEASE_LOCKOWNER = 39, BACKCHANNEL_CTL = 40, BIND_CONN_TO_SESSION = 41,
        EXCHANGE_ID = 42, CREATE_SESSION = 43, DESTROY_SESSION = 44, FREE_STATEID = 45,
        GET_DIR_DELEGATION = 46, GETDEVICEINFO = 47, GETDEVICELIST = 48, LAYOUTCOMMIT = 49,
        LAYOUTGET = 50, LAYOUTRETURN = 51, SECINFO_NO_NAME = 52, SEQUENCE = 53, SET_SSV = 54,
        TEST_STATEID = 55, WANT_DELEGATION = 56, DESTROY_CLIENTID = 57, RECLAIM_COMPLETE = 58,
        ALLOCATE = 59, COPY = 60, COPY_NOTIFY = 61, DEALLOCATE = 62, IO_ADVISE = 63,
        LAYOUTERROR = 64, LAYOUTSTATS = 65, OFFLOAD_CANCEL = 66, OFFLOAD_STATUS = 67,
        READ_PLUS = 68, SEEK = 69, WRITE_SAME = 70, CLONE = 71, GETXATTR = 72, SETXATTR = 73,
        LISTXATTRS = 74, REMOVEXATTR = 75, ILLEGAL = 10044";
    check_names!(nfs4::OperationCode = nfs_opnum4);
    let added = nfs4::OperationCode::ALL.iter().filter(|operation| operation.is_minor_2());
    assert!(added.map(|operation| operation.code()).eq(59..=75));
}

#[test]
fn enumerations_of_version_4_are_those_of_the_rfcs() {
    check_names!(
        nfs4::FileType = "
            NF4REG = 1, NF4DIR = 2, NF4BLK = 3, NF4CHR = 4, NF4LNK = 5, NF4SOCK = 6, NF4FIFO = 7,
            NF4ATTRDIR = 8, NF4NAMEDATTR = 9",
        nfs4::StableHow = "UNSTABLE4 = 0, DATA_SYNC4 = 1, FILE_SYNC4 = 2",
        nfs4::Content = "NFS4_CONTENT_DATA = 0, NFS4_CONTENT_HOLE = 1",
        nfs4::LockType = "READ_LT = 1, WRITE_LT = 2, READW_LT = 3, WRITEW_LT = 4",
        nfs4::ShareAccess = "
            OPEN4_SHARE_ACCESS_READ = 1, OPEN4_SHARE_ACCESS_WRITE = 2,
            OPEN4_SHARE_ACCESS_BOTH = 3",
        nfs4::ShareDeny = "
            OPEN4_SHARE_DENY_NONE = 0, OPEN4_SHARE_DENY_READ = 1, OPEN4_SHARE_DENY_WRITE = 2,
            OPEN4_SHARE_DENY_BOTH = 3",
        nfs4::DelegationType = "
            OPEN_DELEGATE_NONE = 0, OPEN_DELEGATE_READ = 1, OPEN_DELEGATE_WRITE = 2,
            OPEN_DELEGATE_NONE_EXT = 3",
        nfs4::WhyNoDelegation = "
            WND4_NOT_WANTED = 0, WND4_CONTENTION = 1, WND4_RESOURCE = 2, WND4_NOT_SUPP_FTYPE = 3,
            WND4_WRITE_DELEG_NOT_SUPP_FTYPE = 4, WND4_NOT_SUPP_UPGRADE = 5,
            WND4_NOT_SUPP_DOWNGRADE = 6, WND4_CANCELLED = 7, WND4_IS_DIR = 8",
        nfs4::StateProtectHow = "SP4_NONE = 0, SP4_MACH_CRED = 1, SP4_SSV = 2",
        nfs4::SecinfoStyle = "SECINFO_STYLE4_CURRENT_FH = 0, SECINFO_STYLE4_PARENT = 1",
        nfs4::ChangeAttributeType = "
            NFS4_CHANGE_TYPE_IS_MONOTONIC_INCR = 0, NFS4_CHANGE_TYPE_IS_VERSION_COUNTER = 1,
            NFS4_CHANGE_TYPE_IS_VERSION_COUNTER_NOPNFS = 2,
            NFS4_CHANGE_TYPE_IS_TIME_METADATA = 3, NFS4_CHANGE_TYPE_IS_UNDEFINED = 4",
        nfs4::SetxattrOption = "
            SETXATTR4_EITHER = 0, SETXATTR4_CREATE = 1, SETXATTR4_REPLACE = 2",
    );
    // CDFC4_FORE, CDFC4_BACK, CDFC4_FORE_OR_BOTH and CDFC4_BACK_OR_BOTH; a result has the first
    // three as CDFS4_FORE, CDFS4_BACK and CDFS4_BOTH.
    let directions = nfs4::ChannelDirection::ALL.iter().map(|direction| direction.code());
    assert!(directions.eq([1, 2, 3, 7]));
}

/// `FATTR4_*`: RFC 7863, RFC 8275 §5, RFC 8276 §8.2 and RFC 9754 §3.
#[test]
fn attributes_of_version_4_are_those_of_the_rfcs() {
    macro_rules! check {
        ($($name:ident = $number:literal),* $(,)?) => {
            $(assert_eq!(attribute::$name, $number, stringify!($name));)*
            assert_eq!(nfs4::KNOWN_ATTRIBUTES, Bitmap::of(&[$($number),*]));
        };
    }
    check!(
        SUPPORTED_ATTRS = 0,
        TYPE = 1,
        FH_EXPIRE_TYPE = 2,
        CHANGE = 3,
        SIZE = 4,
        LINK_SUPPORT = 5,
        SYMLINK_SUPPORT = 6,
        NAMED_ATTR = 7,
        FSID = 8,
        UNIQUE_HANDLES = 9,
        LEASE_TIME = 10,
        RDATTR_ERROR = 11,
        ACLSUPPORT = 13,
        CANSETTIME = 15,
        CASE_INSENSITIVE = 16,
        CASE_PRESERVING = 17,
        CHOWN_RESTRICTED = 18,
        FILEHANDLE = 19,
        FILEID = 20,
        FILES_AVAIL = 21,
        FILES_FREE = 22,
        FILES_TOTAL = 23,
        HOMOGENEOUS = 26,
        MAXFILESIZE = 27,
        MAXLINK = 28,
        MAXNAME = 29,
        MAXREAD = 30,
        MAXWRITE = 31,
        MODE = 33,
        NO_TRUNC = 34,
        NUMLINKS = 35,
        OWNER = 36,
        OWNER_GROUP = 37,
        RAWDEV = 41,
        SPACE_AVAIL = 42,
        SPACE_FREE = 43,
        SPACE_TOTAL = 44,
        SPACE_USED = 45,
        TIME_ACCESS = 47,
        TIME_ACCESS_SET = 48,
        TIME_DELTA = 51,
        TIME_METADATA = 52,
        TIME_MODIFY = 53,
        TIME_MODIFY_SET = 54,
        MOUNTED_ON_FILEID = 55,
        FS_LAYOUT_TYPES = 62,
        SUPPATTR_EXCLCREAT = 75,
        CLONE_BLKSIZE = 77,
        SPACE_FREED = 78,
        CHANGE_ATTR_TYPE = 79,
        MODE_UMASK = 81,
        XATTR_SUPPORT = 82,
        OPEN_ARGUMENTS = 86,
    );
}

/// RFC 7863, RFC 8276 §8.5 and RFC 9754 §3.
#[test]
fn constants_of_version_4_are_those_of_the_rfcs() {
    macro_rules! check {
        ($($name:ident = $number:literal),* $(,)?) => {
            $(assert_eq!(nfs4::$name, $number, stringify!($name));)*
        };
    }
    check!(
        PROGRAM = 100_003,
        VERSION = 4,
        FILE_HANDLE_BYTES_MAX = 128,
        VERIFIER_BYTES = 8,
        STATEID_OTHER_BYTES = 12,
        OPAQUE_BYTES_MAX = 1024,
        SESSION_ID_BYTES = 16,
        ACCESS_READ = 0x1,
        ACCESS_LOOKUP = 0x2,
        ACCESS_MODIFY = 0x4,
        ACCESS_EXTEND = 0x8,
        ACCESS_DELETE = 0x10,
        ACCESS_EXECUTE = 0x20,
        ACCESS_XAREAD = 0x40,
        ACCESS_XAWRITE = 0x80,
        ACCESS_XALIST = 0x100,
        SHARE_WANT_MASK = 0xff00,
        SHARE_WANT_READ_DELEGATION = 0x100,
        SHARE_WANT_WRITE_DELEGATION = 0x200,
        SHARE_WANT_ANY_DELEGATION = 0x300,
        SHARE_WANT_NO_DELEGATION = 0x400,
        SHARE_WANT_CANCEL = 0x500,
        OPEN_RESULT_LOCKTYPE_POSIX = 0x4,
        OPEN_RESULT_MAY_NOTIFY_LOCK = 0x20,
        EXCHGID_SUPP_MOVED_REFER = 0x1,
        EXCHGID_SUPP_MOVED_MIGR = 0x2,
        EXCHGID_SUPP_FENCE_OPS = 0x4,
        EXCHGID_BIND_PRINC_STATEID = 0x100,
        EXCHGID_USE_NON_PNFS = 0x1_0000,
        EXCHGID_USE_PNFS_MDS = 0x2_0000,
        EXCHGID_USE_PNFS_DS = 0x4_0000,
        EXCHGID_UPD_CONFIRMED_REC_A = 0x4000_0000,
        EXCHGID_CONFIRMED_R = 0x8000_0000,
        CREATE_SESSION_PERSIST = 0x1,
        CREATE_SESSION_CONN_BACK_CHAN = 0x2,
        CREATE_SESSION_CONN_RDMA = 0x4,
        SEQ4_STATUS_CB_PATH_DOWN = 0x1,
        SEQ4_STATUS_ADMIN_STATE_REVOKED = 0x20,
        SEQ4_STATUS_RECALLABLE_STATE_REVOKED = 0x40,
        SEQ4_STATUS_RESTART_RECLAIM_NEEDED = 0x100,
        SEQ4_STATUS_CB_PATH_DOWN_SESSION = 0x200,
        CALLBACK_VERSION = 1,
        CB_COMPOUND = 1,
        CB_RECALL = 4,
        CB_SEQUENCE = 11,
        CB_NOTIFY_LOCK = 13,
    );
}
