"""Locks on GPUs: one holder at a time across processes, and GPUs in quarantine.

A task keeps its GPU, so that its reference, its baselines and its candidates are measured on the same one. A lock is
a lock on a file (``flock``): it excludes other threads and processes, and the kernel releases it when its holder dies.
If the folder's file system has no such locks (Lustre without ``-o flock``, NFS without its lock service), the file is
in a folder of the machine itself (:func:`local_folder`).
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

from kernelforge.devices.remote.address import is_remote, parse_machines
from kernelforge.errors import DeviceError, UsageError

_GPU = "cuda:"
_POLL_S = 0.02
_HOLDER_BYTES = 4096
_MACHINE_FOLDER = Path("/tmp")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of ``flock`` on a file system without locks."""


def parse_devices(text: str, available: Sequence[str] | None = None) -> tuple[str, ...]:
    """Full names of the devices in a list: ``cuda`` is every GPU, ``cuda:0,cuda:2`` are two of them.

    Of other machines it has one name each, with all devices there.

    Args:
        text: Names between commas. Only GPUs can be listed together, all of this machine or all of others.
        available: Names of the devices of this machine; looked up if absent.

    Raises:
        UsageError: the list is empty, names a device twice, or mixes GPUs with emulated devices.
        DeviceError: there is no such device.
    """
    # Imported here: the package imports this module's users, and tests replace these names.
    from kernelforge.devices import check_device, device_names

    if is_remote(text):
        return tuple(map(check_device, parse_machines(text)))
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"--device {text!r} has an empty name in it: write for example cuda:0,cuda:1")
    if "://" in text:
        raise UsageError(f"--device {text!r} has devices of this machine and of others: take those of one side")
    devices: list[str] = []
    for name in names:
        if name.lower() == "cuda":
            every = device_names() if available is None else available
            gpus = [device for device in every if device.startswith(_GPU)]
            # Without a GPU, the check raises an error that names the alternatives.
            devices += gpus or [check_device(name)]
        else:
            devices.append(name.lower() if available is not None and name.lower() in available else check_device(name))
    for name in devices:
        if devices.count(name) > 1:
            raise UsageError(f"--device {text!r} names {name} twice")
    if len(devices) > 1 and not all(name.startswith(_GPU) for name in devices):
        raise UsageError(
            f"--device {text!r} mixes kinds of devices: only GPUs can share a run, for measured and modelled "
            "times never share a board"
        )
    return tuple(devices)


@dataclass
class _Health:
    """Health of one device, from its probes."""

    failures: int = 0
    """Consecutive failed probes."""
    reason: str = ""
    """Reason of its quarantine; empty if it has none."""
    retry_at: float = 0.0
    """Time by the clock from which it may be probed again."""


