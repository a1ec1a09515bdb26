"""Task files as third-party code, and children that were taken over: what they send is judged, never believed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kernelforge.devices.base import RunFailed, RunRequest
from kernelforge.errors import KernelForgeError, SandboxError, TaskError
from kernelforge.evaluation import EvaluatorPool
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.modelnew.evaluator import ModelNewEvaluator, modelnew_candidate
from kernelforge.records import Candidate, Verdict
from kernelforge.sandbox import Frame, Limits
from tests.adversarial.corpus import CANARY
from tests.support.axpy import KERNEL, PLAN, REFERENCE, axpy_task
from tests.support.factories import make_fingerprint

HOSTILE = {
    "exit": "import os\n    os._exit(0)",
    "kill the parent": "import os, signal\n    os.kill(os.getppid(), signal.SIGKILL)",
    "open a secret": "open('/proc/1/environ').read()",
    "write": "open('/tmp/../etc/kernelforge', 'w')",
    "connect": "import socket\n    socket.socket().connect(('127.0.0.1', 22))",
    "start a program": "import subprocess\n    subprocess.check_output(['/bin/sh', '-c', 'id'])",
    "fork": "import os\n    os.fork()",
    "fill memory": "x = bytearray(1 << 40)",
}


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_task_file_harms_its_own_task_only(workshop: EvaluatorPool, code: str) -> None:
    source = REFERENCE.replace("def get_inputs():\n", f"def get_inputs():\n    {code}\n")
    with pytest.raises(KernelForgeError) as caught:
        workshop.evaluator(axpy_task(source))
    assert CANARY not in str(caught.value)
    honest = workshop.evaluator(axpy_task())
    try:
        good = honest.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=1, profile=False).evaluation
        assert good.verdict is Verdict.OK
    finally:
        honest.oracle.close()


def test_a_task_file_finds_no_key_in_its_environment_or_its_memory_of_arguments(workshop: EvaluatorPool) -> None:
    tell = "import os, sys\n    raise RuntimeError(repr(dict(os.environ)) + repr(sys.argv))"
    source = REFERENCE.replace("def get_inputs():\n", f"def get_inputs():\n    {tell}\n")
    with pytest.raises(TaskError) as caught:
        workshop.evaluator(axpy_task(source))
    assert "LC_ALL" in str(caught.value)
    assert CANARY not in str(caught.value)


@pytest.mark.slow
def test_shapes_that_change_between_draws_are_the_tasks_fault(workshop: EvaluatorPool) -> None:
    grow = "n = ROWS + int(torch.randint(1, 9, (1,)))\n    return [torch.randn(n, COLS), torch.randn(n, COLS)]"
    evaluator = workshop.evaluator(
        axpy_task(REFERENCE.replace("return [torch.randn(ROWS", f"{grow}\n    return [torch.randn(ROWS"))
    )
    try:
        with pytest.raises(TaskError, match="must not depend on the seed"):
            evaluator.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=1)
    finally:
        evaluator.oracle.close()


ONES = REFERENCE.replace("return x * 2 + y", "return torch.softmax(x, dim=1).sum(dim=1) + 0 * y[:, 0]")


@pytest.mark.slow
def test_a_task_with_a_constant_answer_pays_nothing(workshop: EvaluatorPool) -> None:
    """The author of a task file may want the reward."""
    kernel = "__global__ void ones(float* out, int n) { int i = threadIdx.x; if (i < n) out[i] = 1.0f; }"
    plan = (
        "def forward(x, y):\n    out = empty(x.shape[0], dtype=x.dtype)\n"
        "    ones[1, 64](out, i32(x.shape[0]))\n    return out\n"
    )
    evaluator = workshop.evaluator(axpy_task(ONES))
    try:
        with pytest.raises(TaskError, match=r"is not admitted, for wrong answers could earn a reward: .*a constant"):
            evaluator.evaluate(Candidate(source=kernel, plan=plan), seed=1, profile=False)
    finally:
        evaluator.oracle.close()


@pytest.mark.slow
def test_a_task_with_a_constant_answer_pays_no_model_of_a_reply_either(
    workshop: EvaluatorPool, kept_zygotes: Any
) -> None:
    source = ONES.replace("class Model", "class ModelNew").replace(
        "torch.softmax(x, dim=1).sum(dim=1)", "x[:, 0] * 0 + 1"
    )
    task = axpy_task(ONES)
    fingerprint = make_fingerprint(device="cpu", device_kind="cpu", arch="cpu", toolchain="none")
    evaluator = ModelNewEvaluator(task, workshop.oracle(task), kept_zygotes("modelnew"), "cpu", fingerprint)
    try:
        with pytest.raises(TaskError, match="is not admitted"):
            evaluator.evaluate(modelnew_candidate(source), seed=1)
    finally:
        evaluator.oracle.close()


class TakenOver:
    """A child, and the zygote that forks it, that answer every request with one frame."""

    def __init__(self, data: dict[str, Any], blobs: tuple[bytes, ...] = ()) -> None:
        self.frame = Frame(data, blobs)

    def spawn(self, limits: Limits | None = None) -> TakenOver:
        return self

    def call(
        self,
        data: dict[str, Any],
        blobs: Sequence[Any] = (),
        *,
        timeout_s: float | None = None,
        reply_bytes: int | None = None,
    ) -> Frame:
        return Frame({"ok": True}) if data.get("op") in ("load", "probe") else self.frame

    def close(self) -> None:
        pass


FRAMES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "no families": {"scales": {}},
    "other families": {"scales": {"easy": 1.0}},
    "factors that are none": {"scales": {"task": "twice"}},
    "wrong types": {"scales": 7, "sizes": "x", "comparison": [], "graph": 1, "positions": 2, "findings": 1},
    "too little": {"sizes": [{}], "comparison": {"ok": "maybe"}, "graph": {}, "findings": [{}]},
    "a contradiction": {"comparison": {"ok": True, "mismatched": 3, "total": 3}},
    "huge numbers": {"comparison": {"ok": True, "total": -(10**400)}, "positions": [10**400], "weights": []},
}  # fmt: skip


@pytest.mark.parametrize("data", FRAMES.values(), ids=FRAMES)
def test_what_an_oracle_child_sends_is_read_as_hostile(data: dict[str, Any]) -> None:
    oracle = Oracle(TakenOver({"ok": True, **data}), axpy_task())
    for ask in (
        oracle.facts,
        oracle.trace,
        lambda: oracle.families("small"),
        lambda: oracle.draw("small", "task", 1),
        lambda: oracle.check(1, [], [], []),
        oracle.admit,
    ):
        with pytest.raises(KernelForgeError):
            ask()


RUNNER_FRAMES: dict[str, tuple[dict[str, Any], tuple[bytes, ...]]] = {
    "no outputs": ({"faults": []}, ()),
    "short outputs": ({"faults": []}, (b"x",)),
    "too many outputs": ({"faults": []}, (bytes(1024), bytes(1024))),
    "faults of no kind": ({"faults": [["OK", "x"]]}, ()),
    "faults that are none": ({"faults": 7}, ()),
    "no counters": ({"faults": [], "counts": None}, ()),
    "counters of nothing": ({"faults": [], "counts": {"kernels": [], "memsets": 0, "memset_bytes": 0}}, ()),
    "counters without bound": ({"faults": [], "counts": {"kernels": [{"grid": [10**400] * 3}], "memsets": -1}}, ()),
}


@pytest.mark.slow
@pytest.mark.parametrize(("data", "blobs"), RUNNER_FRAMES.values(), ids=RUNNER_FRAMES)
def test_what_a_runner_sends_is_read_as_hostile(
    workshop: EvaluatorPool, data: dict[str, Any], blobs: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = workshop.evaluator(axpy_task())
    requests: list[RunRequest] = []
    real = type(workshop.device.open(_artifact(workshop))).run

    def keep(self: Any, request: RunRequest) -> Any:
        requests.append(request)
        return real(self, request)

    session = workshop.device.open(_artifact(workshop))
    monkeypatch.setattr(type(session), "run", keep)
    evaluator.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=1, profile=False)
    evaluator.oracle.close()
    monkeypatch.undo()
    session._zygote = TakenOver(data, blobs)  # type: ignore[attr-defined]
    with pytest.raises((SandboxError, RunFailed)):
        session.run(requests[0])
    with pytest.raises((SandboxError, RunFailed)):
        session.profile(requests[0], evaluator.facts.at("small"))


def test_numbers_that_no_clock_gives_are_no_time(workshop: EvaluatorPool) -> None:
    from kernelforge.devices.wire import read_count, read_seconds

    for text in ("1e400", "-1", "true", '"x"', "NaN", "1" + "0" * 400, "null"):
        frame = Frame(json.loads(f'{{"seconds": {text}, "thread_instructions": {text}}}'))
        assert 0 <= read_seconds(frame) <= 1e9
        count = read_count(frame, "thread_instructions")
        assert count is None or count >= 0


def _artifact(workshop: EvaluatorPool) -> Any:
    return workshop.compiler.build(KERNEL, ["axpy"])
