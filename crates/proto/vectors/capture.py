#!/usr/bin/env python3
"""Makes golden vectors out of captured traffic: one RPC record per procedure, direction and form.

    dumpcap -i lo -w run.pcapng &
    provoke.py /mnt/nfs /mnt/nfs-of-another-client     # or nfs-ls, nfs-cp, showmount, rpcinfo
    capture.py run.pcapng --only nfs3/ --client linux 'the Linux 7.3 client' \\
        --server ganesha 'nfs-ganesha 15.2'
    REWRITE_VECTORS=1 cargo test -p spillway-proto --test vectors

`--client` and `--server` give the word for the file names and the words for the `Origin:` line;
only the records of a peer that is named are written, and `--other` names the one whose are not.
Who it is may differ by program: mount(8) asks the portmapper, the kernel sends MNT. Hence `--only`.
Existing vectors are left alone without `--force`.

The capture has to begin before the first connection does, because a record mark is found only by
counting from the start. Needs tshark, and loopback or another interface that shows each packet
once.
"""

import argparse
import collections
import dataclasses
import pathlib
import struct
import subprocess

VECTORS = pathlib.Path(__file__).resolve().parent
# The longest record of each form up to this length is taken, because it has most fields.
RECORD_BYTES_MAX = 4000
CALL, REPLY = 0, 1
AUTH_ERROR, SUCCESS = 1, 0
REFUSALS = {
    1: "prog-unavail", 2: "prog-mismatch", 3: "proc-unavail", 4: "garbage-args", 5: "system-err",
}  # fmt: skip
PROGRAMS = {
    (100000, 2): ("portmap", ["null", "set", "unset", "getport", "dump"]),
    (100000, 3): ("rpcbind", [None, "set", "unset", "getaddr", "dump"]),
    (100000, 4): ("rpcbind", [None, "set", "unset", "getaddr", "dump"]),
    (100005, 3): ("mount3", ["null", "mnt", "dump", "umnt", "umntall", "export"]),
    (100003, 3): ("nfs3", [
        "null", "getattr", "setattr", "lookup", "access", "readlink", "read", "write", "create",
        "mkdir", "symlink", "mknod", "remove", "rmdir", "rename", "link", "readdir", "readdirplus",
        "fsstat", "fsinfo", "pathconf", "commit",
    ]),
}  # fmt: skip
# Procedures whose results do not begin with a status.
WITHOUT_STATUS = {"portmap", "rpcbind", "nfs3/null"} | {
    f"mount3/{name}" for name in ("null", "dump", "umnt", "umntall", "export")
}
CREATE_HOW = ["unchecked", "guarded", "exclusive"]
STABLE_HOW = ["unstable", "data-sync", "file-sync"]
FILE_TYPE = {2: "directory", 3: "block", 4: "character", 6: "socket", 7: "fifo"}


@dataclasses.dataclass(frozen=True)
class Record:
    """One RPC message: where it belongs, its form within that, and all its bytes."""

    folder: str
    kind: str
    form: str
    data: bytes


