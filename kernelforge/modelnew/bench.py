"""Shared resources of ``ModelNew`` evaluations: zygotes of oracle and candidates, GPU, fingerprint."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from importlib.metadata import version
from types import TracebackType

from kernelforge.devices import check_device, default_device
from kernelforge.errors import UsageError
from kernelforge.evaluation.evaluator import EvaluationResult
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.modelnew.evaluator import LANE_VERSION, ModelNewEvaluator
from kernelforge.records import Candidate, Fingerprint, MeasureSettings, Task
from kernelforge.sandbox import Zygote, select_tier
from kernelforge.version import __version__

CPU = "cpu"
"""Torch on the host: values are checked, nothing is timed."""


def lane_device(name: str | None, measure: MeasureSettings | None = None, *, allow_unconfined: bool = False) -> str:
    """Where ``ModelNew`` candidates run: by default the first GPU that starts, else torch on the CPU.

    Args:
        name: A GPU, ``cpu``, or None for the default. Why a GPU is passed over is then logged as a warning.
        measure: How the GPU will be used.
        allow_unconfined: Start it without a jail where none works.

    Raises:
        UsageError: an emulated device is named; it runs no Python.
        DeviceError: there is no such device.
    """
    if name is None:
        found = default_device(measure, allow_unconfined=allow_unconfined)
        return CPU if found.startswith("emulated") else found
    if name == CPU:
        return CPU
    full = check_device(name)
    if full.startswith("emulated"):
        raise UsageError(f"{full} runs kernels and no ModelNew class; use --device cpu, or a GPU (cuda:0)")
    return full


class ModelNewEvaluators:
    """Evaluates ``ModelNew`` candidates on a GPU, or with torch on the CPU. Close it when done.

    Args:
        device: as :func:`lane_device` takes it.
        measure: how a GPU times.
        allow_unconfined: run without a jail where none works; the fingerprint then says ``none``.

    Raises:
        SandboxError: no jail works here and ``allow_unconfined`` is false.
        DeviceError: there is no such device.
    """

    def __init__(
        self,
        device: str | None = None,
        *,
        measure: MeasureSettings | None = None,
        allow_unconfined: bool = False,
    ) -> None:
        self.device = lane_device(device, measure, allow_unconfined=allow_unconfined)
        self._jail = select_tier().usable_tier(allow_unconfined)
        self._settings = measure or MeasureSettings()
        self._stack = ExitStack()
        self._workshop: EvaluatorPool | None = None
        if self.device == CPU:
            self._oracles = Zygote("oracle", allow_unconfined=allow_unconfined)
            self._candidates = Zygote("modelnew", allow_unconfined=allow_unconfined)
            self._stack.callback(self._oracles.close)
        else:
            workshop = EvaluatorPool(self.device, measure=measure, allow_unconfined=allow_unconfined)
            self._workshop = self._stack.enter_context(workshop)
            environment = workshop.device.environment
            self._candidates = Zygote("gpu-modelnew", environment=environment, allow_unconfined=allow_unconfined)
        self._stack.callback(self._candidates.close)

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes the verdicts on this machine."""
        if self._workshop is not None:
            return self._workshop.fingerprint
        return Fingerprint(
            device=CPU,
            device_kind="cpu",
            arch=platform.machine(),
            toolchain="none",
            kernelforge=__version__,
            evaluator=LANE_VERSION,
            torch=version("torch"),
            python=platform.python_version(),
            host=f"{platform.system().lower()}-{platform.machine()}",
            jail=self._jail,
        )

    def evaluator(self, task: Task) -> ModelNewEvaluator:
        """An evaluator with an oracle of its own; the caller closes ``evaluator.oracle``.

        Raises:
            TaskError: the reference does not run, or cannot be judged.
        """
        if self._workshop is None:
            return ModelNewEvaluator(task, Oracle(self._oracles, task), self._candidates, "cpu", self.fingerprint)
        gpu = self._workshop.device
        oracle = self._workshop.oracle(task, gpu)
        return ModelNewEvaluator(
            task, oracle, self._candidates, "cuda", self.fingerprint, gpu=gpu, settings=self._settings
        )

    def evaluate(
        self, task: Task, candidate: Candidate, *, seed: int, sizes: Sequence[str] | None = None
    ) -> EvaluationResult:
        """One candidate against one task, with the GPU for itself.

        Raises:
            TaskError: the reference does not run, or cannot be judged.
        """
        with self._lease(task):
            evaluator = self.evaluator(task)
            try:
                return evaluator.evaluate(candidate, seed=seed, sizes=sizes)
            finally:
                evaluator.oracle.close()

    def close(self) -> None:
        """End every helper process."""
        self._stack.close()

    def __enter__(self) -> ModelNewEvaluators:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lease(self, task: Task) -> AbstractContextManager[None]:
        return nullcontext() if self._workshop is None else self._workshop.lease(self._workshop.device, task)
