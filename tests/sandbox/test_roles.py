"""Roles with a GPU or with programs: what each is granted opens, and nothing else does, not to a program either."""

import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest

from kernelforge.errors import ChildDied, SandboxError
from kernelforge.sandbox import Limits, Zygote, gpu_access, role_policy
from kernelforge.sandbox.self_test import gpu_tier, run_self_test
from tests.sandbox.jail_setup import gone

ROLES = ("gpu-runner", "gpu-oracle", "modelnew", "gpu-modelnew")
WITH_PROGRAMS = ("gpu-oracle", "modelnew", "gpu-modelnew")
HAVE_GPU, RUN_PROGRAMS = ("gpu-runner", "gpu-modelnew"), ("modelnew", "gpu-modelnew")
"""One role of each kind: ``gpu-oracle`` is made of the same grants as ``gpu-modelnew``."""
TIERS = ("namespaces", "landlock")
LIMITS = Limits(
    wall_s=200,
    cpu_s=100,
    memory_bytes=128 << 20,
    tmp_bytes=8 << 20,
    processes=8,
    file_bytes=4 << 20,
    reply_bytes=8 << 20,
)
CONNECT = "exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected"


def hostile(role, **changes):
    return replace(
        role_policy(role), module="tests.sandbox.jail_worker", headroom_bytes=128 << 20, processes=64, **changes
    )


@pytest.fixture(scope="module")
def zygotes():
    running = {}
    tested = cache(run_self_test)

    def get(role, tier):
        if (role, tier) not in running:
            report = tested(tier)
            if report.error:
                pytest.skip(f"this machine has no tier {tier}: {report.error}")
            running[role, tier] = Zygote(role, tier=tier, policy=hostile(role))
        return running[role, tier]

    yield get
    for zygote in running.values():
        zygote.close()


@pytest.fixture
def act(zygotes, request):
    role, tier = request.param
    with zygotes(role, tier).spawn(LIMITS) as child:

        def ask(name, *arguments):
            return child.call({"act": name, "arguments": list(arguments)}).data["reply"]

        ask.child, ask.role, ask.tier = child, role, tier
        yield ask


def each(roles):
    cases = [(role, tier) for role in roles for tier in TIERS]
    return pytest.mark.parametrize("act", cases, indirect=True, ids=["-".join(case) for case in cases])


@pytest.fixture
def canary():
    return f"canary-{secrets.token_hex(16)}"


@pytest.fixture
def planted(canary, tmp_path):
    """A file that every user may read and write, in a folder that every user may enter."""
    file = tmp_path / "kernelforge.db"
    file.write_text(canary)
    file.chmod(0o666)
    for outer in (tmp_path, *tmp_path.parents):
        if outer.stat().st_uid == os.getuid() and "pytest" in str(outer):
            outer.chmod(0o755)
    return file


@pytest.mark.slow
@each(["gpu-runner", "modelnew"])
def test_temporary_files_are_made_in_the_childs_folder_whatever_the_warm_up_looked_for(act):
    assert act("temporary_file")["gave"] is True


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("role", ROLES)
def test_only_the_doors_that_the_role_grants_are_open(role, tier):
    report = run_self_test(tier, role)
    if report.error:
        pytest.skip(f"this machine has no tier {tier}: {report.error}")
    opened = {door.name for door in report.doors if not door.closed}
    # Its own environment is the role's; a container's root without capabilities may read it.
    granted = {"package source", "own environ"} | ({"new process", "new program"} if role in WITH_PROGRAMS else set())
    assert opened <= granted, [door for door in report.doors if not door.closed and door.name not in granted]
    if role in WITH_PROGRAMS:
        assert {"new process", "new program"} <= opened


