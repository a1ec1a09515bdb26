"""On a GPU: extensions are built inside the jail, run there, and timed from outside. Never run where there is none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.modelnew.evaluator import ModelNewEvaluator, ModelNewEvaluators, modelnew_candidate
from kernelforge.records import MeasureSettings, Size, Task, Verdict
from kernelforge.sandbox import Zygote
from kernelforge.tasks import load_task
from tests.modelnew.converter_samples import SWISH
from tests.modelnew.modelnew_setup import HONEST, REFERENCE, forward
from tests.support.factories import make_fingerprint

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu_zygote() -> Zygote:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    return Zygote("gpu-modelnew")


def evaluate(workshop: EvaluatorPool, zygote: Zygote, task: Task, text: str) -> tuple[Verdict, str, float | None]:
    fingerprint = make_fingerprint(device="cuda:0", device_kind="cuda")
    gpu = SimpleNamespace(l2_bytes=60 << 20, memory_bytes=8 << 30, memory_bandwidth_gbps=4800.0, clocks=lambda: None)
    oracle = workshop.oracle(task)
    try:
        evaluator = ModelNewEvaluator(
            task, oracle, zygote, "cuda", fingerprint, gpu=gpu, settings=MeasureSettings(seconds=2.0)
        )
        evaluation = evaluator.evaluate(modelnew_candidate(text), seed=7).evaluation
    finally:
        oracle.close()
    performance = evaluation.performance
    return evaluation.verdict, evaluation.reason, None if performance is None else performance.time_us


def linear() -> Task:
    sizes = (Size(name="full"), Size(name="small", constants={"ROWS": 8, "COLS": 32}))
    return Task(name="linear", suite="test", title="linear", level=1, source=REFERENCE, sizes=sizes)


def test_plain_torch_is_right_and_timed(workshop: EvaluatorPool, gpu_zygote: Zygote) -> None:
    verdict, reason, time_us = evaluate(workshop, gpu_zygote, linear(), HONEST)
    assert verdict is Verdict.OK, reason
    assert time_us is not None


@pytest.mark.usefixtures("gpu_zygote")
def test_a_pool_that_others_use_runs_it_on_its_gpu() -> None:
    with EvaluatorPool("cuda:0", measure=MeasureSettings(seconds=2.0)) as pool:
        with ModelNewEvaluators(pool=pool) as evaluators:
            evaluation = evaluators.evaluate(linear(), modelnew_candidate(HONEST), seed=7).evaluation
            assert evaluation.verdict is Verdict.OK, evaluation.reason
            assert evaluation.performance is not None
            assert evaluation.fingerprint == evaluators.fingerprint
        with pool.oracle(linear()) as oracle:
            assert oracle.facts().sizes, "the pool is still open"


def test_load_inline_is_built_in_the_jail(workshop: EvaluatorPool, gpu_zygote: Zygote) -> None:
    verdict, reason, _ = evaluate(workshop, gpu_zygote, load_task("core/swish"), SWISH)
    assert verdict is Verdict.OK, reason


def test_a_compiler_error_of_load_inline_is_told(workshop: EvaluatorPool, gpu_zygote: Zygote) -> None:
    text = SWISH.replace("float v = x[idx];", "float v = nowhere[idx];")
    verdict, reason, _ = evaluate(workshop, gpu_zygote, load_task("core/swish"), text)
    assert verdict is Verdict.BUILD
    assert "nowhere" in reason


def test_work_on_a_stream_of_its_own_is_waited_for(workshop: EvaluatorPool, gpu_zygote: Zygote) -> None:
    body = ("s = torch.cuda.Stream()", "s.wait_stream(torch.cuda.current_stream())", "with torch.cuda.stream(s):")
    text = forward(*body, "    out = torch.relu(self.fc(x) + y) + self.shift", "return out")
    verdict, reason, _ = evaluate(workshop, gpu_zygote, linear(), text)
    assert verdict is Verdict.OK, reason
