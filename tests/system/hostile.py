#!/usr/bin/env python3
"""Hostile clients, admitted and strangers, do not take the server from a client that behaves.

While an attack runs, one client does small GETATTRs, READs and WRITEs and connects anew again and
again. Bounded are the server's resident set, that client's latency, and the log.

As root the cases get three times the processor time of another session, so that latency is that of
the server under the attack. `SPILLWAY_HOSTILE_SECS` is how long each attack lasts.
"""

import contextlib
import multiprocessing
import os
import pathlib
import random
import resource
import selectors
import signal
import socket
import struct
import sys
import time

import nfs3
import nfs4
from harness import EXPORT, MIB, Server, Skip, case, check, main, scratch_dir, scratch_root

SECS = float(os.environ.get("SPILLWAY_HOSTILE_SECS", "2"))
CASE_SECS_MAX = int(60 + 12 * SECS)

GOOD, ADMITTED, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
# READs of which no reply is read can hold all that one client is given, and its other calls wait.
SECOND_ADMITTED = "127.0.0.4"
BUDGET_BYTES = 64 * MIB
# Everything else: the program, its threads, open files, the reply cache, the connections.
ALLOWANCE_BYTES = 64 * MIB
IDLE_CONNECTIONS = 10_000
IDLE_BURST, IDLE_BURST_SECS = 50, 0.01
# As long as it takes to open them all, and as long again.
IDLE_SECS = max(SECS, 6)
IDLE_BYTES_MAX = 300 * MIB
# A connection that holds memory is closed after a second with few bytes.
DRIBBLING_SECS = max(SECS, 4)
# The attackers take processor time of the same machine, at a lower priority.
LATENCY_P99_SECS_MAX = 1.0
LATENCY_SECS_MAX = 3.0
# A line for each kind of message in each period, and those of the start and the end.
LOG_BYTES_MAX = 64 << 10
ANSWER_SECS_MAX = 10
JUKEBOX = 10008
READDIR, READDIRPLUS, MNT = 16, 17, 1
NAMES = 2000
FILE_BYTES = 8 * MIB
BLOCK_BYTES = 8192


# Three times the weight of 0.
AUTOGROUP_NICE = "-5"


def take_processors():
    """Moves to a session of its own, which the kernel's autogroups prefer to all other sessions. Nice
    values count within one session only. Beside builds in other sessions a thread of the server
    waits for a processor for seconds.

    The kernel's own threads compete with a session as one process does. At -20 write-back had a
    hundredth of the processors beside the server and its attackers, and an fsync took ten seconds.
    """
    if os.geteuid() != 0:
        return
    if os.getpgid(0) == os.getpid():
        wait_for_child_in_new_session()
    elif os.getsid(0) != os.getpid():
        os.setsid()
    # Missing without autogroups.
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/autogroup").write_text(AUTOGROUP_NICE, encoding="ascii")


def wait_for_child_in_new_session():
    """Returns in a child; the leader of a process group cannot make a session."""
    child = os.fork()
    if child == 0:
        os.setsid()
        return
    while True:
        try:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        except KeyboardInterrupt:
            os.kill(child, signal.SIGINT)


class SmallServer(Server):
    """A server with little memory that admits three addresses of this machine."""

    def __init__(self, directory, settings=""):
        super().__init__(directory, port=quiet_port())
        self.config = pathlib.Path(scratch_root(), f"server.{self.port}.toml")
        self.config.write_text(
            f'memory = "64MiB"\n{settings}\n[[export]]\npath = "{self.directory}"\n'
            f'name = "{EXPORT}"\nsquash = "none"\n[[export.client]]\n'
            f'hosts = ["{GOOD}", "{ADMITTED}", "{SECOND_ADMITTED}"]\n',
            encoding="utf-8",
        )

    def command(self):
        return [
            self.binary, "serve", "--config", self.config, "--listen", f"0.0.0.0:{self.port}",
            "--state-dir", self.state,
        ]  # fmt: skip