@each(ROLES)
def test_environment_is_the_roles_own_and_its_folders_are_private(act, canary, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", canary)
    gave = act("environment")["gave"]
    assert set(gave) <= {*role_policy(act.role).environment, "TMPDIR", "LC_CTYPE"}
    assert canary not in str(gave)
    assert gave["HOME"] == gave["TMPDIR"]
    for name, value in role_policy(act.role).environment.items():
        if "{tmp}" in value:
            assert gave[name].startswith(gave["TMPDIR"]), name


@each(ROLES)
def test_proc_shows_no_other_process(act, zygotes):
    for pid in (os.getpid(), zygotes(act.role, act.tier).pid, os.getppid()):
        for name in ("environ", "cmdline", "mem", "maps"):
            assert not act("read", f"/proc/{pid}/{name}")["opened"], (pid, name)
    assert not act("write", "/proc/sys/kernel/domainname", 1)["opened"]
    assert not act("read", "/proc/keys")["opened"] or not act("read", "/proc/keys")["gave"]
    if act.tier == "namespaces":
        assert [name for name in act("listing", "/proc")["gave"] if name.isdigit()] == ["1"]


@each(WITH_PROGRAMS)
def test_a_program_runs_and_what_it_builds_can_be_loaded(act):
    assert "hello" in act("shell", "echo hello; exit 0")["gave"]
    made = act("shell", f"printf '#!/bin/sh\\necho built' > {act('environment')['gave']['TMPDIR']}/x; chmod +x x; ./x")
    assert "built" in made["gave"]
    assert act("map_code")["opened"]


@each(("gpu-runner",))
def test_a_role_without_programs_runs_none(act):
    assert not act("program", "/bin/true")["opened"]
    assert not act("fork_bomb")["opened"]
    if act.tier == "namespaces":
        assert not act("map_code")["opened"], "its /tmp is not executable"


@each(RUN_PROGRAMS)
def test_a_program_reads_nothing_of_the_parent(act, canary, planted, monkeypatch):
    monkeypatch.setenv("KERNELFORGE_CANARY", canary)
    pids = f"{os.getpid()} {os.getppid()} {act.child.pid}"
    reply = act("shell", f"cat {planted}; ls -la {planted.parent}; env; for p in {pids}; do cat /proc/$p/environ; done")
    assert canary not in reply["gave"]
    assert planted.name not in reply["gave"].replace(str(planted), "")
    reply = act("shell", "cat /etc/passwd /etc/shadow /proc/1/environ; cat /proc/[0-9]*/environ | tr '\\0' '\\n'")[
        "gave"
    ]
    assert "root:" not in reply
    assert canary not in reply
    act("shell", f"echo changed > {planted}; rm -f {planted}; mv {planted} {planted}.gone")
    assert planted.read_text() == canary


@each(RUN_PROGRAMS)
def test_a_program_reaches_no_network(act):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert "connected" not in act("shell", CONNECT.format(port=server.getsockname()[1]))["gave"]
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()


@each(RUN_PROGRAMS)
def test_a_program_inherits_no_descriptor(act, canary, planted):
    planted_fd = os.open(planted, os.O_RDONLY)
    os.set_inheritable(planted_fd, True)
    try:
        reply = act("shell", "for fd in $(seq 3 300); do (exec <&$fd) 2>/dev/null && echo open $fd; done; echo done")
    finally:
        os.close(planted_fd)
    assert reply["gave"].split() == ["done"]


@each(RUN_PROGRAMS)
def test_a_program_signals_no_one_outside(act, zygotes):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        act("shell", f"kill -9 {bystander.pid} {zygotes(act.role, act.tier).pid} {os.getpid()} {act.child.pid}")
        assert bystander.poll() is None
        assert act("environment")["opened"], "its own monitor and zygote live"
    finally:
        bystander.kill()
        bystander.wait()


@each(RUN_PROGRAMS)
def test_a_new_process_gets_no_namespace_and_no_other_parent(act):
    for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000):
        assert "PermissionError" in act("clone_namespace", flag)["gave"], hex(flag)


@pytest.mark.slow
@each(RUN_PROGRAMS)
def test_processes_are_bounded(act):
    if "no capabilities" in act.child.layers:
        # The kernel counts no processes of user 0: the sum of their memory bounds them.
        with pytest.raises(ChildDied, match="out of memory"):
            act("forks", 60)
        return
    made = act("forks")["gave"]
    if os.getuid() == 0 or act.tier == "namespaces":
        assert 8 <= made <= LIMITS.processes + hostile(act.role).processes
    else:
        # Other tasks of the same user count, and their number varies.
        assert made < 4096


@each(RUN_PROGRAMS)
def test_nothing_that_a_child_started_outlives_it(zygotes, act, tmp_path):
    act("orphan")
    children = children_of(act.child.pid)
    assert len(children) >= 4, "the child and what it started, sessions and groups of their own included"
    act.child.close()
    assert all(gone(pid) for pid in children)


