"""Published times of PyTorch: they are used for the very task that was timed, and for no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.hardware.specs import A100, H100, SPECS
from kernelforge.prediction import baseline_time, published_baseline
from kernelforge.prediction.published import PublishedTimes, published_times, task_key
from kernelforge.records import SizeFacts
from kernelforge.sandbox import Zygote
from kernelforge.tasks import load_task


@pytest.fixture(scope="module")
def relu_facts(kept_zygotes: Callable[..., Zygote]) -> SizeFacts:
    with Oracle(kept_zygotes("oracle"), load_task("level1/relu")) as oracle:
        return oracle.facts(["full"]).sizes[0]


@pytest.mark.slow
def test_a_task_that_was_timed_on_this_gpu_has_its_published_time(relu_facts: SizeFacts) -> None:
    task = load_task("level1/relu")
    time = published_baseline(task, relu_facts, H100)
    assert time is not None
    assert time.origin == "published"
    assert 90 < time.time_us < 97
    assert "H100" in time.source
    assert not time.per_operator


def test_another_gpu_size_or_task_has_none(relu_facts: SizeFacts) -> None:
    task = load_task("level1/relu")
    assert published_baseline(task, relu_facts, A100) is None
    assert published_baseline(task, relu_facts, H100, "compile") is None
    assert published_baseline(task, relu_facts, H100, tf32=True) is None
    assert published_baseline(task, relu_facts.model_copy(update={"size": "small"}), H100) is None
    assert published_baseline(task, relu_facts.model_copy(update={"outputs": ()}), H100) is None
    assert published_baseline(task.model_copy(update={"name": "other"}), relu_facts, H100) is None


@pytest.mark.slow
def test_a_task_without_a_published_time_is_predicted(kept_zygotes: Callable[..., Zygote]) -> None:
    task = load_task("level1/conv2d")
    with Oracle(kept_zygotes("oracle"), task) as oracle:
        facts, trace = oracle.facts(["full"]).sizes[0], oracle.operators()
    assert baseline_time(task, facts, trace, H100).origin == "published"
    assert baseline_time(task, facts, trace, A100).origin == "predicted"
    in_tf32 = baseline_time(task, facts, trace, H100, tf32=True)
    assert (in_tf32.origin, in_tf32.tf32) == ("predicted", True)


def test_tasks_of_kernelbench_are_known_by_their_tag_in_any_suite() -> None:
    task = load_task("level1/relu").model_copy(update={"tags": ("kernelbench",), "suite": "mine"})
    assert task_key(task) == "kernelbench/relu"


def test_the_shipped_file_names_a_source_and_a_gpu_of_every_time() -> None:
    published = published_times()
    times = [time for entry in published.tasks.values() for time in entry.times]
    assert len(times) > 900
    assert {time.gpu for time in times} <= set(SPECS)
    assert {time.source for time in times} == set(published.sources)
    assert all(time.low_us <= time.time_us <= time.high_us for time in times)


def test_a_time_that_is_none_is_refused() -> None:
    entry = {"signature": "0", "times": [["h100", "eager", "s", 0.0, 1.0, 1.0]]}
    with pytest.raises(ValidationError):
        PublishedTimes.model_validate({"sources": {}, "tasks": {"a/b": entry}})
