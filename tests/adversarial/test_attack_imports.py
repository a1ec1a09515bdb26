"""References of a published task set while sizes are found for them and while they are audited: what they can reach,
and what their children may say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import SandboxError
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.evaluation.size_search import Bounds, SizeChoice, SizeChooser
from kernelforge.evaluation.size_search.chooser import choose_all
from kernelforge.evaluation.size_search.client import SizeSearchClient
from kernelforge.evaluation.suite_checks import AuditJob, audit_task
from kernelforge.records import Size, TensorSpec
from kernelforge.tasks.loaders import ExternalTask
from tests.adversarial.corpus import CANARY
from tests.adversarial.test_attack_tasks import TakenOver
from tests.support.axpy import axpy_task

SPY = '''
def spy():
    """Look where secrets may be; tell all of it in an error."""
    import os
    import stat

    found = [repr(dict(os.environ))]
    folder = os.path.dirname(PLANTED)
    places = [PLANTED, "/proc/self/environ", f"/proc/{os.getppid()}/environ", f"/proc/{PARENT}/environ"]
    places += [f"/proc/{process}/fd/{number}" for process in ("self", PARENT) for number in range(3, 64)]
    for place in places:
        try:
            if stat.S_ISREG(os.stat(place).st_mode):
                with open(place, "rb") as file:
                    found.append(repr(file.read(1 << 16)))
        except OSError as error:
            found.append(type(error).__name__)
    for number in range(3, 64):
        try:
            found.append(repr(os.pread(number, 4096, 0)))
        except OSError:
            pass
    for act in (lambda: os.listdir(folder), lambda: open(PLANTED, "a").write("changed")):
        try:
            found.append(repr(act()))
        except OSError as error:
            found.append(type(error).__name__)
    return "spied: " + " ".join(found)
'''

REFERENCE = (
    SPY
    + """
import torch
import torch.nn as nn

ROWS = 64
COLS = 128


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        if WHERE == "forward":
            raise RuntimeError(spy())
        return torch.relu(x)


def get_inputs():
    if WHERE == "get_inputs":
        raise RuntimeError(spy())
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []


if WHERE == "module":
    raise RuntimeError(spy())
