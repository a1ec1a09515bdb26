"""Confinement of a forked child: it gives up everything it was not granted. Any failure ends the child.

Tiers: ``namespaces`` (private root, no network, own processes; also Landlock and seccomp if the kernel has them),
``landlock`` (Landlock and seccomp, if namespaces are refused), ``none`` (resource limits only).
"""

from __future__ import annotations

import errno
import math
import os
import re
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kernelforge.sandbox import landlock, seccomp, syscalls
from kernelforge.sandbox.policy import Limits

Tier = Literal["namespaces", "landlock", "none"]

_STAGE = "/proc"  # The private root is built on /proc, which contains no granted path.
_INSIDE_UID = 1000
_FIRST_UID = 0x70000000
_NOBODY = 65534
_COMPILER_INODES = 65536
_OPEN_FILES, _OPEN_FILES_OF_PROGRAMS = 256, 4096
_PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs")
_PROC_HIDDEN = (
    "kcore", "keys", "key-users", "kmsg", "kallsyms", "sched_debug", "timer_list", "slabinfo", "vmallocinfo",
    "kpagecount", "kpageflags", "kpagecgroup", "config.gz",
)  # fmt: skip
_PROC_MACHINE = (
    "driver", "devices", "cpuinfo", "meminfo", "stat", "version", "filesystems", "modules", "sys/vm/mmap_min_addr",
)  # fmt: skip


@dataclass(frozen=True)
class JailSpec:
    """Grants and limits of one child."""

    tier: Tier
    limits: Limits
    mounts: tuple[str, ...]
    devices: tuple[str, ...]
    headroom_bytes: int
    tmp: str | None
    """Folder that replaces ``/tmp`` without a private root."""
    gpu_nodes: tuple[str, ...] = ()
    """Device nodes that also allow ``ioctl``."""
    gpu: bool = False
    """Grant the needs of CUDA: memory files, local sockets, ``/proc`` of its process, address space."""
    programs: bool = False
    files: bool = False
    """Memory files come from the parent."""
    processes: int = 0
    tmp_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables whose values contain ``{tmp}``."""
    reads_as_root: bool = False
    """Keep one capability of root, to read files of any mode: only root can read the granted paths."""

    @property
    def folder(self) -> str:
        """The only writable folder."""
        return "/tmp" if self.tier == "namespaces" else self.tmp or "/"

    @property
    def needs_proc(self) -> bool:
        return self.gpu or self.programs

    @property
    def leaves_orphans(self) -> bool:
        """Whether the child's processes could outlive it: no process namespace ends with it."""
        return self.programs and self.tier != "namespaces"


