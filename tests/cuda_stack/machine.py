"""Runs a command on a machine like one that users have: a driver without a GPU, a container, an ordinary user.

``python machine.py '{"user": "root", ...}' COMMAND...`` needs root. Everything is made in new mount, process and IPC
namespaces and ends with the command; nothing outside changes. The driver is ``imitation_libcuda.c`` in the folder of
the C library, with device nodes that are the ends of a terminal: what the library writes to them comes out here, also
from inside a jail, and goes to the file that ``log`` names.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import pty
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import tty
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, NoReturn

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(CHECKOUT)]

from kernelforge.sandbox import syscalls  # noqa: E402 (found through the line above)

LIBRARY_FOLDER = Path("/usr/lib/x86_64-linux-gnu")
NODES = ("nvidiactl", "nvidia0", "nvidia-uvm")
ORDINARY_UID = 1000
RUNTIME = "cu13/lib/libcudart.so.13"
"""In the folder of NVIDIA's wheels."""
_GCC = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]

_DOCKER_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW SYS_CHROOT MKNOD AUDIT_WRITE
SETFCAP. Source: Docker's manual, "Runtime privilege and Linux capabilities"."""

_DOCKER_REFUSED = {
    "acct": 163, "add_key": 248, "bpf": 321, "clock_adjtime": 305, "clock_settime": 227, "delete_module": 176,
    "fanotify_init": 300, "finit_module": 313, "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433,
    "init_module": 175, "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425, "ioperm": 173,
    "iopl": 172, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250, "lookup_dcookie": 212, "mount": 165,
    "mount_setattr": 442, "move_mount": 429, "move_pages": 279, "open_by_handle_at": 304, "open_tree": 428,
    "perf_event_open": 298, "personality": 135, "pivot_root": 155, "quotactl": 179, "reboot": 169, "request_key": 249,
    "setdomainname": 171, "sethostname": 170, "setns": 308, "settimeofday": 164, "swapoff": 168, "swapon": 167,
    "syslog": 103, "umount2": 166, "unshare": 272, "userfaultfd": 323, "vhangup": 153,
}  # fmt: skip
"""Numbers (x86-64) of the calls that the default profile refuses without CAP_SYS_ADMIN and its like. Source: Docker's
manual, "Seccomp security profiles for Docker", its table of blocked calls, and the notes of release 25 (io_uring)."""

_CLONE, _CLONE3, _UNSHARE = 56, 435, 272
_NEW_NAMESPACES = 0x7E020000
_NEW_USER = 0x10000000
_LANDLOCK_CREATE, _LANDLOCK_LAST = 444, 446
_LOAD, _JEQ, _JSET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO, _NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
_EPERM, _ENOSYS = 1, 38
_NOTIFY_RECEIVE, _NOTIFY_SEND = 0xC0502100, 0xC0182101


@dataclass(frozen=True)
class Machine:
    """Users, paths and kernel features that a command sees."""

    name: str
    user: Literal["root", "ordinary", "powerless root"] = "root"
    """``powerless root``: user 0 without any capability."""
    container: bool = False
    """Capabilities, seccomp filter and hidden parts of ``/proc`` of a default Docker container."""
    user_namespaces: bool = True
    landlock: int | None = None
    """Version of Landlock that the kernel says it has; 0 for none, None for its own."""
    hidden_proc: bool = False
    """Parts of ``/proc`` are hidden, as in a container: the kernel then refuses users of a namespace a new one."""
    home: Literal["open", "closed"] = "open"
    """``closed``: Python, its packages and the checkout lie under ``/root``, which others cannot enter."""
    gpu_nodes: bool = True
    """Whether the driver's device nodes are there; the library always is."""
    environment: dict[str, str] = field(default_factory=dict)
    runtime: bool = False
    """The CUDA runtime of torch's wheels is imitated (``imitation_libcudart.c``), so that torch has tensors there."""


MACHINES = (
    Machine("root"),
    Machine("root, files under /root", home="closed"),
    Machine("ordinary user", user="ordinary"),
    Machine("ordinary user, no user namespaces", user="ordinary", user_namespaces=False),
    Machine("Docker", container=True),
    Machine("Docker, files under /root", container=True, home="closed"),
    Machine("Docker, ordinary user", container=True, user="ordinary"),
    Machine("Docker, no capabilities", container=True, user="powerless root"),
    *(Machine(f"Docker, Landlock {version}", container=True, landlock=version) for version in (1, 2, 3, 4)),
    Machine("Docker, no Landlock", container=True, landlock=0),
    Machine("root, Landlock 1", landlock=1),
    Machine("root, no Landlock", landlock=0),
)


