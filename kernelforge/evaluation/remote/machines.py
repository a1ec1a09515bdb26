"""Pools by the name of their devices, and one over several other machines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from math import ceil

from kernelforge.devices.gpu_locks import parse_devices
from kernelforge.devices.remote.address import is_remote, join_machines
from kernelforge.errors import DeviceError, KernelForgeError, UsageError
from kernelforge.evaluation.evaluator import DeviceFacts
from kernelforge.evaluation.pool import EvaluatorPool, RunPool, WarmEvaluators, open_admitted
from kernelforge.evaluation.remote.pool import RemoteDevice, RemoteEvaluator, RemotePool
from kernelforge.prediction.correction import ModelErrors
from kernelforge.records import Fingerprint, InputGenerator, MeasureSettings, Task
from kernelforge.utils.closing import Closing

AGAIN_S = 600.0
"""Time after which a machine that was lost is tried again, as a GPU that failed is."""


def open_pool(
    device: str,
    *,
    threads: int = 2,
    jobs: int = 1,
    measure: MeasureSettings | None = None,
    allow_unconfined: bool = False,
    tell: Callable[[str], None] | None = None,
) -> RunPool:
    """A pool of devices of this machine, or of others; the caller closes it.

    Args:
        device: as :func:`~kernelforge.devices.gpu_locks.parse_devices` takes it.
        threads: of one run on an emulated device of this machine.
        jobs: tasks that are worked on at a time.
        measure, allow_unconfined, tell: as of :class:`~kernelforge.evaluation.pool.EvaluatorPool`.

    Raises:
        UsageError: there can be no such device.
        DeviceError: there is no such device, or no machine can be used.
        SandboxError: no jail works there and ``allow_unconfined`` is false.
    """
    if not is_remote(device):
        return EvaluatorPool(device, threads=threads, measure=measure, allow_unconfined=allow_unconfined, tell=tell)
    urls = parse_devices(device)
    if len(urls) == 1:
        return RemotePool(urls[0], jobs=jobs, measure=measure, allow_unconfined=allow_unconfined, tell=tell)
    return MachinesPool(urls, jobs=jobs, measure=measure, allow_unconfined=allow_unconfined, tell=tell)


class MachinesPool(Closing):
    """Evaluators of the devices of several machines. Safe to share between threads; close it when done.

    A task keeps its machine. One that cannot be reached any more is left, and its tasks go on at another, where what
    was under way is done once more; after ten minutes it is tried again.

    Args:
        urls: one address for each machine.
        jobs: tasks that are worked on at a time, by all machines together.
        measure, allow_unconfined, tell: as of :class:`~kernelforge.evaluation.pool.EvaluatorPool`.

    Raises:
        UsageError: they would give different results for the same candidate.
        DeviceError: none of them can be used.
        SandboxError: no jail works there and ``allow_unconfined`` is false.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        jobs: int = 1,
        measure: MeasureSettings | None = None,
        allow_unconfined: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.name = join_machines(urls)
        self.allow_unconfined = allow_unconfined
        self._tell = tell or (lambda message: None)
        self._lock = threading.Lock()
        self._tasks: dict[str, str] = {}
        """Address of each task's machine."""
        self._lost: dict[str, tuple[str, float]] = {}
        """Machines that cannot be used: why, and when they are tried again."""
        self._machines: dict[str, RemotePool] = {}
        self._closing = ExitStack()
        reach = partial(
            RemotePool, jobs=ceil(jobs / len(urls)), measure=measure, allow_unconfined=allow_unconfined, tell=tell
        )
        with self._closing, ThreadPoolExecutor(len(urls)) as executor:
            opening = {url: executor.submit(reach, url) for url in urls}
            failures: list[KernelForgeError] = []
            for url, future in opening.items():
                try:
                    self._machines[url] = self._closing.enter_context(future.result())
                except KernelForgeError as error:
                    failures.append(error)
                    self._tell(f"{url} is left out: {error}")
            if not self._machines:
                raise failures[0]
            self._check_alike()
            self._closing = self._closing.pop_all()
        self.evaluators = WarmEvaluators(partial(open_admitted, self), self.done)
        """See :attr:`RemotePool.evaluators`."""

    @property
    def device(self) -> RemoteDevice:
        """The first device of the first machine that can be used."""
        return self._first.device

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of evaluations on that device."""
        return self._first.fingerprint

    def evaluator(
        self, task: Task, generators: Sequence[InputGenerator] = (), errors: ModelErrors | None = None
    ) -> RemoteEvaluator:
        """See :meth:`kernelforge.evaluation.pool.EvaluatorPool.evaluator`.

        Raises:
            DeviceError: no machine is left.
        """
        self._try_again()
        while True:
            machine = self._assigned(task)
            try:
                return machine.evaluator(task, generators, errors)
            except DeviceError as error:
                self._leave(machine, error)

    def done(self, task: Task) -> None:
        """See :meth:`kernelforge.evaluation.pool.EvaluatorPool.done`."""
        with self._lock:
            url = self._tasks.pop(task.name, None)
        if url is not None:
            self._machines[url].done(task)

    def quarantine(self, device: DeviceFacts, error: DeviceError) -> None:
        """Leave a device, or its machine where it has no other or cannot be reached.

        Raises:
            DeviceError: no machine is left.
        """
        machine = self._of(device)
        try:
            machine.quarantine(device, error)
        except DeviceError as last:
            self._leave(machine, last)

    def is_quarantined(self, device: DeviceFacts) -> bool:
        """Whether a device, or its machine, was left: its tasks need another evaluator."""
        machine = self._of(device)
        if machine.name in self._lost:
            return True
        try:
            return machine.is_quarantined(device)
        except DeviceError as error:
            self._leave(machine, error)
            return True

    def interrupt(self, *, oracles: bool) -> None:
        """See :meth:`kernelforge.evaluation.pool.EvaluatorPool.interrupt`."""
        for machine in self._machines.values():
            machine.interrupt(oracles=oracles)

    def close(self) -> None:
        """End the processes there and the connections."""
        self._closing.close()

    @property
    def _first(self) -> RemotePool:
        return next((self._machines[url] for url in self._able()), next(iter(self._machines.values())))

    def _of(self, device: DeviceFacts) -> RemotePool:
        assert isinstance(device, RemoteDevice)
        return self._machines[device.host]

    def _able(self) -> list[str]:
        return [url for url in self._machines if url not in self._lost]

    def _assigned(self, task: Task) -> RemotePool:
        """The machine of a task: its earlier one, else the one with the fewest tasks for each device."""
        with self._lock:
            able = self._able()
            if not able:
                raise DeviceError(
                    f"no machine is left to run on ({'; '.join(why for why, _ in self._lost.values())}); "
                    "`kernelforge resume` goes on from here"
                )
            url = self._tasks.get(task.name)
            if url not in able:
                tasks = [machine for name, machine in self._tasks.items() if name != task.name]
                url = min(able, key=lambda each: tasks.count(each) / self._machines[each].ready["devices"])
                self._tasks[task.name] = url
            return self._machines[url]

    def _leave(self, machine: RemotePool, error: DeviceError) -> None:
        """Use a machine no more.

        Raises:
            DeviceError: it was the last.
        """
        with self._lock:
            new = machine.name not in self._lost
            self._lost[machine.name] = (str(error), time.monotonic() + AGAIN_S)
            last = not self._able()
        if last:
            raise error
        if new:
            self._tell(f"{machine.name} is set aside: {error}")

    def _try_again(self) -> None:
        """Connect to machines that were left long enough ago."""
        with self._lock:
            due = [url for url, (_, until) in self._lost.items() if time.monotonic() >= until]
            for url in due:
                self._lost[url] = (self._lost[url][0], time.monotonic() + AGAIN_S)
        for url in due:
            try:
                self._machines[url].connection()
            except KernelForgeError:
                continue
            with self._lock:
                del self._lost[url]
            self._tell(f"{url} answers again, and is used again")

    def _check_alike(self) -> None:
        """
        Raises:
            UsageError: the same candidate would be compiled or judged differently.
        """
        (first, same), *others = ((url, machine.fingerprint) for url, machine in self._machines.items())
        for url, other in others:
            for what in ("evaluator", "toolchain", "torch"):
                here, there = getattr(same, what), getattr(other, what)
                if here != there:
                    raise UsageError(
                        f"{first} and {url} cannot share a run: the one has {what} {here}, the other {there}; leave "
                        "python= out, and both get the versions of this machine"
                    )
