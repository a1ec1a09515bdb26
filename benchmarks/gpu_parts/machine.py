"""The machine of the parts: devices, suites and evaluators. Tests of the parts replace the GPU by software."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kernelforge.evaluation import Evaluator
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import MeasureSettings, Task
from kernelforge.tasks import load_suite

if TYPE_CHECKING:
    from kernelforge.modelnew.evaluator import ModelNewEvaluators

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "adversarial"
PLANTED = ROOT / "tests" / "planted"


@dataclass(frozen=True)
class Machine:
    """Devices and suites of the parts."""

    device: str = "cuda:0"
    torch_device: str = "cuda:0"
    """Torch device of references and baselines."""
    emulated: str = "emulated:h200"
    """The emulated device that part ``emulator`` compares with the GPU."""
    suite: str | Path = "core-large"
    """Suite whose full sizes are for a GPU."""
    emulator_suite: str | Path = "core"
    """The same tasks at full sizes that can be emulated."""
    cheats: str | Path = CORPUS / "large"
    """Suite of the tasks that cheats are tried on."""
    threads: int = 8
    measure: MeasureSettings = field(default_factory=MeasureSettings)

    def workshop(self, measure: MeasureSettings | None = None) -> EvaluatorPool:
        """A workshop on the device; the caller closes it."""
        return EvaluatorPool(self.device, threads=self.threads, measure=measure or self.measure)

    def emulator(self) -> EvaluatorPool:
        """A workshop on the emulated device."""
        return EvaluatorPool(self.emulated, threads=self.threads)

    def modelnew(self) -> ModelNewEvaluators:
        """Evaluators of ``ModelNew`` classes on the device."""
        from kernelforge.modelnew.evaluator import ModelNewEvaluators

        return ModelNewEvaluators(self.device, measure=self.measure)

    def tasks(self, names: Sequence[str] = ()) -> list[Task]:
        """Tasks of the suite by name; all of them where none is named."""
        suite = load_suite(self.suite)
        return [suite.task(name) for name in names] if names else list(suite)


@contextmanager
def evaluator_of(workshop: EvaluatorPool, task: Task) -> Iterator[Evaluator]:
    """An evaluator with its oracle, both gone afterwards."""
    made = workshop.evaluator(task)
    try:
        yield made
    finally:
        made.oracle.close()
        workshop.done(task)
