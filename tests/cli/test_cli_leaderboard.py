"""``leaderboard entry``, ``schema``, ``build`` and ``verify``: what they print, write and leave with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference" / "leaderboard"
ENTRY = REFERENCE / "entries" / "builtin-core-h100.json"


@pytest.fixture(scope="module")
def journalled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a modelled and a measured run."""
    from tests.report.golden.golden_runs import golden_store

    return golden_store(tmp_path_factory.mktemp("golden") / "results", "modelled", "measured-c").parent


@pytest.fixture
def golden_results(journalled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the journalled folder the default results folder."""
    monkeypatch.setenv("KERNELFORGE_RESULTS", str(journalled))


@pytest.mark.slow
def test_from_a_run_to_a_board(cli, golden_results, tmp_path: Path):
    from tests.report.golden.golden_runs import golden

    for name in ("modelled", "measured-c"):
        done = cli(
            "leaderboard", "entry", golden(name).run.id, "--by", "Ann", "--note", "first", "--output", f"{name}.json"
        )
        assert (done.code, done.out) == (0, "")
        assert f"{name}.json: " in done.err
    built = cli("leaderboard", "build", "modelled.json", "measured-c.json", "--output", "board")
    assert (built.code, built.err) == (0, "board: 2 entries on 2 boards\n")
    rendered = cli("leaderboard", "show", "--json").json()
    data = json.loads((tmp_path / "board" / "leaderboard.json").read_text())
    for own, theirs in zip(data["boards"], rendered["boards"], strict=True):
        assert own["key"] == theirs["key"]
        for field in ("fast_p", "geomean_speedup", "win_rate", "correct", "tokens_per_task", "attempts"):
            assert own["entries"][0][field] == theirs["entries"][0][field], field
    assert cli("leaderboard", "schema").out == (tmp_path / "board" / "entry.schema.json").read_text()


@pytest.mark.slow
def test_check_tells_a_board_that_is_out_of_date(cli, tmp_path: Path):
    (tmp_path / "entries").mkdir()
    (tmp_path / "entries" / "a.json").write_bytes(ENTRY.read_bytes())
    stale = cli("leaderboard", "build", "--output", ".", "--check")
    assert stale.code == 1
    assert "leaderboard.json" in stale.err
    assert not (tmp_path / "leaderboard.json").exists()
    assert cli("leaderboard", "build", "--output", ".").code == 0
    assert cli("leaderboard", "build", "--output", ".", "--check").code == 0


@pytest.mark.slow
def test_a_bad_entry_is_one_line_and_leaves_the_board_alone(cli, tmp_path: Path):
    (tmp_path / "bad.json").write_text(ENTRY.read_text().replace('"by": "KernelForge"', '"by": "Mallory"'))
    done = cli("leaderboard", "build", str(ENTRY), "bad.json", "--output", "board")
    assert done.code == 2
    assert done.err.startswith("error: bad.json: digest: ")
    assert done.err.count("\n") == 1
    assert not (tmp_path / "board").exists()
    assert cli("leaderboard", "verify", "bad.json").code == 2


@pytest.mark.slow
def test_verify_without_a_sample_checks_the_file_alone(cli, tmp_path: Path):
    done = cli("leaderboard", "verify", str(ENTRY), "--sample", "0", "--seed", "4", "--output", "v.json", "--json")
    assert done.code == 0
    (record,) = done.json()
    assert record == json.loads((tmp_path / "v.json").read_text())
    assert (record["seed"], record["sample"], record["fingerprint"]) == (4, 0, None)
    assert all(check["ok"] for check in record["checks"])
    assert {task["status"] for task in record["tasks"]} == {"not re-run"}
    result = cli("leaderboard", "verify", str(ENTRY), "--sample", "0").out
    assert "nothing differs: 7 of 7 checks of the file hold, 0 of 16 tasks re-run" in result


@pytest.mark.slow
def test_the_name_of_a_submitted_file_is_text(cli, tmp_path: Path):
    """A shell's ``entries/*.json`` names what a pull request brought."""
    name = "\x1b[2J[red]x.json"
    (tmp_path / name).write_bytes(ENTRY.read_bytes())
    done = cli("leaderboard", "verify", name, "--sample", "0")
    assert done.code == 0
    assert done.out.startswith("\\x1b[2J[red]x.json: drawing 0")


@pytest.mark.slow
def test_verify_leaves_with_1_where_something_differs(cli, golden_results):
    from tests.report.golden.golden_runs import golden

    cli("leaderboard", "entry", golden("measured-c").run.id, "--by", "Ann", "--output", "c.json")
    done = cli("leaderboard", "verify", "c.json")
    assert done.code == 1
    assert "suite: differs: core is " in done.out
    assert "it differs" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", str(ENTRY), "--sample", "some"], "--sample 'some'"),
        (["verify", "nowhere.json"], "nowhere.json: no such file"),
        (["verify", str(ENTRY), str(ENTRY), "--output", "one.json"], "a folder that exists"),
        (["entry", "no-such-run", "--by", "Ann", "--output", "x.json"], "no run 'no-such-run'"),
        (["entry", "latest", "--by", " ", "--output", "x.json"], "--by"),
        (["build", "--output", "board"], "entries"),
    ],
)
def test_bad_input_is_one_line(cli, golden_results, arguments: list[str], message: str):
    done = cli("leaderboard", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_the_grid_of_stored_runs(cli, tmp_path: Path):
    from kernelforge.datasets.cuda_l2 import REGIONS
    from kernelforge.store import Store
    from kernelforge.tasks import load_suite
    from tests.report.views.test_grid import predicted_at, records_of
    from tests.support.recorded_run import make_run

    folder = str(tmp_path / "results")
    attempts = [predicted_at((64, 64, 64), 3.0), predicted_at((64, 64, 128), 30.0)]
    suite = load_suite("hgemm")
    with Store.open(tmp_path / "results" / "kernelforge.db") as store:
        store.start_run(make_run("r0"))
        store.start_run(records_of(*attempts).run)
        for attempt in attempts:
            store.put_task("r1", next(task for task in suite if task.name == attempt.task))
            store.add_attempt(attempt)
    report = cli("leaderboard", "grid", "--results", folder, "--json").json()
    assert report["runs"] == ["r1"]
    assert [(row["baseline"], row["shapes"]) for row in report["results"] if row["region"] == "all"] == [
        ("eager", 2),
        ("eager-graph", 2),
    ]
    assert report["coverage"][0]["float32"] == 2
    assert cli("leaderboard", "grid", "r1", "--results", folder, "--format", "csv", "--output", "grid.csv").code == 0
    assert len(Path("grid.csv").read_text().splitlines()) == 1 + 2 * len(REGIONS)
    other = cli("leaderboard", "grid", "r0", "--results", folder)
    assert (other.code, "the grid is of hgemm and hgemm-f16" in other.err) == (2, True)
