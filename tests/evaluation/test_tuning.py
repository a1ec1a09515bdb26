"""The ``# tune:`` search: what takes part, how far each combination comes, and what is worth an attempt."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kernelforge.candidate import parse_plan
from kernelforge.devices.base import RunRequest, TuningTime
from kernelforge.devices.emulated.device import EmulatedSession
from kernelforge.evaluation import Evaluator, EvaluatorPool
from kernelforge.evaluation.stages.multi_fidelity import EFFORTS
from kernelforge.evaluation.stages.tuning import CLOSING_SECONDS, LEAST_GAIN, TUNING_SECONDS, tune, winner
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


TASK = Task(
    name="rows",
    suite="test",
    title="Softmax of few long rows",
    level=1,
    source=REFERENCE,
    sizes=(
        Size(name="full"),
        Size(name="small", constants={"ROWS": 4, "COLS": 64}),
        Size(name="hidden_odd", constants={"ROWS": 3, "COLS": 77}),
    ),
)


@pytest.fixture(scope="module")
def evaluator(workshop: EvaluatorPool) -> Iterator[Evaluator]:
    made = workshop.evaluator(TASK)
    yield made
    made.oracle.close()


def by_choice(trials: tuple[TuneTrial, ...], name: str = "BLOCK") -> dict[int, TuneTrial]:
    return {trial.choices[name]: trial for trial in trials}


@pytest.mark.slow
def test_a_softmax_is_tuned_and_its_winner_passes_the_whole_cascade(evaluator: Evaluator) -> None:
    candidate = Candidate(source=SOFTMAX, plan=PLAN)
    parent = evaluator.evaluate(candidate, seed=1)
    assert parent.evaluation.verdict is Verdict.OK, parent.evaluation.reason
    trials = tune(evaluator, candidate, seed=2)
    assert [trial.choices for trial in trials] == list(parse_plan(PLAN).combinations)
    # Without a time no comparison holds.
    times = {block: trial.time_us or math.nan for block, trial in by_choice(trials).items()}
    # Eight blocks leave the GPU idle: the more threads share a row, the sooner it is done.
    assert times[64] > times[128] > times[256]
    choices = winner(trials, candidate.choices)
    assert choices == {"BLOCK": min(times, key=times.__getitem__)}
    child = candidate.model_copy(update={"choices": choices})
    assert child.hash != candidate.hash
    evaluated = evaluator.evaluate(child, seed=3)
    assert evaluated.evaluation.verdict is Verdict.OK, evaluated.evaluation.reason
    assert evaluated.evaluation.candidate == child.hash
    assert evaluated.profile is not None
    assert evaluated.profile.kernels[0].block == (choices["BLOCK"], 1, 1)
    assert evaluated.evaluation.performance is not None
    assert evaluated.evaluation.performance.time_us == times[choices["BLOCK"]]
    # What won does not win against itself.
    assert winner(trials, choices) is None


@pytest.mark.slow
def test_each_rung_keeps_the_better_half_and_the_candidates_own_values(evaluator: Evaluator) -> None:
    plan = PLAN.replace("64 | 128 | 256 | 512", "64 | 8 | 16 | 32 | 128 | 256 | 512")
    candidate = Candidate(source=SOFTMAX, plan=plan, choices={"BLOCK": 8})
    trials = by_choice(tune(evaluator, candidate, seed=2))
    # Seven, then the better four, then the better two; 8 is the slowest of all and stays to be compared with.
    assert {block: trial.rung for block, trial in trials.items()} == {64: 1, 8: 2, 16: 0, 32: 0, 128: 1, 256: 2, 512: 2}
    assert len({trial.time_us for trial in trials.values()}) == 7
    assert winner(tuple(trials.values()), candidate.choices) == {"BLOCK": 512}


@pytest.fixture
def efforts(monkeypatch: pytest.MonkeyPatch) -> Counter[float]:
    """Counts the ratings that a device is really asked for, by effort."""
    seen: Counter[float] = Counter()
    rate = EmulatedSession.rate

    def counted(session: EmulatedSession, request: RunRequest, effort: float) -> TuningTime:
        seen[effort] += 1
        return rate(session, request, effort)

    monkeypatch.setattr(EmulatedSession, "rate", counted)
    return seen


@pytest.mark.slow
def test_a_sampled_kernel_is_rated_with_twice_the_effort_on_each_rung(
    evaluator: Evaluator, efforts: Counter[float]
) -> None:
    loop = "for (int k = 0; k < 8; ++k) sum += expf(row[i] - top + k)"
    candidate = Candidate(source=SOFTMAX.replace("sum += expf(row[i] - top)", loop), plan=PLAN)
    trials = tune(evaluator, candidate, seed=2)
    assert {block: trial.rung for block, trial in by_choice(trials).items()} == {64: 1, 128: 0, 256: 1, 512: 1}
    assert efforts == {0.5: 4, 1.0: 3}


@pytest.mark.slow
def test_a_time_that_no_effort_can_change_is_taken_once(evaluator: Evaluator, efforts: Counter[float]) -> None:
    trials = tune(evaluator, Candidate(source=SOFTMAX, plan=PLAN), seed=2)
    assert {block: trial.rung for block, trial in by_choice(trials).items()} == {64: 1, 128: 0, 256: 1, 512: 1}
    assert efforts == {0.5: 4}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trials(evaluator: Evaluator) -> None:
    candidate = Candidate(source=SOFTMAX, plan=PLAN.replace("64 | ", ""))
    assert tune(evaluator, candidate, seed=5) == tune(evaluator, candidate, seed=5)


@pytest.mark.slow
def test_combinations_of_the_same_code_and_launches_are_one(evaluator: Evaluator) -> None:
    plan = "# tune: SPARE = 1 | 2 | 3\n" + PLAN.replace("64 | 128 | 256 | 512", "64 | 256")
    trials = tune(evaluator, Candidate(source=SOFTMAX, plan=plan), seed=2)
    assert len(trials) == 6
    # Two contenders make one rung; six would have made three.
    assert {trial.rung for trial in trials} == {0}
    assert len({trial.time_us for trial in trials}) == 2
    assert winner(trials, {}) == {"SPARE": 1, "BLOCK": 256}
    # To a candidate that spares otherwise, the first of equals is as good.
    assert winner(trials, {"SPARE": 3, "BLOCK": 256}) is None


@pytest.mark.slow
def test_a_constant_that_the_code_reads_makes_a_difference(evaluator: Evaluator) -> None:
    plan = "# tune: AGAIN = 1 | 9\n" + PLAN.replace("64 | 128 | 256 | 512", "256")
    source = SOFTMAX.replace(
        "sum += expf(row[i] - top)", "for (int k = 0; k < AGAIN; ++k) sum += expf(row[i] - top + k)"
    )
    first, second = tune(evaluator, Candidate(source=source, plan=plan), seed=2)
    assert first.time_us is not None
    assert second.time_us is not None
    assert first.time_us < second.time_us


@pytest.mark.slow
def test_of_many_combinations_few_are_built_and_a_good_one_wins(evaluator: Evaluator, efforts: Counter[float]) -> None:
    plan = "# tune: AGAIN = 8 | 6 | 4 | 3 | 2 | 1\n" + PLAN.replace("64 |", "8 | 16 | 32 | 64 |").replace(
        "512", "512 | 2048"
    )
    source = 'static_assert(BLOCK != 128 || AGAIN != 1, "not that one");\n' + SOFTMAX.replace(
        "sum += expf(row[i] - top)", "for (int k = 0; k < AGAIN; ++k) sum += expf(row[i] - top + k)"
    )
    candidate = Candidate(source=source, plan=plan)
    trials = tune(evaluator, candidate, seed=2)
    every = list(parse_plan(plan).combinations)
    tried = [every.index(trial.choices) for trial in trials]
    assert len(every) == 48
    assert tried == sorted(tried)
    assert tried[0] == 0
    assert sum(trial.time_us is not None for trial in trials) < 30
    assert efforts.keys() <= set(EFFORTS.values())
    assert trials[0].rung == 1  # those of the candidate are what a winner must be faster than, at the same effort
    assert all("must be at most 1,024" in trial.problem for trial in trials if trial.choices["BLOCK"] == 2048)
    choices = winner(trials, {})
    assert choices is not None
    assert choices["AGAIN"] == 1
    assert choices["BLOCK"] >= 256
    assert tune(evaluator, candidate, seed=2) == trials


@pytest.mark.slow
def test_a_stop_ends_a_search_among_many_with_what_was_rated(evaluator: Evaluator) -> None:
    plan = "# tune: SPARE = 1 | 2 | 3 | 4 | 5\n" + PLAN
    candidate = Candidate(source=SOFTMAX, plan=plan)
    (only,) = tune(evaluator, candidate, seed=2, stopped=lambda: True)
    assert only.problem == "not tried: the run was stopped"
    calls: Counter[str] = Counter()

    def after_three() -> bool:
        calls["times"] += 1
        return calls["times"] > 3

    trials = tune(evaluator, candidate, seed=2, stopped=after_three)
    assert [trial.problem for trial in trials].count("not tried: the run was stopped") <= 1
    assert 1 <= sum(trial.time_us is not None for trial in trials) <= len(trials) <= 3
    assert trials[0].time_us is not None
    assert trials[0].rung == 1


@pytest.mark.slow
def test_where_the_time_is_over_the_best_cheap_ratings_are_completed(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rating takes 9 s of a GPU's clock: of the 120 s, 2 go into the candidate's own, the others are cheap."""
    plan = "# tune: AGAIN = 8 | 6 | 4 | 3 | 2 | 1\n" + PLAN
    source = SOFTMAX.replace(
        "sum += expf(row[i] - top)", "for (int k = 0; k < AGAIN; ++k) sum += expf(row[i] - top + k)"
    )
    now, efforts = [0.0], list[float]()
    rate = EmulatedSession.rate

    def slow(session: EmulatedSession, request: RunRequest, effort: float) -> TuningTime:
        now[0] += 9.0
        efforts.append(effort)
        return rate(session, request, effort)

    monkeypatch.setattr(EmulatedSession, "rate", slow)
    monkeypatch.setattr("kernelforge.evaluation.stages.tuning.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("kernelforge.evaluation.stages.tuning.RATING_SECONDS", 300.0)  # of this machine's clock
    measuring = replace(evaluator.device.capabilities, measures_time=True)
    monkeypatch.setattr(evaluator.device, "capabilities", measuring)
    trials = tune(evaluator, Candidate(source=source, plan=plan), seed=2)
    in_time = math.floor(TUNING_SECONDS / 9.0) + 1
    assert set(efforts[in_time:]) == {1.0}
    assert 1 <= len(efforts) - in_time <= CLOSING_SECONDS / 9.0 + 1
    problems = [trial.problem for trial in trials if trial.time_us is None]
    assert problems in ([], ["not tried: the search had taken its 120 s"])  # of the step that came too late
    timed = [(trial.time_us, trial.rung) for trial in trials if trial.time_us is not None]
    assert min(timed)[1] == 1  # the fastest of all is rated as its rival is
    assert winner(trials, {}) is not None


@pytest.mark.slow
def test_a_combination_that_cannot_work_has_its_problem_and_spoils_no_other(evaluator: Evaluator) -> None:
    plan = (
        PLAN.replace("64 | 128 | 256 | 512", "64 | 2048 | 16384 | 96 | 128 | 256 | 32")
        .replace("    out =", '    assert d >= BLOCK or BLOCK != 128, f"rows of {d} are short"\n    out =')
        .replace("    softmax[", '    assert d != 77 or BLOCK != 256, f"rows of {d} are odd"\n    softmax[')
    )
    source = SOFTMAX.replace("float top =", "if (BLOCK == 32) out[1 << 28] = 1.0f;\n    float top =", 1)
    trials = by_choice(tune(evaluator, Candidate(source=source, plan=plan), seed=2))
    assert trials[64].problem == ""
    assert "must be at most 1,024" in trials[2048].problem
    assert "1,024" in trials[16384].problem
    assert trials[96].time_us is not None  # wrong values are no matter of time: the cascade finds them
    assert "refuses the small size" in trials[128].problem
    assert "a hidden size that the candidate's own values support" in trials[256].problem
    assert "77" not in trials[256].problem
    assert "out-of-bounds" in trials[32].problem
    assert all(trial.time_us is None for block, trial in trials.items() if trial.problem)


@pytest.mark.slow
def test_a_combination_that_does_not_compile_has_the_compilers_words(evaluator: Evaluator) -> None:
    source = 'static_assert(BLOCK != 128, "not that one");\n' + SOFTMAX
    trials = by_choice(tune(evaluator, Candidate(source=source, plan=PLAN), seed=2))
    assert "not that one" in trials[128].problem
    assert [block for block, trial in trials.items() if trial.time_us is None] == [128]


@pytest.mark.slow
def test_a_fast_but_wrong_combination_wins_and_fails_the_cascade(evaluator: Evaluator) -> None:
    source = SOFTMAX.replace("float sum = 0.0f;", "float sum = BLOCK == 512 ? 1.0f : 0.0f;")
    candidate = Candidate(source=source, plan=PLAN)
    assert evaluator.evaluate(candidate, seed=1).evaluation.verdict is Verdict.OK
    choices = winner(tune(evaluator, candidate, seed=2), candidate.choices)
    assert choices == {"BLOCK": 512}
    child = evaluator.evaluate(candidate.model_copy(update={"choices": choices}), seed=3)
    assert child.evaluation.verdict is Verdict.WRONG
    assert child.evaluation.performance is None


def test_a_plan_without_a_choice_has_no_trials(evaluator: Evaluator) -> None:
    plain = PLAN.replace("# tune: BLOCK = 64 | 128 | 256 | 512", "BLOCK = 64")
    assert tune(evaluator, Candidate(source=SOFTMAX, plan=plain), seed=2) == ()
    single = PLAN.replace("64 | 128 | 256 | 512", "64")
    assert tune(evaluator, Candidate(source=SOFTMAX, plan=single), seed=2) == ()
    assert winner((), {}) is None


@pytest.mark.slow
def test_a_stop_leaves_the_rest_untried_and_no_winner_by_default(evaluator: Evaluator) -> None:
    candidate = Candidate(source=SOFTMAX, plan=PLAN)
    trials = tune(evaluator, candidate, seed=2, stopped=lambda: True)
    assert [trial.problem for trial in trials] == ["not tried: the run was stopped"] * 4
    assert winner(trials, {}) is None
    calls: Counter[str] = Counter()

    def after_six() -> bool:
        calls["times"] += 1
        return calls["times"] > 6

    # Four are compiled and two are rated: the candidate's own first.
    trials_by_block = by_choice(
        tune(evaluator, candidate.model_copy(update={"choices": {"BLOCK": 256}}), seed=2, stopped=after_six)
    )
    assert {block for block, trial in trials_by_block.items() if trial.time_us is not None} == {64, 256}
    assert winner(tuple(trials_by_block.values()), {"BLOCK": 256}) is None


@pytest.mark.slow
def test_to_wait_for_the_device_takes_none_of_the_searchs_time(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = [0.0]

    @contextmanager
    def gpu_lock() -> Iterator[None]:
        waited[0] += 10_000.0
        yield

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + waited[0])
    monkeypatch.setattr("kernelforge.evaluation.stages.tuning.time", clock)
    monkeypatch.setattr(evaluator, "gpu_lock", gpu_lock)
    measuring = replace(evaluator.device.capabilities, measures_time=True)
    monkeypatch.setattr(evaluator.device, "capabilities", measuring)
    trials = tune(evaluator, Candidate(source=SOFTMAX, plan=PLAN.replace(" | 256 | 512", "")), seed=2)
    assert [trial.problem for trial in trials] == ["", ""]


@pytest.mark.slow
def test_a_slow_machine_leaves_no_combination_untried_on_an_emulated_device(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.tuning.TUNING_SECONDS", -1.0)
    monkeypatch.setattr("kernelforge.evaluation.stages.tuning.RATING_SECONDS", 0.0)
    trials = tune(evaluator, Candidate(source=SOFTMAX, plan=PLAN.replace(" | 256 | 512", "")), seed=2)
    assert [trial.problem for trial in trials] == ["", ""]


@pytest.mark.slow
def test_an_oracle_that_fails_spoils_the_search_and_nothing_else(workshop: EvaluatorPool) -> None:
    broken = workshop.evaluator(TASK)
    broken.oracle.close()
    trials = tune(broken, Candidate(source=SOFTMAX, plan=PLAN), seed=2)
    assert all("could not be drawn: the oracle of task 'rows' is closed" in trial.problem for trial in trials)
    assert winner(trials, {}) is None


def test_only_a_clear_gain_on_the_last_rung_wins() -> None:
    def trial(block: int, rung: int, time_us: float | None) -> TuneTrial:
        problem = "" if time_us is not None else "it faults"
        return TuneTrial(choices={"BLOCK": block, "WIDTH": 1}, rung=rung, time_us=time_us, problem=problem)

    own, loser = trial(64, 2, 10.0), trial(128, 1, 1.0)
    just = 10.0 * (1 - LEAST_GAIN)
    assert winner([own, loser], {}) is None
    assert winner([own, trial(256, 2, just)], {"BLOCK": 64}) is None
    assert winner([loser, own, trial(256, 2, just * 0.999)], {"BLOCK": 64}) == {"BLOCK": 256, "WIDTH": 1}
    assert winner([own, trial(256, 2, 5.0), trial(512, 2, 4.0)], {}) == {"BLOCK": 512, "WIDTH": 1}
    assert winner([trial(64, 0, None), trial(256, 2, 5.0)], {"BLOCK": 64}) is None
    # Times within the noise are in no order, so that of the plan decides, however they fell.
    for near in (4.0, 4.01, 4.08):
        tied = [own, trial(256, 2, near), trial(512, 2, 4.0), trial(1024, 2, 4.0)]
        assert winner(tied, {}) == {"BLOCK": 256, "WIDTH": 1}
    assert winner([own, trial(256, 2, 4.09), trial(512, 2, 4.0)], {}) == {"BLOCK": 512, "WIDTH": 1}
    assert winner([trial(256, 2, just), own, trial(512, 2, just * 0.999)], {"BLOCK": 64}) == {"BLOCK": 512, "WIDTH": 1}
