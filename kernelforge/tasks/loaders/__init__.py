"""Loaders of other benchmarks' tasks, by name; imported on demand."""

from __future__ import annotations

import importlib
from pathlib import Path

from kernelforge.errors import UsageError
from kernelforge.tasks.loaders.base import ExternalTask, Loaded, Loader, NotLoaded

__all__ = ["FORMATS", "ExternalTask", "Loaded", "Loader", "NotLoaded", "loader_for", "loader_named"]

_MODULES = {
    "kernelbench": ("kernelbench", "KernelBench"),
    "kernelbench-parquet": ("kernelbench", "KernelBenchParquet"),
    "robust-kbench": ("robust_kbench", "RobustKBench"),
    "ops-6k": ("ops_6k", "Ops6K"),
    "kernelbook": ("kernelbook", "KernelBook"),
    "flashinfer-bench": ("flashinfer", "FlashInferBench"),
    "sol-execbench": ("flashinfer", "SolExecBench"),
    "hpctranseval": ("translations", "HpcTransEval"),
    "babeltower": ("translations", "BabelTower"),
    "musl": ("translations", "Musl"),
    "coderosetta": ("translations", "CodeRosetta"),
}
"""Format → module of this package and class in it."""

FORMATS = tuple(_MODULES)


def loader_named(name: str) -> Loader:
    """Loader of a format.

    Raises:
        UsageError: there is no such format.
    """
    if name not in _MODULES:
        choices = "; ".join(f"{loader.name} ({loader.summary})" for loader in map(loader_named, FORMATS))
        raise UsageError(f"there is no format '{name}'; there are: {choices}")
    module, kind = _MODULES[name]
    loader: Loader = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
    return loader


def loader_for(source: Path) -> Loader:
    """The loader that recognises SOURCE.

    Raises:
        UsageError: no loader does, or several do.
    """
    if not source.exists():
        raise UsageError(f"there is no {source}; name a folder or file that holds the tasks")
    fitting = [loader for loader in map(loader_named, FORMATS) if loader.recognises(source)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(loader.name for loader in fitting)
    what = f"could be any of {names}" if fitting else "has the files of no known format"
    raise UsageError(f"{source} {what}; choose one with --format: {', '.join(FORMATS)}")
