"""Lives and deaths of zygotes and their children."""

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import kernelforge
from kernelforge.errors import ChildDied, DeviceError, SandboxError
from kernelforge.sandbox import Child, JailReport, Zygote
from kernelforge.sandbox.policy import role_policy
from kernelforge.sandbox.self_test import TierReport
from kernelforge.sandbox.syscalls import Process
from tests.sandbox.jail_setup import HOSTILE, LIMITS, gone, reachable_by_others


@pytest.mark.slow
def test_a_dead_zygote_is_started_again(zygote):
    with zygote.spawn(LIMITS):
        first = zygote.pid
    os.kill(first, signal.SIGKILL)
    with zygote.spawn(LIMITS) as child:
        assert child.call({"act": "sleep", "arguments": [0]}).data["reply"] == "awake"
    assert zygote.pid != first


def test_children_die_with_their_zygote(zygote):
    with zygote.spawn(LIMITS) as child:
        child.channel.send({"act": "sleep", "arguments": [600]})
        os.kill(zygote.pid, signal.SIGKILL)
        assert gone(child.pid)


@pytest.mark.slow
def test_children_die_with_the_parent():
    script = f"""
        import os, sys, time
        sys.path[:0] = {[os.path.dirname(__file__)]!r}
        from tests.sandbox.jail_setup import HOSTILE, LIMITS
        from kernelforge.sandbox import Zygote
        zygote = Zygote("hostile", policy=HOSTILE)
        child = zygote.spawn(LIMITS)
        child.channel.send({{"act": "sleep", "arguments": [600]}})
        print(zygote.pid, child.pid, flush=True)
        time.sleep(600)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    assert all(gone(pid) for pid in pids)


@pytest.fixture(params=["absent", "not in the kernel", "filtered"])
def without_pidfd(request, monkeypatch):
    """A Python or a kernel without descriptors of processes: Linux before 5.3, or a container's old filter."""
    if request.param == "absent":
        monkeypatch.delattr(os, "pidfd_open")
        return

    def refuse(pid, flags=0):
        number = errno.ENOSYS if request.param == "not in the kernel" else errno.EPERM
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)


def test_children_are_ended_where_processes_have_no_descriptors(zygote, without_pidfd):
    with zygote.spawn(LIMITS) as child:
        assert child.call({"act": "sleep", "arguments": [0]}).data["reply"] == "awake"
        child.channel.send({"act": "sleep", "arguments": [600]})
        child.kill()
        assert gone(child.pid)
        assert child.death().cause == "killed"


def test_a_process_without_a_descriptor_is_not_taken_for_a_later_one(without_pidfd, monkeypatch):
    sleeper = subprocess.Popen(["sleep", "600"])
    process = Process(sleeper.pid)
    assert not process.ended(0.05)
    process.kill()
    assert process.ended(60)  # a zombie has ended
    sleeper.wait()
    assert process.ended()
    # A later process with its number is not killed.
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a later process was killed"))
    process.kill()
    process.close()
    with pytest.raises(ProcessLookupError):
        Process(sleeper.pid)


def test_ctrl_c_reaches_neither_zygote_nor_children(zygote):
    with zygote.spawn(LIMITS) as child:
        assert os.getpgid(child.pid) != os.getpgid(0)
        assert os.getsid(zygote.pid) != os.getsid(0)
        os.kill(zygote.pid, signal.SIGINT)
        assert child.call({"act": "sleep", "arguments": [0]}).data["reply"] == "awake"


def test_an_orphan_of_a_killed_child_cannot_exist(zygote):
    """Threads are all a child can start, and they end with it."""
    with zygote.spawn(LIMITS) as child:
        assert child.call({"act": "thread_bomb"}).data["reply"]["gave"] > 0
        child.kill()
        assert gone(child.pid)


