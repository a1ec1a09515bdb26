"""The job service over real workers: from a completion to a reward, with a job cancelled on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelforge.client.models import JobRequest, JobStatus
from kernelforge.server.jobs.service import JobService
from kernelforge.server.jobs.state import JobServiceSettings
from kernelforge.tasks.suites import Catalogue
from kernelforge.workers.pool import LocalEngine
from tests.server.service_tools import CALLER, ended, until
from tests.support.axpy import KERNEL, PLAN, REFERENCE
from tests.support.model_new import model_new, reply_of

MANIFEST = """
title = "One task"
description = "For tests."

[[task]]
name = "axpy"
title = "2x + y"
level = 1
small = { ROWS = 8, COLS = 32 }
hidden.odd = { ROWS = 7, COLS = 33 }
"""

ENDLESS = KERNEL.replace(
    "    if (i < n)",
    "    volatile float* kept = out;\n"
    "    for (int k = 0; i < n && k < 3000000; ++k) kept[i] = kept[i] * 0.999f + x[i];\n    if (i < n)",
)


def job_request(source: str = KERNEL, **fields: object) -> JobRequest:
    text = f"Here it is.\n```cuda\n{source}```\n```python\n{PLAN}```\n"
    return JobRequest.model_validate({"task": "mine/axpy", "completion": text, **fields})


def children(parent: int) -> list[int]:
    """Processes that a process started."""
    child_pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            child_pids.append(int(path.parent.name))
    return child_pids


@pytest.mark.slow
async def test_rewards_come_from_real_workers_also_after_a_job_was_cancelled(tmp_path: Path) -> None:
    suite = tmp_path / "mine"
    suite.mkdir()
    (suite / "suite.toml").write_text(MANIFEST)
    (suite / "axpy.py").write_text(REFERENCE)

    before = set(children(os.getpid()))
    engine = LocalEngine("emulated:h100", slots=1, compilers=1, cache=tmp_path / "builds")
    service = JobService(
        engine, Catalogue([str(suite)]), tmp_path / "results", JobServiceSettings(train_on_request=True)
    )
    await service.start()
    try:
        right, wrong, broken = await ended(
            service,
            job_request(profile=True),
            job_request(KERNEL.replace("2.0f", "2.5f")),
            job_request(KERNEL.replace("const float* y", "const flot* y")),
        )
        assert (right.result.verdict, right.result.origin) == ("OK", "modelled")
        assert service.stored(right.id).profile is not None
        assert service.stored(right.id).evaluation.key == right.result.evaluation
        assert (wrong.result.verdict, wrong.result.reward) == ("WRONG", 0)
        assert (broken.result.verdict, broken.result.reward) == ("BUILD", 0)
        renamed = f"// The same.\n\n{KERNEL.replace('int n', 'int count').replace('i < n', 'i < count')}"
        [equal] = await ended(service, job_request(renamed, profile=True))
        assert equal.result.equals == right.result.evaluation
        assert equal.result.reward == right.result.reward
        assert service.stored(equal.id).source.strip() == renamed.strip()
        [less] = await ended(service, job_request(renamed, profile=True, sizes="train"))
        assert (less.result.verdict, less.result.sizes, less.result.equals) == ("OK", "train", None)
        model, wrong_model = await ended(
            service,
            JobRequest(task="mine/axpy", completion=reply_of(model_new()), profile=True),
            JobRequest(task="mine/axpy", completion=reply_of(model_new(KERNEL.replace("2.0f", "2.5f")))),
        )
        assert (model.result.verdict, model.result.reward) == ("OK", right.result.reward)
        assert (wrong_model.result.verdict, wrong_model.result.reward) == ("WRONG", 0)

        [endless] = await service.submit([job_request(ENDLESS)], CALLER)
        await until(lambda: engine.slots()[0].state == "busy", 240.0)
        assert await service.cancel([endless.id], CALLER) == [endless.id]
        assert service.job(endless.id).status is JobStatus.CANCELLED

        [after] = await ended(service, job_request(KERNEL + "// after\n"))
        assert after.result.verdict == "OK"
    finally:
        await service.close()
    assert set(children(os.getpid())) <= before
