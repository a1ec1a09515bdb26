"""Times of PyTorch on a GPU for the references of our tasks, kernel by kernel.

    PYTHONPATH=. python benchmarks/hardware_baselines.py prepare FOLDER [--suite NAME ...]
    python benchmarks/hardware_baselines.py run FOLDER --output FILE [--processes N] [--seconds S]
    python benchmarks/hardware_baselines.py show FILE

``prepare`` needs no GPU: it writes the text of every reference at its full size to ``FOLDER/tasks.json``. ``run`` needs
a GPU and PyTorch, and no module of this project. It runs each reference as a baseline is run (``no_grad``, float32
products without TF32) and writes one line of JSON per task:

- ``event_us``: between events on both sides of a call, with the cost of launching;
- ``graph_us``: of a CUDA graph of the call;
- ``kernels``: what one call launches, from PyTorch's profiler: name, operator, grid, block, registers, bytes of shared
  memory, number of equal launches and the microseconds of all of them, in the order of their first.

The L2 is overwritten before each timed call. Inputs are made on the GPU. Processes take turns on it for what is timed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

SUITES = ("core-large", "level1", "level2", "level3", "llm", "hpc", "backward", "papers", "translate")
FLUSH_BYTES = 1 << 28
TIMED_S = 0.12
"""Time that the timed calls of one kind may take."""
MOST_CALLS = 20
SEED = 20261127
NAME = 140
"""Longest name of a kernel that is kept."""
PYTORCH_FAILURES = (RuntimeError, ValueError, TypeError, AssertionError, MemoryError)


def prepare(folder: Path, suites: list[str]) -> None:
    """Write the references of the suites at their full sizes."""
    from kernelforge.tasks import load_suite, size_source

    listed = [
        {"suite": suite, "task": task.name, "source": size_source(task, "full")}
        for suite in suites
        for task in load_suite(suite)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tasks.json").write_text(json.dumps(listed), encoding="utf-8")
    print(f"{len(listed)} tasks of {len(suites)} suites")


def timed(call: Callable[[], object], flush: Callable[[], object]) -> dict[str, Any]:
    """Microseconds of a call on an overwritten L2, by events: the least, the median, and how many calls."""
    import torch

    times: list[float] = []
    begun = time.monotonic()
    while len(times) < 3 or (len(times) < MOST_CALLS and time.monotonic() - begun < TIMED_S):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush()
        first.record()
        call()
        last.record()
        last.synchronize()
        times.append(1e3 * first.elapsed_time(last))
        if times[-1] > 1e6 * TIMED_S:
            break
    return {"least": min(times), "median": median(times), "calls": len(times)}


def kernels_of(call: Callable[[], object]) -> list[dict[str, Any]]:
    """Every kernel, copy and fill of one call."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    operators = {
        event["args"]["External id"]: event["name"]
        for event in events
        if event.get("cat") == "cpu_op" and "External id" in event.get("args", {})
    }
    launched = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    kernels = []
    for event in sorted(launched, key=lambda event: float(event["ts"])):
        values = event.get("args", {})
        kernel = {"name": event["name"], "us": event["dur"], "operator": operators.get(values.get("External id"))}
        for key, column in (("grid", "grid"), ("block", "block"), ("registers per thread", "registers"),
                            ("shared memory", "shared"), ("bytes", "bytes")):  # fmt: skip
            if key in values:
                kernel[column] = values[key]
        kernels.append(kernel)
    return grouped(kernels)


