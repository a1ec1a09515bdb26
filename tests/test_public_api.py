"""``import kernelforge`` is cheap and gives everything the command line does."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest

import kernelforge
from kernelforge.errors import UsageError

HEAVY = {"anthropic", "llvmlite", "numba", "numpy", "openai", "pydantic", "sqlite_utils", "torch", "typer"}


@pytest.mark.parametrize("name", kernelforge.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(kernelforge, name) is not None
    assert name in dir(kernelforge)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        kernelforge.optimise  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    script = "import json, sys, kernelforge; print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert not HEAVY & set(json.loads(done.stdout))


def test_evaluate_can_be_called_however_it_was_reached() -> None:
    import kernelforge.evaluation.api
    from kernelforge import evaluate

    for function in (evaluate, kernelforge.evaluate, kernelforge.evaluation.evaluate):
        with pytest.raises(UsageError, match="no task 'nothing'"):
            function("core/nothing", "")


def test_optimize_refuses_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no task 'nothing'"):
        kernelforge.optimize("core/nothing", results=tmp_path)
    with pytest.raises(UsageError, match="no strategy"):
        kernelforge.optimize("core/softmax", search=kernelforge.SearchOptions(strategy="guess"), results=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("warm_zygotes")
def test_optimize_journals_what_it_returns(tmp_path: Path) -> None:
    from kernelforge.records import Budget, RunState, Verdict
    from kernelforge.store import DATABASE_NAME, Store

    outcome = kernelforge.optimize("core/swish", budget=Budget(rounds=2), seed=1, results=tmp_path)
    assert outcome.run.state is RunState.FINISHED
    assert outcome.best is not None
    assert outcome.best.evaluation.verdict is Verdict.OK
    with Store.open(tmp_path / DATABASE_NAME, read_only=True) as store:
        assert tuple(store.attempts(outcome.run.id)) == outcome.attempts


@pytest.mark.slow
@pytest.mark.usefixtures("warm_zygotes")
@pytest.mark.parametrize("name", ["emulate", "evaluate", "load_suite", "load_task", "optimize"])
def test_the_example_of_a_public_function_runs(name: str) -> None:
    function = getattr(kernelforge, name)
    assert {"Args:", "Returns:", "Raises:", "Example:"} <= {line.strip() for line in function.__doc__.splitlines()}
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
