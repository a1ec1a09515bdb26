"""The ``# tune:`` search: what takes part, how far each combination comes, and what is worth an attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from kernelforge.candidate import parse_plan
from kernelforge.evaluate import Evaluator, Workshop
from kernelforge.evaluate.tuning import LEAST_GAIN, tune, winner
from kernelforge.records import Candidate, Size, Task, TuneTrial, Verdict

REFERENCE = """
import torch
import torch.nn as nn

ROWS = 8
COLS = 4096


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""

SOFTMAX = """__global__ void softmax(const float* x, float* out, int d) {
    __shared__ float part[BLOCK];
    const float* row = x + (long long)blockIdx.x * d;
    float top = -INFINITY;
    for (int i = threadIdx.x; i < d; i += BLOCK) top = fmaxf(top, row[i]);
    part[threadIdx.x] = top;
    __syncthreads();
    for (int step = BLOCK / 2; step; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + step]);
        __syncthreads();
    }
    top = part[0];
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < d; i += BLOCK) sum += expf(row[i] - top);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int step = BLOCK / 2; step; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < d; i += BLOCK) out[(long long)blockIdx.x * d + i] = expf(row[i] - top) / part[0];
}
"""

PLAN = """# tune: BLOCK = 64 | 128 | 256 | 512
def forward(x):
    n, d = x.shape
    out = empty_like(x)
    softmax[n, BLOCK](x, out, i32(d))
    return out
"""


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    sizes = (
        Size(name="full"),
        Size(name="small", constants={"ROWS": 4, "COLS": 64}),
        Size(name="hidden_odd", constants={"ROWS": 3, "COLS": 77}),
    )
    task = Task(name="rows", suite="test", title="Softmax of few long rows", level=1, source=REFERENCE, sizes=sizes)
    with Workshop("emulated:h100", cache=tmp_path_factory.mktemp("builds")) as workshop:
        made = workshop.evaluator(task)
        yield made
        made.oracle.close()


def by_choice(trials: tuple[TuneTrial, ...], name: str = "BLOCK") -> dict[int, TuneTrial]:
    return {trial.choices[name]: trial for trial in trials}


def test_a_softmax_is_tuned_and_its_winner_passes_the_whole_cascade(evaluator: Evaluator) -> None:
    candidate = Candidate(source=SOFTMAX, plan=PLAN)
    parent = evaluator.evaluate(candidate, seed=1)
    assert parent.evaluation.verdict is Verdict.OK, parent.evaluation.reason
    trials = tune(evaluator, candidate, seed=2)
    assert [trial.choices for trial in trials] == list(parse_plan(PLAN).combinations)
    times = {block: trial.time_us for block, trial in by_choice(trials).items()}
    # Eight blocks leave the GPU idle: the more threads share a row, the sooner it is done.
    assert times[64] > times[128] > times[256]  # type: ignore[operator]
    chosen = winner(trials, candidate.choices)
    assert chosen == {"BLOCK": min(times, key=lambda block: times[block] or 0.0)}
    child = candidate.model_copy(update={"choices": chosen})
    assert child.hash != candidate.hash
    again = evaluator.evaluate(child, seed=3)
    assert again.evaluation.verdict is Verdict.OK, again.evaluation.reason
    assert again.evaluation.candidate == child.hash
    assert again.profile is not None
    assert again.profile.kernels[0].block == (chosen["BLOCK"], 1, 1)
    assert again.evaluation.performance is not None
    assert again.evaluation.performance.time_us == times[chosen["BLOCK"]]
    # What won does not win against itself.
    assert winner(trials, chosen) is None
