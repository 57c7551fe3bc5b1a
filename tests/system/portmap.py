#!/usr/bin/env python3
"""rpcinfo and showmount find the server, by its own portmapper and through a running rpcbind.

Runs in a network name space of its own (see `run`): port 111 of the machine is left alone.
"""

import contextlib
import os
import socket
import subprocess
import time

from harness import (
    EXPORT, Server, Skip, case, check, free_port, main, need, run, run_ok, scratch_dir,
)  # fmt: skip

PROGRAMS = {"100003": "nfs", "100005": "mountd"}


def need_own_port_111():
    """Skips the case unless this process may own port 111 of a private network."""
    answer = os.environ.get("SYSTEM_TEST_PRIVATE_NETWORK", "not started by tests/system/run")
    if answer != "yes":
        raise Skip(f"needs a network name space of its own: {answer}")
    need("rpcinfo", "showmount", "rpcbind", "ip")


def registered():
    """The (program, version, protocol, port) rows of `rpcinfo -p`."""
    rows = run_ok("rpcinfo", "-p", "127.0.0.1").stdout.splitlines()[1:]
    return {tuple(row.split()[:4]) for row in rows}


def registrations():
    """The (program, netid, owner) of NFS and MOUNT version 3 that rpcbind lists."""
    rows = [row.split() for row in run_ok("rpcinfo", "::1").stdout.splitlines()[1:]]
    return {(row[0], row[2], row[-1]) for row in rows if row[0] in PROGRAMS and row[1] == "3"}


def check_registered(*netids):
    """NFS and MOUNT are registered with these and no others, and no other user can remove them."""
    wanted = {(program, netid, "superuser") for program in PROGRAMS for netid in netids}
    check(registrations() == wanted, f"registered are {sorted(registrations())}")


def server_of_both_families():
    port = free_port()
    listen = ("--listen", f"[::1]:{port}")
    return Server(scratch_dir("export"), "--portmap", *listen, port=port)


def check_answers_over_ipv6():
    """The portmapper or rpcbind is found over IPv6, and so are NFS and MOUNT version 3."""
    for program in PROGRAMS:
        run_ok("rpcinfo", "-T", "tcp6", "::1", program, "3")


def check_found(server, host="127.0.0.1"):
    """NFS and MOUNT version 3 are registered over TCP, answer, and MOUNT lists the export."""
    for program, name in PROGRAMS.items():
        row = (program, "3", "tcp", str(server.port))
        check(row in registered(), f"{name} at {server.port} is not in {sorted(registered())}")
        run_ok("rpcinfo", "-T", "tcp", host, program, "3")
    exports = run_ok("showmount", "--no-headers", "-e", host).stdout.split()
    check(exports[:1] == [EXPORT], f"showmount lists {exports}")


@contextlib.contextmanager
def rpcbind():
    """Debian's rpcbind on port 111 of this name space; /run is private to it as well."""
    process = subprocess.Popen(["rpcbind", "-f", "-w"])
    try:
        deadline = time.monotonic() + 10
        while run("rpcinfo", "-p", "127.0.0.1").returncode != 0:
            check(time.monotonic() < deadline, "rpcbind does not answer")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


@case
def own_portmapper():
    need_own_port_111()
    with Server(scratch_dir("export"), "--portmap") as server:
        check(("100000", "2", "tcp", "111") in registered(), "the portmapper does not list itself")
        check_found(server)
    with server_of_both_families() as server:
        check_found(server)
        check_answers_over_ipv6()
    check(run("rpcinfo", "-p", "127.0.0.1").returncode != 0, "port 111 answers after the exit")


@case
def port_111_of_one_address_is_taken():
    need_own_port_111()
    with socket.create_server(("::1", 111), family=socket.AF_INET6):
        with server_of_both_families() as server:
            check_found(server)
            warning = "cannot listen on [::1]:111"
            check(warning in server.log_text(), f"no warning: {server.last_words()}")
            itself = "for another server"
            check(itself not in server.log_text(), f"it asked itself: {server.last_words()}")


@case
def beside_rpcbind():
    need_own_port_111()
    with rpcbind():
        with Server(scratch_dir("export"), "--portmap") as server:
            check_found(server)
            check_registered("tcp")
        with server_of_both_families() as server:
            check_found(server)
            check_registered("tcp", "tcp6")
            check_answers_over_ipv6()
        left = [row for row in registered() if row[0] in PROGRAMS]
        check(not left, f"still registered after the exit: {left}")
        check(not registrations(), f"still registered after the exit: {registrations()}")


class SecondServer(Server):
    """A server on another address than the others."""

    # rpcbind finds no server on a further address of 127.0.0.0/8.
    host = "192.0.2.1"

    def __init__(self, name, **options):
        run_ok("ip", "address", "replace", f"{self.host}/24", "dev", "lo")
        super().__init__(scratch_dir(name), "--portmap", **options)

    def command(self):
        words = super().command()
        words[words.index("--listen") + 1] = f"{self.host}:{self.port}"
        return words


@case
def the_registration_of_another_server_stays():
    """One that stops removes its own alone, and a second server is found at the same port."""
    need_own_port_111()
    with rpcbind():
        with Server(scratch_dir("export"), "--portmap") as first:
            second = SecondServer("second", port=first.port)
            second.start()
            warning = "clients find this server until that one stops"
            check(warning in second.log_text(), f"no warning: {second.last_words()}")
            for host in ("127.0.0.1", SecondServer.host):
                check_found(first, host)
            second.stop()
            check_found(first)
            # rpcbind has lost its entries, as after a restart of it.
            for program in PROGRAMS:
                run_ok("rpcinfo", "-d", program, "3")
            second.start()
        check_found(second, SecondServer.host)
        second.stop()
        check(not registrations(), f"still registered after the exit: {registrations()}")


@case
def the_registration_of_a_killed_server_is_replaced():
    need_own_port_111()
    with rpcbind():
        with Server(scratch_dir("export"), "--portmap") as first:
            another = SecondServer("third")
            refused = run("timeout", "20", *another.command())
            expected = f"another server has registered it at 127.0.0.1:{first.port}"
            check(refused.returncode == 1 and expected in refused.stderr, refused.stderr)
            first.kill()
        check(registrations(), "the killed server has left no registration")
        for second in (SecondServer("second", port=first.port), another):
            with second:
                check_found(second, SecondServer.host)
                check_registered("tcp")
                second.kill()
        # rpcbind keeps its entries for the next one.
        with another:
            pass
        check(not registrations(), f"still registered after the exit: {registrations()}")


@case
def silent_without_portmap():
    """Without the flag the server neither opens port 111 nor registers."""
    need_own_port_111()
    with rpcbind(), Server(scratch_dir("export")):
        found = [row for row in registered() if row[0] in PROGRAMS]
        check(not found, f"registered without --portmap: {found}")


if __name__ == "__main__":
    main(__file__)