def enter_namespaces() -> None:
    """Enter new namespaces. The next fork is their process 1."""
    flags = (
        syscalls.CLONE_NEWNS
        | syscalls.CLONE_NEWPID
        | syscalls.CLONE_NEWNET
        | syscalls.CLONE_NEWIPC
        | syscalls.CLONE_NEWUTS
    )
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        try:
            syscalls.unshare(flags)
            return
        except PermissionError:
            pass  # root without CAP_SYS_ADMIN, as in most containers; a user namespace may be allowed
    syscalls.unshare(flags | syscalls.CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{_INSIDE_UID} {uid} 1"),
        ("gid_map", f"{_INSIDE_UID} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def confine(grant: JailSpec, keep: set[int], outer_pid: int) -> list[str]:
    """Confine this single-threaded process to ``grant``; returns the layers in force, outermost first.

    ``keep`` are descriptors that stay open; ``outer_pid`` makes the unprivileged user id distinct.

    Raises:
        OSError: a layer of the tier failed. The caller must exit.
    """
    _quiet_standard_streams()
    syscalls.close_all_but(keep | {0, 1, 2})
    sizes = _memory_now()
    layers: list[str] = []
    users_tasks = _tasks_of_user() if grant.programs else 0
    if grant.tier == "namespaces":
        _build_root(grant)
        layers += ["namespaces", "private root"]
        if grant.needs_proc and mount_private_proc(_STAGE + "/proc"):
            layers.append("private proc")
        _enter_root()
    _working_folder(grant)
    syscalls.exit_on_abort()
    was_root = 0 in (os.getuid(), os.geteuid())
    unprivileged = _drop_privileges(outer_pid, grant)
    privileges = "no privileges but reading" if grant.reads_as_root else "no privileges"
    layers.append(privileges if unprivileged else "no capabilities")
    counts_threads = (was_root and unprivileged) or _counts_by_namespace(grant)
    _limit(grant, sizes, counts_threads=counts_threads, others=users_tasks)
    layers.append("limits")
    if grant.tier != "none":
        version = _landlock(grant)
        if version:
            layers.append(f"landlock {version}")
        elif grant.tier == "landlock":
            raise OSError(38, "this kernel has no Landlock")
        try:
            seccomp.install(_openings(grant, version, shares_user=not (was_root and unprivileged)))
            layers.append("seccomp")
        except OSError:
            if grant.tier == "landlock":
                raise
        if grant.programs and 0 < version < landlock.MOVES_BETWEEN_FOLDERS:
            _copy_between_folders()
    return layers


def _copy_between_folders() -> None:
    """Make ``os.rename`` and ``os.replace`` copy a file if the kernel refuses to move it to another folder.

    The first version of Landlock refuses every move between folders. Triton and Inductor fill their caches by moves.
    """
    moves: tuple[Callable[..., None], ...] = (os.rename, os.replace)
    for move in moves:

        def copying(
            src: str | bytes, dst: str | bytes, *, move: Callable[..., None] = move, **folders: int | None
        ) -> None:
            try:
                move(src, dst, **folders)
            except OSError as error:
                if error.errno != errno.EXDEV or any(folder is not None for folder in folders.values()):
                    raise
                source, target = os.fsdecode(src), os.fsdecode(dst)
                # Copied to the target's folder first, so that the target appears atomically.
                copy = f"{target}.{os.getpid()}.copy"
                if os.path.isdir(source):
                    shutil.copytree(source, copy, symlinks=True)
                else:
                    shutil.copy2(source, copy)
                move(copy, target)
                if os.path.isdir(source):
                    shutil.rmtree(source)
                else:
                    os.unlink(source)

        setattr(os, move.__name__, copying)


def _openings(grant: JailSpec, landlock_version: int, *, shares_user: bool) -> seccomp.Openings:
    """Calls that this child may make and others may not."""
    apart = grant.tier == "namespaces" or landlock_version >= landlock.SCOPES_SIGNALS
    return seccomp.Openings(
        cuda=grant.gpu,
        programs=grant.programs,
        signals=grant.programs and apart,
        sessions=not grant.leaves_orphans,
        attributes=grant.tier == "namespaces",
        modes=grant.tier == "namespaces" or not shares_user,
        truncation=grant.tier == "namespaces" or landlock_version >= landlock.CLOSES_TRUNCATION,
    )


def _quiet_standard_streams() -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def _memory_now() -> tuple[int, int]:
    """Bytes of address space and of private writable memory of the zygote's image."""
    with open("/proc/self/statm") as file:
        fields = file.read().split()
    page = resource.getpagesize()
    return int(fields[0]) * page, int(fields[5]) * page


def _build_root(grant: JailSpec) -> None:
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    secure = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", _STAGE, "tmpfs", secure, "mode=0755,size=1m,nr_inodes=4096")
    # The private /tmp is first: a grant may be in the host's /tmp.
    os.makedirs(_STAGE + "/tmp", exist_ok=True)
    inodes = _COMPILER_INODES if grant.programs else 4096
    size = f"mode=1777,size={max(grant.limits.tmp_bytes, 4096)},nr_inodes={inodes}"
    syscalls.mount("tmpfs", _STAGE + "/tmp", "tmpfs", secure | (0 if grant.programs else syscalls.MS_NOEXEC), size)
    for path in grant.mounts:
        _mount_point(_STAGE + path, folder=os.path.isdir(path))
        syscalls.bind_read_only(path, _STAGE + path)
    for device in (*grant.devices, *grant.gpu_nodes):
        _mount_point(f"{_STAGE}/dev/{device}", folder=False)
        syscalls.bind_device(f"/dev/{device}", f"{_STAGE}/dev/{device}", executable=device in grant.gpu_nodes)
    if grant.programs:
        os.symlink("/tmp", _STAGE + "/dev/shm")  # for named semaphores and shared memory of the C library


def _mount_point(path: str, *, folder: bool) -> None:
    os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)
    if not folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def _enter_root() -> None:
    os.chdir(_STAGE)
    syscalls.pivot_root_here()
    syscalls.mount(None, "/", None, syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | syscalls.MS_NOSUID)


def _working_folder(grant: JailSpec) -> None:
    os.chdir(grant.folder)
    os.environ["TMPDIR"] = grant.folder
    tempfile.tempdir = grant.folder  # imports of the warm-up may have cached another
    for name, value in grant.tmp_environment.items():
        os.environ[name] = value.replace("{tmp}", grant.folder)


def _drop_privileges(outer_pid: int, grant: JailSpec) -> bool:
    """Give up root and every capability; false if the user is still root, without capabilities."""
    unprivileged = True
    kept = syscalls.reading_capability() if grant.reads_as_root else None
    if 0 in (os.getuid(), os.geteuid()):
        try:
            os.setgroups([])
            if kept is not None:
                syscalls.prctl("prctl(KEEPCAPS)", syscalls.PR_SET_KEEPCAPS, 1)
            _become_nobody(_FIRST_UID + outer_pid % 0x0FFFFFFF, grant)
        except PermissionError:
            if syscalls.has_capabilities():
                raise
            unprivileged = False  # root of a container without any capability
    syscalls.prctl("prctl(NO_NEW_PRIVS)", syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.drop_capabilities(but=kept)
    syscalls.prctl("prctl(DUMPABLE)", syscalls.PR_SET_DUMPABLE, 0)
    # Changing ids clears this setting, so it is last.
    syscalls.prctl("prctl(PDEATHSIG)", syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    return unprivileged


def others_can_read(paths: Iterable[str]) -> bool:
    """Whether an unprivileged user can read files and enter folders; called by root, tested in a separate process.

    Raises:
        OSError: that process could not become such a user.
    """
    unreadable = 2
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            readable = all(os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)) for path in paths)
            code = 0 if readable else unreadable
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, unreadable):
        raise OSError(errno.EPERM, "a process of root could not become another user")
    return code == 0


