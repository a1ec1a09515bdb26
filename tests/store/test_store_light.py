"""What a run is loaded without, where texts are left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from golden_runs import golden, golden_store

from kernelforge.records import Attempt, Message, Profile
from kernelforge.store import Store

RUN = golden("modelled").run.id


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(golden_store(tmp_path_factory.mktemp("results"), "modelled"), read_only=True) as opened:
        yield opened


def without_texts(attempt: Attempt) -> Attempt:
    """What is promised, made from the full record."""

    def less(profile: Profile) -> Profile:
        kernels = [one.model_copy(update={"metrics": (), "hot_spots": ()}) for one in profile.kernels]
        return profile.model_copy(update={"kernels": tuple(kernels)})

    return attempt.model_copy(
        update={
            "messages": silent(attempt.messages),
            "profile": None if attempt.profile is None else less(attempt.profile),
        }
    )


def silent(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(one.model_copy(update={"content": ""}) for one in messages)


def test_all_but_texts_and_the_kernels_own_numbers_is_loaded(store: Store):
    full = store.attempts(RUN)
    assert any(kernel.metrics and kernel.hot_spots for one in full if one.profile for kernel in one.profile.kernels)
    assert list(map(repr, store.attempts(RUN, texts=False))) == [repr(without_texts(one)) for one in full]
    assert store.attempts(RUN, "matmul", texts=False) == [
        one for one in map(without_texts, full) if one.task == "matmul"
    ]


def test_messages_about_tasks_keep_what_they_cost(store: Store):
    full = store.task_messages(RUN, "softmax")
    assert any(message.usage for message in full)
    assert store.task_messages(RUN, "softmax", texts=False) == silent(full)


def test_facts_come_whole_or_as_the_bytes_that_must_move(store: Store):
    tasks = golden("modelled").tasks
    facts = store.all_facts(RUN)
    assert facts == {task.name: store.facts(RUN, task.name) for task in tasks}
    assert store.compulsory_bytes(RUN) == {name: one.at("full").compulsory_bytes for name, one in facts.items()}


def test_a_task_without_facts_has_no_bytes(tmp_path: Path):
    made = golden("modelled")
    with Store.open(tmp_path / "kernelforge.db") as fresh:
        fresh.start_run(made.run)
        fresh.put_task(made.run.id, made.tasks[0])
        assert fresh.compulsory_bytes(made.run.id) == fresh.all_facts(made.run.id) == {}
