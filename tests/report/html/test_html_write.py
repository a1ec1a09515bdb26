"""A report on the disk: whole or as it was before, and never in the place of something else."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import UsageError
from kernelforge.report.html import Site
from kernelforge.report.html import writer as write
from kernelforge.report.html.writer import MARK, write_file, write_folder
from kernelforge.store import Store
from tests.report.golden.golden_runs import golden, golden_records, golden_store
from tests.report.html.html_dom import parse

MODELLED = golden("modelled").run.id


def tree_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def site() -> Site:
    return Site([golden_records("modelled")])


@pytest.fixture
def report(site: Site, tmp_path: Path) -> Path:
    write_folder(site, tmp_path / "report")
    return tmp_path / "report"


@pytest.mark.slow
def test_a_folder_holds_every_page_all_data_all_assets_and_its_mark(site: Site, report: Path):
    result = tree_of(report)
    assert result.keys() == {*site.pages(), *site.data(), *(f"assets/{name}" for name in site.assets()), MARK}
    assert result["index.html"].decode() == site.render("index.html")


def die_at_once(paths: Sequence[str]) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return len(paths)


@pytest.mark.slow
@pytest.mark.parametrize("dying", [False, True])
def test_processes_write_the_same_as_one_even_if_they_die(
    site: Site, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dying: bool
):
    monkeypatch.setattr(write, "_SHARED_FROM", 2)
    monkeypatch.setattr(write, "_PART", 5)
    if dying:
        monkeypatch.setattr(write, "_write_kept", die_at_once)
    size = write_folder(site, tmp_path / "shared", processes=2)
    assert tree_of(tmp_path / "shared") == tree_of(report)
    assert size == sum(map(len, tree_of(report).values()))


@pytest.mark.slow
def test_a_new_report_takes_the_place_of_the_old_one_and_leaves_nothing_beside_it(report: Path):
    (report / "runs" / "stale.html").write_text("old")
    write_folder(Site([golden_records("measured-a")]), report)
    assert not (report / "runs" / "stale.html").exists()
    assert not (report / "runs" / MODELLED).exists()
    assert [path.name for path in report.parent.iterdir()] == ["report"]


@pytest.mark.slow
def test_a_report_that_cannot_be_finished_leaves_the_old_one_as_it_was(report: Path, monkeypatch: pytest.MonkeyPatch):
    before = tree_of(report)
    broken = Site([golden_records("measured-a")])
    text = broken.render
    monkeypatch.setattr(broken, "render", lambda path: text(path) if "attention" not in path else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_folder(broken, report)
    assert tree_of(report) == before
    assert [path.name for path in report.parent.iterdir()] == ["report"]


STUCK = """
import os, signal, sys
from pathlib import Path
from tests.report.golden.golden_runs import golden_records
from kernelforge.report.html import Site, writer as write

def render(path, render=Site.render):
    if path.startswith("data/") and path.endswith(".csv"):
        os.write(1, b"stuck\\n")
        signal.pause()
    return render(site, path)

