"""A published C function and the reference that was written for it are compared before there is a task."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.size_search.choice import as_task, sizes_of
from kernelforge.records import Task
from kernelforge.sandbox import Zygote
from kernelforge.tasks.loaders.c_functions.syntax import parse_function
from kernelforge.tasks.loaders.translations import translation_task
from kernelforge.translation.evaluator import CEvaluator
from kernelforge.translation.published import disagreement
from tests.support.factories import make_fingerprint

TEXT = "void scale(float *x, float *y, int n) { for (int i = 0; i < n; i++) y[i] = 2 * x[i]; }"


Opened = Callable[[Task], CEvaluator]


@pytest.fixture(scope="module")
def opened(workshop: EvaluatorPool, c_zygote: Zygote) -> Opened:
    fingerprint = make_fingerprint(device="cpu", device_kind="cpu", arch="cpu", toolchain="cc")
    return lambda task: CEvaluator(task, workshop.oracle(task), c_zygote, fingerprint)


def task(published: str) -> Task:
    """The task of a function, whose published text then is another one."""
    made = translation_task(TEXT, parse_function(TEXT), "scaled", "row 0", "a set")
    sized = as_task(made, sizes_of({"small": {"N": 37}}))
    assert TEXT in sized.c_source
    return sized.model_copy(update={"c_source": sized.c_source.replace(TEXT, published)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("published", "words"),
    [
        (TEXT, ""),
        (TEXT.replace("2 *", "3 *"), "its C and the reference written for it disagree: WRONG: "),
        (TEXT.replace("i < n", "i < n + 1"), "disagree: "),
        (TEXT.replace("i = 0", "i = 1"), "disagree: "),
        (TEXT.replace("2 *", "two *"), "disagree: BUILD: "),
    ],
    ids=["the same", "another factor", "behind the end", "an element is not written", "does not compile"],
)
def test_a_function_that_differs_from_its_reference_makes_no_task(opened: Opened, published: str, words: str) -> None:
    reason = disagreement(task(published), opened)
    assert reason.startswith(words) if words.startswith("its") else words in reason
    assert bool(reason) == bool(words)
    assert "\n" not in reason