@dataclass
class _Queue:
    """Threads of this process that wait for one device, first come first served."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: deque[int] = field(default_factory=deque)


_queues: dict[str, _Queue] = {}
_queues_guard = threading.Lock()
_open: set[int] = set()
"""Descriptors of lock files. A child forked without exec must not keep a lock that its parent releases."""


def _close_in_child() -> None:
    for descriptor in list(_open):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)


class GpuLocks:
    """The GPUs of one run. Safe to use from several threads.

    Args:
        devices: Names, from :func:`parse_devices`.
        folder: Folder of the lock files: the same for every process of this user.
        keys: UUIDs of the devices. Without one the name is the key, and processes that number GPUs differently
            (``CUDA_VISIBLE_DEVICES``) do not exclude each other.
        failures: Consecutive failed probes until a device is quarantined.
        retry_after_s: Time until a quarantined device may be probed again.
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
        """The device of a task: the task's previous device, else the one with the fewest tasks.

        A task whose device is quarantined moves completely to another, so that compared times are of one device.

        Raises:
            DeviceError: every device is quarantined.
        """
        with self._lock:
            current = self._tasks.get(task)
            if current is not None and not self._health[current].reason:
                return current
            able = [device for device in self.devices if not self._health[device].reason]
            if not able:
                raise DeviceError(self._none_left())
            load = dict.fromkeys(able, 0)
            for name, device in self._tasks.items():
                if name != task and device in load:
                    load[device] += 1
            self._tasks[task] = min(able, key=lambda device: load[device])
            return self._tasks[task]

    def has_device(self, task: str) -> bool:
        """Whether a task was assigned a device and is not done."""
        with self._lock:
            return task in self._tasks

    def done(self, task: str) -> None:
        """End a task: its device has one task less."""
        with self._lock:
            self._tasks.pop(task, None)

    def probed(self, device: str, fault: str | None) -> bool:
        """Record the outcome of a health probe; returns whether the device may be used.

        Args:
            device: The device.
            fault: What is wrong with it; None for a healthy device, which also ends its quarantine.
        """
        with self._lock:
            health = self._health[device]
            if fault is None:
                self._health[device] = _Health()
                return True
            health.failures += 1
            if health.failures >= self._failures or health.reason:
                times = f"{health.failures} probes in a row failed" if health.failures > 1 else "a probe failed"
                self._quarantine(device, f"{times}, the last one with: {fault}")
            return not health.reason

    def quarantine(self, device: str, reason: str) -> bool:
        """Quarantine a device; its tasks move at their next assignment. Returns whether it was in use before."""
        with self._lock:
            new = not self._health[device].reason
            self._quarantine(device, reason)
            return new

    def quarantined(self) -> dict[str, str]:
        """Quarantined devices and the reasons."""
        with self._lock:
            return {device: health.reason for device, health in self._health.items() if health.reason}

    def due(self) -> tuple[str, ...]:
        """Quarantined devices that may be probed again now; :meth:`probed` takes the outcome."""
        with self._lock:
            now = self._clock()
            return tuple(device for device, health in self._health.items() if health.reason and now >= health.retry_at)

    def _quarantine(self, device: str, reason: str) -> None:
        self._health[device].reason = reason
        self._health[device].retry_at = self._clock() + self._retry_after_s

    def _none_left(self) -> str:
        why = "; ".join(f"{device}: {health.reason}" for device, health in self._health.items())
        wait = max(0.0, min(health.retry_at for health in self._health.values()) - self._clock())
        return (
            f"no GPU is left to run on ({why}). Look at `nvidia-smi` and `kernelforge doctor`; "
            f"the first may be tried again in {wait:.0f} s, and `kernelforge resume` goes on from here."
        )

    @contextlib.contextmanager
    def hold(
        self,
        device: str,
        *,
        task: str = "",
        timeout_s: float | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> Iterator[None]:
        """Hold a GPU exclusively. An emulated device needs no lock: neighbours do not disturb it.

        Args:
            device: One of :attr:`devices`.
            task: Name for the messages of processes that wait.
            timeout_s: Longest wait; None for no limit.
            on_wait: Called once with the holder of the device, if another process has it: that the tasks of this one
                take turns is no news.

        Raises:
            DeviceError: another process or thread held it all that time, or the lock file cannot be made.
            RuntimeError: this thread holds it already.
        """
        if not device.startswith(_GPU):
            yield
            return
        key = re.sub(r"[^A-Za-z0-9._-]", "-", self._keys.get(device, device))
        wait = _Wait(device, self._folder / f"{key}.lock", timeout_s, on_wait)
        with _queue_turn(wait):
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
    announced: bool = False

    def remaining_s(self) -> float | None:
        return None if self.timeout_s is None else self.began + self.timeout_s - time.monotonic()

    def announce(self) -> None:
        """Tell once who has the device."""
        if not self.announced and self.on_wait is not None:
            self.on_wait(f"waiting for {self.device}: {self.holder()}")
        self.announced = True

    def check(self) -> None:
        """Continue the wait.

        Raises:
            DeviceError: the time is up.
        """
        remaining = self.remaining_s()
        if remaining is not None and remaining <= 0:
            raise DeviceError(
                f"{self.device} was not free within {self.timeout_s:g} s: {self.holder()}. "
                "Wait for it, stop it there, or choose another GPU with --device."
            )

    def holder(self) -> str:
        """Holder of the device, from the lock file."""
        try:
            with self.path.open("rb") as file:
                raw = json.loads(file.read(_HOLDER_BYTES))
            who = "this process" if raw["pid"] == os.getpid() else f"process {int(raw['pid'])}"
            task = "".join(character for character in str(raw["task"]) if character.isprintable())
            what = f" for task {task}" if task else ""
            return f"{who} has had it{what} for {max(0.0, time.monotonic() - raw['since']):.0f} s"
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return "another process has it"


@contextlib.contextmanager
def _queue_turn(wait: _Wait) -> Iterator[None]:
    """Wait until this thread is the first of this process in the device's queue."""
    with _queues_guard:
        queue = _queues.setdefault(str(wait.path), _Queue())
    me = threading.get_ident()
    with queue.changed:
        if me in queue.waiting:
            raise RuntimeError(f"this thread has the lock of {wait.device} already")
        queue.waiting.append(me)
        try:
            while queue.waiting[0] != me:
                wait.check()
                queue.changed.wait(wait.remaining_s())
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

    A waiting process holds the turnstile, so that one that releases its lock and asks again at once comes after it.
    """
    try:
        try:
            return _take_at(wait, task)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        # Every process of this user gets the same error, and locks there, too.
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
    # Time since the machine started: the same in all processes, and never adjusted.
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
        OSError: it cannot be made, or another user made it.
    """
    # Not in XDG_RUNTIME_DIR: a batch job has none, and must see the locks of a login.
    folder = _MACHINE_FOLDER / f"kernelforge-leases-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OSError(errno.EPERM, f"{folder} is not a folder that this user alone can write to")
    return folder


def _locked(wait: _Wait, path: Path) -> int:
    # Never unlinked: a lock on a file without a name excludes no other process.
    # No link is followed: its target would be truncated.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    _open.add(descriptor)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                wait.announce()
                wait.check()
                time.sleep(_POLL_S)
    except BaseException:
        _close(descriptor)
        raise


def _close(descriptor: int) -> None:
    """Release the lock, and close the file: a process that is being started may have a copy of the descriptor, which
    would keep the lock."""
    _open.discard(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