signal.alarm(100)
write._SHARED_FROM, write._PART = 2, 5
site = Site([golden_records("measured-a")])
site.render = render
write.write_folder(site, Path(sys.argv[1]), processes=2)
"""


@pytest.mark.slow
def test_what_a_kill_left_goes_with_the_next_report(site: Site, report: Path):
    """A real kill in the middle: the old report is whole, no process lives on, and nothing lies around for ever."""
    before = tree_of(report)
    command = [sys.executable, "-c", STUCK, str(report)]
    folders = os.pathsep.join(folder for folder in sys.path if folder)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": folders}) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        (remaining,) = [path for path in report.parent.iterdir() if path != report]
        assert len(tree_of(remaining)) > 5
        writer.kill()
        writer.stdout.read()  # its processes have that pipe too: it ends when the last of them has
    assert tree_of(report) == before
    (remaining / "mine.txt").write_text("years of work")
    write_folder(site, report)
    assert remaining.is_dir()
    (remaining / "mine.txt").unlink()
    write_folder(site, report)
    assert [path.name for path in report.parent.iterdir()] == ["report"]


@pytest.mark.slow
def test_the_old_report_is_in_its_place_until_the_new_one_is(site: Site, report: Path, monkeypatch: pytest.MonkeyPatch):
    renamed: list[Path] = []
    monkeypatch.setattr(Path, "rename", lambda path, to: renamed.append(path))
    (report / "runs" / "stale.html").write_text("old")
    write_folder(site, report)
    assert not renamed  # one step does it
    assert not (report / "runs" / "stale.html").exists()


@pytest.mark.slow
def test_where_folders_cannot_trade_places_it_takes_two_steps(
    site: Site, report: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(write, "rename_exchange", lambda new, other: False)
    (report / "runs" / "stale.html").write_text("old")
    write_folder(site, report)
    assert not (report / "runs" / "stale.html").exists()
    assert [path.name for path in report.parent.iterdir()] == ["report"]


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_what_is_no_report_is_left_alone(site: Site, tmp_path: Path, what: str):
    target = tmp_path / "mine"
    if what == "folder":
        target.mkdir()
        (target / "thesis.tex").write_text("years of work")
    elif what == "file":
        target.write_text("years of work")
    else:
        (tmp_path / "there").mkdir()
        target.symlink_to(tmp_path / "there")
    with pytest.raises(UsageError, match="--output"):
        write_folder(site, target)
    if what == "folder":
        assert tree_of(target) == {"thesis.tex": b"years of work"}
    elif what == "file":
        assert target.read_text() == "years of work"
    else:
        assert target.is_symlink()


@pytest.mark.parametrize(
    "name",
    ["thesis.tex", ".git/HEAD", "notes.html", "data/readings.h5", "data/raw/a.csv", "runs/x/notes.txt", "data/l.csv"],
)
def test_what_somebody_put_into_a_report_does_not_go_with_it(site: Site, report: Path, name: str):
    """The mark alone proves little: it may come with a repository."""
    path = report / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "data/l.csv":
        path.symlink_to(report / "index.html")
    else:
        path.write_text("years of work")
    before = tree_of(report)
    with pytest.raises(UsageError, match="is no part of a report: move it"):
        write_folder(site, report)
    assert tree_of(report) == before
    assert [path.name for path in report.parent.iterdir()] == ["report"]


def test_the_folder_that_one_is_in_may_become_a_report(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_folder(site, Path("."))
    assert (tmp_path / "here" / "index.html").is_file()


def test_a_pipe_is_no_report(site: Site, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.html")
    with pytest.raises(UsageError, match="is not a report"):
        write_file(site, tmp_path / "pipe.html")


@pytest.mark.slow
def test_an_empty_folder_may_become_a_report(site: Site, tmp_path: Path):
    (tmp_path / "empty").mkdir(mode=0o755)
    write_folder(site, tmp_path / "empty")
    assert (tmp_path / "empty" / "index.html").is_file()
    assert (tmp_path / "empty").stat().st_mode & 0o777 == 0o755


@pytest.mark.slow
def test_one_file_holds_every_page_once_and_links_within_itself(site: Site, tmp_path: Path):
    size = write_file(site, tmp_path / "all.html")
    text = (tmp_path / "all.html").read_text()
    assert size == len(text.encode())
    tree = parse(text)
    sections = tree.all("section", class_="page")
    assert len(sections) == len(site.pages()) - 1  # the run's page is the front page
    ids = [element.attributes["id"] for element in tree.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    targets = {element.attributes["href"] for element in tree.all("a")}
    assert {target[:1] for target in targets} == {"#"}
    assert {target[1:] for target in targets} <= set(ids)
    assert not [element for element in tree.all() if "src" in element.attributes]


@pytest.mark.slow
def test_scripts_and_styles_of_one_file_are_those_that_its_policy_names(site: Site, tmp_path: Path):
    write_file(site, tmp_path / "all.html")
    tree = parse((tmp_path / "all.html").read_text())
    (policy,) = [element.attributes["content"] for element in tree.all("meta") if "http-equiv" in element.attributes]
    named = {part.partition(" ")[0]: set(part.split(" ")[1:]) for part in policy.split("; ")}

    def hashes(name: str) -> set[str]:
        inside = [element.text for element in tree.all(name) if element.attributes.get("type") != "application/json"]
        return {f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in inside}

    assert named["script-src"] == hashes("script")
    assert named["style-src"] == hashes("style")


@pytest.mark.slow
def test_a_file_that_is_no_report_is_left_alone_and_one_that_is_is_replaced(site: Site, tmp_path: Path):
    own_rows = tmp_path / "mine.html"
    own_rows.write_text("<p>years of work")
    with pytest.raises(UsageError, match="not a report"):
        write_file(site, own_rows)
    assert own_rows.read_text() == "<p>years of work"
    write_file(site, tmp_path / "all.html")
    write_file(site, tmp_path / "all.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.html", "mine.html"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden_store(tmp_path_factory.mktemp("results"), "modelled").parent


Run = Callable[..., Any]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """``kernelforge report`` in an empty folder: exit code, lines, errors."""
    from kernelforge.cli.main import main

    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr("sys.argv", ["kernelforge", "report", *words])
        with pytest.raises(SystemExit) as remaining:
            main()
        out, err = capsys.readouterr()
        return int(remaining.value.code or 0), out.splitlines(), err

    return run


@pytest.mark.slow
def test_the_command_says_how_much_it_wrote_and_where(command: Run, results: Path, tmp_path: Path):
    code, out, _ = command("latest", "--results", str(results), "--output", "here/report")
    index = tmp_path / "here" / "report" / "index.html"
    assert (code, out[1]) == (0, index.as_uri())
    assert out[0].endswith(": here/report/index.html")
    attempt = parse((index.parent / "runs" / MODELLED / "softmax" / "01.html").read_text())
    prompts = [element.text for element in attempt.only(class_="said").all("pre")]
    assert prompts
    assert all(prompts)  # runs are read without texts, their tasks with them


@pytest.mark.slow
def test_without_an_output_it_lies_with_the_results(command: Run, results: Path):
    assert command("--results", str(results))[0] == 0
    assert (results / "report" / "index.html").is_file()
    assert command("--one-file", "--all", "--results", str(results))[0] == 0
    assert (results / "report.html").is_file()


@pytest.mark.slow
def test_it_opens_what_it_wrote(command: Run, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    code, out, _ = command("--open", "--results", str(results), "--output", "one.html")
    assert code == 0
    assert (tmp_path / "opened").read_text().strip() == out[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (("unknown",), "unknown"),
        (("latest", "--all"), "--all"),
        (("--output", "mine"), "no report"),
        (("--output", "mine/thesis.tex/report"), "thesis.tex"),
        (("--one-file", "--output", "mine"), "is a folder"),
    ],
)
def test_bad_input_is_one_line(command: Run, results: Path, tmp_path: Path, words: tuple[str, ...], messages: str):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    code, out, err = command(*words, "--results", str(results))
    assert code in (1, 2)
    assert (out, err.count("\n")) == ([], 1)
    assert messages in err
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]


@pytest.mark.slow
def test_a_results_folder_without_runs_is_one_line(command: Run, tmp_path: Path):
    with Store.open(tmp_path / "kernelforge.db"):
        pass
    for words in ((), ("--all",)):
        code, _, err = command(*words, "--results", str(tmp_path))
        assert code == 2
        assert "kernelforge run" in err
