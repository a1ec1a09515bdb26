"""Runs loaded without texts: the fields that are left empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelforge.records import Attempt, Message, Metric, SideTimes
from kernelforge.store import Store
from tests.report.golden.golden_runs import golden, golden_store

RUN, MEASURED = golden("modelled").run.id, golden("measured-a").run.id


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(
        golden_store(tmp_path_factory.mktemp("results"), "modelled", "measured-a"), read_only=True
    ) as opened:
        yield opened


def without_texts(attempt: Attempt) -> Attempt:
    """The full attempt with its texts removed: what loading without texts must return."""
    evaluation, profile = attempt.evaluation, attempt.profile
    if profile is not None:
        kernels = [item.model_copy(update={"metrics": (), "hot_spots": ()}) for item in profile.kernels]
        profile = profile.model_copy(update={"kernels": tuple(kernels)})
    speed = evaluation.performance
    if speed is not None and speed.timing is not None:
        sides = {"candidate": first(speed.timing.candidate), "baselines": tuple(map(first, speed.timing.baselines))}
        speed = speed.model_copy(update={"timing": speed.timing.model_copy(update=sides)})
        evaluation = evaluation.model_copy(update={"performance": speed})
    return attempt.model_copy(
        update={"messages": silent(attempt.messages), "profile": profile, "evaluation": evaluation}
    )


def first(side: SideTimes) -> SideTimes:
    return side.model_copy(update={"samples_us": side.samples_us[:1]})


def silent(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(item.model_copy(update={"content": ""}) for item in messages)


@pytest.mark.parametrize("run", [RUN, MEASURED])
def test_all_but_texts_samples_and_the_kernels_own_numbers_is_loaded(store: Store, run: str):
    full = store.attempts(run)
    assert any(kernel.metrics and kernel.hot_spots for item in full if item.profile for kernel in item.profile.kernels)
    expected = list(map(without_texts, full))
    assert list(map(repr, store.attempts(run, texts=False))) == list(map(repr, expected))  # a NaN equals itself here
    assert store.attempts(run, "matmul", texts=False) == [item for item in expected if item.task == "matmul"]


@pytest.mark.parametrize(
    "names", [(), ("dram__bytes.sum", "not a metric"), ("dram__bytes.sum", "gpu__time_duration.sum")]
)
@pytest.mark.parametrize("texts", [True, False])
def test_profiles_can_be_had_with_some_metrics_alone(store: Store, names: tuple[str, ...], texts: bool):
    expected = [with_metrics(item, names) for item in store.attempts(RUN, texts=texts)]
    assert any(item.profile.metrics for item in expected if item.profile) == bool(names)
    assert list(map(repr, store.attempts(RUN, texts=texts, metrics=names))) == list(map(repr, expected))


def with_metrics(attempt: Attempt, names: tuple[str, ...]) -> Attempt:
    if attempt.profile is None:
        return attempt

    def named(metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
        return tuple(item for item in metrics if item.name in names)

    kernels = [item.model_copy(update={"metrics": named(item.metrics)}) for item in attempt.profile.kernels]
    update = {"kernels": tuple(kernels), "metrics": named(attempt.profile.metrics)}
    return attempt.model_copy(update={"profile": attempt.profile.model_copy(update=update)})


def test_messages_about_tasks_keep_what_they_cost(store: Store):
    full = store.task_messages(RUN, "softmax")
    assert any(message.usage for message in full)
    assert store.task_messages(RUN, "softmax", texts=False) == silent(full)


def test_facts_come_whole_or_as_the_bytes_that_must_move(store: Store):
    tasks = golden("modelled").tasks
    facts = store.all_facts(RUN)
    assert facts == {task.name: store.facts(RUN, task.name) for task in tasks}
    assert store.compulsory_bytes(RUN) == {name: item.at("full").compulsory_bytes for name, item in facts.items()}


def test_a_task_without_facts_has_no_bytes(tmp_path: Path):
    made = golden("modelled")
    with Store.open(tmp_path / "kernelforge.db") as fresh:
        fresh.start_run(made.run)
        fresh.put_task(made.run.id, made.tasks[0])
        assert fresh.compulsory_bytes(made.run.id) == fresh.all_facts(made.run.id) == {}
