"""KernelForge turns PyTorch modules into CUDA kernels that are verified, faster and honestly measured.

Everything the command line does is reachable from here:

- :func:`optimize` searches for a better kernel for one task and stores every attempt. :class:`SearchOptions`,
  :class:`AgentOptions`, :class:`EvaluationOptions` and :class:`Budget` are its options.
- :func:`evaluate` runs one candidate through all stages.
- :func:`emulate` runs a kernel of your own on the emulated device; :class:`Emulator` keeps it warm for many runs.
- :func:`load_task` and :func:`load_suite` read task files and suites.
- :mod:`kernelforge.records` holds the records that these functions take and return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelforge.version import __version__

if TYPE_CHECKING:
    from kernelforge import records
    from kernelforge.api import AgentOptions, EvaluationOptions, OptimizationResult, SearchOptions, optimize
    from kernelforge.emulation import Emulation, Emulator, emulate
    from kernelforge.evaluation.api import evaluate
    from kernelforge.records import Budget
    from kernelforge.tasks import load_suite, load_task

__all__ = [
    "AgentOptions",
    "Budget",
    "Emulation",
    "Emulator",
    "EvaluationOptions",
    "OptimizationResult",
    "SearchOptions",
    "__version__",
    "emulate",
    "evaluate",
    "load_suite",
    "load_task",
    "optimize",
    "records",
]

_HOMES = {
    "AgentOptions": "kernelforge.api",
    "Budget": "kernelforge.records",
    "Emulation": "kernelforge.emulation",
    "Emulator": "kernelforge.emulation",
    "EvaluationOptions": "kernelforge.api",
    "OptimizationResult": "kernelforge.api",
    "SearchOptions": "kernelforge.api",
    "emulate": "kernelforge.emulation",
    "evaluate": "kernelforge.evaluation.api",
    "load_suite": "kernelforge.tasks",
    "load_task": "kernelforge.tasks",
    "optimize": "kernelforge.api",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``import kernelforge`` alone stays free of everything heavy."""
    from importlib import import_module

    if name == "records":
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
