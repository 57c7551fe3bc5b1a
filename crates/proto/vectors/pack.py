#!/usr/bin/env python3
"""Packs the vectors of version 4 that were not captured: arguments and results of COMPOUND and of
CB_COMPOUND, without the RPC header.

    pack.py

Field by field in the order of the XDR of RFC 7863 (RFC 8276 for extended attributes, RFC 9754 for
OPEN_ARGUMENTS); a comment names the field where its value does not. The values of one structure
differ from each other, so that no two of its fields can be exchanged. Writes
`nfs4/<compound>/<kind>.bin`, and the remarks of a `.txt` that does not exist yet; then see
`REWRITE_VECTORS` in `tests/vectors.rs`.
"""

import pathlib
import struct


def u32(value):
    return struct.pack(">I", value)


def u64(value):
    return struct.pack(">Q", value)


def opaque(data):
    return u32(len(data)) + data + bytes(-len(data) % 4)


def array(*items):
    return u32(len(items)) + b"".join(items)


def bitmap(*bits):
    words = [0] * (max(bits) // 32 + 1 if bits else 0)
    for bit in bits:
        words[bit // 32] |= 1 << bit % 32
    return array(*map(u32, words))


def fattr4(values):
    """Of a dictionary of numbers and values."""
    return bitmap(*values) + opaque(b"".join(values[number] for number in sorted(values)))


def stateid(seqid, byte):
    return u32(seqid) + bytes([byte]) * 12


def time(seconds, nseconds):
    return struct.pack(">q", seconds) + u32(nseconds)


def change_info(atomic, before, after):
    return u32(atomic) + u64(before) + u64(after)


def channel(*attributes, ird=None):
    """Header padding, request, response, cached response, operations, requests, RDMA IRD."""
    return b"".join(map(u32, attributes)) + (array() if ird is None else array(u32(ird)))


FALSE, TRUE = u32(0), u32(1)
SESSION = bytes(range(0x10, 0x20))
HANDLE = opaque(bytes(range(0x60, 0x6d)))
OTHER_HANDLE = opaque(b"another handle")
OPEN = stateid(1, 0xA1)
LOCK = stateid(2, 0xB2)
OWNER = u64(0xC11E27) + opaque(b"owner")
VERIFIER = bytes(range(0xE0, 0xE8))

(ACCESS, CLOSE, COMMIT, CREATE) = (3, 4, 5, 6)
(DELEGRETURN, GETATTR, GETFH, LINK, LOCK_OP, LOCKT, LOCKU, LOOKUP, LOOKUPP, NVERIFY, OPEN_OP) = (
    8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18)
(OPEN_DOWNGRADE, PUTFH, PUTPUBFH, PUTROOTFH, READ, READDIR, READLINK, REMOVE, RENAME) = (
    21, 22, 23, 24, 25, 26, 27, 28, 29)
(RESTOREFH, SAVEFH, SECINFO, SETATTR, VERIFY, WRITE) = (31, 32, 33, 34, 37, 38)
(BACKCHANNEL_CTL, BIND_CONN_TO_SESSION, EXCHANGE_ID, CREATE_SESSION, DESTROY_SESSION) = (
    40, 41, 42, 43, 44)
(FREE_STATEID, SECINFO_NO_NAME, SEQUENCE, TEST_STATEID, DESTROY_CLIENTID, RECLAIM_COMPLETE) = (
    45, 52, 53, 55, 57, 58)
(ALLOCATE, COPY, DEALLOCATE, SEEK, CLONE) = (59, 60, 62, 69, 71)
(GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR) = (72, 73, 74, 75)
(CB_RECALL, CB_SEQUENCE, CB_NOTIFY_LOCK) = (4, 11, 13)

# Session, sequence, slot, highest slot, cache this.
SEQUENCED = (SEQUENCE, SESSION, u32(7), u32(3), u32(5), TRUE)
AT_FILE = (PUTFH, HANDLE)


def call(*operations, minor=2, sequenced=True):
    """COMPOUND4args: tag, minor version, operations."""
    operations = (SEQUENCED, *operations) if sequenced else operations
    packed = [u32(op) + b"".join(rest) for op, *rest in operations]
    return opaque(b"tag") + u32(minor) + array(*packed)


def reply(*results, status=0, sequenced=True):
    """COMPOUND4res: status, tag, results. NFS4_OK stands in front of all but the last."""
    if sequenced:
        # Session, sequence, slot, highest slot, target highest slot, status flags.
        results = ((SEQUENCE, SESSION, u32(7), u32(3), u32(15), u32(13), u32(0x200)), *results)
    packed = [
        u32(op) + u32(status if at + 1 == len(results) else 0) + b"".join(rest)
        for at, (op, *rest) in enumerate(results)
    ]
    return u32(status) + opaque(b"tag") + array(*packed)


def sessions():
    implementation = array(opaque(b"example.org") + opaque(b"client 1.0") + time(1_000_000_000, 9))
    yield "args-exchange-id", "EXCHANGE_ID.", call((
        EXCHANGE_ID, VERIFIER, opaque(b"a client of all"), u32(0x101), u32(0), implementation),
        sequenced=False)
    yield "args-exchange-id-mach-cred", "EXCHANGE_ID with SP4_MACH_CRED.", call((
        # must_enforce, must_allow
        EXCHANGE_ID, VERIFIER, opaque(b"a client of all"), u32(0x40020000), u32(1),
        bitmap(41, 43, 44), bitmap(4, 5), array()), sequenced=False)
    yield "results-exchange-id", "EXCHANGE_ID.", reply((
        # clientid, sequenceid, flags, SP4_NONE, minor_id, major_id, scope
        EXCHANGE_ID, u64(0xC11E27), u32(41), u32(0x80010000), u32(0), u64(77), opaque(b"major id"),
        opaque(b"the scope"), implementation), sequenced=False)
    fore = channel(1, 1_049_620, 1_049_480, 7588, 8, 64, ird=33)
    back = channel(2, 4096, 4092, 2044, 3, 16)
    security = array(
        # AUTH_SYS: stamp, machinename, uid, gid, gids; AUTH_NONE; RPCSEC_GSS: service, handles
        u32(1) + u32(99) + opaque(b"machine") + u32(1001) + u32(1002) + array(u32(1003)), u32(0),
        u32(6) + u32(1) + opaque(b"") + opaque(b""))
    yield "args-create-session", "CREATE_SESSION.", call((
        CREATE_SESSION, u64(0xC11E27), u32(41), u32(3), fore, back, u32(0x40000000), security),
        sequenced=False)
    yield "results-create-session", "CREATE_SESSION.", reply((
        CREATE_SESSION, SESSION, u32(41), u32(2), fore, back), sequenced=False)
    yield "args-bind-conn-to-session", "BIND_CONN_TO_SESSION.", call((
        # CDFC4_BACK_OR_BOTH, use_conn_in_rdma_mode
        BIND_CONN_TO_SESSION, SESSION, u32(7), FALSE), sequenced=False)
    yield "results-bind-conn-to-session", "BIND_CONN_TO_SESSION.", reply((
        # CDFS4_BOTH
        BIND_CONN_TO_SESSION, SESSION, u32(3), FALSE), sequenced=False)
    yield "args-destroy", "DESTROY_SESSION.", call((DESTROY_SESSION, SESSION))
    yield "results-destroy", "DESTROY_SESSION.", reply((DESTROY_SESSION,))
    yield "args-destroy-clientid", "DESTROY_CLIENTID.", call(
        (DESTROY_CLIENTID, u64(0xC11E27)), sequenced=False)
    yield "results-destroy-clientid", "DESTROY_CLIENTID: NFS4ERR_CLIENTID_BUSY.", reply(
        (DESTROY_CLIENTID,), status=10074, sequenced=False)
    yield "args-backchannel-ctl", "BACKCHANNEL_CTL and RECLAIM_COMPLETE.", call(
        (BACKCHANNEL_CTL, u32(0x40000001), array(u32(0))), (RECLAIM_COMPLETE, FALSE))
    yield "results-backchannel-ctl", "BACKCHANNEL_CTL and RECLAIM_COMPLETE.", reply(
        (BACKCHANNEL_CTL,), (RECLAIM_COMPLETE,))


def opens():
    created = fattr4({4: u64(0), 33: u32(0o640)})
    # seqid, share_access, share_deny, owner
    head = (u32(21), u32(0x0103), u32(2), OWNER)
    yield "args-open-unchecked", "OPEN: OPEN4_CREATE, UNCHECKED4, CLAIM_NULL.", call(
        AT_FILE, (OPEN_OP, *head, u32(1), u32(0), created, u32(0), opaque(b"a name")), (GETFH,))
    yield "args-open-guarded", "OPEN: OPEN4_CREATE, GUARDED4, CLAIM_NULL.", call(
        AT_FILE, (OPEN_OP, *head, u32(1), u32(1), created, u32(0), opaque(b"a name")))
    yield "args-open-exclusive", "OPEN: OPEN4_CREATE, EXCLUSIVE4, CLAIM_NULL.", call(
        AT_FILE, (OPEN_OP, *head, u32(1), u32(2), VERIFIER, u32(0), opaque(b"a name")))
    yield "args-open-exclusive-1", "OPEN: OPEN4_CREATE, EXCLUSIVE4_1, CLAIM_NULL.", call(
        AT_FILE, (OPEN_OP, *head, u32(1), u32(3), VERIFIER, created, u32(0), opaque(b"a name")))
    claims = [
        ("handle", "CLAIM_FH", u32(4)),
        ("previous", "CLAIM_PREVIOUS, OPEN_DELEGATE_READ", u32(1) + u32(1)),
        ("delegate-cur", "CLAIM_DELEGATE_CUR", u32(2) + stateid(3, 0xD3) + opaque(b"a name")),
        ("delegate-prev", "CLAIM_DELEGATE_PREV", u32(3) + opaque(b"a name")),
        ("deleg-cur-fh", "CLAIM_DELEG_CUR_FH", u32(5) + stateid(3, 0xD3)),
        ("deleg-prev-fh", "CLAIM_DELEG_PREV_FH", u32(6)),
    ]
    for kind, claim, packed in claims:
        yield f"args-open-{kind}", f"OPEN: OPEN4_NOCREATE, {claim}.", call(
            AT_FILE, (OPEN_OP, *head, u32(0), packed))
    # stateid, cinfo, rflags, attrset
    opened = (OPEN, change_info(1, 51, 52), u32(0x24), bitmap(4, 33))
    delegations = [
        ("", "OPEN_DELEGATE_NONE", u32(0)),
        # stateid, recall; the entry: type, flag, access mask, who
        ("-delegation", "OPEN_DELEGATE_READ", u32(1) + stateid(3, 0xD3) + TRUE + u32(0) + u32(0)
         + u32(0) + opaque(b"EVERYONE@")),
        ("-why", "OPEN_DELEGATE_NONE_EXT, WND4_NOT_WANTED", u32(3) + u32(0)),
        ("-why-contention", "OPEN_DELEGATE_NONE_EXT, WND4_CONTENTION", u32(3) + u32(1) + FALSE),
        ("-why-resource", "OPEN_DELEGATE_NONE_EXT, WND4_RESOURCE", u32(3) + u32(2) + FALSE),
    ]
    for kind, delegation, packed in delegations:
        yield f"results-open{kind}", f"OPEN: {delegation}.", reply(
            (PUTFH,), (OPEN_OP, *opened, packed), (GETFH, HANDLE))
    yield "args-close", "OPEN_DOWNGRADE, CLOSE, DELEGRETURN, FREE_STATEID and TEST_STATEID.", call(
        AT_FILE, (OPEN_DOWNGRADE, OPEN, u32(22), u32(1), u32(2)), (CLOSE, u32(23), OPEN),
        (DELEGRETURN, stateid(3, 0xD3)), (FREE_STATEID, LOCK), (TEST_STATEID, array(OPEN, LOCK)))
    yield "results-close", "OPEN_DOWNGRADE, CLOSE, DELEGRETURN, FREE_STATEID and TEST_STATEID.", \
        reply((PUTFH,), (OPEN_DOWNGRADE, OPEN), (CLOSE, LOCK), (DELEGRETURN,), (FREE_STATEID,),
              # NFS4_OK and NFS4ERR_BAD_STATEID
              (TEST_STATEID, array(u32(0), u32(10025))))


def locks():
    byte_range = u64(4096) + u64(2**64 - 1)
    yield "args-lock", "LOCK for a new owner, LOCKT and LOCKU.", call(
        AT_FILE,
        # locktype, reclaim, offset, length; open_seqid, open_stateid, lock_seqid, lock_owner
        (LOCK_OP, u32(2), FALSE, byte_range, TRUE, u32(24), OPEN, u32(25), OWNER),
        (LOCKT, u32(1), byte_range, OWNER),
        # locktype, seqid, lock_stateid, offset, length
        (LOCKU, u32(3), u32(26), LOCK, byte_range))
    yield "args-lock-existing", "LOCK for an owner with locks.", call(
        AT_FILE, (LOCK_OP, u32(4), TRUE, byte_range, FALSE, LOCK, u32(27)))
    yield "results-lock", "LOCK, LOCKT and LOCKU.", reply(
        (PUTFH,), (LOCK_OP, LOCK), (LOCKT,), (LOCKU, LOCK))
    # offset, length, locktype, owner
    denied = byte_range + u32(2) + OWNER
    yield "results-lock-denied", "LOCK: NFS4ERR_DENIED.", reply(
        (PUTFH,), (LOCK_OP, denied), status=10010)
    yield "results-lockt-denied", "LOCKT: NFS4ERR_DENIED.", reply(
        (PUTFH,), (LOCKT, denied), status=10010)


def data():
    yield "args-read", "READ.", call(AT_FILE, (READ, OPEN, u64(2**33), u32(13)))
    yield "results-read", "READ of the last 13 bytes.", reply(
        (PUTFH,), (READ, TRUE, opaque(b"hello, world\n")))
    yield "args-write", "WRITE with DATA_SYNC4, and COMMIT.", call(
        AT_FILE, (WRITE, OPEN, u64(2**33), u32(1), opaque(b"hello, world\n")),
        (COMMIT, u64(2**33), u32(13)))
    # count, committed, writeverf
    yield "results-write", "WRITE with FILE_SYNC4, and COMMIT.", reply(
        (PUTFH,), (WRITE, u32(13), u32(2), VERIFIER), (COMMIT, VERIFIER))
    between = [AT_FILE, (SAVEFH,), (PUTFH, OTHER_HANDLE)]
    # src_stateid, dst_stateid, src_offset, dst_offset, count
    ranges = (OPEN, LOCK, u64(0x1000), u64(0x2_0000), u64(0x30_0000))
    yield "args-clone", "CLONE.", call(*between, (CLONE, *ranges))
    yield "results-clone", "CLONE.", reply((PUTFH,), (SAVEFH,), (PUTFH,), (CLONE,))
    # consecutive, synchronous, source_server
    yield "args-copy", "COPY on one server.", call(*between, (COPY, *ranges, TRUE, FALSE, array()))
    yield "args-copy-synchronous", "COPY that is synchronous.", call(
        *between, (COPY, *ranges, FALSE, TRUE, array()))
    # wr_callback_id, wr_count, wr_committed, wr_writeverf, cr_consecutive, cr_synchronous
    yield "results-copy", "COPY that is complete.", reply(
        (PUTFH,), (SAVEFH,), (PUTFH,),
        (COPY, array(), u64(0x30_0000), u32(2), VERIFIER, TRUE, TRUE))
    yield "args-space", "ALLOCATE, DEALLOCATE and SEEK for a hole.", call(
        AT_FILE, (ALLOCATE, OPEN, u64(0x1000), u64(0x2_0000)),
        (DEALLOCATE, LOCK, u64(0x3000), u64(0x4_0000)), (SEEK, OPEN, u64(0x5000), u32(1)))
    yield "results-space", "ALLOCATE, DEALLOCATE and SEEK.", reply(
        (PUTFH,), (ALLOCATE,), (DEALLOCATE,), (SEEK, TRUE, u64(0x6000)))


ALL_ATTRIBUTES = {
    0: bitmap(0, 1, 33, 75), 1: u32(1), 2: u32(0), 3: u64(1003), 4: u64(1004), 5: TRUE, 6: FALSE,
    7: TRUE, 8: u64(1008) + u64(2008), 9: FALSE, 10: u32(1010), 11: u32(13), 13: u32(1013),
    15: TRUE, 16: FALSE, 17: TRUE, 18: FALSE, 19: HANDLE, 20: u64(1020), 21: u64(1021),
    22: u64(1022), 23: u64(1023), 26: TRUE, 27: u64(1027), 28: u32(1028), 29: u32(1029),
    30: u64(1030), 31: u64(1031), 33: u32(0o4755), 34: FALSE, 35: u32(1035), 36: opaque(b"1036"),
    37: opaque(b"staff@example.org"), 41: u32(1041) + u32(2041), 42: u64(1042), 43: u64(1043),
    44: u64(1044), 45: u64(1045), 47: time(-1047, 47), 48: u32(1) + time(1048, 48), 51: time(0, 51),
    52: time(1052, 52), 53: time(1053, 53), 54: u32(0), 55: u64(1055), 62: array(),
    75: bitmap(4, 33), 77: u32(1077), 78: u64(1078), 79: u32(3), 81: u32(0o777) + u32(0o027),
    82: TRUE,
    # share_access, share_deny, share_access_want, open_claim, create_mode
    86: bitmap(1, 2, 3) + bitmap(0, 1) + bitmap(4) + bitmap(0, 4) + bitmap(3),
}


def attributes():
    yield "args-attributes", "ACCESS, GETATTR, VERIFY, NVERIFY and SETATTR.", call(
        AT_FILE, (ACCESS, u32(0x1F)), (GETATTR, bitmap(0, 1, 33, 86)),
        (VERIFY, fattr4({1: u32(1), 33: u32(0o644)})), (NVERIFY, fattr4({3: u64(1003)})),
        (SETATTR, OPEN, fattr4({4: u64(1004), 36: opaque(b"1036"), 54: u32(0)})))
    yield "results-attributes", "ACCESS, GETATTR of all attributes, VERIFY, NVERIFY and SETATTR.", \
        reply((PUTFH,), (ACCESS, u32(0x1F), u32(0x0D)), (GETATTR, fattr4(ALL_ATTRIBUTES)),
              (VERIFY,), (NVERIFY,), (SETATTR, bitmap(4, 36, 54)))
    yield "results-setattr-failed", "SETATTR: NFS4ERR_PERM, after the length was set.", reply(
        (PUTFH,), (SETATTR, bitmap(4)), status=1)
    yield "results-verify-failed", "VERIFY: NFS4ERR_NOT_SAME.", reply(
        (PUTFH,), (VERIFY,), status=10027)
    yield "results-nverify-failed", "NVERIFY: NFS4ERR_SAME.", reply(
        (PUTFH,), (NVERIFY,), status=10009)
    name = opaque(b"colour")
    yield "args-xattr", "GETXATTR, SETXATTR with SETXATTR4_REPLACE, LISTXATTRS, REMOVEXATTR.", call(
        AT_FILE, (GETXATTR, name), (SETXATTR, u32(2), name, opaque(b"green")),
        # cookie, maxcount
        (LISTXATTRS, u64(31), u32(2048)), (REMOVEXATTR, name))
    yield "results-xattr", "GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR.", reply(
        (PUTFH,), (GETXATTR, opaque(b"green")), (SETXATTR, change_info(1, 51, 52)),
        (LISTXATTRS, u64(32), array(name, opaque(b"size")), TRUE),
        (REMOVEXATTR, change_info(0, 53, 54)))


def names():
    yield "args-names", "LINK, LOOKUP, REMOVE, RENAME, READLINK and filehandles.", call(
        (PUTROOTFH,), (PUTPUBFH,), (SAVEFH,), (RESTOREFH,), (LINK, opaque(b"link")),
        (LOOKUP, opaque(b"directory")), (LOOKUPP,), (REMOVE, opaque(b"file")),
        (RENAME, opaque(b"old"), opaque(b"new name")), (READLINK,))
    yield "results-names", "LINK, LOOKUP, REMOVE, RENAME, READLINK and filehandles.", \
        reply((PUTROOTFH,), (PUTPUBFH,), (SAVEFH,), (RESTOREFH,), (LINK, change_info(1, 51, 52)),
              (LOOKUP,), (LOOKUPP,), (REMOVE, change_info(0, 53, 54)),
              # source, target
              (RENAME, change_info(1, 55, 56), change_info(0, 57, 58)), (READLINK, opaque(b"a/b")))
    mode = fattr4({33: u32(0o640)})
    kinds = [("directory", "NF4DIR", u32(2)), ("symlink", "NF4LNK", u32(5) + opaque(b"target")),
             ("block", "NF4BLK", u32(3) + u32(8) + u32(1)),
             ("character", "NF4CHR", u32(4) + u32(4) + u32(64)), ("socket", "NF4SOCK", u32(6)),
             ("fifo", "NF4FIFO", u32(7)), ("regular", "NF4REG", u32(1))]
    for kind, file_type, packed in kinds:
        yield f"args-create-{kind}", f"CREATE: {file_type}.", call(
            AT_FILE, (CREATE, packed, opaque(b"a name"), mode))
    yield "results-create", "CREATE.", reply(
        (PUTFH,), (CREATE, change_info(1, 51, 52), bitmap(33)))
    # cookie, cookieverf, dircount, maxcount, attr_request
    yield "args-readdir", "READDIR.", call(
        AT_FILE, (READDIR, u64(61), VERIFIER, u32(4096), u32(8192), bitmap(1, 20, 55)))
    # cookie, name, attrs
    entries = [u64(62) + opaque(b"one") + fattr4({1: u32(2), 20: u64(1020)}),
               u64(63) + opaque(b"another") + fattr4({})]
    listed = b"".join(TRUE + entry for entry in entries) + FALSE
    yield "results-readdir", "READDIR to the end.", reply(
        (PUTFH,), (READDIR, VERIFIER, listed, TRUE))
    yield "args-secinfo", "SECINFO, and SECINFO_NO_NAME with SECINFO_STYLE4_PARENT.", call(
        AT_FILE, (SECINFO, opaque(b"a name")), (SECINFO_NO_NAME, u32(1)))
    yield "results-secinfo", "SECINFO and SECINFO_NO_NAME.", reply(
        (PUTFH,), (SECINFO, array(u32(1), u32(0))), (SECINFO_NO_NAME, array(u32(1))))


def callbacks():
    # Session, sequence, slot, highest slot, cache this, referring calls.
    sequenced = (CB_SEQUENCE, SESSION, u32(7), u32(3), u32(5), FALSE, array())
    calls = [
        ("recall", "CB_RECALL", (CB_RECALL, OPEN, TRUE, HANDLE)),
        ("notify-lock", "CB_NOTIFY_LOCK", (CB_NOTIFY_LOCK, HANDLE, OWNER)),
    ]
    for kind, name, operation in calls:
        packed = [u32(op) + b"".join(rest) for op, *rest in (sequenced, operation)]
        # Tag, minor version, callback_ident, operations.
        yield f"args-{kind}", f"CB_SEQUENCE and {name}.", \
            opaque(b"tag") + u32(2) + u32(71) + array(*packed)


def write(folder, vectors):
    folder = pathlib.Path(__file__).parent / "nfs4" / folder
    folder.mkdir(exist_ok=True)
    for kind, remark, packed in vectors:
        (folder / f"{kind}.bin").write_bytes(packed)
        text = folder / f"{kind}.txt"
        if not text.exists():
            text.write_text(f"# {remark}\n# Origin: packed item by item from the RFCs' XDR by "
                            "vectors/pack.py; not captured.\n", encoding="ascii")


def main():
    for vectors in (sessions, opens, locks, data, attributes, names):
        write("compound", vectors())
    write("cb_compound", callbacks())


main()
