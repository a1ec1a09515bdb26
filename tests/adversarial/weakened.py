"""A helper process some of whose defences are off: what ``defences.py`` starts in place of a role's own module.

``WEAKENED`` in its environment names them. The parts of the product that defend are replaced here, before children are
forked; the product itself has no switch.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

OFF = frozenset(os.environ["WEAKENED"].split(","))
_WORKER = importlib.import_module(os.environ["WEAKENED_MODULE"])

TOLERANCE = 1e-2
"""KernelBench's, absolute and relative."""


def _weaken_oracle() -> None:
    """Outputs pass by ``torch.allclose`` with 1e-2, as KernelBench's do: no tolerance of the task's own."""
    import torch

    from kernelforge.evaluation.oracle.worker.comparison import Got
    from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw, ReferenceRunner
    from kernelforge.records import Comparison

    def compare(self: ReferenceRunner, drawn: InputDraw, got: list[Got]) -> Comparison:
        assert drawn.expected is not None
        for want, have in zip(drawn.expected, got, strict=True):
            value = have.on(want.reference)
            if not torch.allclose(value, want.reference, atol=TOLERANCE, rtol=TOLERANCE):
                return Comparison(ok=False, message="not within 1e-2")
        return Comparison(ok=True, error=0.0)

    ReferenceRunner.compare = compare  # type: ignore[method-assign]


def _weaken_runner() -> None:
    from kernelforge.devices.emulated.execute import memory
    from kernelforge.devices.emulated.execute.loaded_module import LoadedModule

    if "bounds" in OFF:
        # Buffers reach into the padding behind them, as allocations of 256 bytes do on a GPU.
        def table(self: memory.Memory) -> Any:
            import numpy as np

            rows = [(allocation.base, allocation.reserved, allocation.flags) for allocation in self.allocations]
            return np.array(rows or [(0, 0, 0)], dtype=np.int64)

        memory.Memory.table = table  # type: ignore[method-assign]
    if "module-variables" in OFF:
        allocate = memory.Memory.allocate

        def writable(
            self: memory.Memory, nbytes: int, label: str, read_only: bool = False, *, module: bool = False
        ) -> int:
            return allocate(self, nbytes, label, read_only and not module)

        memory.Memory.allocate = writable  # type: ignore[method-assign]
    if "prepared-weights" in OFF:
        memory.Memory.protect = lambda self, address: None  # type: ignore[method-assign]
    if "races" in OFF:
        launch = LoadedModule.launch

        def unwatched(self: LoadedModule, *arguments: Any, **how: Any) -> Any:
            return launch(self, *arguments, **{**how, "racecheck": False})

        LoadedModule.launch = unwatched  # type: ignore[method-assign]


if "tolerance" in OFF:
    _weaken_oracle()
if "tolerance" not in OFF:
    _weaken_runner()

warm_up, serve = _WORKER.warm_up, _WORKER.serve
