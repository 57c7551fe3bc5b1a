//! The errors of NFSv4 operations.

use crate::xdr::xdr_enum;

xdr_enum! {
    /// `nfsstat4` without its success. RFC 8881 §15.1, RFC 7862 §11.1, RFC 8276 §8.4.
    pub enum Status: "nfsstat4" {
        /// Not owner, and not permitted.
        Perm = 1 "NFS4ERR_PERM",
        /// No such file or directory.
        Noent = 2 "NFS4ERR_NOENT",
        /// A hard I/O error.
        Io = 5 "NFS4ERR_IO",
        /// No such device.
        Nxio = 6 "NFS4ERR_NXIO",
        /// Permission denied.
        Access = 13 "NFS4ERR_ACCESS",
        /// The file exists.
        Exist = 17 "NFS4ERR_EXIST",
        /// A link across devices.
        Xdev = 18 "NFS4ERR_XDEV",
        /// Not a directory.
        Notdir = 20 "NFS4ERR_NOTDIR",
        /// A directory.
        Isdir = 21 "NFS4ERR_ISDIR",
        /// Invalid argument.
        Inval = 22 "NFS4ERR_INVAL",
        /// File too large.
        Fbig = 27 "NFS4ERR_FBIG",
        /// No space left.
        Nospc = 28 "NFS4ERR_NOSPC",
        /// Read-only file system.
        Rofs = 30 "NFS4ERR_ROFS",
        /// Too many links.
        Mlink = 31 "NFS4ERR_MLINK",
        /// Name too long.
        Nametoolong = 63 "NFS4ERR_NAMETOOLONG",
        /// The directory is not empty.
        Notempty = 66 "NFS4ERR_NOTEMPTY",
        /// Quota exceeded.
        Dquot = 69 "NFS4ERR_DQUOT",
        /// The handle's file is gone.
        Stale = 70 "NFS4ERR_STALE",
        /// The handle fails the server's own checks.
        Badhandle = 10_001 "NFS4ERR_BADHANDLE",
        /// A READDIR cookie that no longer resolves.
        BadCookie = 10_003 "NFS4ERR_BAD_COOKIE",
        /// The operation is not supported.
        Notsupp = 10_004 "NFS4ERR_NOTSUPP",
        /// The buffer is too small for one entry.
        Toosmall = 10_005 "NFS4ERR_TOOSMALL",
        /// An error that fits no other value.
        Serverfault = 10_006 "NFS4ERR_SERVERFAULT",
        /// An object of this type cannot be created.
        Badtype = 10_007 "NFS4ERR_BADTYPE",
        /// Not now: the client should ask again later.
        Delay = 10_008 "NFS4ERR_DELAY",
        /// NVERIFY: the attributes are the same.
        Same = 10_009 "NFS4ERR_SAME",
        /// A lock of another owner is in the way.
        Denied = 10_010 "NFS4ERR_DENIED",
        /// The state was lost because its lease expired.
        Expired = 10_011 "NFS4ERR_EXPIRED",
        /// A lock is in the way of READ, WRITE or SETATTR.
        Locked = 10_012 "NFS4ERR_LOCKED",
        /// Only reclaims are served now.
        Grace = 10_013 "NFS4ERR_GRACE",
        /// The handle has expired.
        Fhexpired = 10_014 "NFS4ERR_FHEXPIRED",
        /// An OPEN's share reservation conflicts.
        ShareDenied = 10_015 "NFS4ERR_SHARE_DENIED",
        /// The credential's flavour is not admitted here.
        Wrongsec = 10_016 "NFS4ERR_WRONGSEC",
        /// The client's identity is in use by another principal.
        ClidInuse = 10_017 "NFS4ERR_CLID_INUSE",
        /// The handle or what was asked has moved.
        Moved = 10_019 "NFS4ERR_MOVED",
        /// There is no current (or saved) filehandle.
        Nofilehandle = 10_020 "NFS4ERR_NOFILEHANDLE",
        /// The minor version is not served.
        MinorVersMismatch = 10_021 "NFS4ERR_MINOR_VERS_MISMATCH",
        /// The client ID is unknown.
        StaleClientid = 10_022 "NFS4ERR_STALE_CLIENTID",
        /// The stateid is of an earlier instance of the server.
        StaleStateid = 10_023 "NFS4ERR_STALE_STATEID",
        /// The stateid's sequence number has been passed.
        OldStateid = 10_024 "NFS4ERR_OLD_STATEID",
        /// The stateid is unknown.
        BadStateid = 10_025 "NFS4ERR_BAD_STATEID",
        /// A sequence number is not the next one.
        BadSeqid = 10_026 "NFS4ERR_BAD_SEQID",
        /// VERIFY: the attributes differ.
        NotSame = 10_027 "NFS4ERR_NOT_SAME",
        /// This range cannot be locked.
        LockRange = 10_028 "NFS4ERR_LOCK_RANGE",
        /// The object is a symbolic link where none is wanted.
        Symlink = 10_029 "NFS4ERR_SYMLINK",
        /// There is no saved filehandle. Not used by minor version 1.
        Restorefh = 10_030 "NFS4ERR_RESTOREFH",
        /// The lease moved.
        LeaseMoved = 10_031 "NFS4ERR_LEASE_MOVED",
        /// An attribute cannot be set or is not supported.
        Attrnotsupp = 10_032 "NFS4ERR_ATTRNOTSUPP",
        /// The time for reclaims is over.
        NoGrace = 10_033 "NFS4ERR_NO_GRACE",
        /// The reclaim is not of state that the client held.
        ReclaimBad = 10_034 "NFS4ERR_RECLAIM_BAD",
        /// A reclaim conflicts with other state.
        ReclaimConflict = 10_035 "NFS4ERR_RECLAIM_CONFLICT",
        /// The arguments cannot be decoded.
        Badxdr = 10_036 "NFS4ERR_BADXDR",
        /// CLOSE while locks are held.
        LocksHeld = 10_037 "NFS4ERR_LOCKS_HELD",
        /// The open's access mode forbids this.
        Openmode = 10_038 "NFS4ERR_OPENMODE",
        /// An owner or group cannot be translated.
        Badowner = 10_039 "NFS4ERR_BADOWNER",
        /// A name is not UTF-8, or not allowed.
        Badchar = 10_040 "NFS4ERR_BADCHAR",
        /// A name is reserved.
        Badname = 10_041 "NFS4ERR_BADNAME",
        /// The lock's range is out of what can be locked.
        BadRange = 10_042 "NFS4ERR_BAD_RANGE",
        /// A lock cannot be upgraded or downgraded in place.
        LockNotsupp = 10_043 "NFS4ERR_LOCK_NOTSUPP",
        /// There is no such operation in this minor version.
        OpIllegal = 10_044 "NFS4ERR_OP_ILLEGAL",
        /// The lock would dead-lock.
        Deadlock = 10_045 "NFS4ERR_DEADLOCK",
        /// The file is open or locked.
        FileOpen = 10_046 "NFS4ERR_FILE_OPEN",
        /// The administrator took the state away.
        AdminRevoked = 10_047 "NFS4ERR_ADMIN_REVOKED",
        /// The callback path is down.
        CbPathDown = 10_048 "NFS4ERR_CB_PATH_DOWN",
        /// A layout's I/O mode is not valid.
        Badiomode = 10_049 "NFS4ERR_BADIOMODE",
        /// A layout was asked for with bad arguments.
        Badlayout = 10_050 "NFS4ERR_BADLAYOUT",
        /// A session's digest is not right.
        BadSessionDigest = 10_051 "NFS4ERR_BAD_SESSION_DIGEST",
        /// The session is unknown.
        Badsession = 10_052 "NFS4ERR_BADSESSION",
        /// The slot is not in the session's table.
        Badslot = 10_053 "NFS4ERR_BADSLOT",
        /// RECLAIM_COMPLETE was performed before.
        CompleteAlready = 10_054 "NFS4ERR_COMPLETE_ALREADY",
        /// The connection is not bound to the session.
        ConnNotBoundToSession = 10_055 "NFS4ERR_CONN_NOT_BOUND_TO_SESSION",
        /// The delegation is already wanted.
        DelegAlreadyWanted = 10_056 "NFS4ERR_DELEG_ALREADY_WANTED",
        /// The session is used by the backchannel.
        BackChanBusy = 10_057 "NFS4ERR_BACK_CHAN_BUSY",
        /// Layouts: try later.
        Layouttrylater = 10_058 "NFS4ERR_LAYOUTTRYLATER",
        /// Layouts are not to be had for this file.
        Layoutunavailable = 10_059 "NFS4ERR_LAYOUTUNAVAILABLE",
        /// No layout matches.
        NomatchingLayout = 10_060 "NFS4ERR_NOMATCHING_LAYOUT",
        /// A layout recall conflicts.
        Recallconflict = 10_061 "NFS4ERR_RECALLCONFLICT",
        /// The layout type is unknown.
        UnknownLayouttype = 10_062 "NFS4ERR_UNKNOWN_LAYOUTTYPE",
        /// SEQUENCE's number is neither the slot's nor the next one.
        SeqMisordered = 10_063 "NFS4ERR_SEQ_MISORDERED",
        /// SEQUENCE is not the first operation.
        SequencePos = 10_064 "NFS4ERR_SEQUENCE_POS",
        /// The request is longer than the session allows.
        ReqTooBig = 10_065 "NFS4ERR_REQ_TOO_BIG",
        /// The reply is longer than the session allows.
        RepTooBig = 10_066 "NFS4ERR_REP_TOO_BIG",
        /// The reply is longer than what the session keeps.
        RepTooBigToCache = 10_067 "NFS4ERR_REP_TOO_BIG_TO_CACHE",
        /// The client asked not to keep the reply that it now asks for again.
        RetryUncachedRep = 10_068 "NFS4ERR_RETRY_UNCACHED_REP",
        /// The operations of the COMPOUND must not be combined.
        UnsafeCompound = 10_069 "NFS4ERR_UNSAFE_COMPOUND",
        /// More operations than the session allows.
        TooManyOps = 10_070 "NFS4ERR_TOO_MANY_OPS",
        /// The operation needs a SEQUENCE before it.
        OpNotInSession = 10_071 "NFS4ERR_OP_NOT_IN_SESSION",
        /// The hash algorithm is not supported.
        HashAlgUnsupp = 10_072 "NFS4ERR_HASH_ALG_UNSUPP",
        /// The client still has state.
        ClientidBusy = 10_074 "NFS4ERR_CLIENTID_BUSY",
        /// A hole in a layout.
        PnfsIoHole = 10_075 "NFS4ERR_PNFS_IO_HOLE",
        /// A retry differs from the call that it claims to repeat.
        SeqFalseRetry = 10_076 "NFS4ERR_SEQ_FALSE_RETRY",
        /// The slot was retired.
        BadHighSlot = 10_077 "NFS4ERR_BAD_HIGH_SLOT",
        /// The session's persistent replies are all that is left of it.
        Deadsession = 10_078 "NFS4ERR_DEADSESSION",
        /// The encryption algorithm is not supported.
        EncrAlgUnsupp = 10_079 "NFS4ERR_ENCR_ALG_UNSUPP",
        /// There is no layout.
        PnfsNoLayout = 10_080 "NFS4ERR_PNFS_NO_LAYOUT",
        /// The operation must be alone in its COMPOUND.
        NotOnlyOp = 10_081 "NFS4ERR_NOT_ONLY_OP",
        /// The principal may not do this to the state.
        WrongCred = 10_082 "NFS4ERR_WRONG_CRED",
        /// The object has the wrong type for the operation.
        WrongType = 10_083 "NFS4ERR_WRONG_TYPE",
        /// A directory delegation is not to be had.
        DirdelegUnavail = 10_084 "NFS4ERR_DIRDELEG_UNAVAIL",
        /// The delegation is no longer wanted.
        RejectDeleg = 10_085 "NFS4ERR_REJECT_DELEG",
        /// A layout is being returned.
        Returnconflict = 10_086 "NFS4ERR_RETURNCONFLICT",
        /// The delegation was revoked.
        DelegRevoked = 10_087 "NFS4ERR_DELEG_REVOKED",
        /// The partner of a copy does not support it. RFC 7862.
        PartnerNotsupp = 10_088 "NFS4ERR_PARTNER_NOTSUPP",
        /// The partner of a copy is not authorised. RFC 7862.
        PartnerNoAuth = 10_089 "NFS4ERR_PARTNER_NO_AUTH",
        /// The union's arm is not supported. RFC 7862.
        UnionNotsupp = 10_090 "NFS4ERR_UNION_NOTSUPP",
        /// The copy offload was denied. RFC 7862.
        OffloadDenied = 10_091 "NFS4ERR_OFFLOAD_DENIED",
        /// The label is wrong. RFC 7862.
        WrongLfs = 10_092 "NFS4ERR_WRONG_LFS",
        /// The label is not valid. RFC 7862.
        Badlabel = 10_093 "NFS4ERR_BADLABEL",
        /// No copy with this stateid is known. RFC 7862.
        OffloadNoReqs = 10_094 "NFS4ERR_OFFLOAD_NO_REQS",
        /// The object has no such extended attribute. RFC 8276 §8.4.
        Noxattr = 10_095 "NFS4ERR_NOXATTR",
        /// The value is longer than the server can store. RFC 8276 §8.4.
        Xattr2Big = 10_096 "NFS4ERR_XATTR2BIG",
    }
}
