"""KernelBench's published evaluation of one candidate, re-implemented, as a process: JSON in, JSON out.

    python -m benchmarks.gpu_parts.kernelbench_process < REQUEST > ANSWER

As in its first release (``eval_kernel_against_ref`` of ``src/eval.py``; arXiv 2502.10517): the candidate's file is run,
reference and candidate are constructed under one seed, their outputs on 5 fresh inputs must agree within 1e-2, and 100
calls are timed between CUDA events after 3 warm-ups. Then they are timed again as later versions do, with the L2
emptied before every call. Host clocks stand in for events where the device is the CPU.

The request has ``reference``, ``candidate`` (texts), ``device`` and ``builds`` (a folder for extensions), and may have
``trials``, how many calls are timed. The answer has ``correct``, ``mean_us`` and ``flushed_us`` over ``trials``, and
``seconds`` by stage.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORRECTNESS_TRIALS, PERFORMANCE_TRIALS, WARM_UPS, TOLERANCE, SEED = 5, 100, 3, 1e-2, 42
FLUSH_BYTES = 256 << 20


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """Do what the module says."""
    os.environ["TORCH_EXTENSIONS_DIR"] = request["builds"]
    trials: int = request.get("trials", PERFORMANCE_TRIALS)
    clock = time.perf_counter
    seconds: dict[str, float] = {}
    began = clock()
    import torch

    device = torch.device(request["device"])
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    torch.zeros(1, device=device)
    wait()
    seconds["start"] = clock() - began

    began = clock()
    reference = _run_text(request["reference"], "reference", request["builds"])
    candidate = _run_text(request["candidate"], "candidate", request["builds"])
    models = []
    for space, name in ((reference, "Model"), (candidate, "ModelNew")):
        torch.manual_seed(SEED)
        models.append(space[name](*reference["get_init_inputs"]()).to(device))
    model, other = models
    wait()
    seconds["build"] = clock() - began

    def inputs(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        made = reference["get_inputs"]()
        return [value.to(device) if isinstance(value, torch.Tensor) else value for value in made]

    began = clock()
    correct = True
    with torch.no_grad():
        for trial in range(CORRECTNESS_TRIALS):
            arguments = inputs(SEED + trial)
            want, got = model(*arguments), other(*arguments)
            wait()
            correct = correct and want.shape == got.shape
            correct = correct and bool(torch.allclose(want, got, atol=TOLERANCE, rtol=TOLERANCE))
        seconds["correctness"] = clock() - began
        means = {}
        for stage, flush in (("performance", False), ("performance_flushed", True)):
            began = clock()
            times = _time(other, inputs(SEED), device, wait, trials, flush=flush)
            means[stage] = sum(times) / len(times)
            seconds[stage] = clock() - began
    return {
        "correct": correct,
        "mean_us": means["performance"],
        "flushed_us": means["performance_flushed"],
        "trials": trials,
        "seconds": seconds,
    }


def _time(
    model: Any, arguments: list[Any], device: Any, wait: Callable[[], None], trials: int, *, flush: bool
) -> list[float]:
    import torch

    scratch = torch.empty(FLUSH_BYTES if device.type == "cuda" else 1, dtype=torch.int8, device=device)
    for _ in range(WARM_UPS):
        model(*arguments)
    wait()
    times = []
    for _ in range(trials):
        if flush:
            scratch.zero_()
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            model(*arguments)
            end.record()
            wait()
            times.append(start.elapsed_time(end) * 1e3)
        else:
            began = time.perf_counter()
            model(*arguments)
            times.append((time.perf_counter() - began) * 1e6)
    return times


def _run_text(text: str, name: str, folder: str) -> dict[str, Any]:
    """The names that a file defines; a real file, because Triton and torch.compile read the text of functions."""
    path = Path(folder) / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    linecache.checkcache(str(path))
    space: dict[str, Any] = {"__name__": name, "__file__": str(path)}
    exec(compile(text, str(path), "exec"), space)
    return space


if __name__ == "__main__":
    sys.stdout.write(json.dumps(evaluate(json.load(sys.stdin))) + "\n")
