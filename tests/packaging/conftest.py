"""A store with two real evaluations, of a softmax and of a layer with a bias, and their packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.packaging.operator import Operator, load
from kernelforge.packaging.project import package
from kernelforge.records import Attempt, Candidate, Reward, Size, Task, Verdict
from kernelforge.records import Operator as Request
from kernelforge.store import Store
from kernelforge.store.references import resolve
from tests.support.recorded_run import make_run

RUN = "r1"
CASES = Path(__file__).parents[1] / "adversarial"

SOFTMAX_TASK = """
import torch
import torch.nn as nn

ROWS = 48
COLS = 256


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""
SOFTMAX = """
__global__ void softmax_rows(const float* x, float* out, int d) {
    __shared__ float part[32];
    const float* row = x + (long long)blockIdx.x * d;
    float* to = out + (long long)blockIdx.x * d;
    float top = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < d; i += 32) top = fmaxf(top, row[i]);
    for (int s = 16; s; s >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
    for (int i = threadIdx.x; i < d; i += 32) sum += expf(row[i] - top);
    part[threadIdx.x] = sum;
    __syncwarp();
    sum = 0.0f;
    for (int i = 0; i < 32; i++) sum += part[i];
    for (int i = threadIdx.x; i < d; i += 32) to[i] = expf(row[i] - top) / sum;
}
"""
SOFTMAX_PLAN = """
def forward(x):
    n, d = x.shape
    out = empty_like(x)
    softmax_rows[n, 32](x, out, i32(d))
    return out
"""

SCALED_TASK = """
import torch
import torch.nn as nn

N = 64


class Model(nn.Module):
    def forward(self, x, k, s, flag, extra=None):
        return {"scaled": x * s + k, "rest": (x - k,)}


def get_inputs():
    return [torch.randn(N), 3, 0.5, True, None]


def get_init_inputs():
    return []
"""
SCALED = """
__global__ void scaled(const float* x, float* a, float* b, int k, float s, int n) {
    int i = threadIdx.x;
    if (i < n) { a[i] = x[i] * s + k; b[i] = x[i] - k; }
}
"""
SCALED_PLAN = """
def forward(x, k, s, flag, extra):
    a = empty_like(x)
    b = empty_like(x)
    scaled[1, 64](x, a, b, i32(k), f32(s), i32(x.numel()))
    return a, b
"""


def _sizes(**small: int) -> tuple[Size, ...]:
    odd = {name: value + 1 for name, value in small.items()}
    return Size(name="full"), Size(name="small", constants=small), Size(name="hidden_odd", constants=odd)


TASKS = {
    "softmax": Task(
        name="softmax", suite="core", title="Softmax", level=1, source=SOFTMAX_TASK, sizes=_sizes(ROWS=8, COLS=64),
        license="MIT",
    ),
    "linear": Task(
        name="linear", suite="core", title="Linear, then ReLU", level=1,
        source=(CASES / "tasks" / "linear.py").read_text(), sizes=_sizes(ROWS=8, IN=32, OUT=16),
    ),
    "scaled": Task(
        name="scaled", suite="core", title="Scaled and shifted", level=1, source=SCALED_TASK, sizes=_sizes(N=32)
    ),
}  # fmt: skip
_LINEAR = CASES / "cases" / "honest-prepared-weights"
CANDIDATES = {
    "scaled": Candidate(source=SCALED, plan=SCALED_PLAN),
    "softmax": Candidate(source=SOFTMAX, plan=SOFTMAX_PLAN),
    "linear": Candidate(source=(_LINEAR / "kernel.cu").read_text(), plan=(_LINEAR / "plan.py").read_text()),
}


def attempt_of(task: str, evaluation: object, number: int = 0, **changes: object) -> Attempt:
    """An accepted attempt with an evaluation."""
    fields = {
        "id": f"{RUN}/{task}/{number:02d}", "run": RUN, "task": task, "number": number, "operator": Request.SEED,
        "coder": "openai:gpt-5", "candidate": CANDIDATES[task], "evaluation": evaluation, "accepted": True,
        "reward": Reward(policy="kernelforge/1", value=0.3, components={}), "seconds": 1.0,
        "started": "2026-11-28T06:00:00+00:00",
    }  # fmt: skip
    return Attempt(**(fields | changes))


@pytest.fixture(scope="session")
def store(workshop: EvaluatorPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("packaging") / "kernelforge.db") as opened:
        opened.start_run(make_run(RUN, tasks=tuple(TASKS)))
        for name, task in TASKS.items():
            evaluator = workshop.evaluator(task)
            evaluation = evaluator.evaluate(CANDIDATES[name], seed=5).evaluation
            evaluator.oracle.close()
            assert evaluation.verdict is Verdict.OK, evaluation.reason
            opened.put_task(RUN, task, evaluator.facts)
            opened.add_attempt(attempt_of(name, evaluation))
        yield opened


@pytest.fixture(scope="session")
def packages(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folder of the package of each task."""
    folder = tmp_path_factory.mktemp("packages")
    for name in TASKS:
        package(store, resolve(store, f"{RUN}/{name}"), folder / name)
    return {name: folder / name for name in TASKS}


@pytest.fixture
def operator_of(
    packages: dict[str, Path], warm_zygotes: None, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Operator]:
    """The operator of a task, with counters at zero."""

    def opened(task: str) -> Operator:
        operator = load(packages[task])
        operator.fallbacks.clear()
        operator.setups = 0
        operator._prepared.clear()
        return operator

    return opened