@each(RUN_PROGRAMS)
def test_ninja_builds(act):
    """It starts every command in a process group of its own."""
    if not shutil.which("ninja"):
        pytest.skip("no ninja here")
    rule = "rule copy\\n  command = cp $in $out\\nbuild b: copy a\\n"
    output = act("shell", f"echo made > a; printf '{rule}' > build.ninja; ninja && cat b")["gave"]
    assert output.splitlines()[-1] == "made", output


@pytest.mark.slow
def test_nothing_outlives_a_parent_that_was_killed():
    """Without a process namespace the monitor ends the group, also when its zygote lost its parent."""
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}; import time; from tests.sandbox import test_roles as t; "
        "from kernelforge.sandbox import Zygote; "
        "z = Zygote('modelnew', tier='landlock', policy=t.hostile('modelnew')); c = z.spawn(t.LIMITS); "
        "c.call({'act': 'orphan'}); print(c.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        monitor = int(parent.stdout.readline())
        started = children_of(monitor)
        assert len(started) >= 4
        parent.send_signal(signal.SIGKILL)
    assert all(gone(pid) for pid in [monitor, *started])


def children_of(pid):
    """Every process under ``pid``, its own children first."""
    children = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            for child in map(int, file.read().split()):
                children += [child, *children_of(child)]
    return children


@pytest.mark.parametrize(
    "act", [("gpu-runner", "namespaces"), ("modelnew", "namespaces")], indirect=True, ids=["gpu-runner", "modelnew"]
)
def test_a_private_proc_shows_settings_read_only_and_no_tables(act):
    """Each of these stays shut by the rights of its files as well, where the child is not the root of a container."""
    if "private proc" not in act.child.layers:
        pytest.skip("the kernel refuses a private /proc here")
    for name in ("sys", "sysrq-trigger", "irq", "bus", "fs"):
        if os.path.exists(f"/proc/{name}"):
            assert act("mounted_read_only", f"/proc/{name}")["gave"] is True, name
    for name in ("kcore", "keys", "key-users", "kmsg", "kallsyms", "timer_list", "slabinfo", "vmallocinfo"):
        if os.path.exists(f"/proc/{name}"):
            assert act("is_device", f"/proc/{name}")["gave"] is True, name
    assert act("mounted_read_only", "/proc/self")["gave"] is False


@pytest.mark.slow
@each(RUN_PROGRAMS)
def test_memory_of_processes_that_nobody_waits_for_counts_too(act):
    with pytest.raises(ChildDied, match="out of memory"):
        act("orphans_hog", 8, 50)


@pytest.mark.slow
@each(RUN_PROGRAMS)
def test_memory_of_all_it_starts_counts_together(act):
    # Each of them stays under the limit of one process; together they are over it.
    # They have filled their buffers, which are never read.
    hog = "dd if=/dev/zero bs=50000000 count=1"
    with pytest.raises(ChildDied, match="out of memory"):
        act("shell", f"{{ for i in 1 2 3 4 5 6 7 8; do {hog} & done; wait; }} | sleep 100")


@each(HAVE_GPU)
def test_what_cuda_needs_of_the_kernel_is_there(act):
    assert act("name_thread", "cuda00001400006")["gave"] == "cuda00001400006"
    assert act("memory_file", 1 << 20)["opened"]
    assert act("wait_on_socket", "AF_UNIX", "SOCK_SEQPACKET")["opened"]
    assert act("reserve", 1 << 10)["opened"], "a terabyte of address space"
    for path in (
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/devices",
        "/proc/self/maps",
        "/sys/devices/system/cpu/online",
    ):
        assert act("read", path)["opened"], path
    limits = act("limits")["gave"]
    assert limits["MEMLOCK"][0] != 0
    assert limits["NOFILE"][0] >= 1024 or limits["NOFILE"][0] == limits["NOFILE"][1]


@each(HAVE_GPU)
def test_what_cuda_needs_opens_nothing_more(act, canary):
    for kind in ("SOCK_STREAM", "SOCK_DGRAM"):
        assert not act("wait_on_socket", "AF_INET", kind)["opened"]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + canary)
        server.listen()
        assert not act("connect", "AF_UNIX", "SOCK_STREAM", "\0" + canary)["opened"]
    assert not act("wait_on_socket", "AF_UNIX", "SOCK_DGRAM")["opened"]
    assert not act("private_memory", 4096)["opened"], "private writable memory stays limited"
    for path in ("/sys/kernel/debug", "/sys/kernel/security", "/sys/fs/cgroup", "/sys/firmware", "/etc/passwd"):
        assert not act("listing", path)["opened"], path
    assert not act("write", "/sys/kernel/mm/transparent_hugepage/enabled", 1)["opened"]


