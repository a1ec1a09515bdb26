"""Every task that ships can be judged: a part of what ``kernelforge tasks check --all`` does.

All sizes of all tasks take some minutes of two cores, so here one task in eight is checked whole and the others at
their tiny size, where every operator of the reference runs all the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from shipped import shipped

from kernelforge.evaluate.oracle import Oracle
from kernelforge.records import Task
from kernelforge.sandbox import Zygote
from kernelforge.tasks import list_suites

GENERATED = {"hgemm", "hgemm-f16"}
DERIVED = {"core-large"}
TASKS = [task for name in list_suites() if name not in GENERATED | DERIVED for task in shipped(name)]
TASKS += [task for name in sorted(GENERATED) for task in (shipped(name).tasks[0], shipped(name).tasks[-1])]

WHOLE = {task.digest for task in TASKS if int(task.digest, 16) % 8 == 0}

MOST_BYTES = 8 << 30
MOST_SMALL_ELEMENTS = 1 << 20


@pytest.fixture(scope="module")
def zygote(kept_zygotes: Callable[..., Zygote]) -> Zygote:
    return kept_zygotes("oracle")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.suite}/{task.name}")
def test_a_shipped_task_is_admitted_and_of_reasonable_size(zygote: Zygote, task: Task) -> None:
    names = [size.name for size in task.sizes] if task.digest in WHOLE else ["full", "hidden_tiny"]
    with Oracle(zygote, task) as oracle:
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
