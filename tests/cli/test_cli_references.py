"""References: ids of runs and names of tasks with slashes, beginnings of ids, and one-line errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.errors import UsageError
from kernelforge.store import Store
from kernelforge.store.references import Reference, resolve, resolve_pair, the_attempt
from tests.support.factories import make_attempt
from tests.support.recorded_run import fill, make_facts, make_graph, make_run, make_task

TASKS = ("softmax", "run-1/softmax", "1/softmax")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Runs by name, with the tasks that tell readings apart. The latest is ``solo``."""
    runs = {
        "team": ("run-1/matmul", "run-2/softmax"),
        "team/run-1": ("softmax", "1/softmax"),
        "team/run-2/again": ("softmax",),
        "a/x-1": ("softmax", "x/softmax"),
        "dots..more": ("softmax",),
        "dots": ("softmax",),
        "solo": ("softmax", "level1/argmax"),
    }
    opened = Store.open(tmp_path_factory.mktemp("results") / "kernelforge.db")
    for number, (name, tasks) in enumerate(runs.items()):
        opened.start_run(make_run(name, tasks=tasks, started=f"2026-11-20T0{number}:00:00+00:00"))
    return opened


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("team", ("team", None, None)),
        ("team/run-1", ("team/run-1", None, None)),
        ("team/run-1/", ("team/run-1", None, None)),
        ("team/run-1/softmax", ("team/run-1", "softmax", None)),
        ("team/run-1/softmax/03", ("team/run-1", "softmax", 3)),
        ("team/run-1/1/softmax/0", ("team/run-1", "1/softmax", 0)),
        ("team/run-1/matmul/2", ("team", "run-1/matmul", 2)),  # the longer id has no such task
        ("team/run-2/softmax/2", ("team", "run-2/softmax", 2)),  # whole ids go before beginnings
        ("team/run-2/again/softmax/2", ("team/run-2/again", "softmax", 2)),
        ("team/run-2/a/softmax/2", ("team/run-2/again", "softmax", 2)),
        ("a/x/softmax/1", None),
        ("a/x-1/softmax/1", ("a/x-1", "softmax", 1)),
        ("latest/level1/argmax/1", ("solo", "level1/argmax", 1)),
        ("level1/argmax", ("solo", "level1/argmax", None)),
        ("softmax/1", ("solo", "softmax", 1)),
    ],
)
def test_a_reference_is_read_by_the_longest_id_that_is_there(
    store: Store, reference: str, expected: tuple[str, str | None, int | None] | None
) -> None:
    if expected is None:
        with pytest.raises(UsageError, match=r"may be .* or .*: write the run's id in full"):
            resolve(store, reference)
    else:
        named = resolve(store, reference)
        assert (named.run.id, named.task, named.number) == expected


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("te/x", "3 runs begin with 'te'; runs: team, team/run-1, team/run-2/again, or 'latest'"),
        ("team/run", "2 runs begin with 'team/run'"),
        ("team/run-1/nothing", "run team/run-1 has no task 'nothing'; it has: softmax, 1/softmax"),
        ("team/run-1/softmax/x", "see `kernelforge show team/run-1/softmax --results "),
        ("no-such-run/softmax", "no run 'no-such-run'"),
        ("/softmax", "no run ''"),
        ("", "no run ''"),
    ],
)
def test_what_is_nothing_or_too_much_is_one_line(store: Store, reference: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolve(store, reference)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_attempt_of_one_run_is_never_given_for_that_of_another(tmp_path: Path) -> None:
    with Store.open(tmp_path / "kernelforge.db") as store:
        runs = [make_run("team", tasks=("run-1/softmax",)), make_run("team/run-1", tasks=("softmax",))]
        for run in runs:
            store.start_run(run)
            task = make_task(run.config.tasks[0])
            store.put_task(run.id, task, make_facts(task), make_graph())
        store.add_attempt(make_attempt(0, id="team/run-1/softmax/00", run="team/run-1", task="softmax"))
        assert the_attempt(store, Reference(runs[1], "softmax", 0)).run == "team/run-1"
        with pytest.raises(UsageError, match="task run-1/softmax of run team has no attempt 0; it has none"):
            the_attempt(store, Reference(runs[0], "run-1/softmax", 0))


def test_two_runs_are_told_apart_though_their_ids_hold_dots(store: Store) -> None:
    def pair(text: str) -> tuple[str, str] | None:
        result = resolve_pair(store, text)
        return None if result is None else (result[0].id, result[1].id)

    assert pair("team/run-1..a/x-1") == ("team/run-1", "a/x-1")
    assert pair("dots..more..solo") == ("dots..more", "solo")
    assert pair("solo..dots..more") == ("solo", "dots..more")
    assert pair("dots..so") == ("dots", "solo")
    assert pair("dots..more") is None  # a run
    assert pair("dots..more/softmax") is None
    for text, output in (("solo..no-such-run", "no run 'no-such-run'"), ("solo..latest", "are one run, solo")):
        with pytest.raises(UsageError, match=output):
            pair(text)


@pytest.mark.slow
def test_every_verb_that_names_an_attempt_takes_such_an_id(cli, tmp_path: Path) -> None:
    with Store.open(tmp_path / "results" / "kernelforge.db") as opened:
        for number, name in enumerate(("team/run-1", "team/run-2")):
            fill(opened, make_run(name, started=f"2026-11-20T0{number}:00:00+00:00"))
    attempt = "team/run-1/softmax/1"
    assert cli("show", attempt, "--json").json()["id"] == "team/run-1/softmax/01"
    assert cli("diff", attempt, "--json").code == 0
    assert cli("compare", "team/run-1", "team/run-2", "--json").json()["a"] == "team/run-1"
    assert cli("figure", "--list", attempt).code == 0
    assert cli("figure", "--list", "team/run-1..team/run-2").code == 0
