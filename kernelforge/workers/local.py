"""The local pool: one worker process per GPU or per emulated slot, and some compile workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from kernelforge.devices.gpu_locks import parse_devices
from kernelforge.errors import UsageError
from kernelforge.evaluation.stages.full_size_measured import check_measure
from kernelforge.evaluation.warm_evaluators import WARM_TASKS
from kernelforge.records import MeasureSettings
from kernelforge.workers.pool import WorkerPoolEngine, check_counts, check_limits
from kernelforge.workers.slot import WorkerSlot
from kernelforge.workers.worker_main import WorkerSettings

_CORES_PER_COMPILER = 4


class LocalEngine(WorkerPoolEngine):
    """See :class:`kernelforge.workers.base.Engine`.

    Args:
        device: ``emulated:h100``; or GPUs, as in ``cuda`` (all of them) or ``cuda:0,cuda:1``: each is a slot.
        slots: candidates evaluated at a time on an emulated device; None for the number of cores.
        compilers: compile workers; None for one per four cores, at least one.
        measure: settings of timing on a GPU.
        allow_unconfined: run children without a jail if none works.
        threads: threads of one emulated run, and of an oracle; None for an equal share of the cores per slot.
        warm_tasks: oracles that each slot keeps. Between orders those of all slots together hold at most a third of
            the machine's memory; while it runs, one may take 8 GiB.
        cache: folder of the build cache, which all workers share; None for the user's cache.
        run_limit_s: longest run of a candidate's plan, in wall seconds; a longer one is ``TIMEOUT``. None for 20 s,
            which a run at the full size may need on an emulated device.
        compile_limit_s: longest compilation, in seconds of wall and of CPU time; None for 60 s.

    Raises:
        UsageError: options that contradict each other.
        DeviceError: there is no such device.
    """

    name: Literal["local", "ray"] = "local"

    def __init__(
        self,
        device: str,
        *,
        slots: int | None = None,
        compilers: int | None = None,
        measure: MeasureSettings | None = None,
        allow_unconfined: bool = False,
        threads: int | None = None,
        warm_tasks: int = WARM_TASKS,
        cache: Path | None = None,
        run_limit_s: float | None = None,
        compile_limit_s: float | None = None,
    ) -> None:
        names = parse_devices(device)
        on_gpu = names[0].startswith("cuda:")
        cores = os.cpu_count() or 1
        if on_gpu and slots not in (None, len(names)):
            raise UsageError(
                f"{device} has one slot per GPU, {len(names)} in all: concurrent runs would distort the times"
            )
        check_counts(slots=slots, compilers=compilers, threads=threads)
        check_limits(run_limit_s=run_limit_s, compile_limit_s=compile_limit_s)
        slot_count = len(names) if on_gpu else slots or cores
        self._common: dict[str, Any] = {
            "threads": threads or max(cores // slot_count, 1),
            "allow_unconfined": allow_unconfined,
            "cache": None if cache is None else str(cache.resolve()),
            "run_limit_s": run_limit_s,
            "compile_limit_s": compile_limit_s,
        }
        labels = names if on_gpu else [f"{names[0]}#{number + 1}" for number in range(slot_count)]
        settings = {
            "measure": check_measure(measure or MeasureSettings(), names[0]),
            "warm_tasks": warm_tasks,
            "warm_bytes": _memory_bytes() // (3 * slot_count),
        }
        super().__init__()
        self._worker_slots = {
            label: WorkerSlot(
                label,
                WorkerSettings(role="device", device=label.partition("#")[0], **settings, **self._common),
                self._change.set,
            )
            for label in labels
        }
        self._compilers = [f"compiler#{n + 1}" for n in range(compilers or max(cores // _CORES_PER_COMPILER, 1))]

    async def start(self) -> None:
        """Start the workers and return when a slot can be used.

        Raises:
            KernelForgeError: no worker starts: no jail, no such device.
        """
        for worker_slot in self._worker_slots.values():
            worker_slot.open()
        try:
            self._target = await self._first_target()
        except BaseException:
            await self.close()
            raise
        settings = WorkerSettings(role="cpu", target=self._target, **self._common)
        self._compile_slots = {name: WorkerSlot(name, settings, self._compile_change.set) for name in self._compilers}
        for compile_slot in self._compile_slots.values():
            compile_slot.open()
        self._change.set()

    @property
    def preparing(self) -> int:
        """One for each worker that prepares."""
        return len(self._compilers)


def _memory_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