@each(HAVE_GPU)
def test_shared_memory_is_watched_where_no_limit_holds(act):
    with pytest.raises(ChildDied, match="out of memory"):
        act("map_hog", 512, 100)


@pytest.mark.parametrize("tier", TIERS)
def test_only_the_gpus_own_nodes_take_requests(tier, monkeypatch):
    monkeypatch.setattr(gpu_access, "device_nodes", lambda visible: ("random",))
    with Zygote("gpu-runner", tier=tier, policy=hostile("gpu-runner")) as zygote, zygote.spawn(LIMITS) as child:

        def opens(path):
            return child.call({"act": "entropy_ioctl", "arguments": [path]}).data["reply"]["opened"]

        assert opens("/dev/random")
        landlock = next((int(layer.split()[1]) for layer in child.layers if layer.startswith("landlock")), 0)
        assert opens("/dev/urandom") == (landlock < 5)
        assert not opens("/dev/full")


def test_a_warm_up_that_opens_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(gpu_access, "device_nodes", lambda visible: ("random",))
    with (
        Zygote("gpu-runner", policy=hostile("gpu-runner"), options={"opens": "/dev/random"}) as zygote,
        pytest.raises(SandboxError, match=r"opened /dev/random: CUDA must not be used before"),
    ):
        zygote.start()


def test_a_parent_may_choose_the_gpu_and_nothing_else():
    environment = {"CUDA_VISIBLE_DEVICES": "GPU-0a1b2c3d-0000-1111-2222-333344445555"}
    with (
        Zygote("gpu-runner", policy=hostile("gpu-runner"), environment=environment) as zygote,
        zygote.spawn(LIMITS) as child,
    ):
        gave = child.call({"act": "environment"}).data["reply"]["gave"]
        assert gave["CUDA_VISIBLE_DEVICES"] == environment["CUDA_VISIBLE_DEVICES"]
    for name in ("LD_PRELOAD", "OPENAI_API_KEY", "PATH"):
        with pytest.raises(SandboxError, match=f"takes no {name}"):
            Zygote("gpu-runner", environment={name: "x"})
    with pytest.raises(SandboxError, match="characters"):
        Zygote("gpu-runner", environment={"CUDA_VISIBLE_DEVICES": "0\nLD_PRELOAD=x"})
    with pytest.raises(SandboxError, match="takes no CUDA_VISIBLE_DEVICES"):
        Zygote("runner", environment=environment)


def test_gpu_roles_fall_to_a_tier_in_which_cuda_can_work():
    expected = gpu_tier()
    assert expected in (None, "landlock")
    with Zygote("gpu-runner", policy=hostile("gpu-runner")) as zygote, zygote.spawn(LIMITS) as child:
        assert ("private proc" in child.layers) == (zygote.tier == "namespaces")
        assert expected is None or zygote.tier == expected


HIDDEN_PROC = """
mount --bind -o ro /proc/sys /proc/sys &&
exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin "$0" -c '
from kernelforge.sandbox.self_test import gpu_tier, select_tier as probe
from kernelforge.sandbox import Zygote
print("TIER", probe().tier, gpu_tier(), Zygote("gpu-runner").tier, Zygote("runner").tier)'
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_where_a_container_hides_parts_of_proc_gpu_roles_use_landlock():
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", HIDDEN_PROC, sys.executable],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    if "TIER namespaces" not in done.stdout:
        pytest.skip(f"such a container cannot be made here: {done.stdout}{done.stderr}")
    assert "TIER namespaces landlock landlock namespaces" in done.stdout


def test_the_end_of_a_group_is_seen_and_not_waited_out(monkeypatch):
    """Each wait for it is ended by what it waits for: none runs out."""
    seen = []

    class Poller:
        def __init__(self):
            self.own = poll()

        def register(self, *what):
            self.own.register(*what)

        def poll(self, timeout_ms):
            seen.append(self.own.poll(20 * timeout_ms))
            return seen[-1]

    with Zygote("modelnew", tier="landlock", policy=hostile("modelnew")) as zygote:
        child = zygote.spawn(LIMITS)
        poll = select.poll
        monkeypatch.setattr(select, "poll", Poller)
        child.close()
    assert len(seen) == 2
    assert all(seen)
