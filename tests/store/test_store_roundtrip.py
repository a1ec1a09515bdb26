"""Any attempt that the records allow survives the database unchanged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelforge.records import (
    Attempt,
    Candidate,
    Correctness,
    Finding,
    KernelProfile,
    LaunchQueue,
    MemoryHotSpot,
    Message,
    Metric,
    Operator,
    Origin,
    Profile,
    Reward,
    Roofline,
    SizeCheck,
    Verdict,
)
from kernelforge.store import Store
from tests.support.factories import make_timing, measured, measured_evaluation
from tests.support.recorded_run import make_attempt, make_facts, make_run, make_task

PARENT = "r1/softmax/999"
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
NUMBER = st.floats(allow_nan=True, allow_infinity=True).map(lambda number: number + 0.0)  # SQLite has no -0.0
FINITE = st.floats(allow_nan=False, allow_infinity=False)
COUNT = st.integers(0, 2**62)
TRIPLE = st.tuples(*[st.integers(1, 2**31 - 1)] * 3)
NOT_MEASURED = st.sampled_from([origin for origin in Origin if origin is not Origin.MEASURED])  # the run is emulated
METRIC = st.builds(Metric, name=TEXT, value=NUMBER, unit=TEXT, origin=NOT_MEASURED)
HOT_SPOT = st.builds(
    MemoryHotSpot, source_line=COUNT, opcode=TEXT, space=TEXT, access=TEXT, requests=COUNT, transactions=COUNT,
    ideal_transactions=COUNT,
)  # fmt: skip
KERNEL = st.builds(
    KernelProfile, kernel=TEXT, launches=st.integers(1, 2**40), grid=TRIPLE, block=TRIPLE,
    sampled=st.floats(0.01, 1), metrics=st.lists(METRIC, max_size=3).map(tuple),
    hot_spots=st.lists(HOT_SPOT, max_size=2).map(tuple),
)  # fmt: skip
ROOFLINE = st.builds(
    Roofline, flops=NUMBER, dram_bytes=NUMBER, compulsory_bytes=NUMBER, arithmetic_intensity=NUMBER, ridge=NUMBER,
    bound=TEXT, time_us=NUMBER, time_origin=st.just(Origin.MODELLED),
)  # fmt: skip
PROFILE = st.builds(
    Profile, size=TEXT, device=st.just("emulated:h100"), kernels=st.lists(KERNEL, max_size=2).map(tuple),
    metrics=st.lists(METRIC, max_size=4).map(tuple), roofline=ROOFLINE,
    notes=st.lists(TEXT, max_size=3).map(tuple),
)  # fmt: skip
CHECK = st.builds(
    SizeCheck, size=TEXT.map("hidden_".__add__), status=st.sampled_from(["passed", "guarded", "skipped"]),
    families=st.lists(TEXT, max_size=3).map(tuple), message=TEXT.filter(bool), error=st.none() | NUMBER,
    launches=st.none() | COUNT,
)  # fmt: skip
MESSAGE = st.builds(
    Message, agent=st.sampled_from(["coder", "judge"]), role=st.just("reply"), provider=TEXT, content=TEXT,
    reasoning=st.none() | TEXT,
) | st.builds(
    Message, agent=st.sampled_from(["coder", "judge"]), role=st.just("prompt"), provider=TEXT, content=TEXT,
    reasoning=st.none(),
)  # fmt: skip
FINDING = st.builds(
    Finding, kind=st.sampled_from(["optimise", "repair", "stop"]), headline=TEXT, why=TEXT, action=TEXT,
    move=st.none() | TEXT, metrics=st.lists(TEXT, max_size=3).map(tuple),
)  # fmt: skip
REWARD = st.builds(
    Reward, policy=TEXT, value=st.none() | FINITE, components=st.dictionaries(TEXT, st.none() | NUMBER, max_size=4)
)
CANDIDATE = st.builds(
    Candidate, source=TEXT.filter(bool), plan=TEXT.filter(bool), choices=st.dictionaries(TEXT, COUNT, max_size=3)
) | st.builds(Candidate, source=TEXT.filter(bool), plan=st.just(""), lane=st.just("modelnew"))


PASSED = st.just(SizeCheck(size="full", status="passed"))


@st.composite
def attempts(draw: st.DrawFn) -> Attempt:
    """An attempt with free texts, numbers and lists, over a frame that the records' own rules allow."""
    verdict = draw(st.sampled_from(Verdict))
    ok = verdict is Verdict.OK
    operator = draw(st.sampled_from(Operator))
    frame = make_attempt(make_run(), make_task(), draw(st.integers(0, 200)), verdict)
    candidate = draw(CANDIDATE if ok else st.none() | CANDIDATE)
    checks = [draw(PASSED), *draw(st.lists(CHECK, max_size=3, unique_by=lambda check: check.size))]
    evaluation = frame.evaluation.model_copy(
        update={
            "candidate": frame.evaluation.candidate if candidate is None else candidate.hash,
            "correctness": Correctness(sizes=tuple(checks)),
            "seconds": draw(st.dictionaries(TEXT, FINITE, max_size=4)),
            "reason": "" if ok else "why " + draw(TEXT),
        }
    )
    return frame.model_copy(
        update={
            "operator": operator,
            "parent": None if operator is Operator.SEED else PARENT,
            "technique": draw(TEXT),
            "finding": draw(st.none() | FINDING),
            "messages": tuple(draw(st.lists(MESSAGE, max_size=3))),
            "candidate": candidate,
            "evaluation": evaluation,
            "profile": draw(st.none() | PROFILE) if ok else None,
            "reward": draw(REWARD).model_copy(update={} if ok else {"value": None}),
            "accepted": ok and draw(st.booleans()),
            "note": draw(TEXT),
            "seconds": draw(st.floats(0, 1e9)),
        }
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(attempts())
def test_any_attempt_comes_back_equal(attempt: Attempt):
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "kernelforge.db") as store:
        run, task = make_run(), make_task()
        store.start_run(run)
        store.put_task(run.id, task, make_facts(task), None)
        store.add_attempt(make_attempt(run, task, 999, Verdict.OK))
        store.add_attempt(attempt)
        read, _ = store.attempts(run.id)
        assert read.model_dump_json() == attempt.model_dump_json()  # as text, since NaN does not equal itself


