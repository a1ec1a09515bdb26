"""Fingerprints of the evaluations that a pool makes, and what it does with an evaluator that does not open."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelforge.errors import TaskError
from kernelforge.evaluation.evaluator import EVALUATOR_VERSION, Evaluator
from kernelforge.evaluation.pool import EvaluatorPool, open_admitted
from kernelforge.records import InputGenerator, evaluation_key
from tests.hardware.test_specs import written
from tests.support.factories import make_task


def test_other_figures_in_a_parameter_file_are_another_evaluation(tmp_path: Path) -> None:
    keys = []
    for bandwidth in (1800, 1801, 1800):
        path = written(tmp_path, "value = 1800", f"value = {bandwidth}")
        with EvaluatorPool(f"emulated:{path}", cache=tmp_path / "builds") as pool:
            assert pool.fingerprint.device == f"emulated:{path}"
            keys.append(evaluation_key("candidate", "task", pool.fingerprint))
    assert keys[0] == keys[2] != keys[1]


def test_figures_of_the_package_change_with_the_version_alone(tmp_path: Path) -> None:
    with EvaluatorPool("emulated:a100", cache=tmp_path / "builds") as pool:
        assert pool.fingerprint.evaluator == EVALUATOR_VERSION


@pytest.mark.parametrize("failing", ["facts", "_fingerprint", "use_generators", "require_admitted"])
def test_an_evaluator_that_does_not_open_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    generator = InputGenerator(name="huge", plan="x = x * 1e38\n", provider="test", admitted=False, reason="not finite")
    closed: list[str] = []

    def fails(*_: object) -> None:
        raise TaskError("the reference does not run at a hidden size")

    def nothing(*_: object) -> None:
        pass

    answers = dict.fromkeys(("facts", "use_generators", "require_admitted"), nothing)
    oracle = SimpleNamespace(**answers | {failing: fails}, close=lambda: closed.append(failing))
    monkeypatch.setattr(EvaluatorPool, "oracle", lambda *_: oracle)
    monkeypatch.setattr(Evaluator, "use_generators", oracle.use_generators)
    with EvaluatorPool("emulated:h100", cache=tmp_path / "builds") as pool:
        if failing == "_fingerprint":
            monkeypatch.setattr(pool, "_fingerprint", fails)
        monkeypatch.setattr(pool, "evaluator", partial(pool.evaluator, generators=[generator]))
        with pytest.raises(TaskError, match="hidden size"):
            open_admitted(pool, make_task())
        assert closed == [failing]
        assert not pool._gpu_locks.has_device(make_task().name)


def test_a_task_keeps_its_device_but_gets_none_from_an_evaluator_that_does_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, failures, evaluator = make_task(), [TaskError("the reference does not run")], object()

    def opens(*_: object) -> object:
        if failures:
            raise failures.pop()
        return evaluator

    monkeypatch.setattr(EvaluatorPool, "_evaluator_on", opens)
    with EvaluatorPool("emulated:h100", cache=tmp_path / "builds") as pool:
        with pytest.raises(TaskError):
            pool.evaluator(task)
        assert not pool._gpu_locks.has_device(task.name)
        assert pool.evaluator(task) is evaluator
        failures.append(TaskError("the next one does not open"))
        with pytest.raises(TaskError):
            pool.evaluator(task)
        assert pool._gpu_locks.has_device(task.name)
        pool.done(task)
        pool.done(task)
        assert not pool._gpu_locks.has_device(task.name)
