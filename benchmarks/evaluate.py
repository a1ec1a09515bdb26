"""Time of one evaluation, and the harness's share of it.

The candidate is a ReLU over 1,048,576 elements; it is built once beforehand. Every evaluation runs the whole cascade:
plan, build from the cache, small size, hidden sizes, full size whole-grid, profile. Peers in the same run: the CPU's
own ReLU through torch for scale, and the targets. Exits with 1 when a target is missed.

    python benchmarks/evaluate.py [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

from kernelforge.evaluation import EvaluatorPool
from kernelforge.records import Candidate, Size, Task

REFERENCE = """
import torch
import torch.nn as nn

N = 1048576


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
"""

SOURCE = """
__global__ void relu(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
"""

PLAN = """
def forward(x):
    out = empty_like(x)
    relu[ceil_div(x.numel(), 256), 256](x, out, i32(x.numel()))
    return out
"""

WHOLE_S, HARNESS_S = 0.5, 0.1


def torch_reference_ms() -> float:
    """Time of torch's own ReLU on one CPU thread, in a process of its own: this one never imports torch."""
    code = (
        "import time, torch; torch.set_num_threads(1); x = torch.randn(1048576); torch.relu(x); b = 1e9\n"
        "for _ in range(20):\n t = time.perf_counter(); torch.relu(x); b = min(b, time.perf_counter() - t)\n"
        "print(b * 1e3)"
    )
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    task = Task(
        name="relu",
        suite="benchmark",
        title="ReLU, 1M elements",
        level=1,
        source=REFERENCE,
        sizes=(
            Size(name="full"),
            Size(name="small", constants={"N": 4096}),
            Size(name="hidden_odd", constants={"N": 4099}),
            Size(name="hidden_tail", constants={"N": 4100}),
            Size(name="hidden_tiny", constants={"N": 17}),
        ),
    )
    candidate = Candidate(source=SOURCE, plan=PLAN)
    walls: list[float] = []
    parts: dict[str, list[float]] = {}
    with EvaluatorPool("emulated:h100", threads=1) as workshop:
        evaluator = workshop.evaluator(task)
        try:
            first = time.perf_counter()
            result = evaluator.evaluate(candidate, seed=0)
            cold = time.perf_counter() - first
            for repeat in range(repeats):
                start = time.perf_counter()
                result = evaluator.evaluate(candidate, seed=repeat + 1)
                walls.append(time.perf_counter() - start)
                if result.evaluation.verdict != "OK":
                    print(f"verdict {result.evaluation.verdict}: {result.evaluation.reason}", file=sys.stderr)
                    return 1
                for part, seconds in result.evaluation.seconds.items():
                    parts.setdefault(part, []).append(seconds)
        finally:
            evaluator.oracle.close()
    total, harness = statistics.median(walls), statistics.median(parts["harness"]) + statistics.median(parts["build"])
    table = Table(title=f"one evaluation, already built, medians of {repeats}")
    for column in ("part", "ms", "target ms", "ratio to target"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for part, values in parts.items():
        table.add_row(part, f"{statistics.median(values) * 1e3:.1f}", "", "")
    table.add_row("harness overhead", f"{harness * 1e3:.1f}", f"{HARNESS_S * 1e3:.0f}", f"{harness / HARNESS_S:.2f}")
    table.add_row("whole", f"{total * 1e3:.1f}", f"{WHOLE_S * 1e3:.0f}", f"{total / WHOLE_S:.2f}")
    table.add_row("first, cold", f"{cold * 1e3:.1f}", "", "")
    table.add_row("torch relu on the CPU, 1 thread", f"{torch_reference_ms():.2f}", "", "")
    Console(width=100).print(table)
    return 0 if total <= WHOLE_S and harness <= HARNESS_S else 1


if __name__ == "__main__":
    sys.exit(main())