def grouped(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Equal launches as one entry each; names without template arguments that are lambdas, and without parameters."""
    groups: dict[str, dict[str, Any]] = {}
    for kernel in kernels:
        name = re.sub(r"\(.*", "", kernel["name"].removeprefix("void ").replace("(anonymous namespace)::", ""))[:NAME]
        entry = kernel | {"name": name, "launches": 0, "us": 0.0}
        entry = groups.setdefault(json.dumps(entry, sort_keys=True), entry)
        entry["launches"] += 1
        entry["us"] = round(entry["us"] + kernel["us"], 3)
    return list(groups.values())


def measured(source: str, turn: Callable[[bool], None]) -> dict[str, Any]:
    """Sizes, times and kernels of one reference. ``turn(True)`` waits for the GPU, ``turn(False)`` gives it back."""
    import torch

    scope: dict[str, Any] = {"__name__": "reference"}
    # TorchScript and dataclasses look a class's module up.
    sys.modules["reference"] = type(sys)("reference")
    exec(compile(source, "reference", "exec"), scope)
    turn(True)
    try:
        return on_its_turn(scope)
    finally:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        turn(False)


def on_its_turn(scope: dict[str, Any]) -> dict[str, Any]:
    """Sizes, times and kernels of the reference of a task file that was executed."""
    import torch

    torch.manual_seed(SEED)
    with torch.device("cuda"):
        arguments = [on_gpu(value) for value in scope.get("get_init_inputs", list)()]
        keywords: dict[str, Any] = {}
        if len(arguments) == 2 and isinstance(arguments[0], list) and isinstance(arguments[1], dict):
            arguments, keywords = arguments
        model = scope["Model"](*arguments, **keywords).cuda()
        inputs = [on_gpu(value) for value in scope["get_inputs"]()]
    scratch = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def call() -> Any:
        return model(*inputs)

    with torch.no_grad():
        for _ in range(3):
            output = call()
        torch.cuda.synchronize()
        outputs = output if isinstance(output, (tuple, list)) else [output]
        record: dict[str, Any] = {
            "input_bytes": sum(v.nbytes for v in inputs if isinstance(v, torch.Tensor)),
            "weight_bytes": sum(v.nbytes for v in (*model.parameters(), *model.buffers())),
            "output_bytes": sum(v.nbytes for v in outputs if hasattr(v, "nbytes")),
        }
        del output, outputs
        record["event_us"] = timed(call, scratch.zero_)
        record["kernels"] = kernels_of(call)
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            record["graph_us"] = timed(graph.replay, scratch.zero_)
        except PYTORCH_FAILURES as error:
            record["graph_error"] = f"{type(error).__name__}: {error}"[:200]
    return record


def on_gpu(value: Any) -> Any:
    """A tensor on the GPU; anything else as it is."""
    import torch

    return value.cuda() if isinstance(value, torch.Tensor) else value


def child(folder: Path, output: Path, share: str, deadline: float) -> int:
    """Measure the tasks of one share, ``K/N``, until the deadline; one line of JSON each."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    start, step = map(int, share.split("/"))
    listed = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))[start::step]
    with (folder / "turn.lock").open("w") as lock, output.open("a", encoding="utf-8") as lines:
        for task in listed:
            if time.time() > deadline:
                break
            begun = time.monotonic()
            record = {"suite": task["suite"], "task": task["task"]}
            try:
                record |= measured(task["source"], lambda on: fcntl.flock(lock, fcntl.LOCK_EX if on else fcntl.LOCK_UN))
            except PYTORCH_FAILURES as error:
                record["error"] = f"{type(error).__name__}: {error}"[:300]
            record["wall_s"] = round(time.monotonic() - begun, 2)
            lines.write(json.dumps(record) + "\n")
            lines.flush()
    return 0


def run(folder: Path, output: Path, processes: int, seconds: float) -> int:
    """Measure all tasks by some processes, and gather their lines."""
    deadline = time.time() + seconds
    parts = [output.with_suffix(f".{number}") for number in range(processes)]
    for part in parts:
        part.unlink(missing_ok=True)
    command = [sys.executable, __file__, "child", str(folder), "--deadline", str(deadline)]
    children = [
        subprocess.Popen([*command, "--output", str(part), "--share", f"{number}/{processes}"])
        for number, part in enumerate(parts)
    ]
    for started in children:
        try:
            started.wait(max(1.0, deadline + 30 - time.time()))
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
    lines = [line for part in parts if part.exists() for line in part.read_text(encoding="utf-8").splitlines()]
    output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for part in parts:
        part.unlink(missing_ok=True)
    return show(output)


def show(file: Path) -> int:
    """Print a line per task; return 1 where none was measured."""
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for record in records:
        name = f"{record['suite']}/{record['task']}"
        if "error" in record:
            print(f"{name:<48} {record['error']}")
            continue
        graph = record.get("graph_us", {}).get("median")
        print(
            f"{name:<48}{record['event_us']['median']:>12.1f}{graph or float('nan'):>12.1f}"
            f"{sum(kernel['us'] for kernel in record['kernels']):>12.1f}"
            f" {sum(kernel['launches'] for kernel in record['kernels']):>4}"
        )
    done = sum("error" not in record for record in records)
    print(f"{done} of {len(records)} tasks measured")
    return 0 if done else 1


def main() -> int:
    """Run one verb."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("prepare", "run", "show", "child"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--share", default="0/1", metavar="K/N")
    parser.add_argument("--deadline", type=float, default=0.0)
    options = parser.parse_args()
    if options.verb == "prepare":
        prepare(options.folder, options.suite or list(SUITES))
        return 0
    if options.verb == "show":
        return show(options.folder)
    if options.output is None:
        parser.error("--output is needed")
    if options.verb == "child":
        return child(options.folder, options.output, options.share, options.deadline)
    return run(options.folder, options.output, options.processes, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