def quiet_port():
    """A free port below those that the kernel gives to connections, of which there are many here."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port


class GoodClient:
    """Small calls, one at a time, over a connection that is made anew after some of them."""

    def __init__(self, port):
        self.port = port
        self.client = None
        self.latencies = []
        self.calls = 0

    def step(self):
        """One of each call, and how long each took."""
        if self.client is None or self.calls % 40 == 0:
            self.timed("connecting", self.connect)
        self.calls += 1
        self.timed("GETATTR", lambda: self.client.getattr(self.file))
        offset = self.calls * BLOCK_BYTES % FILE_BYTES
        data = struct.pack(">Q", self.calls) * (BLOCK_BYTES // 8)
        self.timed("WRITE", lambda: self.client.write(self.file, offset, data, nfs3.UNSTABLE))
        found = self.timed("READ", lambda: self.client.read(self.file, offset, BLOCK_BYTES))
        check(found == data, f"wrong bytes at {offset}")

    def connect(self):
        if self.client is not None:
            self.client.close()
        self.client = nfs3.Client(GOOD, self.port, EXPORT, timeout_secs=ANSWER_SECS_MAX)
        self.file = self.client.lookup(self.client.root, b"good")

    def timed(self, what, call):
        """Calls until the answer is not "try again later"."""
        started = time.monotonic()
        while True:
            try:
                answer = call()
                break
            except (nfs3.NfsError, nfs4.Nfs4Error) as error:
                if error.status != JUKEBOX:
                    raise
                time.sleep(0.1)
            except OSError as error:
                waited = time.monotonic() - started
                raise AssertionError(f"{what}: no answer after {waited:.1f} s: {error}") from error
        self.latencies.append((time.monotonic() - started, what))
        return answer


def limit_descriptors(wanted):
    """Raises this process's limit, and its children's, to `wanted` descriptors, or skips."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted and os.geteuid() != 0:
        raise Skip(f"needs {wanted} descriptors, {hard} are permitted")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))


def export_directory():
    directory = scratch_dir("export")
    (directory / "good").write_bytes(bytes(FILE_BYTES))
    (directory / "big").write_bytes(bytes(FILE_BYTES))
    many = directory / "many"
    many.mkdir()
    for number in range(NAMES):
        (many / f"{number:04}{'x' * 120}").touch()
    for path in (directory, many):
        path.chmod(0o777)
    for name in ("good", "big"):
        (directory / name).chmod(0o666)
    return directory


def grows(**least):
    """Marks an attack by the counters of the server that it has to raise, and how far at least.

    They show that there is an attack: a machine that is slow and busy reaches them too.
    """

    def mark(attack):
        attack.least = least
        return attack

    return mark


def under(
    *attacks, settings="", rss_bytes_max=BUDGET_BYTES + ALLOWANCE_BYTES, secs=SECS,
    client=GoodClient,
):  # fmt: skip
    """Runs attacks, each a process of its own, and checks every bound meanwhile."""
    with SmallServer(export_directory(), settings) as server:
        good = client(server.port)
        good.step()
        good.latencies.clear()
        before = server.counters()
        log_before = len(server.log_text())
        processes = [
            multiprocessing.Process(target=attack_process, args=(attack, server.port, number))
            for number, attack in enumerate(attacks)
        ]
        try:
            for process in processes:
                process.start()
            end = time.monotonic() + secs
            while time.monotonic() < end:
                good.step()
                time.sleep(0.002)
            peak = server.resident_bytes("VmHWM")
            after = server.counters()
            printed = printed_bytes(after)
            # Some are gauges, which an attack raises only most of the time.
            while too_weak(attacks, grown_by(good, before, after)) and time.monotonic() < end + 10:
                good.step()
                sample = server.counters()
                printed += printed_bytes(sample)
                after = {name: max(count, after[name]) for name, count in sample.items()}
            for process, attack in zip(processes, attacks):
                check(process.is_alive(), f"the attack {attack.__name__} ended by itself")
        finally:
            for process in processes:
                process.kill()
                process.join()
        # It still serves once the attackers are gone.
        good.step()
        log_bytes = len(server.log_text()) - log_before - printed
        broken = too_weak(attacks, grown_by(good, before, after))
        judge(good, peak, rss_bytes_max, log_bytes, broken)


def grown_by(good, before, after):
    """How far each counter was raised, without the READs of the good client."""
    grown = {name: count - before[name] for name, count in after.items()}
    grown["read_bytes"] -= good.calls * BLOCK_BYTES
    return grown