def test_the_latest_traces_of_eager_pytorch_are_those_of_a_task_by_gpu() -> None:
    def attempt_on(gpu: str, number: int, waits: float | None) -> Attempt:
        trace = {"kernels": 3, "tklqt_us": waits, "launch_us": 6.0, "host_us": 64.0, "gpu_us": 48.0}
        queue = None if waits is None else LaunchQueue.model_validate(trace | {"origin": "measured"})
        evaluation = measured_evaluation(performance=measured(speedup=2.0, timing=make_timing(eager_launches=queue)))
        attempt = make_attempt(run, task, number, Verdict.OK)
        own = {"candidate": attempt.evaluation.candidate, "task": attempt.evaluation.task}
        fingerprint = evaluation.fingerprint.model_copy(update={"gpu": gpu})
        evaluation = evaluation.model_copy(update=own | {"fingerprint": fingerprint})
        return attempt.model_copy(update={"evaluation": evaluation, "profile": None})

    run, task = make_run(), make_task()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "kernelforge.db") as store:
        store.start_run(run)
        store.put_task(run.id, task)
        for number, (gpu, waits) in enumerate((("H100", 60.0), ("A100", 90.0), ("H100", 64.0), ("L40S", None))):
            store.add_attempt(attempt_on(gpu, number, waits))
        latest = [(gpu, queue.tklqt_us) for gpu, queue in store.launch_queues(task.digest)]
        assert latest == [("H100", 64.0), ("A100", 90.0)]
        assert store.launch_queues("another") == []