class Words:
    """Reads XDR words of a record, only as far as its place needs them."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def word(self):
        self.at += 4
        return struct.unpack_from(">I", self.data, self.at - 4)[0]

    def opaque(self):
        length = self.word()
        self.at += (length + 3) // 4 * 4


def messages(path):
    """All RPC messages in the order of the capture of each stream: (conversation, bytes)."""
    fields = "tcp.stream udp.stream tcp.srcport udp.srcport tcp.seq tcp.payload udp.payload".split()
    command = ["tshark", "-r", path, "-Y", "tcp.len > 0 or udp", "-T", "fields"]
    for name in fields:
        command += ["-e", name]
    # Without the RPC dissector each packet shows its own payload and no reassembled one.
    command += ["--disable-protocol", "rpc", "-o", "tcp.desegment_tcp_streams:FALSE"]
    shown = subprocess.run(command, check=True, text=True, capture_output=True).stdout
    segments = collections.defaultdict(list)
    for line in shown.splitlines():
        tcp, udp, tcp_from, udp_from, seq, tcp_data, udp_data = line.split("\t")
        if tcp:
            segments[tcp, tcp_from].append((int(seq), bytes.fromhex(tcp_data)))
        elif udp_data:
            yield f"udp {udp}", bytes.fromhex(udp_data)
    for (stream, _), parts in segments.items():
        for message in records(joined(parts)):
            yield f"tcp {stream}", message


def joined(segments):
    """The bytes of one direction of a connection, up to the first that was not captured."""
    stream = bytearray()
    for seq, data in sorted(segments):
        at = seq - 1
        if at > len(stream):
            break
        # What is known is kept: a retransmitted segment adds only what goes beyond it.
        stream += data[len(stream) - at :]
    return bytes(stream)


def records(stream):
    """Splits by record marks (RFC 5531 section 11) and joins the fragments."""
    at, record = 0, b""
    while at + 4 <= len(stream):
        (mark,) = struct.unpack_from(">I", stream, at)
        end = at + 4 + (mark & 0x7FFF_FFFF)
        if end > len(stream):
            return
        record += stream[at + 4 : end]
        at = end
        if mark >> 31:
            yield record
            record = b""


def place(program, version, procedure):
    """`nfs3/read` for a procedure that has vectors, else None."""
    name, procedures = PROGRAMS.get((program, version), (None, []))
    known = procedure < len(procedures) and procedures[procedure]
    return f"{name}/{known}" if known else None


def call_record(data):
    """The record of a call, or None if its procedure has no vectors."""
    words = Words(data)
    words.at = 12
    folder = place(words.word(), words.word(), words.word())
    if folder is None:
        return None
    for _credential_then_verifier in range(2):
        words.at += 4
        words.opaque()
    return Record(folder, "call", call_form(folder, words), data)


def call_form(folder, words):
    """What sets apart calls of one procedure whose arguments differ in shape."""
    name = folder.partition("/")[2]
    if name not in ("create", "mknod", "write") or not folder.startswith("nfs3/"):
        return ""
    words.opaque()
    if name == "write":
        words.at += 12
        return STABLE_HOW[words.word()]
    words.opaque()
    return CREATE_HOW[words.word()] if name == "create" else FILE_TYPE[words.word()]


def reply_record(folder, data):
    """The record of a reply to a call of `folder`, which may be None for a procedure we lack."""
    words = Words(data)
    words.at = 8
    if words.word() != SUCCESS:
        refused = "auth-error" if words.word() == AUTH_ERROR else "rpc-mismatch"
        return Record(f"oncrpc/{refused}", "reply-err", "", data)
    words.at += 4
    words.opaque()
    accepted = words.word()
    if accepted != SUCCESS:
        return Record(f"oncrpc/{REFUSALS[accepted]}", "reply-err", "", data)
    if folder is None:
        return None
    has_status = folder not in WITHOUT_STATUS and folder.partition("/")[0] not in WITHOUT_STATUS
    failed = has_status and words.word() != SUCCESS
    return Record(folder, "reply-err" if failed else "reply-ok", "", data)


def placed(conversations):
    """Calls, and replies held against their calls."""
    folders, replies = {}, []
    for conversation, data in conversations:
        if len(data) < 24:
            continue
        xid, direction = struct.unpack_from(">II", data)
        if direction == CALL:
            call = call_record(data)
            folders[conversation, xid] = call and call.folder
            if call:
                yield call
        elif direction == REPLY:
            replies.append(((conversation, xid), data))
    # The directions of a stream come one after the other, so that a reply may precede its call.
    for key, data in replies:
        reply = key in folders and reply_record(folders[key], data)
        if reply:
            yield reply


def chosen(found):
    """For each form the longest record that is not too long."""
    best = {}
    for record in found:
        key = record.folder, record.kind, record.form
        if len(record.data) <= RECORD_BYTES_MAX and len(record.data) > len(best.get(key, b"")):
            best[key] = record.data
    return [Record(*key, data) for key, data in sorted(best.items())]


def write(record, word, origin, force):
    """Writes the bytes and the remarks; the test adds the rendering."""
    stem = "-".join(part for part in (record.kind, record.form, word) if part)
    path = VECTORS / record.folder / f"{stem}.bin"
    if path.exists() and not force:
        print(f"{path.relative_to(VECTORS)} exists")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(record.data)
    name = record.folder.partition("/")[2].upper()
    what = f"{name} {record.kind.partition('-')[0]}{', ' + record.form if record.form else ''}"
    path.with_suffix(".txt").write_text(f"# {what}.\n# Origin: {origin}.\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("captured", type=pathlib.Path)
    parser.add_argument("--client", nargs=2, metavar=("WORD", "NAME"))
    parser.add_argument("--server", nargs=2, metavar=("WORD", "NAME"))
    parser.add_argument("--other", default="", help="the program of the unnamed peer, for the origin")
    parser.add_argument("--only", default="", help="only folders that begin with this: nfs3/read")
    parser.add_argument("--force", action="store_true", help="replace vectors of the same name")
    options = parser.parse_args()
    names = {"client": options.other, "server": options.other}
    for side in names:
        if getattr(options, side):
            names[side] = getattr(options, side)[1]
    for record in chosen(placed(messages(options.captured))):
        side = "client" if record.kind == "call" else "server"
        peer = getattr(options, side)
        if not peer or not record.folder.startswith(options.only):
            continue
        answering = "calling" if side == "client" else "answering"
        other = names["server" if side == "client" else "client"]
        write(record, peer[0], f"captured from {peer[1]} {answering} {other}", options.force)


if __name__ == "__main__":
    main()
