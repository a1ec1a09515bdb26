"""Runs whose Coder is a person at an exchange folder: broken replies, repairs, and a stop while waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kernelforge.records import Budget, Operator, RunState, Verdict
from kernelforge.run import Event, StopSignal, start_run
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
    tmp_path: Path, replies: Sequence[str], react: Callable[[Event, StopSignal], None] = lambda event, stop: None
) -> tuple[RunState, Person]:
    desk = tmp_path / "desk"
    desk.mkdir()
    person = Person(desk, replies)
    person.start()
    stop = StopSignal()
    config = quick_config(tasks=("swish",), coder=f"exchange:{desk}", budget=Budget(rounds=len(replies) or 1))
    with open_store(tmp_path) as store:
        run = start_run(config, store, Watcher(lambda event: react(event, stop)), stop)
    return run.state, person


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


def test_a_stop_does_not_wait_for_a_reply(tmp_path: Path) -> None:
    def stop_once_asked(event: Event, stop: StopSignal) -> None:
        if event.stage == "coder":
            threading.Timer(0.5, stop.drain).start()

    state, _ = run_with(tmp_path, [], stop_once_asked)
    assert state is RunState.STOPPED
    with open_store(tmp_path) as store:
        assert store.attempts(store.run("latest").id) == []
