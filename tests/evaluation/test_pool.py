"""Fingerprints of the evaluations that a pool makes."""

from __future__ import annotations

from pathlib import Path

from kernelforge.evaluation.evaluator import EVALUATOR_VERSION
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import evaluation_key
from tests.hardware.test_specs import written


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
