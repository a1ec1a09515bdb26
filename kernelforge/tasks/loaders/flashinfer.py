"""FlashInfer-Bench: a trace set's ``definitions/<op_type>/<name>.json`` and ``workloads/<op_type>/<name>.jsonl``."""

from __future__ import annotations

from pathlib import Path

from kernelforge.errors import TaskError, UsageError
from kernelforge.tasks.loaders.base import ExternalTask, Loaded, NotLoaded
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
        tasks: list[ExternalTask] = []
        failed: list[NotLoaded] = []
        taken: Taken = {}
        for path in paths:
            origin = str(path.relative_to(source))
            try:
                tasks.append(self._task(source, path, origin, taken))
            except TaskError as error:
                failed.append(NotLoaded(origin, str(error)))
        return Loaded(tuple(tasks), tuple(failed))

    def _task(self, source: Path, path: Path, origin: str, taken: Taken) -> ExternalTask:
        definition = read_definition(read_text(path, source))
        relative = path.relative_to(source / "definitions").with_suffix(".jsonl")
        listed = source / "workloads" / relative
        if not listed.is_file():
            raise TaskError(f"it has no workloads: there is no {Path('workloads') / relative}")
        return Writer(definition, "FlashInfer-Bench", source).task(
            read_workloads(read_text(listed, source), definition.name), origin, taken
        )
