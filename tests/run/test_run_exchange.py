"""Runs whose Coder is a person at an exchange folder: broken replies, repairs, and a stop while waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelforge.records import Budget, Operator, RunState, Verdict
from kernelforge.run import Event, StopSignal, resume_run, start_run
from tests.run.run_helpers import Watcher, open_store, quick_config

pytestmark = pytest.mark.usefixtures("warm_zygotes")

KERNEL = """__global__ void swish(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] / (1.0f + expf(-x[i]));
}"""
PLAN = """def forward(x):
    out = empty_like(x)
    swish[ceil_div(x.numel(), 256), 256](x, out, i32(x.numel()))
    return out"""


WIDE = """__device__ float swished(float v) { return v / (1.0f + expf(-v)); }
__global__ void swish(const float* x, float* out, int n) {
    int quads = n % 4 == 0 ? n / 4 : 0;
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 v = ((const float4*)x)[i];
        ((float4*)out)[i] = make_float4(swished(v.x), swished(v.y), swished(v.z), swished(v.w));
    }
    for (int i = 4 * quads + threadIdx.x; i < n; i += blockDim.x) out[i] = swished(x[i]);
}"""
"""One block, which loads four elements at a time: a quarter of the requests, and nearly all of the GPU idle."""
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
WISH = f"""```json
{{"bottleneck": "too many requests", "method": "wider loads", "plan": "load float4", "metrics": ["{REQUESTS}"]}}
```"""


def reply(kernel: str = KERNEL, plan: str = PLAN) -> str:
    return f"Here it is.\n\n```cuda\n{kernel}\n```\n\n```python\n{plan}\n```\n"


class Person(threading.Thread):
    """Answers the prompts of a folder in turn, each reply renamed into place."""

    def __init__(self, folder: Path, replies: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.replies = replies
        self.prompts: list[str] = []

    def run(self) -> None:
        for text in self.replies:
            prompt = self._next()
            self.prompts.append(prompt.read_text())
            name = prompt.name.removesuffix(".prompt.md")
            draft = self.folder / f"{name}.draft"
            draft.write_text(text)
            draft.rename(self.folder / f"{name}.reply.md")

    def _next(self) -> Path:
        while True:
            waiting = [
                path
                for path in sorted(self.folder.glob("*.prompt.md"))
                if not path.with_name(path.name.replace(".prompt.", ".reply.")).exists()
            ]
            if waiting:
                return waiting[0]
            time.sleep(0.05)


def run_with(
    tmp_path: Path,
    replies: Sequence[str],
    react: Callable[[Event, StopSignal], None] = lambda event, stop: None,
    **changes: Any,
) -> tuple[RunState, Person]:
    desk = tmp_path / "desk"
    desk.mkdir()
    person = Person(desk, replies)
    person.start()
    stop = StopSignal()
    options: dict[str, Any] = {"coder": f"exchange:{desk}", "budget": Budget(rounds=len(replies) or 1)} | changes
    config = quick_config(tasks=("swish",), **options)
    with open_store(tmp_path) as store:
        run = start_run(config, store, Watcher(lambda event: react(event, stop)), stop)
    return run.state, person


@pytest.mark.slow
def test_a_broken_reply_is_repaired_and_then_accepted(tmp_path: Path) -> None:
    broken = reply(KERNEL.replace("expf", "exponential"))
    state, person = run_with(tmp_path, [broken, reply()])
    assert state is RunState.FINISHED
    with open_store(tmp_path) as store:
        first, second = store.attempts(store.run("latest").id)
    assert first.evaluation.verdict is Verdict.BUILD
    assert first.reward.value == 0.0
    assert second.operator is Operator.REPAIR
    assert second.parent == first.id
    assert second.finding is not None
    assert second.evaluation.verdict is Verdict.OK, second.evaluation.reason
    assert second.accepted
    assert "exponential" in person.prompts[1], "the repair prompt shows what was wrong"


@pytest.mark.slow
def test_a_reply_equal_but_for_names_shares_the_evaluation_of_a_run_that_was_stopped_in_between(tmp_path: Path) -> None:
    def stop_after_the_first(event: Event, stop: StopSignal) -> None:
        if event.kind == "attempt":
            stop.drain()

    renamed = reply(f"// The same.\n{KERNEL.replace('swish', 'silu')}", PLAN.replace("swish", "silu"))
    state, _ = run_with(tmp_path, [reply(), renamed], stop_after_the_first, tune=False)
    assert state is RunState.STOPPED
    with open_store(tmp_path) as store:
        run = resume_run(store.run("latest").id, store, Watcher(), StopSignal())
        first, second = store.attempts(run.id)
    assert second.evaluation.equals == first.evaluation.key
    assert second.evaluation.performance == first.evaluation.performance
    assert second.reward == first.reward
    assert second.candidate is not None
    assert "silu" in second.candidate.source
    assert second.profile is not None
    assert [kernel.kernel for kernel in second.profile.kernels] == ["silu"]
    assert not second.accepted


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_reply(tmp_path: Path) -> None:
    def stop_once_asked(event: Event, stop: StopSignal) -> None:
        if event.stage == "coder":
            threading.Timer(0.5, stop.drain).start()

    state, _ = run_with(tmp_path, [], stop_once_asked)
    assert state is RunState.STOPPED
    with open_store(tmp_path) as store:
        assert store.attempts(store.run("latest").id) == []


@pytest.mark.slow
def test_the_faster_of_two_right_kernels_is_kept_whatever_became_of_the_judges_metric(tmp_path: Path) -> None:
    """The Judge asks for fewer requests: the fast kernel has four times as many, and the slow one a quarter."""
    wide = reply(WIDE, PLAN.replace("[ceil_div(x.numel(), 256), 256]", "[1, 256]"))
    replies = [wide, WISH, reply(), WISH, wide]
    judge = f"exchange:{tmp_path / 'desk'}"
    state, _ = run_with(tmp_path, replies, judge=judge, budget=Budget(rounds=3), memory="off")
    assert state is RunState.FINISHED
    with open_store(tmp_path) as store:
        attempts = store.attempts(store.run("latest").id)
    slow, fast, last = attempts
    assert [attempt.evaluation.verdict for attempt in attempts] == [Verdict.OK] * 3
    assert [attempt.accepted for attempt in attempts] == [True, True, False]
    assert (fast.parent, last.parent) == (slow.id, fast.id), "the strategy goes on from the faster one"
    requests = [attempt.profile.value(REQUESTS) for attempt in attempts if attempt.profile is not None]
    assert requests[0] == requests[2] == 0.25 * (requests[1] or 0.0)
    speedups = [attempt.evaluation.performance.predicted for attempt in attempts if attempt.evaluation.performance]
    assert speedups[0] is not None
    assert speedups[1] is not None
    assert speedups[1].low > speedups[0].high
    assert fast.note.startswith("accepted: modelled time")
    assert last.note.startswith("not accepted: modelled time")
    assert f"{REQUESTS} 1,024 -> 4,096" in fast.note, "what became of the metric is said all the same"


@pytest.mark.slow
def test_a_stop_far_from_the_floor_is_not_taken_and_a_warning_says_why(tmp_path: Path) -> None:
    slow = reply(WIDE, PLAN.replace("ceil_div(x.numel(), 256)", "1"))
    stop = '```json\n{"stop": "nothing is left to gain"}\n```'
    warnings: list[str] = []

    def note(event: Event, signal: StopSignal) -> None:
        if event.kind == "warning":
            warnings.append(event.message)

    judge = f"exchange:{tmp_path / 'desk'}"
    replies = [slow, stop, stop, stop, reply()]
    state, _ = run_with(tmp_path, replies, note, judge=judge, budget=Budget(rounds=2))
    assert state is RunState.FINISHED
    with open_store(tmp_path) as store:
        first, second = store.attempts(store.run("latest").id)
    assert (first.evaluation.verdict, second.evaluation.verdict) == (Verdict.OK, Verdict.OK)
    assert second.finding is None
    assert "too early to stop: the candidate takes" in second.messages[2].content
    (warning,) = warnings
    assert warning.startswith("the Judge's stop (nothing is left to gain) is not taken: the candidate takes")
