"""What evaluations of the lane need, started once and shared: an oracle's zygote, the candidates', a fingerprint."""

from __future__ import annotations

import platform
from importlib.metadata import version
from types import TracebackType

from kernelforge.evaluate.oracle import Oracle
from kernelforge.modelnew.evaluator import LANE_VERSION, ModelNewEvaluator
from kernelforge.records import Fingerprint, Task
from kernelforge.sandbox import Zygote, probe
from kernelforge.version import __version__


class CpuBench:
    """Evaluates ``ModelNew`` candidates with torch on this machine's CPU: values are checked, nothing is timed.

    Args:
        allow_unconfined: run without a jail where none works; the fingerprint then says ``none``.

    Raises:
        SandboxError: no jail works here and ``allow_unconfined`` is false.
    """

    def __init__(self, *, allow_unconfined: bool = False) -> None:
        self._jail = probe().usable_tier(allow_unconfined)
        self._oracles = Zygote("oracle", allow_unconfined=allow_unconfined)
        self._candidates = Zygote("modelnew", allow_unconfined=allow_unconfined)

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes the verdicts on this machine."""
        return Fingerprint(
            device="cpu",
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
        return ModelNewEvaluator(task, Oracle(self._oracles, task), self._candidates, "cpu", self.fingerprint)

    def close(self) -> None:
        """End every helper process."""
        self._oracles.close()
        self._candidates.close()

    def __enter__(self) -> CpuBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
