"""One evaluator for attacks that are no candidates of the corpus, with a canary in the parent's environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelforge.evaluation import Evaluator, EvaluatorPool
from tests.adversarial.corpus import CANARY
from tests.support.axpy import axpy_task


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvaluatorPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", CANARY)
        with EvaluatorPool("emulated:h100", cache=tmp_path_factory.mktemp("builds")) as made:
            yield made


@pytest.fixture(scope="session")
def evaluator(workshop: EvaluatorPool) -> Iterator[Evaluator]:
    made = workshop.evaluator(axpy_task())
    yield made
    made.oracle.close()
