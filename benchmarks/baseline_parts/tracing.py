"""Operators of many tasks in one file: traced in the oracle's jail, kept as numbers alone."""

from __future__ import annotations

import ast
import json
import lzma
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from kernelforge.errors import KernelForgeError
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.prediction import OperatorTrace
from kernelforge.prediction.published import signature, task_key
from kernelforge.records import Size, Task
from kernelforge.sandbox import Zygote
from kernelforge.tasks import load_suite
from kernelforge.tasks.loaders import loader_named

FILE = Path("results/reference/baselines/operators.json.xz")
_MEMORY_BYTES = 28 << 30
_COLUMNS = ("name", "kind", "dtype", "reads", "write_bytes", "flops", "geometry", "calls")


class TracedTask(NamedTuple):
    """One task of the file."""

    signature: str
    trace: OperatorTrace


def trace(sources: Iterable[str], output: Path, jobs: int) -> int:
    """Trace every task of suites, and of folders of KernelBench's files; add them to the file."""
    tasks = [task for source in sources for task in _tasks(source)]
    rows = _read(output) if output.exists() else {}

    with Zygote("oracle") as zygote, ThreadPoolExecutor(jobs) as pool:

        def traced_task(task: Task) -> tuple[Task, Any]:
            try:
                with Oracle(zygote, task, memory_bytes=_MEMORY_BYTES) as oracle:
                    return task, (signature(oracle.facts(["full"]).sizes[0]), oracle.operators("full"))
            except KernelForgeError as error:
                return task, str(error).splitlines()[0]

        for task, result in pool.map(traced_task, tasks):
            if isinstance(result, str):
                print(f"{task_key(task)}: not traced: {result[:160]}", flush=True)
                continue
            print(f"{task_key(task)}: {len(result[1].operators)} operators", flush=True)
            rows[task_key(task)] = [result[0], _packed(result[1])]
    output.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dict(sorted(rows.items())), separators=(",", ":"))
    output.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{len(rows)} tasks, {output.stat().st_size} bytes")
    return 0


def traced(path: Path) -> Mapping[str, TracedTask]:
    """Tasks of the file by key."""
    return {key: TracedTask(mark, _unpacked(packed)) for key, (mark, packed) in _read(path).items()}


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(lzma.decompress(path.read_bytes())))


def _packed(trace: OperatorTrace) -> list[list[Any]]:
    rows = []
    for operator in trace.operators:
        row = dict(operator.model_dump(mode="json"))
        row["reads"] = [[operand["bytes"], operand["producer"], operand["storage"]] for operand in row["reads"]]
        rows.append([row[column] for column in _COLUMNS])
    return rows


def _unpacked(rows: list[list[Any]]) -> OperatorTrace:
    operators = []
    for values in rows:
        row = dict(zip(_COLUMNS, values, strict=True))
        row["reads"] = [dict(zip(("bytes", "producer", "storage"), operand, strict=True)) for operand in row["reads"]]
        operators.append(row)
    return OperatorTrace.model_validate({"size": "full", "operators": operators})


def _tasks(source: str) -> list[Task]:
    if not Path(source).is_dir() or (Path(source) / "suite.toml").exists():
        return list(load_suite(source))
    return [
        Task(
            name=task.name,
            suite=task.tags[0],
            title=task.title,
            level=task.level,
            tags=task.tags,
            source=task.source,
            sizes=(Size(name="full"), Size(name="small", constants=_fewer(task.source))),
            policy=task.policy,
        )
        for task in loader_named("kernelbench").load(Path(source)).tasks
    ]


def _fewer(source: str) -> dict[str, int | float | bool]:
    """Small batches and short sequences, for what must run once before it is traced."""
    smaller: dict[str, int | float | bool] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        target, value = node.targets[0], node.value.value
        if isinstance(target, ast.Name) and type(value) is int:
            if "batch" in target.id.lower():
                smaller[target.id] = 2
            elif "seq" in target.id.lower() and value > 16:
                smaller[target.id] = 16
    return smaller
