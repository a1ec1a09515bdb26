"""A hostile role: it does what the test asks for, inside the jail."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path


def warm_up(options):
    "warm".encode("idna")
    tempfile.gettempdir()  # as packages do that make a temporary file when they are imported
    if options.get("opens"):
        os.open(options["opens"], os.O_RDONLY)
    if options.get("fail"):
        raise RuntimeError("the warm-up failed on purpose")
    if options.get("device_error"):
        from kernelforge.errors import DeviceError

        raise DeviceError("install the thing")


def serve(channel):
    while True:
        frame = channel.receive()
        request = frame.data
        if request["act"] == "echo":
            channel.send({"reply": [type(blob).__name__ for blob in frame.blobs]}, frame.blobs)
            continue
        reply = ACTS[request["act"]](channel, *request.get("arguments", []))
        if reply is not None:
            channel.send({"reply": reply})


def attempt(function):
    """Result of ``function``, or its error."""

    def act(channel, *arguments):
        try:
            return {"opened": True, "gave": function(*arguments)}
        except Exception as error:
            return {"opened": False, "gave": f"{type(error).__name__}: {error}"}

    return act


def read(path):
    return Path(path).read_bytes()[:4096].decode("utf-8", "replace")


def listing(path):
    return sorted(os.listdir(path))


def write(path, size):
    Path(path).write_bytes(b"x" * size)
    return "written"


def fill_tmp():
    folder = os.environ["TMPDIR"]
    for number in range(4096):
        with open(os.path.join(folder, str(number)), "wb") as file:
            file.write(b"x" * (1 << 20))


def temporary_file():
    with tempfile.NamedTemporaryFile() as file:
        return os.path.dirname(file.name) == os.environ["TMPDIR"]


def mounted_read_only(path):
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def is_device(path):
    return stat.S_ISCHR(os.stat(path).st_mode)


def harmless_calls():
    """Errors of refused calls whose arguments an unprivileged process may give: 0 is a success."""
    from kernelforge.sandbox import seccomp

    numbers = seccomp._MACHINES[platform.machine()][1]
    own = os.getpid()
    calls = {
        "ptrace": (0, 0, 0, 0),  # "trace me"
        "process_vm_readv": (own, 0, 0, 0, 0, 0),
        "process_vm_writev": (own, 0, 0, 0, 0, 0),
        "kcmp": (own, own, 2, 0, 0),
        "pidfd_open": (own, 0),
        "pidfd_getfd": (-1, 0, 0),
        "pidfd_send_signal": (-1, 0, 0, 0),
        "setns": (-1, 0),
        "unshare": (0,),
        "personality": (0xFFFFFFFF,),
        "keyctl": (0, -3, 0),
        "add_key": (0, 0, 0, 0, 0),
        "io_uring_setup": (0, 0),
        "shmget": (0, 4096, 0o600),
        "semget": (0, 1, 0o600),
        "msgget": (0, 0o600),
        "mq_open": (0, 0, 0, 0),
        "name_to_handle_at": (-1, 0, 0, 0, 0),
        "perf_event_open": (0, 0, 0, 0, 0),
        "userfaultfd": (1,),
        "tkill": (own, 0),
        "execveat": (-1, 0, 0, 0, 0),
    }
    libc, outcomes = ctypes.CDLL(None, use_errno=True), {}
    for name, arguments in calls.items():
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(numbers[name]), *(ctypes.c_long(number) for number in arguments))
        outcomes[name] = ctypes.get_errno() if result < 0 else 0
    return outcomes


def deepen(levels, length):
    """Folders inside each other; the working directory is the innermost."""
    os.chdir(os.environ["TMPDIR"])
    for _ in range(levels):
        os.mkdir("d" * length)
        os.chdir("d" * length)
    return levels


def fill_slowly(seconds):
    for number in range(int(seconds * 20)):
        Path(f"f{number}").write_bytes(b"x" * (1 << 20))
        time.sleep(0.05)
    return "filled"


def orphans_hog(processes, megabytes):
    """Start orphaned processes, each with its own memory."""
    for _ in range(processes):
        first = os.fork()
        if first == 0:
            if os.fork() == 0:
                block = b"x" * (megabytes << 20)
                time.sleep(150)
                os._exit(len(block) & 1)
            os._exit(0)
        os.waitpid(first, 0)
    time.sleep(100)
    return "held"


def connect(family, kind, address):
    address = tuple(address) if isinstance(address, list) else address
    with socket.socket(getattr(socket, family), getattr(socket, kind)) as sock:
        sock.settimeout(1)
        sock.connect(address)
        sock.send(b"leak")
    return "connected"


def kill(pid, number):
    os.kill(pid, number)
    return "sent"


def kill_everyone():
    os.kill(-1, signal.SIGKILL)
    return "sent"


def peek(pid, address, length):
    from kernelforge.sandbox.self_test_worker import peek_memory

    return peek_memory(pid, address, length)


def environment():
    return dict(os.environ)


def descriptors():
    targets = {}
    for fd in range(4096):
        try:
            facts = os.fstat(fd)
        except OSError:
            continue
        targets[str(fd)] = [facts.st_mode, facts.st_rdev]
    return targets


def identity():
    status = {}
    for line in ("uid", "gid"):
        status[line] = getattr(os, f"getres{line}")()
    return {**status, "groups": os.getgroups(), "pid": os.getpid()}


def fork_bomb():
    pids = []
    for _ in range(64):
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        pids.append(pid)
    return len(pids)


def thread_bomb():
    started = []
    try:
        for _ in range(256):
            thread = threading.Thread(target=time.sleep, args=(30,), daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        pass
    return len(started)


def hog(megabytes):
    blocks = []
    for _ in range(megabytes):
        blocks.append(bytearray(b"x" * (1 << 20)))
    return len(blocks)


def map_hog(megabytes, held_s=0):
    area = mmap.mmap(-1, megabytes << 20)
    for offset in range(0, megabytes << 20, 4096):
        area[offset] = 1
    time.sleep(held_s)
    return megabytes


def map_again(megabytes):
    """Map a file of one MiB again and again, and read it at each address."""
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * (1 << 20))
        file.flush()
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        size = ctypes.c_size_t(1 << 20)
        maps = [libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0) for _ in range(megabytes)]
        read = sum(
            ctypes.c_ubyte.from_address(area + offset).value for area in maps for offset in range(0, 1 << 20, 4096)
        )
        time.sleep(1)
        return read


def memfd_hog():
    fd = os.memfd_create("hog")
    os.write(fd, b"x" * (1 << 20))
    return "written"


def program(path):
    return subprocess.run([path], check=False).returncode


def shell(command):
    """Output of a program in the jail."""
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, close_fds=False, timeout=150, check=False)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def forks(stay_s=0):
    """Number of processes up to the limit; optionally all of them stay for a while."""
    pids = []
    try:
        while len(pids) < 4096:
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            pids.append(pid)
    except OSError:
        pass
    time.sleep(stay_s)
    for pid in pids:
        with contextlib.suppress(PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def orphan():
    """Start an orphaned grandchild; its process id in this namespace."""
    subprocess.Popen(["/bin/sleep", "300"], start_new_session=True)
    subprocess.Popen(["/bin/sleep", "300"], process_group=0)
    return subprocess.Popen(["/bin/sleep", "300"]).pid


def clone_namespace(flag):
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    pid = libc.syscall(ctypes.c_long(number), ctypes.c_long(flag | signal.SIGCHLD), None, None, None, None)
    if pid == 0:
        os._exit(0)
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


def entropy_ioctl(path):
    """A request that the kernel's random device answers: RNDGETENTCNT."""
    with open(path, "rb", buffering=0) as device:
        return struct.unpack("i", fcntl.ioctl(device, 0x80045200, bytes(4)))[0] >= 0


