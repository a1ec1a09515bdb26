"""The self-test that decides which tier is trusted."""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import kernelforge
from kernelforge.sandbox import EscapeAttempt, select_tier
from kernelforge.sandbox.self_test import TierReport, run_self_test
from tests.sandbox.jail_setup import reachable_by_others


def test_the_strongest_tier_that_holds_is_reported():
    report = select_tier(repeat=True)
    assert report.tier in ("namespaces", "landlock")
    tried = next(attempt for attempt in report.tried if attempt.tier == report.tier)
    assert tried.works
    assert len(tried.doors) >= 20
    assert report.layers == tried.layers


def test_it_is_remembered():
    assert select_tier() is select_tier()


def test_the_self_test_notices_open_doors():
    """Without a jail the same trials find many ways out: the test can fail."""
    report = run_self_test("none")
    assert not report.works
    opened = {door.name for door in report.doors if not door.closed}
    expected = {"world-readable file", "/etc/passwd", "tcp", "udp", "unix socket"}
    if os.getuid() != 0 or reachable_by_others(Path(kernelforge.__file__)):
        expected.add("package source")
    assert expected <= opened


def test_one_open_door_is_enough_to_fail():
    shut = TierReport("namespaces", doors=(EscapeAttempt("a", True, ""), EscapeAttempt("b", True, "")))
    assert shut.works
    opened = replace(shut, doors=(*shut.doors, EscapeAttempt("c", False, "leak")))
    assert not opened.works
    assert opened.reason == "c: leak"
    assert not TierReport("namespaces").works, "no door tried is not a pass"


UNPRIVILEGED = """
import os, sys
from kernelforge.sandbox import syscalls as linux
home = os.path.expanduser("~root")
kept = [path for path in sys.argv[1].split(":") if path.startswith(home + "/")]
linux.unshare(linux.CLONE_NEWNS)
linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
handles = {path: os.open(path, os.O_PATH) for path in kept}
if kept:
    linux.mount("tmpfs", home, "tmpfs", 0, "mode=0755")
    for path, handle in handles.items():
        os.makedirs(path, exist_ok=True)
        linux.mount(f"/proc/self/fd/{handle}", path, None, linux.MS_BIND | linux.MS_REC)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
os.environ["HOME"] = "/nonexistent"
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="everything runs unprivileged already")
@pytest.mark.skipif(
    not reachable_by_others(Path(kernelforge.__file__)), reason="the checkout lies where another user cannot read it"
)
def test_an_unprivileged_user_gets_a_jail_too():
    script = """
import os
import platform
import shutil
from kernelforge.sandbox import select_tier as probe
from kernelforge.sandbox.self_test import run_self_test as self_test
assert os.getuid() == 65534
tiers = {tier: self_test(tier) for tier in ("namespaces", "landlock")}
for tier, report in tiers.items():
    print(tier, report.works, report.reason)
print("TIER", probe().tier)
"""
    visible = ":".join({sys.base_prefix, sys.prefix})
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, visible, "-c", script],
        capture_output=True, text=True, timeout=280, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "landlock True" in done.stdout, done.stdout
    assert "TIER namespaces" in done.stdout or "TIER landlock" in done.stdout


REFUSING = """
import ctypes, struct, sys
from kernelforge.errors import SandboxError
from kernelforge.sandbox import Zygote, syscalls as linux, select_tier as probe, seccomp

# A container's filter: the named calls fail with EPERM.
refused = [int(word) for word in sys.argv[1:]]
steps = [(0x20, 0, 0, 0)]
for number in refused:
    steps += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]
steps.append((0x06, 0, 0, 0x7FFF0000))
program = seccomp._Program(len(steps), b"".join(struct.pack("<HBBI", *step) for step in steps))
linux.prctl("no_new_privs", linux.PR_SET_NO_NEW_PRIVS, 1)
linux.syscall("seccomp", linux.number("seccomp"), ctypes.c_uint(1), ctypes.c_uint(1), ctypes.byref(program))
print("TIER", probe().tier)
try:
    Zygote("probe").start()
    print("STARTED")
except SandboxError as error:
    print("REFUSED", error)
with Zygote("probe", allow_unconfined=True) as zygote:
    print("ALLOWED", zygote.spawn().layers)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
@pytest.mark.parametrize(("dropped", "tier"), [("-sys_admin", "namespaces"), ("-all", "landlock")])
def test_root_of_a_container_without_capabilities_gets_a_jail(dropped, tier):
    script = "from kernelforge.sandbox import select_tier as probe; print('TIER', probe().tier, probe().detail)"
    done = subprocess.run(
        ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}", sys.executable, "-c", script],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert f"TIER {tier}" in done.stdout, done.stdout + done.stderr


UNSHARE = {"x86_64": 272, "aarch64": 97}[platform.machine()]
LANDLOCK_CREATE = 444


def under_filter(*refused):
    done = subprocess.run(
        [sys.executable, "-c", REFUSING, *map(str, refused)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_where_namespaces_are_refused_landlock_holds():
    output = under_filter(UNSHARE)
    assert "TIER landlock" in output
    assert "STARTED" in output


@pytest.mark.slow
def test_where_no_tier_works_untrusted_code_is_refused_unless_allowed():
    output = under_filter(UNSHARE, LANDLOCK_CREATE)
    assert "TIER none" in output
    assert "REFUSED untrusted code is refused: no jail works on this machine (namespaces:" in output
    assert "user namespaces" in output, "it says what to do"
    assert "ALLOWED ('no privileges', 'limits')" in output