def _become_nobody(distinct: int, grant: JailSpec) -> None:
    """Take a user id that no other process has, or the common one if a container maps few ids."""
    for uid in (distinct, _NOBODY):
        try:
            os.setresgid(uid, uid, uid)
        except OSError as error:
            if uid == _NOBODY or error.errno != errno.EINVAL:
                raise
            continue
        if grant.tmp is not None:
            os.chown(grant.tmp, uid, uid)
        os.setresuid(uid, uid, uid)
        return


def _counts_by_namespace(grant: JailSpec) -> bool:
    """Whether processes are counted per user namespace: since Linux 5.14."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return grant.tier == "namespaces" and release is not None and (int(release[1]), int(release[2])) >= (5, 14)


def _limit(grant: JailSpec, sizes: tuple[int, int], *, counts_threads: bool, others: int) -> None:
    """Set resource limits. Threads are limited only if the user's other processes do not count with them.

    CUDA reserves terabytes of address space, so a child with a GPU is limited by its private writable memory alone
    (``RLIMIT_DATA``; reservations are not writable). ``others`` are the user's tasks outside, if they count.
    """
    limits, (space, data) = grant.limits, sizes
    seconds = max(1, math.ceil(limits.cpu_s))
    files = _OPEN_FILES_OF_PROGRAMS if grant.gpu or grant.programs else _OPEN_FILES
    allowed = limits.memory_bytes + limits.reserved_bytes
    address_space = space + allowed + grant.headroom_bytes
    private = data + allowed + (grant.headroom_bytes if grant.gpu else 0)
    # Replies of a child with a GPU are memory files; its folder has a separate limit.
    largest = max(limits.file_bytes, limits.reply_bytes) if grant.gpu else limits.file_bytes
    tasks = limits.processes + grant.processes + (0 if counts_threads else others)
    for what, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_FSIZE, largest, largest),
        (resource.RLIMIT_NOFILE, files, files),
        (resource.RLIMIT_MEMLOCK, *[limits.memory_bytes if grant.gpu else 0] * 2),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_NPROC, tasks, tasks),
        (resource.RLIMIT_AS, *[resource.RLIM_INFINITY if grant.gpu else address_space] * 2),
        (resource.RLIMIT_DATA, private, private),
    ):
        if what == resource.RLIMIT_NPROC and not counts_threads and not grant.programs:
            continue
        ceiling = resource.getrlimit(what)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = (ceiling if value == resource.RLIM_INFINITY else min(value, ceiling) for value in (soft, hard))
        resource.setrlimit(what, (soft, hard))


def _tasks_of_user() -> int:
    """Processes and threads that this user has now."""
    uid, tasks = os.getuid(), 0
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                tasks += len(os.listdir(f"/proc/{entry.name}/task"))
        except OSError:
            continue  # it ended
    return tasks


def _landlock(grant: JailSpec) -> int:
    if grant.tier == "namespaces":
        own_proc = ["/proc"] if grant.needs_proc and os.path.isdir("/proc/self") else []
        readable, writable = ["/"], ["/tmp", *own_proc]
    else:
        readable = [path for path in grant.mounts if os.path.exists(path)]
        writable = [grant.tmp] if grant.tmp else []
        if grant.needs_proc:
            readable += readable_proc_paths()
            writable.append("/proc/self/task")
        if grant.programs:
            readable += writable[:1]  # reading includes running
    writable += [f"/dev/{name}" for name in grant.devices]
    return landlock.restrict(readable, writable, drivable=[f"/dev/{name}" for name in grant.gpu_nodes])


def mount_private_proc(folder: str) -> bool:
    """Mount the ``/proc`` of this process's own namespace on ``folder``; false if the kernel refuses.

    A kernel refuses in a user namespace if the ``/proc`` outside is partly hidden, as in most containers. Files of the
    machine are read-only or hidden, as by default in the OCI runtime specification. CUDA needs a ``/proc`` to name
    threads and to read driver settings.
    """
    os.makedirs(folder, exist_ok=True)
    try:
        syscalls.mount("proc", folder, "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    except PermissionError:
        return False
    _make_no_devices(folder)
    for name in _PROC_READ_ONLY:
        if os.path.exists(f"{folder}/{name}"):
            syscalls.bind_read_only(f"{folder}/{name}", f"{folder}/{name}")
    for name in _PROC_HIDDEN:
        if os.path.exists(f"{folder}/{name}"):
            syscalls.bind_read_only("/dev/null", f"{folder}/{name}")  # without the right to open devices
    return True


def _make_no_devices(folder: str) -> None:
    """Configure the driver's library not to make device nodes: those of other GPUs are missing on purpose.

    Source: the driver's README, "ModifyDeviceFiles"; NVIDIA's container toolkit sets it in the same way.
    """
    parameters = f"{folder}/driver/nvidia/params"
    if not os.path.exists(parameters):
        return
    with open(parameters) as file:
        text = file.read()
    changed = f"{os.path.dirname(folder)}/.driver-parameters"
    with open(changed, "w") as file:
        file.write(text.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"))
    syscalls.bind_read_only(changed, parameters)


def readable_proc_paths() -> list[str]:
    """Paths of ``/proc`` for a child without a private one: its own process, and facts of the machine."""
    return [path for path in ("/proc/self", *(f"/proc/{name}" for name in _PROC_MACHINE)) if os.path.exists(path)]