def test_many_threads_may_spawn_at_once(zygote):
    replies = []

    def spawn_once():
        with zygote.spawn(LIMITS) as child:
            replies.append(child.call({"act": "identity"}).data["reply"]["gave"]["uid"][0])

    threads = [threading.Thread(target=spawn_once) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == 8
    if os.getuid() == 0:
        assert len(set(replies)) == 8, "children of root share no user id"


def test_a_warm_up_that_fails_says_why():
    with Zygote("hostile", policy=HOSTILE, options={"fail": True}) as zygote:
        with pytest.raises(SandboxError, match="failed on purpose"):
            zygote.start()


def test_an_error_of_ours_in_the_warm_up_keeps_its_type():
    with Zygote("hostile", policy=HOSTILE, options={"device_error": True}) as zygote:
        with pytest.raises(DeviceError, match=r"^install the thing$"):
            zygote.start()


def test_a_child_that_said_how_it_ended_is_gone_when_it_is_closed():
    """A monitor that leads a group ends its remaining processes after it wrote the report."""
    reading, writing = os.pipe()
    says = """printf '{"cause": "exit", "exit_code": 0}'; sleep 0.5"""
    monitor = subprocess.Popen(["/bin/sh", "-c", says], stdout=writing)
    os.close(writing)
    parent_end, child_end = socket.socketpair()
    child_end.close()
    child = Child("hostile", monitor.pid, parent_end.detach(), reading, LIMITS, None)
    assert child.death(120).cause == "exit"
    child.close()
    assert monitor.poll() == 0


def test_an_unknown_role_is_refused():
    with pytest.raises(SandboxError, match="no usable role 'unknown'"):
        Zygote("unknown")


@pytest.mark.parametrize("role", ["compiler", "runner", "oracle"])
@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
def test_a_role_reads_what_it_is_granted_and_nothing_beside_it(role, tier):
    """The real grants of each role, in the hands of a hostile child."""
    granted = role_policy(role)
    policy = replace(HOSTILE, mounts=granted.mounts, devices=granted.devices)
    package = Path(kernelforge.__file__).parent
    with Zygote("hostile", tier=tier, policy=policy) as zygote, zygote.spawn(LIMITS) as child:

        def opened(act, *arguments):
            return child.call({"act": act, "arguments": list(arguments)}).data["reply"]["opened"]

        # Without a private root, an unprivileged child needs the way to the checkout to be open.
        way = tier == "namespaces" or os.getuid() != 0 or reachable_by_others(package)
        assert opened("read", str(package / "errors.py")) is (role == "oracle" and way)
        for mount in granted.mounts:
            # Without a private root, a folder behind a closed one (a Python under /root) stays out of reach.
            closed = tier == "landlock" and any(not outer.stat().st_mode & 0o001 for outer in Path(mount).parents)
            assert opened("listing", mount) or (closed and os.getuid() == 0)
            assert not opened("write", os.path.join(mount, "planted"), 1)
        for secret in (
            package.parent / "pyproject.toml",
            package.parent / ".git" / "HEAD",
            "/etc/passwd",
            "/etc/hosts",
        ):
            assert not opened("read", str(secret))
        for folder in (package.parent, Path.home(), Path.cwd(), "/tmp/..", "/var", "/proc"):
            gave = child.call({"act": "listing", "arguments": [str(folder)]}).data["reply"]
            visible = gave["gave"] if gave["opened"] else []
            files = [name for name in visible if os.path.isfile(os.path.join(folder, name))]
            assert not files, f"{folder} shows {files}"


def test_no_working_tier_refuses_unless_told_otherwise():
    report = JailReport("none", (TierReport("namespaces", error="refused"), TierReport("landlock", error="absent")))
    with pytest.raises(SandboxError, match=r"untrusted code is refused.*namespaces: refused; landlock: absent"):
        report.usable_tier(False)
    assert report.usable_tier(True) == "none"


def test_unconfined_children_still_have_limits_and_no_privileges():
    with Zygote("hostile", policy=HOSTILE, tier="none") as zygote, zygote.spawn(LIMITS) as child:
        assert child.layers == ("no privileges", "limits")
        assert 0 not in child.call({"act": "identity"}).data["reply"]["gave"]["uid"] or os.getuid() != 0
        assert "Cannot allocate" in child.call({"act": "map_hog", "arguments": [1024]}).data["reply"]["gave"]


def test_a_spawn_cut_short_by_ctrl_c_leaves_the_next_one_in_order(zygote, monkeypatch):
    """The unclaimed child is let go and dies; the next spawn gets its own child."""
    zygote.start()
    receive = zygote._reply

    def interrupted(control):
        monkeypatch.setattr(zygote, "_reply", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(zygote, "_reply", interrupted)
    before = zygote.pid
    with pytest.raises(KeyboardInterrupt):
        zygote.spawn(LIMITS)
    with zygote.spawn(replace(LIMITS, file_bytes=1000)) as child:
        tmp = child.call({"act": "environment"}).data["reply"]["gave"]["TMPDIR"]
        assert not child.call({"act": "write", "arguments": [f"{tmp}/x", 2000]}).data["reply"]["opened"]
    assert zygote.pid == before


def test_what_a_child_of_ours_raised_is_one_line_and_its_traceback_a_note(zygote):
    with zygote.spawn(LIMITS) as child:
        with pytest.raises(ChildDied) as caught:
            child.call({"act": "nothing"})
    assert str(caught.value) == "the hostile child failed: KeyError: 'nothing'"
    assert "Traceback" in caught.value.__notes__[0]


def test_a_call_cut_short_by_ctrl_c_leaves_no_reply_to_the_next(zygote, monkeypatch):
    with zygote.spawn(LIMITS) as child:

        def interrupted(*, timeout_s):
            assert select.select([child.channel], [], [], 120)[0], "its reply is there"
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(child.channel, "receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                child.call({"act": "identity"})
        # As if a dying process still held the other end: the message is lost.
        monkeypatch.setattr(child.channel, "send", lambda *request, timeout_s: None)
        with pytest.raises(ChildDied):
            child.call({"act": "sleep", "arguments": [0]})


def test_an_interrupt_ends_the_call_that_another_thread_waits_for(zygote):
    with zygote.spawn(LIMITS) as waited_for, zygote.spawn(LIMITS) as idle:
        ended = []

        def wait():
            with pytest.raises(ChildDied):
                waited_for.call({"act": "sleep", "arguments": [600]})
            ended.append(waited_for.death().cause)

        thread = threading.Thread(target=wait)
        thread.start()
        while not ended and thread.is_alive():
            zygote.interrupt()
            thread.join(0.05)
        thread.join()
        assert ended == ["killed"]
        assert idle.call({"act": "sleep", "arguments": [0]}).data["reply"] == "awake"


def test_an_interrupt_leaves_alone_what_nobody_waits_for(zygote):
    with zygote.spawn(LIMITS) as child:
        zygote.interrupt()
        assert child.call({"act": "sleep", "arguments": [0]}).data["reply"] == "awake"
    zygote.interrupt()
