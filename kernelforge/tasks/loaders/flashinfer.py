"""Loaders of FlashInfer-Bench and SOL-ExecBench, whose problems are definitions with workloads.

FlashInfer-Bench: a trace set's ``definitions/<op_type>/<name>.json`` and ``workloads/<op_type>/<name>.jsonl``.
SOL-ExecBench: folders that each hold a ``definition.json`` and a ``workload.jsonl``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from kernelforge.errors import TaskError, UsageError
from kernelforge.tasks.loaders.base import ExternalTask, Loaded, load_each
from kernelforge.tasks.loaders.definitions import Writer, read_definition, read_text, read_workloads
from kernelforge.tasks.loaders.rows import Taken


class FlashInferBench:
    """Definitions with their workloads. Solutions and traces of a trace set are not read."""

    name = "flashinfer-bench"
    summary = "FlashInfer-Bench: SOURCE is a trace set, a folder with definitions/ and workloads/"

    def recognises(self, source: Path) -> bool:
        """Whether SOURCE has the two folders of a trace set."""
        return all((source / part).is_dir() for part in ("definitions", "workloads"))

    def load(self, source: Path) -> Loaded:
        """Every definition below ``definitions/`` as a task.

        Raises:
            UsageError: SOURCE has no folder ``definitions``, or none in it.
        """
        paths = sorted((source / "definitions").rglob("*.json"))
        if not paths:
            raise UsageError(
                f"{source} is no FlashInfer-Bench trace set: there is no JSON file below {source / 'definitions'}"
            )
        named = ((str(path.relative_to(source)), path) for path in paths)
        return load_each((origin, None, partial(self._task, source, path, origin)) for origin, path in named)

    def _task(self, source: Path, path: Path, origin: str, taken: Taken) -> ExternalTask:
        definition = read_definition(read_text(path, source))
        relative = path.relative_to(source / "definitions").with_suffix(".jsonl")
        listed = source / "workloads" / relative
        if not listed.is_file():
            raise TaskError(f"it has no workloads: there is no {Path('workloads') / relative}")
        return Writer(definition, "FlashInfer-Bench", source).task(
            read_workloads(read_text(listed, source), definition.name), origin, taken
        )


class SolExecBench:
    """Problems with expression axes and inputs that the reference makes itself."""

    name = "sol-execbench"
    summary = "SOL-ExecBench: SOURCE is a folder of problems, each a folder with definition.json and workload.jsonl"

    def recognises(self, source: Path) -> bool:
        """Whether SOURCE is a problem, or a folder of problems, or one of such folders."""
        return any(next(source.glob(f"{above}definition.json"), None) is not None for above in ("", "*/", "*/*/"))

    def load(self, source: Path) -> Loaded:
        """Every folder with a ``definition.json``, at any depth, as a task.

        Raises:
            UsageError: there is none.
        """
        folders = [path.parent for path in sorted(source.rglob("definition.json"))]
        if not folders:
            raise UsageError(f"{source} holds no SOL-ExecBench problem: there is no definition.json in it or below")
        named = ((path.name if path == source else str(path.relative_to(source)), path) for path in folders)
        return load_each((origin, None, partial(self._task, source, folder, origin)) for origin, folder in named)

    def _task(self, source: Path, folder: Path, origin: str, taken: Taken) -> ExternalTask:
        definition = read_definition(read_text(folder / "definition.json", source))
        workloads = read_workloads(read_text(folder / "workload.jsonl", source), definition.name)
        return Writer(definition, "SOL-ExecBench", folder).task(workloads, origin, taken)
