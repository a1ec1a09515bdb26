"""The shipped transcript drives whole runs: what a model wrote, mistakes included, through a stop and a resume."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kernelforge.llm.recording import read_transcript
from kernelforge.records import Attempt, Budget, Operator, RunState, Verdict
from kernelforge.run import Event, StopSignal, configure, resume_run
from tests.run.run_helpers import Watcher, open_store, run_in

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_workshop")]

TRANSCRIPT = Path(__file__).parents[2] / "results" / "reference" / "exchange-core.jsonl"

SEED, OPTIMISE, REPAIR, TUNE = Operator.SEED, Operator.OPTIMISE, Operator.REPAIR, Operator.TUNE
THREE_GOOD = ((SEED, Verdict.OK), (OPTIMISE, Verdict.OK), (OPTIMISE, Verdict.OK))
RECORDED = {
    "softmax": THREE_GOOD,
    "rmsnorm": THREE_GOOD,
    "matmul": ((SEED, Verdict.OK), (TUNE, Verdict.OK), (OPTIMISE, Verdict.OK), (OPTIMISE, Verdict.OK)),
    "cumsum": ((SEED, Verdict.CRASH), (REPAIR, Verdict.OK), (OPTIMISE, Verdict.OK)),
    "cross_entropy": ((SEED, Verdict.OK), (OPTIMISE, Verdict.BUILD), (REPAIR, Verdict.OK)),
    "transpose": ((SEED, Verdict.OK), (TUNE, Verdict.OK), (OPTIMISE, Verdict.OK), (OPTIMISE, Verdict.OK)),
}
"""Tasks in the order of the run that was recorded, and what became of each attempt."""

LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
WARP_INSTRUCTIONS = "ptx__warp_inst_executed.sum"
CUT_TO = {
    "softmax": (LOAD_SECTORS, 0.34),
    "rmsnorm": (LOAD_SECTORS, 0.51),
    "matmul": ("memory_l1_wavefronts_shared", 0.26),
    "cumsum": (WARP_INSTRUCTIONS, 0.5),
    "cross_entropy": (LOAD_SECTORS, 0.51),
    "transpose": (WARP_INSTRUCTIONS, 0.2),
}
"""A counter of each task, and the share of it that the last attempt may keep of what the first correct one had."""

EACH = pytest.mark.parametrize("task", RECORDED)


def replayed(folder: Path, tasks: Sequence[str], coder: str, stop_at: tuple[str, int]) -> list[Attempt]:
    """Attempts of a run that was stopped after the attempt ``stop_at`` (task, number) and resumed to its end."""

    def stop_in_the_middle(event: Event, stop: StopSignal) -> None:
        if event.attempt is not None and (event.attempt.task, event.attempt.number) == stop_at:
            stop.drain()

    config = configure(
        tasks=tuple(tasks),
        device="emulated:h100",
        options={"metrics": "full"},
        coder=coder,
        judge=coder,
        budget=Budget(rounds=3),
        seed=20261121,
        jobs=1,
    )
    run = run_in(folder, config, stop_in_the_middle)
    assert run.state is RunState.STOPPED
    with open_store(folder) as store:
        made = {(attempt.task, attempt.number) for attempt in store.attempts(run.id)}
        planned = [(task, number) for task in tasks for number in range(len(RECORDED[task]))]
        assert made == set(planned[: planned.index(stop_at) + 1]), "nothing is asked after the stop"
        assert resume_run(run.id, store, Watcher(), StopSignal()).state is RunState.FINISHED
        return store.attempts(run.id)


@pytest.fixture(scope="module")
def replay_of_all(tmp_path_factory: pytest.TempPathFactory, warm_workshop: None) -> list[Attempt]:
    """All tasks, to the letter, stopped after an attempt that does not build.

    A prompt that has changed since is a miss, and fails here; results/reference/README.md says what to do then.
    """
    return replayed(tmp_path_factory.mktemp("whole"), tuple(RECORDED), f"replay:{TRANSCRIPT}", ("cross_entropy", 1))


def of(attempts: list[Attempt], task: str) -> list[Attempt]:
    return sorted((attempt for attempt in attempts if attempt.task == task), key=lambda attempt: attempt.number)


def outcomes(attempts: list[Attempt], task: str) -> tuple[tuple[Operator, Verdict], ...]:
    return tuple((attempt.operator, attempt.evaluation.verdict) for attempt in of(attempts, task))


def left_of(attempts: list[Attempt], task: str) -> float:
    """The task's counter at the last attempt, as a share of the first correct attempt's."""
    counted = [
        metric.value
        for attempt in of(attempts, task)
        if attempt.profile is not None and (metric := attempt.profile.metric(CUT_TO[task][0])) is not None
    ]
    return counted[-1] / counted[0]


def coder_replies(attempts: list[Attempt], task: str) -> list[str]:
    return [
        message.content
        for attempt in of(attempts, task)
        for message in attempt.messages
        if (message.agent, message.role) == ("coder", "reply")
    ]


def recorded_replies(task: str) -> list[str]:
    _, talks = read_transcript(TRANSCRIPT)
    return [line.reply for talk in talks for line in talk.lines if (line.agent, line.task) == ("coder", task)]


def test_the_transcript_says_who_wrote_it() -> None:
    header, talks = read_transcript(TRANSCRIPT)
    assert "Claude" in header.written_by
    assert {line.written_by for talk in talks for line in talk.lines} == {header.written_by}
    assert {line.task for talk in talks for line in talk.lines} == set(RECORDED)


@EACH
def test_every_attempt_has_the_recorded_verdict(replay_of_all: list[Attempt], task: str) -> None:
    assert outcomes(replay_of_all, task) == RECORDED[task]


@EACH
def test_a_resumed_run_goes_on_behind_the_replies_it_has_used(replay_of_all: list[Attempt], task: str) -> None:
    assert coder_replies(replay_of_all, task) == recorded_replies(task)


def test_a_race_is_caught_and_the_next_reply_mends_it(replay_of_all: list[Attempt]) -> None:
    crashed, mended, _ = of(replay_of_all, "cumsum")
    assert "race" in crashed.evaluation.reason
    assert not crashed.accepted
    assert mended.parent == crashed.id
    assert mended.finding is not None
    assert mended.finding.kind == "repair"
    assert mended.accepted


def test_a_repair_is_judged_by_what_its_parent_set_out_to_do(replay_of_all: list[Attempt]) -> None:
    _, broken, mended = of(replay_of_all, "cross_entropy")
    assert broken.evaluation.build is not None
    assert not broken.evaluation.build.ok
    assert mended.parent == broken.id
    assert LOAD_SECTORS in mended.note


@EACH
def test_later_replies_cut_what_they_set_out_to_cut(replay_of_all: list[Attempt], task: str) -> None:
    assert left_of(replay_of_all, task) <= CUT_TO[task][1]
    last = of(replay_of_all, task)[-1]
    assert last.accepted is (task != "rmsnorm"), last.note


def test_fewer_sectors_without_less_time_are_no_gain(replay_of_all: list[Attempt]) -> None:
    *_, last = of(replay_of_all, "rmsnorm")
    assert last.note.startswith("not accepted: modelled time")
    assert LOAD_SECTORS in last.note


def test_a_tuned_child_is_an_attempt_that_the_next_round_goes_on_from(replay_of_all: list[Attempt]) -> None:
    seed, child, better, _ = of(replay_of_all, "matmul")
    assert [trial.choices for trial in seed.trials] == [{"TILE": 16}, {"TILE": 32}]
    assert child.candidate is not None
    assert child.candidate.choices == {"TILE": 32}
    assert (child.parent, child.coder) == (seed.id, "")
    assert better.parent == child.id
