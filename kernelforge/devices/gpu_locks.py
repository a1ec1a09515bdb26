"""Locks on GPUs: one holder at a time across processes, and GPUs in quarantine.

A task keeps its GPU, so that its reference, its baselines and its candidates are measured on the same one. A lease is
a lock on a file (``flock``): it excludes other threads and other processes, and the kernel drops it when its holder
dies in whatever way. Where the file system of the folder has no such locks (Lustre without ``-o flock``, NFS without
its lock service), the file is in a folder of the machine itself (:func:`local_folder`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelforge.errors import DeviceError, UsageError

_GPU = "cuda:"
_POLL_S = 0.02
_HOLDER_BYTES = 4096
_MACHINE_FOLDER = Path("/tmp")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What ``flock`` fails with on a file system without locks."""


def parse_devices(text: str, known: Sequence[str] | None = None) -> tuple[str, ...]:
    """Full names of the devices that ``text`` lists: ``cuda`` is every GPU, ``cuda:0,cuda:2`` are two of them.

    Args:
        text: Names between commas. Only GPUs can be listed together.
        known: Names of the devices of this machine; found out if absent.

    Raises:
        UsageError: the list is empty, names a device twice, or mixes GPUs with emulated devices.
        DeviceError: there is no such device.
    """
    # Imported here: these names are looked up again by whoever replaces them.
    from kernelforge.devices import check_device, device_names

    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"--device {text!r} has an empty name in it: write for example cuda:0,cuda:1")
    found: list[str] = []
    for name in names:
        if name.lower() == "cuda":
            gpus = [one for one in (device_names() if known is None else known) if one.startswith(_GPU)]
            # Where there is none, the check says why and what there is instead.
            found += gpus or [check_device(name)]
        else:
            found.append(name.lower() if known is not None and name.lower() in known else check_device(name))
    for name in found:
        if found.count(name) > 1:
            raise UsageError(f"--device {text!r} names {name} twice")
    if len(found) > 1 and not all(name.startswith(_GPU) for name in found):
        raise UsageError(
            f"--device {text!r} mixes kinds of devices: only GPUs can share a run, for measured and modelled "
            "times never share a board"
        )
    return tuple(found)


@dataclass
class _Health:
    """What probes said of one device."""

    failures: int = 0
    """In a row."""
    reason: str = ""
    """Why it is set aside; empty while it is not."""
    again_at: float = 0.0
    """When it may be probed again, by the clock."""


