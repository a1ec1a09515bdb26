"""SOL-ExecBench: folders that each hold a ``definition.json`` and a ``workload.jsonl``."""

from __future__ import annotations

from pathlib import Path

from kernelforge.errors import TaskError, UsageError
from kernelforge.tasks.loaders.base import ExternalTask, Loaded, NotLoaded
from kernelforge.tasks.loaders.definitions import Writer, read_definition, read_text, read_workloads
from kernelforge.tasks.loaders.rows import Taken


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
        paths = sorted(source.rglob("definition.json"))
        if not paths:
            raise UsageError(f"{source} holds no SOL-ExecBench problem: there is no definition.json in it or below")
        tasks: list[ExternalTask] = []
        failed: list[NotLoaded] = []
        taken: Taken = {}
        for path in paths:
            origin = str(path.parent.relative_to(source)) if path.parent != source else path.parent.name
            try:
                definition = read_definition(read_text(path, source))
                workloads = read_workloads(read_text(path.parent / "workload.jsonl", source), definition.name)
                tasks.append(Writer(definition, "SOL-ExecBench", path.parent).task(workloads, origin, taken))
            except TaskError as error:
                failed.append(NotLoaded(origin, str(error)))
        return Loaded(tuple(tasks), tuple(failed))
