"""A run of best-of-n on tasks with known translations has compile rate and likeness; no other run has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelforge.candidate import format_reply
from kernelforge.records import Verdict
from kernelforge.report.terminal import run_lines
from kernelforge.report.views.run import run_view
from tests.report.golden.golden_runs import golden_records
from tests.report.test_uncompared_results import solved
from tests.support.terminal import drawn


def test_samples_are_compared_with_the_known_device_code() -> None:
    records = golden_records("modelled")
    name = solved(records)
    selected = tuple(attempt for attempt in records.attempts if attempt.task == name)
    right = next(attempt for attempt in selected if attempt.evaluation.verdict is Verdict.OK)
    assert right.candidate is not None
    task = records.tasks[name].model_copy(
        update={"c_source": "void f(void);", "translation": format_reply(right.candidate)}
    )
    config = records.run.config.model_copy(update={"strategy": "best-of-n", "tasks": (name,)})
    sampled = replace(
        records,
        run=records.run.model_copy(update={"config": config}),
        attempts=selected,
        tasks={name: task},
    )
    alone = run_view(replace(sampled, attempts=(right,)))
    assert alone.compile_rate == 1.0
    assert alone.likeness is not None
    assert alone.likeness.bleu == pytest.approx(1.0)
    every = run_view(sampled)
    assert every.compile_rate is not None
    assert 0 < every.compile_rate <= 1
    assert run_view(replace(sampled, tasks=records.tasks)).likeness is None
    assert run_view(replace(sampled, run=records.run)).compile_rate is None
    text = drawn(run_lines(alone))
    assert "100.0%" in text
    assert "against known translations" in text