@dataclass
class _Queue:
    """Threads of this process that want one device, first come first served."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: deque[int] = field(default_factory=deque)


_queues: dict[str, _Queue] = {}
_queues_guard = threading.Lock()
_open: set[int] = set()
"""Descriptors of lock files. A child forked without a new program must not keep a lease that its parent gives back."""


def _close_in_child() -> None:
    for descriptor in list(_open):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)


class GpuLocks:
    """The GPUs of one run. Safe to use from several threads.

    Args:
        devices: Names, as :func:`parse_devices` gives them.
        folder: Where the lock files are: the same for every process of this user.
        keys: UUIDs of the devices. Without one the name is the key, and processes that number GPUs differently
            (``CUDA_VISIBLE_DEVICES``) would not see each other.
        failures: Failed probes in a row until a device is set aside.
        retry_after_s: How long until one that was set aside may be probed again.
        clock: Seconds.
    """

    def __init__(
        self,
        devices: Sequence[str],
        folder: Path,
        *,
        keys: Mapping[str, str] | None = None,
        failures: int = 3,
        retry_after_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not devices:
            raise ValueError("no devices")
        self.devices = tuple(devices)
        self._folder = folder
        self._keys = dict(keys or {})
        self._failures = failures
        self._retry_after_s = retry_after_s
        self._clock = clock
        self._lock = threading.Lock()
        self._tasks: dict[str, str] = {}
        self._health = {device: _Health() for device in self.devices}

    def assign(self, task: str) -> str:
        """The device of a task: the one it has had, else the one with the fewest tasks.

        A task whose device has been set aside moves to another: all of it, so that what is compared stays together.

        Raises:
            DeviceError: every device is set aside.
        """
        with self._lock:
            held = self._tasks.get(task)
            if held is not None and not self._health[held].reason:
                return held
            able = [device for device in self.devices if not self._health[device].reason]
            if not able:
                raise DeviceError(self._none_left())
            load = dict.fromkeys(able, 0)
            for name, device in self._tasks.items():
                if name != task and device in load:
                    load[device] += 1
            self._tasks[task] = min(able, key=lambda device: load[device])
            return self._tasks[task]

    def done(self, task: str) -> None:
        """The task has ended; its device counts one less."""
        with self._lock:
            self._tasks.pop(task, None)

    def probed(self, device: str, complaint: str | None) -> bool:
        """Note the outcome of a health probe; returns whether the device may be used.

        Args:
            device: Which.
            complaint: What was wrong; None if all was well, which also ends a quarantine.
        """
        with self._lock:
            health = self._health[device]
            if complaint is None:
                self._health[device] = _Health()
                return True
            health.failures += 1
            if health.failures >= self._failures or health.reason:
                times = f"{health.failures} probes in a row failed" if health.failures > 1 else "a probe failed"
                self._set_aside(device, f"{times}, the last one with: {complaint}")
            return not health.reason

    def quarantine(self, device: str, reason: str) -> bool:
        """Set a device aside now; its tasks move when they are next assigned. Whether it was not set aside before."""
        with self._lock:
            new = not self._health[device].reason
            self._set_aside(device, reason)
            return new

    def quarantined(self) -> dict[str, str]:
        """Devices that are set aside, and why."""
        with self._lock:
            return {device: health.reason for device, health in self._health.items() if health.reason}

    def due(self) -> tuple[str, ...]:
        """Devices that are set aside and may be probed again now; :meth:`probed` takes the outcome."""
        with self._lock:
            now = self._clock()
            return tuple(device for device, health in self._health.items() if health.reason and now >= health.again_at)

    def _set_aside(self, device: str, reason: str) -> None:
        self._health[device].reason = reason
        self._health[device].again_at = self._clock() + self._retry_after_s

    def _none_left(self) -> str:
        why = "; ".join(f"{device}: {health.reason}" for device, health in self._health.items())
        wait = max(0.0, min(health.again_at for health in self._health.values()) - self._clock())
        return (
            f"no GPU is left to run on ({why}). Look at `nvidia-smi` and `kernelforge doctor`; "
            f"the first may be tried again in {wait:.0f} s, and `kernelforge resume` goes on from here."
        )

    @contextlib.contextmanager
    def lease(
        self,
        device: str,
        *,
        task: str = "",
        timeout_s: float | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> Iterator[None]:
        """Have a GPU to oneself. An emulated device needs no lease: nothing is disturbed by its neighbours.

        Args:
            device: One of :attr:`devices`.
            task: Told to whoever waits.
            timeout_s: Longest wait; None waits for ever.
            on_wait: Called once, with who holds the device, if there is a wait.

        Raises:
            DeviceError: somebody else held it for all that time, or the lock file can't be made.
            RuntimeError: this thread has it already.
        """
        if not device.startswith(_GPU):
            yield
            return
        key = re.sub(r"[^A-Za-z0-9._-]", "-", self._keys.get(device, device))
        wait = _Wait(device, self._folder / f"{key}.lock", timeout_s, on_wait)
        with _turn(wait):
            descriptor = _take(wait, task)
            try:
                yield
            finally:
                os.ftruncate(descriptor, 0)
                _close(descriptor)


@dataclass
class _Wait:
    """One wait for one device."""

    device: str
    path: Path
    timeout_s: float | None
    on_wait: Callable[[str], None] | None
    began: float = field(default_factory=time.monotonic)
    told: bool = False

    def left_s(self) -> float | None:
        return None if self.timeout_s is None else self.began + self.timeout_s - time.monotonic()

    def go_on(self) -> None:
        """Say once that there is a wait, however short it is.

        Raises:
            DeviceError: it has been long enough.
        """
        if not self.told and self.on_wait is not None:
            self.on_wait(f"waiting for {self.device}: {self.holder()}")
        self.told = True
        left = self.left_s()
        if left is not None and left <= 0:
            raise DeviceError(
                f"{self.device} was not free within {self.timeout_s:g} s: {self.holder()}. "
                "Wait for it, stop it there, or choose another GPU with --device."
            )

    def holder(self) -> str:
        """Who has it, as far as the lock file tells."""
        try:
            with self.path.open("rb") as file:
                raw = json.loads(file.read(_HOLDER_BYTES))
            who = "this process" if raw["pid"] == os.getpid() else f"process {int(raw['pid'])}"
            task = "".join(one for one in str(raw["task"]) if one.isprintable())
            what = f" for task {task}" if task else ""
            return f"{who} has had it{what} for {max(0.0, time.monotonic() - raw['since']):.0f} s"
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return "another process has it"


@contextlib.contextmanager
def _turn(wait: _Wait) -> Iterator[None]:
    """Be the one thread of this process that may have the device, in the order of asking."""
    with _queues_guard:
        queue = _queues.setdefault(str(wait.path), _Queue())
    me = threading.get_ident()
    with queue.changed:
        if me in queue.waiting:
            raise RuntimeError(f"this thread has the lease of {wait.device} already")
        queue.waiting.append(me)
        try:
            while queue.waiting[0] != me:
                wait.go_on()
                queue.changed.wait(wait.left_s())
        except BaseException:
            queue.waiting.remove(me)
            queue.changed.notify_all()
            raise
    try:
        yield
    finally:
        with queue.changed:
            queue.waiting.remove(me)
            queue.changed.notify_all()


def _take(wait: _Wait, task: str) -> int:
    """A descriptor that holds the lock, taken through a turnstile.

    Whoever waits holds the turnstile, so a process that gives its lease back and asks again at once comes after it.
    """
    try:
        try:
            return _take_at(wait, task)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        # Every process of this user finds the same, and locks there, too.
        wait.path = local_folder() / wait.path.name
        return _take_at(wait, task)
    except OSError as error:
        raise DeviceError(f"cannot lock {wait.device} with {wait.path}: {error.strerror or error}") from error


def _take_at(wait: _Wait, task: str) -> int:
    wait.path.parent.mkdir(parents=True, exist_ok=True)
    turnstile = _locked(wait, wait.path.with_suffix(".next"))
    try:
        descriptor = _locked(wait, wait.path)
    finally:
        _close(turnstile)
    # The clock that counts since the machine began, the same in all its processes: nobody sets it.
    holder = {"pid": os.getpid(), "task": task[:200], "since": time.monotonic()}
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    except BaseException:
        _close(descriptor)
        raise
    return descriptor


def local_folder() -> Path:
    """A folder of this machine and user for lock files, the same in every session of that user.

    Raises:
        OSError: it cannot be made, or somebody else made it.
    """
    # Not in XDG_RUNTIME_DIR: a batch job has none, and would not see what a login holds.
    folder = _MACHINE_FOLDER / f"kernelforge-leases-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise OSError(errno.EPERM, f"{folder} is not a folder that this user alone can write to")
    return folder


def _locked(wait: _Wait, path: Path) -> int:
    # Never unlinked: a lock on a file that has lost its name excludes nobody.
    # No link is followed: what it leads to would be emptied.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    _open.add(descriptor)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                wait.go_on()
                time.sleep(_POLL_S)
    except BaseException:
        _close(descriptor)
        raise


def _close(descriptor: int) -> None:
    """Give the lock back, and close the file: a process that is being started may still have a copy of the descriptor,
    which would keep the lock."""
    _open.discard(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
