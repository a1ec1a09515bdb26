"""KernelForge turns PyTorch modules into CUDA kernels that are verified, faster and honestly measured.

Everything the command line does is reachable from here:

- :func:`optimize` searches for a better kernel for one task and journals every attempt.
- :func:`evaluate` runs one candidate through the whole cascade.
- :func:`load_task` and :func:`load_suite` read task files and suites.
- :mod:`kernelforge.records` holds what all of these take and give back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelforge.version import __version__

if TYPE_CHECKING:
    from kernelforge import records
    from kernelforge.api import OptimizationResult, optimize
    from kernelforge.evaluation.api import evaluate
    from kernelforge.tasks import load_suite, load_task

__all__ = ["OptimizationResult", "__version__", "evaluate", "load_suite", "load_task", "optimize", "records"]

_HOMES = {
    "evaluate": "kernelforge.evaluation.api",
    "OptimizationResult": "kernelforge.api",
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
