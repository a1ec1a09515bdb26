"""Input generators are journalled once per task, with their texts, and come back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelforge.errors import StoreError
from kernelforge.records import InputGenerator, Message
from kernelforge.store import Store
from tests.support.recorded_run import make_facts, make_run, make_task

OFFSET = InputGenerator(
    name="offset",
    plan="def inputs(x):\n    return pick(31, 32, 33)  # ü\n",
    provider="openai:some-model",
    admitted=True,
    reason="torch itself is not accurate enough on such inputs",
    sizes=("small", "hidden_tiny"),
)
REFUSED = InputGenerator(name="a_shell", plan="import os\n", provider="builtin", admitted=False, reason="no import")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "kernelforge.db") as made:
        made.start_run(make_run())
        task = make_task()
        made.put_task("r1", task, make_facts(task))
        yield made


def test_generators_come_back_equal_and_in_order(store: Store) -> None:
    assert store.generators("r1", "softmax") == ()
    store.put_generators("r1", "softmax", (OFFSET, REFUSED))
    assert store.generators("r1", "softmax") == (OFFSET, REFUSED)
    with Store.open(store.path, read_only=True) as reader:
        assert reader.generators("r1", "softmax") == (OFFSET, REFUSED)
    assert store.generators("r1", "matmul") == ()


def test_none_can_be_journalled(store: Store) -> None:
    store.put_generators("r1", "softmax", ())
    assert store.generators("r1", "softmax") == ()


def test_what_was_said_is_kept_with_them_or_not_at_all(store: Store) -> None:
    output = tuple(Message(agent="tester", role=role, provider="m", content=role) for role in ("prompt", "reply"))
    store.put_generators("r1", "softmax", (OFFSET,), output)
    assert store.task_messages("r1", "softmax") == output
    with pytest.raises(StoreError, match="already"):
        store.put_generators("r1", "softmax", (OFFSET,), output)
    assert store.task_messages("r1", "softmax") == output


def test_a_tester_that_proposed_nothing_was_asked(store: Store) -> None:
    store.put_generators("r1", "softmax", (), (Message(agent="tester", role="prompt", provider="m", content="?"),))
    assert [item.agent for item in store.task_messages("r1", "softmax")] == ["tester"]


def test_generators_never_change(store: Store) -> None:
    store.put_generators("r1", "softmax", (OFFSET,))
    with pytest.raises(StoreError, match="already"):
        store.put_generators("r1", "softmax", (REFUSED, OFFSET))
    assert store.generators("r1", "softmax") == (OFFSET,)


def test_generators_need_their_task(store: Store) -> None:
    with pytest.raises(StoreError, match="no task matmul"):
        store.put_generators("r1", "matmul", (OFFSET,))


@pytest.mark.parametrize(
    "changes",
    [
        {"admitted": False},
        {"sizes": ()},
        {"sizes": ("full",)},
        {"sizes": ("small", "small")},
        {"name": "Offset; drop"},
        {"admitted": False, "sizes": (), "reason": ""},
        {"plan": "x" * 5000},
    ],
)
def test_a_misleading_generator_cannot_be_built(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"generator|pattern"):
        OFFSET.model_copy(update=changes)