@dataclass(frozen=True)
class Outcome:
    """Result of a command, and the requests to the driver's library."""

    status: int
    output: str
    driver: tuple[str, ...]
    """Lines ``free|jailed EVENT ok|ERROR`` in their order."""


def buildable() -> str:
    """Reason for not imitating machines here; empty if it works."""
    if os.geteuid() != 0 or not syscalls.has_capabilities():
        return "needs root"
    if shutil.which("gcc") is None:
        return "needs gcc"
    if not LIBRARY_FOLDER.is_dir():
        return f"needs a system with {LIBRARY_FOLDER}"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "needs overlayfs"
    return ""


def run_in(machine: Machine, command: Sequence[str], *, timeout_s: float = 600.0) -> Outcome:
    """Run a command on an imitated machine. ``{python}`` and ``{checkout}`` are replaced by their paths there."""
    with tempfile.TemporaryDirectory(prefix="kernelforge-place-") as folder:
        os.chmod(folder, 0o755)
        library = Path(folder, "libcuda.so.1")
        source = HERE / "imitation_libcuda.c"
        subprocess.run([*_GCC, f"-Wl,-soname,{library.name}", "-o", library, source, "-ldl", "-lpthread"], check=True)
        if machine.runtime:
            _build_runtime(Path(folder))
        log = Path(folder, "log")
        setting = json.dumps({"machine": asdict(machine), "folder": folder, "log": str(log)})
        done = subprocess.run(
            [sys.executable, __file__, setting, *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace",
            timeout=timeout_s, check=False, cwd="/",
        )  # fmt: skip
        return Outcome(done.returncode, done.stdout, tuple(log.read_text().splitlines()) if log.exists() else ())


def _nvidia_wheels() -> Path:
    (wheels,) = Path(sys.prefix, "lib").glob("python*/site-packages/nvidia")
    return wheels


def _build_runtime(folder: Path) -> None:
    """Write the imitated runtime into ``folder``, with every name that NVIDIA's has."""
    library = _nvidia_wheels() / RUNTIME
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    source = HERE / "imitation_libcudart.c"
    missing = set(re.findall(r"\b_*cuda[A-Z]\w*", listed)) - set(re.findall(r"(_*cuda[A-Z]\w*)\(", source.read_text()))
    (folder / "others.c").write_text("".join(f"int {name}(void) {{ return 801; }}\n" for name in sorted(missing)))
    (folder / "versions").write_text(f"{library.name} {{ global: *; }};\n")
    shape = [f"-Wl,-soname,{library.name}", f"-Wl,--version-script={folder / 'versions'}"]
    headers = ["-I", str(library.parents[1] / "include")]
    sources = [str(source), str(folder / "others.c"), "-ldl"]
    subprocess.run([*_GCC, *shape, *headers, "-o", str(folder / library.name), *sources], check=True)


def main(arguments: Sequence[str]) -> int:
    setting = json.loads(arguments[0])
    machine = Machine(**setting["machine"])
    folder = Path(setting["folder"])
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.chmod(os.ttyname(slave), 0o666)
    _put_library(folder)
    if machine.runtime:
        runtime = _nvidia_wheels() / RUNTIME
        syscalls.mount(str(folder / runtime.name), str(runtime), None, syscalls.MS_BIND)
    _put_nodes(os.ttyname(slave) if machine.gpu_nodes else None, folder)
    command = _put_python(machine, arguments[1:])
    parent_end, child_end = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        parent_end.close()
        _become(machine, folder, command, child_end)
    child_end.close()
    with open(setting["log"], "wb", buffering=0) as log:
        status = _attend(pid, master, parent_end, machine.landlock, log)
    os.close(slave)
    return os.waitstatus_to_exitcode(status)


def _put_library(folder: Path) -> None:
    """The library in the C library's folder, where drivers are installed."""
    upper = folder / "driver"
    upper.mkdir()
    (folder / "libcuda.so.1").rename(upper / "libcuda.so.1")
    syscalls.mount("overlay", str(LIBRARY_FOLDER), "overlay", 0, f"lowerdir={upper}:{LIBRARY_FOLDER}")


def _put_nodes(terminal: str | None, folder: Path) -> None:
    """A ``/dev`` of its own, with the driver's nodes in it."""
    new = folder / "dev"
    new.mkdir()
    syscalls.mount("tmpfs", str(new), "tmpfs", syscalls.MS_NOSUID, "mode=0755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        (new / name).touch()
        syscalls.mount(f"/dev/{name}", str(new / name), None, syscalls.MS_BIND)
    for name in ("pts", "shm"):
        (new / name).mkdir()
        syscalls.mount(f"/dev/{name}", str(new / name), None, syscalls.MS_BIND)
    for name in NODES if terminal else ():
        (new / name).touch()
        syscalls.mount(terminal, str(new / name), None, syscalls.MS_BIND)
    os.symlink("pts/ptmx", new / "ptmx")
    os.symlink("/proc/self/fd", new / "fd")
    syscalls.mount(str(new), "/dev", None, syscalls.MS_BIND | syscalls.MS_REC)


def _put_python(machine: Machine, command: Sequence[str]) -> list[str]:
    """Mount Python and the checkout at the machine's paths; the command with these paths."""
    base, environment = Path(sys.base_prefix), Path(sys.prefix)
    closed = Path("/root")
    python, checkout = Path(sys.executable), CHECKOUT
    kept = [path for path in {base, environment, CHECKOUT} if path.is_relative_to(closed)]
    opened = {path: os.open(path, os.O_PATH) for path in (*kept, environment, CHECKOUT)}
    mode = "0700" if machine.home == "closed" else "0755"
    syscalls.mount("tmpfs", str(closed), "tmpfs", syscalls.MS_NOSUID, f"mode={mode}")
    for path in kept:
        path.mkdir(parents=True, exist_ok=True)
        syscalls.mount(f"/proc/self/fd/{opened[path]}", str(path), None, syscalls.MS_BIND | syscalls.MS_REC)
    if machine.home == "closed":
        for path, name in ((environment, "environment"), (CHECKOUT, "kernelforge")):
            (closed / name).mkdir()
            syscalls.mount(
                f"/proc/self/fd/{opened[path]}", str(closed / name), None, syscalls.MS_BIND | syscalls.MS_REC
            )
        python = closed / "environment" / python.relative_to(environment)
        checkout = closed / "kernelforge"
    for descriptor in opened.values():
        os.close(descriptor)
    return [word.replace("{python}", str(python)).replace("{checkout}", str(checkout)) for word in command]


def _become(machine: Machine, folder: Path, command: Sequence[str], supervisor: socket.socket) -> NoReturn:
    """Take the rights of the machine's user, and run the command."""
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    if machine.container or machine.hidden_proc:
        for name in filter(lambda name: Path("/proc", name).exists(), ("kcore", "keys", "timer_list", "sysrq-trigger")):
            syscalls.mount("/dev/null", f"/proc/{name}", None, syscalls.MS_BIND)
    if machine.container:
        syscalls.bind_read_only("/proc/sys", "/proc/sys")
    home = folder / "home"
    home.mkdir()
    if machine.user == "ordinary":
        os.chown(home, ORDINARY_UID, ORDINARY_UID)
    if machine.landlock is not None:
        listener = _filter(_landlock_steps(machine.landlock), listens=machine.landlock > 0)
        if listener is not None:
            socket.send_fds(supervisor, [b"listener"], [listener])
            os.close(listener)
    supervisor.close()
    if machine.container:
        _filter(_container_steps())
    elif not machine.user_namespaces:
        _filter(_no_user_namespace_steps())
    _take_rights(machine)
    variables = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(home),
        "PYTHONPATH": str(Path("/root/kernelforge") if machine.home == "closed" else CHECKOUT),
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        **machine.environment,
    }
    os.chdir(home)
    os.execve(command[0], list(command), variables)


def _take_rights(machine: Machine) -> None:
    keep = set(_DOCKER_CAPABILITIES) if machine.container else set(range(64))
    if machine.user == "powerless root":
        keep = set()
    for capability in set(range(64)) - keep:
        try:
            syscalls.prctl("prctl(CAPBSET_DROP)", syscalls.PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno != 22:  # a number beyond the last
                raise
    if machine.user == "ordinary":
        os.setgroups([])
        os.setresgid(ORDINARY_UID, ORDINARY_UID, ORDINARY_UID)
        os.setresuid(ORDINARY_UID, ORDINARY_UID, ORDINARY_UID)
        return
    if machine.container or machine.user == "powerless root":
        bits = sum(1 << capability for capability in keep)
        low, high = bits & 0xFFFFFFFF, bits >> 32
        header = ctypes.c_char_p(struct.pack("<Ii", 0x20080522, 0))
        data = ctypes.c_char_p(struct.pack("<6I", low, low, 0, high, high, 0))
        syscalls.syscall("capset", syscalls.number("capset"), header, data)


_Step = tuple[int, int, int, int]
"""Code, value, steps to skip when true, when false."""


def _refuse(number: int, error: int = _EPERM) -> list[_Step]:
    return [(_JEQ, number, 0, 1), (_RETURN, _ERRNO | error, 0, 0)]


def _refuse_flags(number: int, flags: int) -> list[_Step]:
    return [
        (_JEQ, number, 0, 4),
        (_LOAD, 16, 0, 0),
        (_JSET, flags, 0, 1),
        (_RETURN, _ERRNO | _EPERM, 0, 0),
        (_RETURN, _ALLOW, 0, 0),
    ]


def _container_steps() -> list[_Step]:
    refused = [step for number in _DOCKER_REFUSED.values() for step in _refuse(number)]
    return [*refused, *_refuse(_CLONE3, _ENOSYS), *_refuse_flags(_CLONE, _NEW_NAMESPACES | _NEW_USER)]


def _no_user_namespace_steps() -> list[_Step]:
    return [*_refuse(_CLONE3, _ENOSYS), *_refuse_flags(_CLONE, _NEW_USER), *_refuse_flags(_UNSHARE, _NEW_USER)]


def _landlock_steps(version: int) -> list[_Step]:
    if version == 0:
        return [step for number in range(_LANDLOCK_CREATE, _LANDLOCK_LAST + 1) for step in _refuse(number, _ENOSYS)]
    asks_for_version = 1
    return [
        (_JEQ, _LANDLOCK_CREATE, 0, 3),
        (_LOAD, 32, 0, 0),
        (_JEQ, asks_for_version, 0, 1),
        (_RETURN, _NOTIFY, 0, 0),
    ]


def _filter(steps: Sequence[_Step], *, listens: bool = False) -> int | None:
    """Install a seccomp filter for what follows; a descriptor that hears of what it does not decide itself."""
    instructions = [(_LOAD, 0, 0, 0), *steps, (_RETURN, _ALLOW, 0, 0)]
    code = b"".join(struct.pack("<HBBI", code, yes, no, value) for code, value, yes, no in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("<HxxxxxxQ", len(instructions), ctypes.addressof(buffer))
    set_mode_filter, new_listener = 1, 8
    answer = syscalls.syscall(
        "seccomp", syscalls.number("seccomp"), ctypes.c_uint(set_mode_filter),
        ctypes.c_uint(new_listener if listens else 0), ctypes.c_char_p(program),
    )  # fmt: skip
    return answer if listens else None


def _attend(pid: int, master: int, supervisor_end: socket.socket, landlock: int | None, log: object) -> int:
    """Copy the driver's log and answer for the kernel until the command has ended; its status."""
    ended = os.pidfd_open(pid)
    listener = -1
    poller = select.poll()
    for descriptor in (ended, master, supervisor_end.fileno()):
        poller.register(descriptor, select.POLLIN)
    while True:
        ready = dict(poller.poll())
        if master in ready:
            log.write(os.read(master, 1 << 16))  # type: ignore[attr-defined]
        elif listener in ready and ready[listener] & select.POLLIN:
            _answer_version(listener, landlock or 0)
        elif listener in ready:
            poller.unregister(listener)  # its last sender has ended
        elif supervisor_end.fileno() in ready:
            _, descriptors, _, _ = socket.recv_fds(supervisor_end, 64, 1)
            poller.unregister(supervisor_end.fileno())
            if descriptors:
                listener = descriptors[0]
                poller.register(listener, select.POLLIN)
        elif ended in ready:
            return os.waitpid(pid, 0)[1]


def _answer_version(listener: int, version: int) -> None:
    """Answer one question for Landlock's version."""
    request = bytearray(80)
    try:
        fcntl.ioctl(listener, _NOTIFY_RECEIVE, request)
    except FileNotFoundError:
        return  # who asked has been killed
    identifier = struct.unpack_from("<Q", request)[0]
    try:
        fcntl.ioctl(listener, _NOTIFY_SEND, struct.pack("<QqiI", identifier, version, 0, 0))
    except FileNotFoundError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
