"""Every task that ships can be judged: a part of what ``kernelforge tasks check --all`` does.

All sizes of all tasks take some minutes of two cores, so here one task in eight is checked whole and the others, of
which one in six stands for all in most runs, at their tiny size, where every operator of the reference runs all the
same. Eight of those share a confined child, for to make one takes as long as to admit a task; each that is checked
whole has a child of its own, as in the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.records import Task
from kernelforge.sandbox import Child, Zygote
from kernelforge.sandbox.channel import Frame
from kernelforge.sandbox.policy import Limits
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.tasks import list_suites
from tests.support.shipped_prompts import shipped

GENERATED = {"hgemm", "hgemm-f16"}
DERIVED = {"core-large", "translate-cpp", "translate-fortran"}
TASKS = [task for name in list_suites() if name not in GENERATED | DERIVED for task in shipped(name)]
TASKS += [task for name in sorted(GENERATED) for task in (shipped(name).tasks[0], shipped(name).tasks[-1])]

WHOLE = {task.digest for task in TASKS if int(task.digest, 16) % 8 == 0}

MOST_BYTES = 8 << 30
MOST_SMALL_ELEMENTS = 1 << 20


MOST_TASKS = 8


class SharedChild:
    """A child that is loaded with one task after the other; the first mistake of one ends it."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.tasks = 0
        self.spoilt = False

    def call(self, data: dict[str, Any], blobs: Sequence[Blob] = (), *, timeout_s: float | None = None) -> Frame:
        self.spoilt = True
        frame = self.child.call(data, blobs, timeout_s=timeout_s)
        self.spoilt = not frame.data.get("ok")
        return frame

    @property
    def ended(self) -> bool:
        return self.child.ended

    def memory_bytes(self) -> int:
        return self.child.memory_bytes()

    def close(self) -> None:
        """Left for the next task."""


class SharedZygote:
    """Gives the same child to :data:`MOST_TASKS` oracles, one after the other."""

    def __init__(self, zygote: Zygote) -> None:
        self.zygote = zygote
        self.shared: SharedChild | None = None

    def spawn(self, limits: Limits | None = None) -> SharedChild:
        if self.shared is not None and (self.shared.spoilt or self.shared.tasks == MOST_TASKS):
            self.close()
        if self.shared is None:
            self.shared = SharedChild(self.zygote.spawn(limits))
        self.shared.tasks += 1
        return self.shared

    def close(self) -> None:
        if self.shared is not None:
            self.shared.child.close()
        self.shared = None


@pytest.fixture(scope="module")
def shared_zygote(zygote: Zygote) -> Iterator[SharedZygote]:
    shared = SharedZygote(zygote)
    yield shared
    shared.close()


@pytest.mark.slow
@pytest.mark.one_in(60)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.suite}/{task.name}")
def test_a_shipped_task_is_admitted_and_of_reasonable_size(
    zygote: Zygote, shared_zygote: SharedZygote, task: Task
) -> None:
    names = [size.name for size in task.sizes] if task.digest in WHOLE else ["full", "hidden_tiny"]
    with Oracle(zygote if task.digest in WHOLE else shared_zygote, task) as oracle:
        facts = oracle.facts(names)
        assert oracle.trace("full" if task.digest in WHOLE else "hidden_tiny").nodes
        admission = oracle.admit(names[1:])
    assert not [finding for finding in admission.findings if not finding.ok]
    assert all(any(f.admitted for f in admission.findings if f.size == name) for name in names[1:])
    for size in facts.sizes:
        tensors = [spec for spec in (*size.inputs, *size.outputs) if hasattr(spec, "numel")]
        if size.size == "full":
            assert size.compulsory_bytes <= MOST_BYTES
            assert max(spec.numel for spec in tensors) < 2**31
        else:
            assert sum(spec.numel for spec in tensors) <= MOST_SMALL_ELEMENTS
        assert size.eager_launches > 0
