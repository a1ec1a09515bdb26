"""Replies with a ``ModelNew`` become candidates like others: converted in a jail, hashed, cached, restored, refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.candidate import format_reply, model_new_in
from kernelforge.client.models import Job, JobRequest, JobStatus, RunSettings
from kernelforge.errors import ChildTimeout, SandboxError
from kernelforge.modelnew.convert import convert
from kernelforge.records import Evaluation, Verdict
from kernelforge.sandbox import Child, Zygote
from kernelforge.sandbox.policy import role_policy
from kernelforge.server.base import RequestRejected
from kernelforge.server.jobs import conversion
from kernelforge.server.jobs.results import completed_jobs
from kernelforge.workers.base import EvaluationOrder
from tests.rewards.test_reward_formulas import sampled
from tests.server.service_tools import CALLER, accepted, ended, serving, until
from tests.support.axpy import KERNEL
from tests.support.inprocess_engine import InProcessEngine
from tests.support.model_new import HOST, model_new, reply_of

CHECKED = model_new(host=HOST.replace("    int n", '    TORCH_CHECK(x.is_cuda(), "no GPU");\n    int n'))
"""With a check that the conversion leaves out."""
STREAM = model_new(host=HOST.replace("return out;", "cudaStream_t s; cudaStreamCreate(&s); return out;"))
"""With host code that no plan can say."""


def asking(completion: str, **fields: object) -> JobRequest:
    return JobRequest.model_validate({"task": "core/gelu", "completion": completion, **fields})


@pytest.mark.slow
async def test_a_model_new_is_the_candidate_that_it_converts_to(tmp_path: Path) -> None:
    engine = InProcessEngine()
    converted = convert(model_new()).candidate
    assert converted is not None
    async with serving(tmp_path, engine) as service:
        first, same, written = await ended(
            service, asking(reply_of(model_new())), asking(model_new()), asking(format_reply(converted))
        )
        assert len(engine.evaluated) == 1
        assert engine.evaluated[0] == converted.source
        assert len({job.result.evaluation for job in (first, same, written)}) == 1
        assert (first.result.verdict, first.result.reward) == ("OK", written.result.reward)
        assert [job.result.converted for job in (first, same, written)] == [True, True, False]
        [cached] = await accepted(service, asking(reply_of(model_new())))
        assert (cached.status, cached.result.cached, cached.result.converted) == (JobStatus.FINISHED, True, True)
        assert await service.candidate("core/gelu", model_new()) == converted


@pytest.mark.slow
async def test_a_converted_job_and_what_was_noted_of_it_are_known_after_a_restart(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        [job] = await accepted(service, asking(reply_of(CHECKED)))
        await until(lambda: engine.evaluated)
    async with serving(tmp_path) as service:
        [after] = await service.wait([job.id], None, 60.0)
        assert (after.result.verdict, after.result.converted, after.result.lane) == ("OK", True, "plan")
        assert any("TORCH_CHECK" in note for note in after.result.notes)
        [cached] = await accepted(service, asking(reply_of(CHECKED)))
        assert cached.result.notes == after.result.notes
        _, _, notes = service.evaluation(after.result.evaluation)
        assert list(notes) == after.result.notes


@pytest.mark.slow
async def test_where_it_is_run_what_cannot_be_converted_is_a_candidate_of_its_own_lane(tmp_path: Path) -> None:
    engine = InProcessEngine(modelnew=True)
    async with serving(tmp_path, engine) as service:
        await service.set_run("r", RunSettings(stage="correctness"))
        host, wrong, plan = await ended(
            service,
            asking(reply_of(STREAM), run_id="r", policy="kevin/1"),
            asking(reply_of(STREAM.replace("2.0f", "WRONG")), run_id="r"),
            asking(reply_of(model_new()), run_id="r"),
        )
        assert (host.result.lane, host.result.verdict, host.result.converted) == ("modelnew", "OK", False)
        assert (host.result.policy, host.result.reward, host.result.training_stage) == (
            "modelnew/1",
            0.1,
            "correctness",
        )
        assert "`&s`" in host.result.notes[0]
        assert (wrong.result.verdict, wrong.result.reward) == ("WRONG", 0)
        assert (plan.result.lane, plan.result.policy, plan.result.reward) == ("plan", "autotriton/1", 1)
        assert host.result.evaluation != plan.result.evaluation
        assert service.stored(host.id).evaluation.lane == "modelnew"
        exemplars = await service.exemplars(CALLER.name, "r", service.find_task("core/gelu")[1])
        assert [attempt.candidate.lane for attempt in exemplars] == ["plan"]
        [cached] = await accepted(service, asking(reply_of(STREAM)))
        assert (cached.result.cached, cached.result.lane, cached.result.reward) == (True, "modelnew", 0.1)
    [host_row, *_] = [job for job in completed_jobs(tmp_path) if job.evaluation.lane == "modelnew"]
    assert (host_row.policy, host_row.reward) == ("modelnew/1", 0.1)


@pytest.mark.slow
async def test_a_model_new_that_the_device_cannot_run_can_be_masked(tmp_path: Path) -> None:
    async with serving(tmp_path, InProcessEngine(modelnew=True)) as service:
        [job] = await ended(service, asking(reply_of(STREAM.replace("2.0f", "LACKS"))))
    assert (job.result.outcome, job.result.lane, job.result.failure_reward) == ("unsupported", "modelnew", 0)
    assert job.result.policy == "modelnew/1"


@pytest.mark.slow
async def test_an_open_job_of_the_lane_goes_on_after_a_restart(tmp_path: Path) -> None:
    engine = InProcessEngine(modelnew=True)
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        [job] = await accepted(service, asking(reply_of(STREAM)))
        await until(lambda: engine.evaluated)
    engine = InProcessEngine(modelnew=True)
    async with serving(tmp_path, engine) as service:
        [after] = await service.wait([job.id], None, 60.0)
    assert (after.result.verdict, after.result.lane) == ("OK", "modelnew")
    assert [text.strip() for text in engine.evaluated] == [STREAM.strip()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (STREAM, "`&s`"),
        (model_new().replace("class ModelNew(nn.Module):", "class ModelNew(nn.Module:"), "not Python text"),
        ("class ModelNew:\n    x = " + "(" * 50_000, "too many nested parentheses"),
        ("class ModelNew:\n    pass\n", "it has no forward"),
    ],
    ids=["stream", "syntax", "nested", "empty"],
)
async def test_what_cannot_be_converted_is_a_failure_with_its_reason(tmp_path: Path, file: str, reason: str) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        [job] = await ended(service, asking(reply_of(file) if "(((" not in file else file))
    result = job.result
    assert (result.outcome, result.verdict, result.stage, result.reward) == ("scored", "POLICY", "parse", 0)
    assert reason in result.feedback
    assert "host code only allocates, reads shapes and launches" in result.feedback
    assert engine.evaluated == []


async def test_a_model_new_with_triton_kernels_is_told_how_to_send_them(tmp_path: Path) -> None:
    file = "import triton\n\n@triton.jit\ndef k(x):\n    pass\n\nclass ModelNew:\n    pass\n"
    async with serving(tmp_path) as service:
        [job] = await ended(service, asking(reply_of(file)))
    assert (job.result.verdict, job.result.reward) == ("POLICY", 0)
    assert "it launches Triton kernels; send a ```triton block" in job.result.feedback


@pytest.mark.slow
async def test_text_that_takes_too_long_to_read_is_a_failure_and_not_a_hung_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "_LIMITS", replace(conversion._LIMITS, cpu_s=1.0))
    nested = HOST.replace("return out;", f"int k = {'(' * 60_000}n{')' * 60_000}; return out;")
    async with serving(tmp_path) as service:
        [job] = await ended(service, asking(model_new(host=nested)))
    assert (job.result.verdict, job.result.reward) == ("POLICY", 0)
    assert "out of CPU time" in job.result.feedback


@pytest.mark.slow
async def test_a_machine_that_is_too_busy_to_read_a_text_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_in_vain(child: Child, data: object) -> None:
        raise ChildTimeout("no answer in 60 s")

    async with serving(tmp_path) as service:
        with monkeypatch.context() as busy:
            busy.setattr(Child, "call", wait_in_vain)
            [refused] = await service.submit([asking(model_new())], CALLER)
        assert isinstance(refused, RequestRejected)
        assert (refused.status, refused.code) == (503, "converter")
        [job] = await ended(service, asking(model_new()))
    assert job.result.verdict == "OK"


def test_the_process_that_reads_such_a_text_has_nothing_to_lose() -> None:
    policy = role_policy("converter")
    assert policy.environment == {"LC_ALL": "C.UTF-8"}
    assert (policy.mounts, policy.devices, policy.gpu, policy.programs, policy.passes) == ((), (), False, False, ())


@pytest.mark.slow
def test_the_server_converts_without_torch() -> None:
    program = "import sys, kernelforge.server.jobs.service; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_without_a_jail_there_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(zygote: Zygote, limits: object = None) -> None:
        raise SandboxError("no tier works here")

    monkeypatch.setattr(Zygote, "spawn", fail)
    async with serving(tmp_path) as service:
        [refused] = await service.submit([asking(model_new())], CALLER)
        [job] = await ended(service, asking(format_reply(convert(model_new()).candidate)))
    assert isinstance(refused, RequestRejected)
    assert (refused.status, refused.code) == (503, "converter")
    assert isinstance(job, Job)


@pytest.mark.parametrize(
    ("reply", "has"),
    [
        (reply_of(model_new()), True),
        (model_new(), True),
        (f"```python\n{model_new()}```\n\n```cuda\n{KERNEL}```\n\n```python\ndef forward(x): ...\n```", False),
        (f"{reply_of(model_new())}\n\n```python\nmodel = ModelNew()\nmodel(x, y)\n```\n", True),
        ("I wrote no ModelNew.", False),
        ("```python\nclass ModelNew:\n", False),
    ],
)
def test_a_reply_that_ends_with_the_class_is_such_a_reply(reply: str, has: bool) -> None:
    assert (model_new_in(reply) is not None) == has


class VaryingTimes(InProcessEngine):
    """Its times vary too much for the policy ``cuda-l1/1``."""

    def _evaluation(self, order: EvaluationOrder, verdict: Verdict) -> Evaluation:
        performance = sampled([10.0] * 14, [10.0] * 8 + [20.0] * 6).performance
        return super()._evaluation(order, verdict).model_copy(update={"performance": performance})


@pytest.mark.slow
async def test_a_model_new_whose_times_varied_is_converted_and_evaluated_again(tmp_path: Path) -> None:
    engine = VaryingTimes(measures=True)
    async with serving(tmp_path, engine) as service:
        for times in (1, 2):
            [job] = await ended(service, asking(reply_of(model_new()), policy="cuda-l1/1"))
            assert (job.result.outcome, job.result.error.retryable) == ("infra_error", True)
            assert len(engine.evaluated) == times
