"""Runs whose GPU measures the best of a round by predicted time: a model's replies, a software GPU, a real journal.

The kernels do useless work of several lengths, so that the model orders them; the software GPU takes 1 ms for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import UsageError
from kernelforge.leaderboard.make_entry import make_entry
from kernelforge.records import Attempt, LLMSettings, MeasureSettings, Origin, Run, RunConfig, RunState, Verdict
from kernelforge.report import RunRecords, leaderboard
from kernelforge.report.views.integrity import integrity_view
from kernelforge.run import Event, StopSignal, configure, resume_run, start_run
from kernelforge.sandbox import Zygote, select_tier
from tests.run.run_helpers import Watcher, open_store
from tests.run.software_gpus import (
    FAST,
    OPENING,
    REPLIES,
    SLOWER,
    SLOWEST,
    WRONG,
    SoftwareWorkshop,
    in_turn,
    use_software_gpu,
    write_suite,
)
from tests.support.llm_server import FakeLLM

pytestmark = [
    pytest.mark.usefixtures("own_leases", "warm_zygotes", "software_gpu"),
    pytest.mark.skipif(select_tier().tier == "none", reason="no jail tier works on this machine"),
]


@pytest.fixture(scope="module", autouse=True)
def oracles(kept_zygotes: Callable[..., Zygote]) -> None:
    SoftwareWorkshop.oracles = kept_zygotes("oracle")


@pytest.fixture
def software_gpu(monkeypatch: pytest.MonkeyPatch) -> list[SoftwareWorkshop]:
    """``cuda:0`` is a software GPU; gives the pools that were opened."""
    return use_software_gpu(monkeypatch)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a model that gives the replies in their order, one for each call."""
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    with FakeLLM(in_turn) as server:
        yield server.openai_url


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite"))


def config_of(suite: Path, llm: str, **changes: Any) -> RunConfig:
    options: dict[str, Any] = {
        "suite": str(suite), "tasks": ("axpy",), "device": "cuda:0", "strategy": "best-of-n",
        "options": {"samples": len(REPLIES)}, "coder": "openai:coder", "memory": "off", "tune": False, "seed": 5,
        "llm": LLMSettings(base_url=llm, concurrency=1), "measure": MeasureSettings(precision=0.9, seconds=0.1),
        "measure_top": 1,
    }  # fmt: skip
    return configure(**(options | changes))


def attempts_of(folder: Path) -> list[Attempt]:
    with open_store(folder) as store:
        return store.attempts(store.run("latest").id)


def start(folder: Path, config: RunConfig, react: Callable[[Event, StopSignal], None] | None = None) -> Run:
    stop = StopSignal()
    with open_store(folder) as store:
        return start_run(config, store, Watcher((lambda event: react(event, stop)) if react else lambda _: None), stop)


def positions(attempts: Sequence[Attempt]) -> dict[int, int]:
    """Positions by predicted time, by number of the attempt."""
    ranks = {attempt.number: attempt.evaluation.screening.rank for attempt in attempts if attempt.evaluation.screening}
    return {number: rank.position for number, rank in ranks.items() if rank is not None}


@pytest.mark.slow
def test_of_a_round_the_gpu_measures_what_is_predicted_fastest_and_takes_no_lease_for_the_rest(
    suite: Path, llm: str, software_gpu: list[SoftwareWorkshop], tmp_path: Path
) -> None:
    assert start(tmp_path, config_of(suite, llm)).state is RunState.FINISHED
    attempts = attempts_of(tmp_path)
    assert len(attempts) == len(REPLIES)
    assert positions(attempts) == {FAST: 1, SLOWER: 2, SLOWEST: 3}
    (pool,) = software_gpu
    assert pool.leases == ["cuda:0"] * (OPENING + 1)

    fast = attempts[FAST].evaluation
    assert fast.performance is not None
    assert (fast.performance.origin, fast.fingerprint.device) == (Origin.MEASURED, "cuda:0")
    assert not fast.passed_over
    assert [attempt.accepted for attempt in attempts] == [number == FAST for number in range(len(REPLIES))]

    for number in (SLOWER, SLOWEST):
        evaluation = attempts[number].evaluation
        assert evaluation.passed_over
        assert (evaluation.verdict, evaluation.fingerprint.device) == (Verdict.OK, "emulated:h100")
        assert evaluation.performance is not None
        assert evaluation.performance.origin is Origin.MODELLED
        assert evaluation.screening is not None
        assert evaluation.screening.forecast is not None
        assert evaluation.performance.time_us == evaluation.screening.forecast.modelled_us
        assert attempts[number].profile is not None
        assert attempts[number].reward.value is None
        assert attempts[number].note == "not compared: predicted, and not measured"
        assert evaluation.correctness is not None
        checks = {check.size: check for check in evaluation.correctness.sizes}
        assert checks["small"].status == "passed"
        assert checks["full"].status == "skipped"
        assert f"number {positions(attempts)[number]} of 3 by predicted time" in checks["full"].message
    for number in WRONG:
        assert attempts[number].evaluation.screening is not None
        assert attempts[number].evaluation.screening.outcome == "failed"


@pytest.mark.slow
def test_boards_and_integrity_hold_what_was_measured_alone(suite: Path, llm: str, tmp_path: Path) -> None:
    start(tmp_path, config_of(suite, llm))
    with open_store(tmp_path) as store:
        records = RunRecords.load(store, store.run("latest"))
    (board,) = leaderboard([records]).boards
    assert (board.key.origin, board.key.device, board.key.protocol) == (Origin.MEASURED, "Software GPU", "graph/1")
    assert board.entries[0].uncompared == 0
    integrity = integrity_view(records)
    assert (integrity.origin, integrity.counts["uncompared"]) == ("measured", 0)
    entry = make_entry(records, {}, by="Ann")
    assert {fingerprint.device for fingerprint in entry.fingerprints} == {"cuda:0"}


@pytest.mark.slow
def test_a_run_that_is_stopped_in_a_round_measures_the_same_when_it_is_resumed(
    suite: Path, llm: str, software_gpu: list[SoftwareWorkshop], tmp_path: Path
) -> None:
    def stop_after_two(event: Event, stop: StopSignal) -> None:
        if event.attempt is not None and event.attempt.number == 1:
            stop.drain()

    start(tmp_path / "undisturbed", config_of(suite, llm, measure_top=2))
    assert start(tmp_path / "stopped", config_of(suite, llm, measure_top=2), stop_after_two).state is RunState.STOPPED
    assert len(attempts_of(tmp_path / "stopped")) == 2
    with open_store(tmp_path / "stopped") as store:
        assert resume_run("latest", store, Watcher(), StopSignal()).state is RunState.FINISHED
    undisturbed, resumed = (attempts_of(tmp_path / name) for name in ("undisturbed", "stopped"))
    assert positions(resumed) == positions(undisturbed) == {FAST: 1, SLOWER: 2, SLOWEST: 3}
    assert [attempt.evaluation.passed_over for attempt in resumed] == [
        attempt.evaluation.passed_over for attempt in undisturbed
    ]
    assert [attempt.evaluation.fingerprint.device for attempt in resumed].count("emulated:h100") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "emulated:h100", "measure": None}, "emulated:h100 measures nothing: name a GPU"),
        ({"measure": MeasureSettings(screen=False)}, "leave out --no-screen"),
        ({"measure_top": 0}, "at least one candidate"),
        ({"strategy": "refine", "options": {}}, "refine names one at a time"),
    ],
)
def test_a_selection_of_what_is_measured_needs_a_gpu_and_a_prediction(
    suite: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        config_of(suite, "http://localhost/v1", **changes)