"""
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A canary in the environment, in a file of the results folder, and behind an open descriptor."""
    file = tmp_path_factory.mktemp("results") / "kernelforge.db"
    file.write_text(CANARY)
    descriptor = os.open(file, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", CANARY)
        yield file
    os.close(descriptor)
    assert file.read_text() == CANARY


@pytest.fixture(scope="module")
def shrinker(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SizeChooser]:
    """A chooser of sizes, started when the canary was in place."""
    with SizeChooser(cache=tmp_path_factory.mktemp("sizes"), bounds=Bounds(tries=12)) as made:
        yield made


def spying(planted: Path, where: str) -> str:
    return f"WHERE = {where!r}\nPLANTED = {str(planted)!r}\nPARENT = {os.getpid()}\n{REFERENCE}"


def test_the_spy_finds_the_canary_where_nothing_keeps_it_from_it(planted: Path) -> None:
    names: dict[str, Any] = {}
    exec(f"PLANTED = {str(planted)!r}\nPARENT = {os.getpid()}\n{SPY}", names)
    try:
        assert names["spy"]().count(CANARY) >= 3
    finally:
        planted.write_text(CANARY)


def test_a_reference_finds_no_canary_while_sizes_are_found(planted: Path, shrinker: SizeChooser) -> None:
    tasks = [
        ExternalTask(name=where, title=where, source=spying(planted, where), origin=where)
        for where in ("module", "get_inputs", "forward")
    ]
    for task in tasks:
        choice = shrinker.choose(task)
        assert "spied: {'" in choice.refused
        assert CANARY not in choice.model_dump_json()
    assert shrinker.cache is not None
    assert not any(CANARY.encode() in path.read_bytes() for path in shrinker.cache.iterdir())


def test_a_reference_finds_no_canary_while_it_is_judged_and_audited(planted: Path, shrinker: SizeChooser) -> None:
    """The process that finds sizes is of the oracle's role, and is its jail."""
    for where in ("module", "get_inputs", "forward"):
        task = axpy_task(spying(planted, where))
        audit = audit_task(AuditJob(task), lambda task: Oracle(shrinker._warm, task, reply_s=30), most=1)
        assert "spied: {'" in audit.error
        assert CANARY not in audit.model_dump_json()


COST: dict[str, Any] = {"elements": 1, "bytes": 4, "outputs": 1, "work": 1, "calls": 1, "flops": 0, "seconds": 0.5}
COSTS = {
    "infinite": COST | {"elements": float("inf")},
    "no number": COST | {"bytes": float("nan")},
    "huge": COST | {"bytes": 10**400},
    "negative": COST | {"work": -1},
    "a text": COST | {"flops": "1" * 5000},
    "a truth": COST | {"calls": True},
    "an endless time": COST | {"seconds": float("inf")},
    "a list": COST | {"seconds": [1]},
    "a long error": {"error": ["x" * 10_000]},
}


@pytest.mark.parametrize("data", COSTS.values(), ids=COSTS)
def test_a_cost_that_is_none_is_the_tasks_failure(data: dict[str, Any]) -> None:
    outcome = SizeSearchClient(TakenOver(data), "text", Bounds()).run({})
    assert outcome.cost is None
    assert 0 < len(outcome.error) <= 500


FINDING: dict[str, Any] = {"size": "small", "family": "task", "ok": True, "admitted": True, "text": ""}
FINDINGS: dict[str, list[Any]] = {
    "none": [],
    "of another size": [FINDING | {"size": "hidden_easy"}],
    "of no size": [FINDING | {"size": 5}],
    "of no family": [FINDING | {"family": "easy\n\x1b[2J"}],
    "of no truth": [FINDING | {"ok": "yes"}],
    "no finding": [7],
}


@pytest.mark.parametrize("findings", FINDINGS.values(), ids=FINDINGS)
def test_findings_that_nobody_asked_for_admit_nothing(findings: list[Any]) -> None:
    oracle = Oracle(TakenOver({"ok": True, "findings": findings}), axpy_task())
    with pytest.raises(SandboxError):
        oracle.admit(["small"])


def test_what_a_child_says_has_a_length() -> None:
    oracle = Oracle(TakenOver({"ok": True, "findings": [FINDING | {"text": "x" * 10**6}]}), axpy_task())
    assert len(oracle.admit(["small"]).findings[0].text) == 10_000
    refused = Oracle(TakenOver({"ok": False, "message": "x" * 10**6}), axpy_task())
    assert len(audit_task(AuditJob(axpy_task()), lambda task: refused).error) < 11_000


@pytest.mark.parametrize(
    "changes",
    [{"error": "all is well"}, {"same_as": "core/softmax"}, {"task": "other"}, {"made": 10**400}, {"mutants": [{}]}],
)
def test_an_audit_of_something_else_is_an_error(changes: dict[str, Any]) -> None:
    reply = {"ok": True, "audit": {"task": axpy_task().name, "mutants": [], "made": 0} | changes}
    audit = audit_task(AuditJob(axpy_task()), lambda task: Oracle(TakenOver(reply), task))
    assert audit.task == axpy_task().name
    assert "sent" in audit.error


@pytest.mark.parametrize("shape", [[10**400], [2**62, 4], [-1], [2] * 65])
def test_no_child_tells_of_a_tensor_that_cannot_be(shape: list[int]) -> None:
    with pytest.raises(ValueError, match="shape"):
        TensorSpec.model_validate({"shape": shape, "stride": [0] * len(shape), "dtype": "float32"})


GOOD = ExternalTask(name="good", title="good", source=REFERENCE.replace("WHERE", "'nowhere'"), origin="good")
SIZES = (Size(name="full"), Size(name="small", constants={"ROWS": 8}))
KEPT = {
    "another file's": SizeChoice(sizes=(Size(name="full"), Size(name="small", constants={"M": 8}))).model_dump_json(),
    "no sizes": SizeChoice().model_dump_json(),
    "no number": SizeChoice(sizes=SIZES).model_dump_json().replace("8", "NaN"),
    "cut": SizeChoice(sizes=SIZES).model_dump_json()[:-9],
    "nested": "[" * 100_000,
    "long": " " * (2 << 20) + SizeChoice(sizes=SIZES).model_dump_json(),
}


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A cache folder, and the name of what it keeps of a task."""
    folder = tmp_path_factory.mktemp("sizes")
    with SizeChooser(cache=folder, bounds=Bounds(tries=12)) as shrinker:
        yield folder, f"{shrinker._key(GOOD)}.json"


@pytest.mark.parametrize("content", [*KEPT.values(), None], ids=[*KEPT, "a pipe"])
def test_a_kept_choice_that_is_none_is_not_believed(
    cached: tuple[Path, str], content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = cached
    (folder / name).unlink(missing_ok=True)
    if content is None:
        os.mkfifo(folder / name)
    else:
        (folder / name).write_text(content)
    new_choice = SizeChoice(refused="a new search")
    monkeypatch.setattr(SizeChooser, "_find", lambda self, task: (new_choice, False))
    shrinker = SizeChooser(cache=folder, bounds=Bounds(tries=12))
    assert shrinker.choose(GOOD) == new_choice
    (folder / name).unlink()
    (folder / name).write_text(SizeChoice(sizes=SIZES).model_dump_json())
    assert shrinker.choose(GOOD).sizes == SIZES
    shrinker.close()


@pytest.mark.slow
def test_a_text_that_cannot_be_looked_at_refuses_its_own_task_alone(shrinker: SizeChooser) -> None:
    many = "".join(f"A{number} = {number + 8}\n" for number in range(300))
    use = "USED = [" + ", ".join(f"A{number}" for number in range(300)) + "]\n"
    tasks = [
        ExternalTask(name="many", title="t", source=many + use + GOOD.source, origin="o"),
        replace(GOOD, name="level", level=-1),
        replace(GOOD, source="X = " + "+".join(["1"] * 2000) + GOOD.source),
        GOOD,
    ]
    refused = [choice.refused for _, choice in choose_all(shrinker, tasks, 1)]
    assert sorted(map(bool, refused)) == [False, True, True, True], refused
