"""One test per door out of the jail: each plants a canary and fails when the child can reach it."""

import ctypes
import errno
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def canary():
    return f"canary-{secrets.token_hex(16)}"


def refused(reply):
    return not reply["opened"]


@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("location", ["results", "home", "cwd"])
def test_files_of_the_parent_cannot_be_read(act, canary, tmp_path, monkeypatch, location, mode):
    folder = tmp_path / location
    folder.mkdir()
    for outer in (folder, *folder.parents):
        if outer.stat().st_uid == os.getuid() and str(outer).startswith(str(tmp_path.parent)):
            outer.chmod(0o755)
    file = folder / ".env"
    file.write_text(canary)
    file.chmod(mode)
    assert canary not in str(act("read", str(file)))
    assert canary not in str(act("read", os.path.relpath(file, "/")))
    assert refused(act("read", str(file)))


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/proc/self/environ", "/proc/1/environ", "/sys/kernel", "/root", "/home"]
)
def test_files_of_the_machine_cannot_be_read(act, path):
    assert refused(act("read", path))
    assert refused(act("listing", path))


def test_the_results_database_can_neither_be_read_nor_written(act, canary, tmp_path):
    database = tmp_path / "kernelforge.db"
    database.write_text(canary)
    database.chmod(0o666)
    assert refused(act("read", str(database)))
    assert refused(act("write", str(database), 1))
    assert database.read_text() == canary


def test_nothing_outside_tmp_can_be_written(act):
    assert refused(act("write", "/planted", 1))
    assert refused(act("write", "/dev/shm/planted", 1))
    assert refused(act("read_only_root"))


def test_environment_is_what_the_role_declares(act, child, canary, monkeypatch):
    monkeypatch.setenv("KERNELFORGE_CANARY", canary)
    gave = act("environment")["gave"]
    assert set(gave) <= {"DECLARED", "TMPDIR", "LC_CTYPE"}
    assert canary not in str(gave)


def test_environment_of_the_parent_and_the_zygote_cannot_be_read(act, zygote):
    for pid in (os.getpid(), zygote.pid, os.getppid()):
        assert refused(act("read", f"/proc/{pid}/environ"))
        assert refused(act("read", f"/proc/{pid}/cmdline"))


def test_only_the_channel_and_null_are_open(act, canary, tmp_path):
    secret = tmp_path / "open"
    secret.write_text(canary)
    secret_fd = os.open(secret, os.O_RDONLY)
    os.set_inheritable(secret_fd, True)
    try:
        descriptors = act("descriptors")["gave"]
    finally:
        os.close(secret_fd)
    kinds = {fd: mode for fd, (mode, _) in descriptors.items() if fd not in ("0", "1", "2")}
    assert [stat.S_ISSOCK(mode) for mode in kinds.values()] == [True]
    null = os.stat("/dev/null").st_rdev
    assert all(descriptors[fd][1] == null for fd in ("0", "1", "2"))


def test_a_tcp_server_cannot_be_reached(act):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert refused(act("connect", "AF_INET", "SOCK_STREAM", ["127.0.0.1", server.getsockname()[1]]))
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_udp_server_cannot_be_reached(act):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        assert refused(act("connect", "AF_INET", "SOCK_DGRAM", ["127.0.0.1", server.getsockname()[1]]))
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.recv(16)


@pytest.mark.parametrize("abstract", [False, True])
def test_a_unix_socket_cannot_be_reached(act, canary, tmp_path, abstract):
    address = "\0" + canary if abstract else str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        if not abstract:
            Path(address).chmod(0o777)
        assert refused(act("connect", "AF_UNIX", "SOCK_STREAM", address))


@pytest.mark.parametrize("family", ["AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG"])
def test_no_other_kind_of_socket_opens(act, family):
    assert refused(act("connect", family, "SOCK_DGRAM", ["", 0]))


def test_memory_of_the_parent_cannot_be_read(act, canary):
    planted = ctypes.create_string_buffer(canary.encode())
    reply = act("peek", os.getpid(), ctypes.addressof(planted), len(canary))
    assert refused(reply)
    assert canary not in str(reply)
    assert refused(act("read", f"/proc/{os.getpid()}/mem"))


def test_other_processes_cannot_be_signalled(act, zygote):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert refused(act("kill", bystander.pid, int(signal.SIGKILL)))
        assert refused(act("kill", zygote.pid, int(signal.SIGKILL)))
        assert refused(act("kill_everyone"))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_fork_bomb_makes_no_process(act):
    assert refused(act("fork_bomb"))


def test_no_program_can_be_run(act):
    assert refused(act("program", "/bin/true"))
    assert refused(act("program", sys.executable))


def test_no_new_namespace_can_be_entered(act):
    assert refused(act("new_namespace"))


def test_root_is_given_up(act):
    gave = act("identity")["gave"]
    assert 0 not in gave["uid"]
    assert 0 not in gave["gid"]
    assert 0 not in gave["groups"]


def test_calls_that_no_child_needs_are_refused_even_where_they_would_do_no_harm(act):
    outcomes = act("harmless_calls")["gave"]
    assert len(outcomes) > 20
    assert {name: number for name, number in outcomes.items() if number != errno.EPERM} == {}