def printed_bytes(counters):
    """What the server printed of its counters."""
    return sum(len(f"{name} {count}\n") for name, count in counters.items())


def too_weak(attacks, grown):
    """The attacks that the server has hardly noticed, a sentence each."""
    return [
        f"{attack.__name__} is no attack: {name} grew by {grown[name]}, not by {least}"
        for attack in attacks
        for name, least in attack.least.items()
        if grown[name] < least
    ]


def judge(good, peak, rss_bytes_max, log_bytes, broken):
    """Prints what was measured; fails the case with `broken` and all bounds that did not hold."""
    latencies = sorted(good.latencies)
    # Of less than two hundred calls one may be longer.
    p99, (longest, what) = latencies[len(latencies) * 99 // 100 - 1][0], latencies[-1]
    print(
        f"     {len(latencies)} calls, p99 {p99 * 1e3:.0f} ms, longest {longest * 1e3:.0f} ms ({what}),"
        f" peak RSS {peak // MIB} MiB, {log_bytes} bytes of log", flush=True,
    )  # fmt: skip
    if p99 > LATENCY_P99_SECS_MAX or longest > LATENCY_SECS_MAX:
        broken.append(f"latency: p99 {p99:.2f} s, longest {longest:.2f} s ({what})")
    if peak > rss_bytes_max:
        broken.append(f"memory: {peak // MIB} MiB, {rss_bytes_max // MIB} MiB allowed")
    if log_bytes > LOG_BYTES_MAX:
        broken.append(f"log: {log_bytes} bytes, {LOG_BYTES_MAX} allowed")
    check(not broken, "; ".join(broken))


def attack_process(attack, port, number):
    """Runs an attack until this process is killed."""
    os.nice(10)
    random.seed(number)
    limit_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    attack(port)


def connection(port, source):
    """A connection that does not block, or None where the server takes none."""
    try:
        made = socket.create_connection((GOOD, port), timeout=5, source_address=(source, 0))
    except OSError:
        return None
    made.setblocking(False)
    return made


def calls_for(port, source=ADMITTED):
    """An admitted attacker's client: its root handle and what makes its records."""
    client = nfs3.Client(GOOD, port, EXPORT, source=source)
    return client, client.rpc


class Senders:
    """Connections that send what they are given as fast as it is taken; they are made anew when
    the server closes them. They read what comes, unless `reads` is false.
    """

    def __init__(self, port, source, count, make, reads=True):
        self.port, self.source, self.make, self.reads = port, source, make, reads
        self.poll = selectors.DefaultSelector()
        for _ in range(count):
            self.add()

    def add(self):
        made = connection(self.port, self.source)
        if made is None:
            time.sleep(0.01)
            return
        events = selectors.EVENT_WRITE | (selectors.EVENT_READ if self.reads else 0)
        self.poll.register(made, events, [b""])

    def run(self, pause_secs=0.0):
        while True:
            if not self.poll.get_map():
                self.add()
            for key, events in self.poll.select(1):
                if not self.serve(key.fileobj, events, key.data):
                    self.poll.unregister(key.fileobj)
                    key.fileobj.close()
                    self.add()
            if pause_secs:
                time.sleep(pause_secs)

    def serve(self, made, events, rest):
        """Reads and sends once; returns whether the connection is still good."""
        try:
            if events & selectors.EVENT_READ and not made.recv(1 << 16):
                return False
            if events & selectors.EVENT_WRITE:
                if not rest[0]:
                    rest[0] = self.make()
                rest[0] = rest[0][made.send(rest[0]) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


@grows(connections_open=100)
def idle_strangers(port):
    idle(port, STRANGER)


@grows(connections_open=100)
def idle_admitted(port):
    idle(port, ADMITTED)


def idle(port, source):
    """Opens connections up to a number, sends nothing, and replaces those that are closed."""
    poll = selectors.DefaultSelector()
    while True:
        # No faster than a server accepts: what a full queue of the kernel drops is not its fault.
        for _ in range(min(IDLE_BURST, IDLE_CONNECTIONS - len(poll.get_map()))):
            made = socket.socket()
            made.setblocking(False)
            made.bind((source, 0))
            made.connect_ex((GOOD, port))
            poll.register(made, selectors.EVENT_READ)
        for key, _events in poll.select(0):
            poll.unregister(key.fileobj)
            key.fileobj.close()
        time.sleep(IDLE_BURST_SECS)


@grows(calls_in_flight=1)
def listings_unread(port):
    """READDIRPLUS of everything, again and again, of which no reply is read."""
    client, rpc = calls_for(port)
    many = client.lookup(client.root, b"many")
    arguments = nfs3.opaque(many) + struct.pack(">Q8sII", 0, bytes(8), MIB, MIB)
    Senders(
        port, ADMITTED, 100, lambda: rpc.record(READDIRPLUS, arguments) * 8, reads=False
    ).run(0.005)  # fmt: skip


@grows(read_bytes=MIB, calls_in_flight=1)
def reads_unread(port):
    """READs of 1 MiB of which no reply is read."""
    client, rpc = calls_for(port)
    big = client.lookup(client.root, b"big")
    arguments = nfs3.opaque(big) + struct.pack(">QI", 0, MIB)
    make = lambda: rpc.record(nfs3.READ, arguments) * 8  # noqa: E731
    Senders(port, ADMITTED, 100, make, reads=False).run(0.005)


@grows(connections=100, broken_connections=1)
def dribbling(port):
    """Large WRITEs that come a byte at a time."""
    client, rpc = calls_for(port)
    big = client.lookup(client.root, b"big")
    body = nfs3.opaque(big) + struct.pack(">QII", 0, MIB, 0) + nfs3.opaque(bytes(MIB))
    write = rpc.record(nfs3.WRITE, body)
    made = [each for each in (connection(port, ADMITTED) for _ in range(200)) if each]
    for each in made:
        # All but the data, so that the server knows what is to come.
        with contextlib.suppress(OSError):
            each.send(write[:4096])
    at = 4096
    while True:
        for each in made:
            with contextlib.suppress(OSError):
                each.send(write[at : at + 1])
        at = (at + 1) % len(write)
        time.sleep(0.02)


@grows(garbage_calls=10, broken_connections=10)
def garbage(port):
    """Records of noise, of nothing, of impossible lengths, and calls that end too early."""
    client, rpc = calls_for(port)

    def make():
        noise = random.randbytes(random.randrange(200))
        call = rpc.record(random.randrange(25), nfs3.opaque(client.root) + noise)
        match random.randrange(6):
            case 0:
                return noise or b"\0"
            case 1:
                return bytes(4) * 64
            case 2:
                return struct.pack(">I", 0x7FFFFFFF) + noise
            case 3:
                return struct.pack(">I", 0x80000000 | len(noise)) + noise
            case 4:
                return struct.pack(">I", 0xFFFFFFFF) + noise
            case _:
                return call

    Senders(port, ADMITTED, 20, make).run()


@grows(denied_calls=100)
def strangers(port):
    """Calls of clients that no export admits."""
    client, rpc = calls_for(port)
    getattr_call = lambda: rpc.record(nfs3.GETATTR, nfs3.opaque(client.root)) * 32  # noqa: E731
    Senders(port, STRANGER, 50, getattr_call).run()


@grows(replays=1, dropped_retransmissions=1)
def retransmissions(port):
    """One CREATE, WRITE or REMOVE, repeated over many connections without an end."""
    client, rpc = calls_for(port, SECOND_ADMITTED)
    name = nfs3.opaque(client.root) + nfs3.opaque(b"again")
    big = client.lookup(client.root, b"big")
    create = name + struct.pack(">IIIIIIII", 0, 1, 0o644, 0, 0, 0, 0, 0)
    write = nfs3.opaque(big) + struct.pack(">QII", 0, 4096, 2) + nfs3.opaque(bytes(4096))
    records = [
        rpc.record(nfs3.CREATE, create, 1), rpc.record(nfs3.WRITE, write, 2),
        rpc.record(nfs3.REMOVE, name, 3),
    ]  # fmt: skip
    Senders(port, SECOND_ADMITTED, 50, lambda: random.choice(records) * 4).run()


@grows(denied_calls=100, suppressed_log_lines=100)
def log_provoking(port):
    """What earns a line of the log: mounts that are refused, broken handles, unknown versions."""
    _client, rpc = calls_for(port)
    mount = nfs3.Rpc(GOOD, port, nfs3.PROGRAM_MOUNT, source=STRANGER)

    def make():
        path = f"/{random.randrange(1 << 30)}\n\x1b[31m".encode()
        handle = random.randbytes(random.choice([8, 32, 64]))
        return random.choice(
            [
                mount.record(MNT, nfs3.opaque(path)),
                mount.record(MNT, nfs3.opaque(EXPORT.encode())),
                mount.record(random.randrange(1000), b""),
                rpc.record(nfs3.GETATTR, nfs3.opaque(handle)),
                rpc.record(random.randrange(100), b""),
            ]
        )

    Senders(port, STRANGER, 50, lambda: make() + make() + make()).run()


@grows(readdirs=10, garbage_calls=10)
def huge_counts(port):
    """The largest numbers that the protocol has room for."""
    client, rpc = calls_for(port, SECOND_ADMITTED)
    big = client.lookup(client.root, b"big")
    many = client.lookup(client.root, b"many")
    most, far = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
    records = [
        rpc.record(nfs3.READ, nfs3.opaque(big) + struct.pack(">QI", 0, most)),
        rpc.record(nfs3.READ, nfs3.opaque(big) + struct.pack(">QI", far, most)),
        rpc.record(nfs3.COMMIT, nfs3.opaque(big) + struct.pack(">QI", far, most)),
        rpc.record(nfs3.WRITE, nfs3.opaque(big) + struct.pack(">QIII", far, most, 0, most)),
        rpc.record(READDIR, nfs3.opaque(many) + struct.pack(">Q8sI", 0, bytes(8), most)),
        rpc.record(READDIRPLUS, nfs3.opaque(many) + struct.pack(">Q8sII", 0, bytes(8), most, most)),
        rpc.record(nfs3.LOOKUP, nfs3.opaque(client.root) + struct.pack(">I", most)),
        rpc.record(nfs3.LOOKUP, nfs3.opaque(client.root) + nfs3.opaque(b"n" * 65000)),
    ]
    Senders(port, SECOND_ADMITTED, 20, lambda: random.choice(records)).run()


@case(secs=CASE_SECS_MAX)
def idle_connections_of_strangers():
    limit_descriptors(16_384)
    under(idle_strangers, secs=IDLE_SECS)


@case(secs=CASE_SECS_MAX)
def idle_connections_of_a_client():
    limit_descriptors(16_384)
    under(idle_admitted, secs=IDLE_SECS)


@case(secs=CASE_SECS_MAX)
def idle_connections_that_are_permitted():
    limit_descriptors(16_384)
    settings = f"max_connections = {IDLE_CONNECTIONS + 1000}"
    under(idle_admitted, settings=settings, rss_bytes_max=IDLE_BYTES_MAX, secs=IDLE_SECS)


@case(secs=CASE_SECS_MAX)
def replies_that_are_not_read():
    under(listings_unread, reads_unread)


@case(secs=CASE_SECS_MAX)
def bytes_that_come_one_by_one():
    under(dribbling, secs=DRIBBLING_SECS)


@case(secs=CASE_SECS_MAX)
def garbage_and_huge_counts():
    under(garbage, huge_counts)


@case(secs=CASE_SECS_MAX)
def calls_of_strangers():
    under(strangers)


@case(secs=CASE_SECS_MAX)
def calls_that_are_sent_again():
    under(retransmissions)


@case(secs=CASE_SECS_MAX)
def calls_that_are_logged():
    under(log_provoking)


@grows(calls=1_000_000)
def nothing(_port):
    """No attack."""
    time.sleep(CASE_SECS_MAX)


@case(secs=CASE_SECS_MAX)
def attack_that_does_nothing_is_found():
    try:
        under(nothing)
    except AssertionError as failure:
        check("nothing is no attack: calls grew by" in str(failure), str(failure))
    else:
        raise AssertionError("the case passed")


@case(secs=CASE_SECS_MAX)
def all_at_once():
    limit_descriptors(16_384)
    under(
        idle_strangers, listings_unread, reads_unread, dribbling, garbage, strangers,
        retransmissions, log_provoking, huge_counts, secs=IDLE_SECS,
    )  # fmt: skip


if __name__ == "__main__":
    take_processors()
    main(__file__)
