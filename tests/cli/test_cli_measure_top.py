"""``kernelforge run --measure-top`` from the command line: a software GPU, a model's replies, a real results folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelforge.sandbox import Zygote, select_tier
from tests.run.run_helpers import open_store
from tests.run.software_gpus import FAST, OPENING, SLOWER, SoftwareWorkshop, in_turn, use_software_gpu, write_suite
from tests.support.llm_server import FakeLLM

pytestmark = [
    pytest.mark.usefixtures("own_leases"),
    pytest.mark.skipif(select_tier().tier == "none", reason="no jail tier works on this machine"),
]


@pytest.fixture
def pools(kept_zygotes: Callable[..., Zygote], monkeypatch: pytest.MonkeyPatch) -> list[SoftwareWorkshop]:
    SoftwareWorkshop.oracles = kept_zygotes("oracle")
    return use_software_gpu(monkeypatch)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    (tmp_path / "suite").mkdir()
    with FakeLLM(in_turn) as server:
        yield [
            *("run", "--suite", str(write_suite(tmp_path / "suite")), "--strategy", "best-of-n", "--set", "samples=6"),
            *("--coder", "openai:coder", "--base-url", server.openai_url, "--llm", "concurrency=1", "--no-tune"),
            *("--memory", "off", "--seed", "5", "--display", "plain", "--results", "out"),
        ]


MEASURE = ("--device", "cuda:0", "--measure", "precision=0.9", "--measure", "seconds=0.1")


@pytest.mark.slow
def test_an_estimate_says_how_many_would_be_measured(
    cli: Callable[..., Any], pools: list[SoftwareWorkshop], options: list[str]
) -> None:
    done = cli(*options, *MEASURE, "--measure-top", "2", "--dry-run")
    assert done.code == 0, done.err
    out = " ".join(done.out.split())
    assert "At most 6 evaluations" in out
    assert "About 2 of them measured: of each round the 2 predicted to be the fastest" in out
    assert "a task's first round has 6" in out
    assert "measured" not in cli(*options, *MEASURE, "--dry-run").out


@pytest.mark.slow
def test_what_was_predicted_stands_by_what_was_measured_and_corrects_the_next_run(
    cli: Callable[..., Any], pools: list[SoftwareWorkshop], options: list[str], tmp_path: Path
) -> None:
    first = cli(*options, *MEASURE, "--measure-top", "2")
    assert first.code == 0, first.err
    assert pools[0].leases == ["cuda:0"] * (OPENING + 2), "of six candidates two are measured"
    out = " ".join(first.out.split())
    seen = re.search(r"on Software GPU measured is ([\d.,]+)x modelled \(median of 2 measured at 1 task;", out)
    assert seen is not None, first.out
    assert "the nearest known GPU to Software GPU" in out

    second = cli(*options, *MEASURE, "--measure-top", "1")
    assert second.code == 0, second.err
    with open_store(tmp_path / "out") as store:
        before, after = (store.attempts(run.id) for run in store.runs())
    forecasts = [
        attempt.evaluation.screening.forecast
        for attempt in (before[FAST], before[SLOWER], after[FAST], after[SLOWER])
        if attempt.evaluation.screening is not None
    ]
    assert [forecast.measured if forecast else None for forecast in forecasts] == [0, 0, 2, 2]
    corrected = forecasts[2]
    assert corrected is not None
    assert corrected.median is not None
    assert corrected.factor == pytest.approx(corrected.median ** (2 / 6))
    page = " ".join(cli("show", after[FAST].id, "--results", "out").out.split())
    assert f"times {corrected.factor:.2f} after 2 measured" in page
    assert "predicted before it was measured" in page
    passed_over = " ".join(cli("show", after[SLOWER].id, "--results", "out").out.split())
    assert "not measured, number 2 of 3 by predicted time" in passed_over
    assert "OK, full size not compared" in passed_over

    assert cli("report", "--all", "--results", "out", "--output", "pages.html").code == 0
    written = (tmp_path / "pages.html").read_text()
    assert "Time model: on Software GPU measured is" in written
    assert "predicted before" in written
    (line,) = [line for line in cli("export", "latest", "--results", "out").out.splitlines() if after[FAST].id in line]
    assert json.loads(line)["screening"]["forecast"]["measured"] == 2


def test_an_emulated_device_alone_has_nothing_to_select(cli: Callable[..., Any], options: list[str]) -> None:
    done = cli(*options, "--device", "emulated", "--measure-top", "2")
    assert done.code == 2
    assert "--measure-top 2 selects what a GPU measures, and emulated:h100 measures nothing" in done.err
