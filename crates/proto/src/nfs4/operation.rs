//! The operations of a COMPOUND.

use crate::xdr::xdr_enum;

xdr_enum! {
    /// `nfs_opnum4`: RFC 8881 §18, RFC 7862 §15 and RFC 8276 §8.4.
    pub enum OperationCode: "nfs_opnum4" {
        /// ACCESS, §18.1.
        Access = 3 "ACCESS",
        /// CLOSE, §18.2.
        Close = 4 "CLOSE",
        /// COMMIT, §18.3.
        Commit = 5 "COMMIT",
        /// CREATE, §18.4.
        Create = 6 "CREATE",
        /// DELEGPURGE, §18.5.
        Delegpurge = 7 "DELEGPURGE",
        /// DELEGRETURN, §18.6.
        Delegreturn = 8 "DELEGRETURN",
        /// GETATTR, §18.7.
        Getattr = 9 "GETATTR",
        /// GETFH, §18.8.
        Getfh = 10 "GETFH",
        /// LINK, §18.9.
        Link = 11 "LINK",
        /// LOCK, §18.10.
        Lock = 12 "LOCK",
        /// LOCKT, §18.11.
        Lockt = 13 "LOCKT",
        /// LOCKU, §18.12.
        Locku = 14 "LOCKU",
        /// LOOKUP, §18.13.
        Lookup = 15 "LOOKUP",
        /// LOOKUPP, §18.14.
        Lookupp = 16 "LOOKUPP",
        /// NVERIFY, §18.15.
        Nverify = 17 "NVERIFY",
        /// OPEN, §18.16.
        Open = 18 "OPEN",
        /// OPENATTR, §18.17.
        Openattr = 19 "OPENATTR",
        /// OPEN_CONFIRM, of minor version 0 alone.
        OpenConfirm = 20 "OPEN_CONFIRM",
        /// OPEN_DOWNGRADE, §18.18.
        OpenDowngrade = 21 "OPEN_DOWNGRADE",
        /// PUTFH, §18.19.
        Putfh = 22 "PUTFH",
        /// PUTPUBFH, §18.20.
        Putpubfh = 23 "PUTPUBFH",
        /// PUTROOTFH, §18.21.
        Putrootfh = 24 "PUTROOTFH",
        /// READ, §18.22.
        Read = 25 "READ",
        /// READDIR, §18.23.
        Readdir = 26 "READDIR",
        /// READLINK, §18.24.
        Readlink = 27 "READLINK",
        /// REMOVE, §18.25.
        Remove = 28 "REMOVE",
        /// RENAME, §18.26.
        Rename = 29 "RENAME",
        /// RENEW, of minor version 0 alone.
        Renew = 30 "RENEW",
        /// RESTOREFH, §18.27.
        Restorefh = 31 "RESTOREFH",
        /// SAVEFH, §18.28.
        Savefh = 32 "SAVEFH",
        /// SECINFO, §18.29.
        Secinfo = 33 "SECINFO",
        /// SETATTR, §18.30.
        Setattr = 34 "SETATTR",
        /// SETCLIENTID, of minor version 0 alone.
        Setclientid = 35 "SETCLIENTID",
        /// SETCLIENTID_CONFIRM, of minor version 0 alone.
        SetclientidConfirm = 36 "SETCLIENTID_CONFIRM",
        /// VERIFY, §18.31.
        Verify = 37 "VERIFY",
        /// WRITE, §18.32.
        Write = 38 "WRITE",
        /// RELEASE_LOCKOWNER, of minor version 0 alone.
        ReleaseLockowner = 39 "RELEASE_LOCKOWNER",
        /// BACKCHANNEL_CTL, §18.33.
        BackchannelCtl = 40 "BACKCHANNEL_CTL",
        /// BIND_CONN_TO_SESSION, §18.34.
        BindConnToSession = 41 "BIND_CONN_TO_SESSION",
        /// EXCHANGE_ID, §18.35.
        ExchangeId = 42 "EXCHANGE_ID",
        /// CREATE_SESSION, §18.36.
        CreateSession = 43 "CREATE_SESSION",
        /// DESTROY_SESSION, §18.37.
        DestroySession = 44 "DESTROY_SESSION",
        /// FREE_STATEID, §18.38.
        FreeStateid = 45 "FREE_STATEID",
        /// GET_DIR_DELEGATION, §18.39.
        GetDirDelegation = 46 "GET_DIR_DELEGATION",
        /// GETDEVICEINFO, §18.40.
        Getdeviceinfo = 47 "GETDEVICEINFO",
        /// GETDEVICELIST, §18.41.
        Getdevicelist = 48 "GETDEVICELIST",
        /// LAYOUTCOMMIT, §18.42.
        Layoutcommit = 49 "LAYOUTCOMMIT",
        /// LAYOUTGET, §18.43.
        Layoutget = 50 "LAYOUTGET",
        /// LAYOUTRETURN, §18.44.
        Layoutreturn = 51 "LAYOUTRETURN",
        /// SECINFO_NO_NAME, §18.45.
        SecinfoNoName = 52 "SECINFO_NO_NAME",
        /// SEQUENCE, §18.46.
        Sequence = 53 "SEQUENCE",
        /// SET_SSV, §18.47.
        SetSsv = 54 "SET_SSV",
        /// TEST_STATEID, §18.48.
        TestStateid = 55 "TEST_STATEID",
        /// WANT_DELEGATION, §18.49.
        WantDelegation = 56 "WANT_DELEGATION",
        /// DESTROY_CLIENTID, §18.50.
        DestroyClientid = 57 "DESTROY_CLIENTID",
        /// RECLAIM_COMPLETE, §18.51.
        ReclaimComplete = 58 "RECLAIM_COMPLETE",
        /// ALLOCATE, RFC 7862 §15.1.
        Allocate = 59 "ALLOCATE",
        /// COPY, RFC 7862 §15.2.
        Copy = 60 "COPY",
        /// COPY_NOTIFY, RFC 7862 §15.3.
        CopyNotify = 61 "COPY_NOTIFY",
        /// DEALLOCATE, RFC 7862 §15.4.
        Deallocate = 62 "DEALLOCATE",
        /// IO_ADVISE, RFC 7862 §15.5.
        IoAdvise = 63 "IO_ADVISE",
        /// LAYOUTERROR, RFC 7862 §15.6.
        Layouterror = 64 "LAYOUTERROR",
        /// LAYOUTSTATS, RFC 7862 §15.7.
        Layoutstats = 65 "LAYOUTSTATS",
        /// OFFLOAD_CANCEL, RFC 7862 §15.8.
        OffloadCancel = 66 "OFFLOAD_CANCEL",
        /// OFFLOAD_STATUS, RFC 7862 §15.9.
        OffloadStatus = 67 "OFFLOAD_STATUS",
        /// READ_PLUS, RFC 7862 §15.10.
        ReadPlus = 68 "READ_PLUS",
        /// SEEK, RFC 7862 §15.11.
        Seek = 69 "SEEK",
        /// WRITE_SAME, RFC 7862 §15.12.
        WriteSame = 70 "WRITE_SAME",
        /// CLONE, RFC 7862 §15.13.
        Clone = 71 "CLONE",
        /// GETXATTR, RFC 8276 §8.4.1.
        Getxattr = 72 "GETXATTR",
        /// SETXATTR, RFC 8276 §8.4.2.
        Setxattr = 73 "SETXATTR",
        /// LISTXATTRS, RFC 8276 §8.4.3.
        Listxattrs = 74 "LISTXATTRS",
        /// REMOVEXATTR, RFC 8276 §8.4.4.
        Removexattr = 75 "REMOVEXATTR",
        /// ILLEGAL, §18.52: the result for a number that is no operation.
        Illegal = 10_044 "ILLEGAL",
    }
}

impl OperationCode {
    /// Whether the operation came with minor version 2.
    #[must_use]
    pub const fn is_minor_2(self) -> bool {
        self.code() >= Self::Allocate.code() && self.code() <= Self::Removexattr.code()
    }
}