def name_thread(name):
    path = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/comm"
    Path(path).write_text(name)
    return Path(path).read_text().strip()


def memory_file(size):
    fd = os.memfd_create("cuda")
    os.ftruncate(fd, size)
    return mmap.mmap(fd, size).size()


def wait_on_socket(family, kind):
    with socket.socket(getattr(socket, family), getattr(socket, kind)) as sock:
        sock.bind("\0waiting" if family == "AF_UNIX" else ("127.0.0.1", 0))
        sock.listen()
    return "listening"


def reserve(gigabytes):
    """Address space that is never touched, as CUDA takes it: MAP_NORESERVE, no access."""
    mmap.mmap(-1, gigabytes << 30, flags=mmap.MAP_PRIVATE | 0x4000, prot=0).close()
    return "reserved"


def private_memory(megabytes):
    mmap.mmap(-1, megabytes << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE).close()
    return "mapped"


def limits():
    return {
        name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in ("MEMLOCK", "NOFILE", "AS", "DATA")
    }


def map_code():
    """A file of the private folder, mapped to be executed, as a loaded library is."""
    path = os.path.join(os.environ["TMPDIR"], "code")
    Path(path).write_bytes(bytes(4096))
    with open(path, "rb") as file:
        mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    return "mapped"


def new_namespace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    return "unshared"


def read_only_root():
    with tempfile.NamedTemporaryFile(dir="/") as file:
        return file.name


def spin(channel):
    while True:
        pass


def sleep(channel, seconds):
    time.sleep(seconds)
    return "awake"


def leave(channel, code):
    os._exit(code)


def die(channel, number):
    if number == signal.SIGABRT:
        os.abort()
    ctypes.string_at(0)


def fail(channel):
    raise ValueError("a fault of the worker")


def raw(channel, head, repeat):
    """Write bytes of our own making instead of a frame."""
    channel._sock.setblocking(True)
    piece = bytes.fromhex(head)
    try:
        for _ in range(repeat):
            channel._sock.sendall(piece)
    except OSError:
        pass
    time.sleep(30)


def forged(channel, json_bytes, blobs, total):
    raw(channel, struct.pack("<4sIIIQ", b"KFF2", json_bytes, blobs, 0, total).hex(), 1)


def unsealed(channel, size):
    """A frame whose memory file can still be cut under its reader."""
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.write(fd, bytes(size))
    head = struct.pack("<4sIIIQQB", b"KFF2", 2, 1, 1, size, size, 1) + b"{}"
    channel._sock.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))])
    time.sleep(30)


def big(channel, megabytes):
    channel.send({"reply": "big"}, [b"x" * (1 << 20)] * megabytes)


ACTS = {name: attempt(globals()[name]) for name in (
    "read", "listing", "write", "connect", "kill", "kill_everyone", "peek", "environment", "descriptors", "identity",
    "fork_bomb", "thread_bomb", "map_hog", "map_again", "memfd_hog", "program", "new_namespace", "read_only_root",
    "shell", "forks", "orphan", "clone_namespace", "entropy_ioctl", "name_thread", "memory_file", "wait_on_socket",
    "reserve", "private_memory", "limits", "map_code", "deepen", "fill_slowly", "orphans_hog", "mounted_read_only",
    "is_device", "harmless_calls", "temporary_file",
)}  # fmt: skip
ACTS |= {
    "fill_tmp": lambda channel: fill_tmp(),
    "hog": lambda channel, megabytes: hog(megabytes),
    "spin": spin, "sleep": sleep, "leave": leave, "die": die, "fail": fail, "raw": raw, "forged": forged, "big": big,
    "unsealed": unsealed,
}  # fmt: skip
