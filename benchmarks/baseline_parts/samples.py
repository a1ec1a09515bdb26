"""Samples that the parameters are fitted on: tasks with their operators and their times on real GPUs."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from baseline_parts.tracing import TracedTask
from kernelforge.hardware.specs import DeviceSpec, find_spec
from kernelforge.prediction import BaselineKind, Operator
from kernelforge.prediction.published import PublishedTimes
from kernelforge.tasks.loaders.rows import task_name

OWN = Path("results/reference/h100/baselines.jsonl")
PUBLISHED = Path("kernelforge/prediction/published_times.json")
_CONFIGURATIONS: Mapping[str, BaselineKind] = {"torch": "eager", "torch_compile_inductor_default": "compile"}
"""KernelBench's names. Its ``cudagraphs`` copies inputs and often captures nothing: no CUDA graph of eager PyTorch."""
_RUNS_OF_ONE_KERNEL = frozenset({
    "argreduce", "batch_norm", "gather", "group_norm", "layer_norm", "pooling", "reduction", "scan", "softmax", "sort",
})  # fmt: skip
"""Kinds whose kernels PyTorch's profiler names by the operator, however many there are."""


class Sample(NamedTuple):
    """One measured time."""

    task: str
    gpu: DeviceSpec
    kind: BaselineKind
    tf32: bool
    time_us: float
    operators: tuple[Operator, ...]
    """All of the task."""
    weight: float
    source: str
    """Who measured it: a machine, with a host of its own."""
    part: tuple[int, ...] = ()
    """Positions of operators of one name, where it is the time of their kernels alone."""

    @property
    def group(self) -> str:
        """``level1`` of KernelBench, ``own`` for this project's suites."""
        suite, _, name = self.task.partition("/")
        return name.split("_")[0] if suite == "kernelbench" else "own"


def samples(traces: Mapping[str, TracedTask], published: PublishedTimes) -> list[Sample]:
    """Times of every traced task, and those of its operators on the H100 where PyTorch's profiler gave them."""
    listed = []
    for key, entry in published.tasks.items():
        task = traces.get(key)
        if task is None or task.signature != entry.signature:
            continue
        for time in entry.times:
            spec, source = find_spec(f"emulated:{time.gpu}"), published.sources[time.source]
            assert spec is not None
            weight = 1.0 if source.tf32 else 0.5
            listed.append(
                Sample(key, spec, time.kind, source.tf32, time.time_us, task.trace.operators, weight, time.source)
            )
    for record in _own_records():
        key = f"{record['suite']}/{record['task']}"
        if key in traces:
            listed += _parts(key, record, traces[key].trace.operators)
    return listed


def _own_records() -> Iterator[dict[str, Any]]:
    for line in OWN.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def _parts(key: str, record: dict[str, Any], operators: tuple[Operator, ...]) -> Iterator[Sample]:
    """Times of operators by name, as far as the profiler's names tell whose kernels they are."""
    spec = find_spec("emulated:h100")
    assert spec is not None
    names = [_profiler_name(operator) for operator in operators]
    calls, times, launches = Counter(), Counter[str](), Counter[str]()
    for name, operator in zip(names, operators, strict=True):
        calls[name] += operator.calls
    for kernel in record["kernels"]:
        name = str(kernel["operator"] or "").rpartition("::")[2]
        times[name] += kernel["us"]
        launches[name] += kernel["launches"]
    hidden = {"sub", "add", "sum", "exp", "log"} if "logsumexp" in calls else set()
    for name in calls.keys() & times.keys() - hidden:
        own = tuple(position for position, called in enumerate(names) if called == name)
        if launches[name] == calls[name] or operators[own[0]].kind in _RUNS_OF_ONE_KERNEL:
            share = times[name] / record["graph_us"]["median"]
            # A microsecond is the gap to the next kernel.
            time_us = times[name] + 1.0 * calls[name]
            yield Sample(
                key, spec, "graph", False, time_us, operators, 0.5 * min(1.0, max(0.1, share)), "own-h100", own
            )


def _profiler_name(operator: Operator) -> str:
    name = operator.name.split(".")[0]
    return "copy_" if name in ("clone", "_to_copy") else name


def publish(table: Path, traces: Mapping[str, TracedTask]) -> int:
    """Write the package's file of published times from a table of KernelBench's, and this project's own on an H100.

    The table has the columns ``level problem gpu config mean_ms std_ms dataset date commit``. The latest time of a
    task, GPU and configuration is kept.
    """
    sources: dict[str, dict[str, Any]] = {
        "own-h100": {"text": f"this project, H100 SXM, 2026-11-27: {OWN}", "tf32": False}
    }
    latest: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in csv.DictReader(table.read_text(encoding="utf-8").splitlines()):
        spec, kind = find_spec(row["gpu"]), _CONFIGURATIONS.get(row["config"])
        key = f"kernelbench/{row['level']}_{task_name(row['problem'].removesuffix('.py'))}"
        if spec is None or kind is None or key not in traces:
            continue
        before = latest.get((key, spec.key, kind))
        if before is None or before["date"] <= row["date"]:
            latest[key, spec.key, kind] = row
    tasks: dict[str, dict[str, Any]] = {}
    for (key, gpu, kind), row in sorted(latest.items()):
        source = f"{row['dataset'].lower()}-{row['date'][:7]}"
        sources[source] = {
            "text": f"KernelBench, results/timing/{row['dataset']}, {row['date']}, commit {row['commit']}",
            "tf32": True,
        }
        mean, deviation = 1e3 * float(row["mean_ms"]), 1e3 * float(row["std_ms"] or 0.0)
        low = max(mean - 1.645 * deviation, 0.1 * mean)
        _add(tasks, key, traces, (gpu, kind, source, mean, low, mean + 1.645 * deviation))
    for record in _own_records():
        key = f"{record['suite']}/{record['task']}"
        for kind, column in (("eager", "event_us"), ("graph", "graph_us")):
            if key in traces and column in record:
                middle, least = record[column]["median"], record[column]["least"]
                _add(tasks, key, traces, ("h100", kind, "own-h100", middle, least, 2 * middle - least))
    value = {"sources": dict(sorted(sources.items())), "tasks": dict(sorted(tasks.items()))}
    PublishedTimes.model_validate(value)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in value["tasks"].items())
    PUBLISHED.write_text(
        f'{{"sources": {json.dumps(value["sources"], indent=1)},\n"tasks": {{\n{lines}\n}}}}\n', encoding="utf-8"
    )
    print(f"{sum(len(entry['times']) for entry in tasks.values())} times of {len(tasks)} tasks in {PUBLISHED}")
    return 0


def _add(
    tasks: dict[str, dict[str, Any]],
    key: str,
    traces: Mapping[str, TracedTask],
    time: tuple[str, str, str, float, float, float],
) -> None:
    entry = tasks.setdefault(key, {"signature": traces[key].signature, "times": []})
    gpu, kind, source, *numbers = time
    middle, low, high = (float(f"{number:.4g}") for number in numbers)
    rounded = middle, min(low, middle), max(middle, high)
    entry["times"].append([gpu, kind, source, *rounded])
