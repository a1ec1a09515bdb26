"""Every way a ModelNew can be good or bad has its verdict, and the next candidate is unaffected."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kernelforge.modelnew.client import ModelNewChild, ModelNewOutput
from kernelforge.modelnew.evaluator import EVALUATION_SECONDS, SERVED_BUILD_SECONDS, ModelNewEvaluator
from kernelforge.records import Verdict
from kernelforge.server.jobs.state import JobServiceSettings
from tests.modelnew.modelnew_setup import HONEST, Judge, forward


@pytest.mark.slow
def test_a_good_candidate_passes_at_every_size_and_has_no_time(judge: Judge) -> None:
    evaluation = judge(HONEST)
    assert evaluation.correctness is not None
    checks = {check.size: check for check in evaluation.correctness.sizes}
    assert list(checks) == ["small", "hidden_odd", "full"]
    assert all(check.status == "passed" and check.message == "" for check in checks.values())
    assert checks["small"].families == ("task", "normal", "large", "edge")
    assert evaluation.fingerprint.evaluator.endswith("modelnew.1")
    assert evaluation.build is None


@pytest.mark.slow
def test_another_shape_dtype_or_number_of_outputs_is_wrong(judge: Judge) -> None:
    good = "self.honest(x, y)"
    judge(forward(f"return ({good}).double()"), Verdict.WRONG, "dtype float64")
    judge(forward(f"return ({good})[:1]"), Verdict.WRONG, "shape")
    judge(forward(f"out = {good}", "return out, out"), Verdict.WRONG, "2 outputs came back")
    judge(forward("return None"), Verdict.WRONG, "0 outputs came back")


def test_text_without_a_usable_modelnew_is_refused_by_policy(judge: Judge) -> None:
    judge("def forward(x:\n", Verdict.POLICY, "not Python text")
    judge("class Model: pass\n", Verdict.POLICY, "no class ModelNew")
    judge("class ModelNew: pass\n", Verdict.POLICY, "no class ModelNew")
    judge(forward("return 3"), Verdict.POLICY, "forward returned a int")


def test_parameters_without_a_counterpart_are_refused_and_listed(judge: Judge) -> None:
    text = HONEST.replace("super().__init__()", "super().__init__()\n        self.own = nn.Parameter(torch.ones(3))")
    judge(text, Verdict.POLICY, "have no counterpart", "own (3,)", "none left")


@pytest.mark.slow
def test_parameters_of_other_names_are_given_by_order_and_it_says_so(judge: Judge) -> None:
    text = HONEST.replace("self.fc = nn.Linear", "self.linear = nn.Linear").replace("self.fc.", "self.linear.")
    evaluation = judge(text)
    assert evaluation.correctness is not None
    messages = {check.size: check.message for check in evaluation.correctness.sizes}
    assert "by order and shape" in messages["small"]
    assert "linear.weight = fc.weight" in messages["small"]
    assert messages["hidden_odd"] == ""


@pytest.mark.slow
def test_buffers_of_its_own_stay_and_are_told_without_a_hidden_shape(judge: Judge) -> None:
    text = HONEST.replace(
        "super().__init__()", "super().__init__()\n        self.register_buffer('own', torch.ones(features))"
    )
    evaluation = judge(text)
    assert evaluation.correctness is not None
    messages = {check.size: check.message for check in evaluation.correctness.sizes}
    assert "own (32,)" in messages["small"]
    assert messages["hidden_odd"] == ""


def test_a_copy_of_weights_made_in_the_constructor_is_named_when_values_are_wrong(judge: Judge) -> None:
    text = HONEST.replace(
        "        self.register_buffer", "        self.packed = self.fc.weight.t().clone()\n        self.register_buffer"
    ).replace("self.fc.weight.t()) + y", "self.packed) + y")
    judge(text, Verdict.WRONG, "packed", "given after construction")


def test_exceptions_are_crashes_with_the_line_of_the_candidate(judge: Judge) -> None:
    judge(forward("return x @ y"), Verdict.CRASH, "RuntimeError", "line 16 of the candidate")
    judge("import torch\nraise ValueError('at import')\n" + HONEST, Verdict.CRASH, "ValueError", "line 2", "at import")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["os._exit(0)", "os.abort()", "sys.exit(0)"])
def test_a_candidate_that_ends_its_process_crashed(judge: Judge, how: str) -> None:
    judge(forward("import os, sys", how), Verdict.CRASH)
    judge(HONEST)


@pytest.mark.slow
def test_a_hang_is_a_timeout(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ModelNewChild.run

    def impatient(child: ModelNewChild, elements: Sequence[int] = ()) -> ModelNewOutput:
        child._run_s = 1.0
        return run(child, elements)

    with monkeypatch.context() as patch:
        patch.setattr(ModelNewChild, "run", impatient)
        judge(forward("while True: pass"), Verdict.TIMEOUT, "no end of 'run' within 1 s")
    judge(HONEST)


@pytest.mark.slow
def test_loading_at_every_size_together_has_a_limit_that_fits_into_a_servers(
    judge: Judge, evaluator: ModelNewEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "_builds_s", 3.0)
        judge(f"import time\ntime.sleep(2)\n{HONEST}", Verdict.TIMEOUT)
    judge(HONEST)
    assert JobServiceSettings().worker_limit_s - 120 > SERVED_BUILD_SECONDS + EVALUATION_SECONDS


def test_too_much_memory_is_a_limit(judge: Judge) -> None:
    judge(forward("kept = torch.ones(1 << 34)", "return self.honest(x, y)"), Verdict.LIMIT)


def test_a_failed_build_tells_what_the_compiler_said(judge: Judge) -> None:
    text = """
class CompileException(Exception): pass
raise CompileException("kernel.cu(3): error: expected a ;")
"""
    judge(text, Verdict.BUILD, "expected a ;")


def test_what_needs_a_gpu_or_a_missing_package_is_no_score(judge: Judge) -> None:
    judge(forward("return x.cuda()"), Verdict.INFRA, "needs a GPU")
    judge("import no_such_package\n", Verdict.INFRA, "not installed here")


@pytest.mark.slow
def test_constants_copied_from_the_task_follow_its_sizes(judge: Judge) -> None:
    text = "ROWS = 64\nCOLS = 96\n" + forward("assert x.shape == (ROWS, COLS)", "return self.honest(x, y)")
    judge(text)


@pytest.mark.slow
def test_a_copied_constant_that_cannot_be_set_is_said(judge: Judge) -> None:
    evaluation = judge("COLS = 96\nCOLS = COLS\n" + HONEST)
    assert evaluation.correctness is not None
    assert "assigned more than once" in evaluation.correctness.sizes[0].message
