"""``kernelforge tasks import``, end to end: good files and bad ones, from their references and from the cache."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelforge.cli.import_tasks import frequent_reasons, progress
from kernelforge.evaluation import size_search
from kernelforge.evaluation.size_search import Bounds
from kernelforge.tasks import load_suite
from kernelforge.tasks.loaders import NotLoaded
from tests.support import kernelbench_files as files

HUNG = "level3/2_Hangs.py"
PACKAGE = "level3/3_Package.py"
ALL = (
    files.GOOD
    | files.BAD
    | {
        "level1/19_ReLU.py": files.RELU,
        "level1/6_Constant.py": files.CONSTANT,
        HUNG: files.HANGS,
        PACKAGE: files.PACKAGE,
    }
)


@dataclass(frozen=True)
class Workplace:
    """A checkout with good and bad files, imported once."""

    folder: Path
    code: int
    printed: str

    @property
    def checkout(self) -> str:
        return str(self.folder / "checkout")


def run(*arguments: str) -> tuple[int, str]:
    from kernelforge.cli.main import main

    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", ["kernelforge", "tasks", "import", *arguments])
        with pytest.raises(SystemExit) as remaining:
            main()
    return int(remaining.value.code or 0), out.getvalue()


@pytest.fixture(scope="module")
def imported(
    tmp_path_factory: pytest.TempPathFactory, warmly: Callable[[], contextlib.AbstractContextManager[None]]
) -> Iterator[Workplace]:
    folder = tmp_path_factory.mktemp("import")
    files.write_checkout(folder / "checkout", ALL)
    with pytest.MonkeyPatch.context() as patch, warmly():
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        # A hanging reference is given up on sooner, so that the test is.
        hurried = functools.partial(size_search.SizeChooser, bounds=Bounds(answer_s=2.5))
        patch.setattr(size_search, "SizeChooser", hurried)
        code, output = run(str(folder / "checkout"), "--output", str(folder / "suite"), "--jobs", "2")
        yield Workplace(folder, code, output)


@pytest.mark.slow
def test_every_file_is_a_task_or_one_line_with_a_reason(imported: Workplace) -> None:
    assert imported.code == 0
    lines = imported.printed.splitlines()
    missing = dict(line.removeprefix("not loaded: ").split(": ", 1) for line in lines if line.startswith("not loaded"))
    assert missing.keys() == {*files.BAD, HUNG, PACKAGE, "level1/6_Constant.py"}
    assert missing["level1/2_Broken.py"] == "line 2: expected ':'"
    assert "draws random numbers in forward" in missing["level1/4_Random.py"]
    assert "Model.forward failed: RuntimeError" in missing["level1/5_Raises.py"]
    assert "a trivial answer passes: a constant" in missing["level1/6_Constant.py"]
    assert missing["level3/1_Huge.py"].startswith("inputs, weights and outputs take 202 GB at its own sizes")
    assert missing[HUNG] == "it does not end: no answer in 2.5 s"
    assert "No module named 'not_installed_here'" in missing[PACKAGE]
    assert "transformers" in missing["level4/1_Fetches.py"]
    # 4,096 x 393,216 elements: 75 bytes of each in 60 % of a GPU's memory.
    (relu,) = (line for line in lines if line.startswith("level1_19_relu: "))
    assert "to check its full size takes a GPU with about 201 GB" in relu
    assert sum("to check its full size" in line for line in lines) == 1
    assert lines[-1].startswith(f"6 tasks, {len(missing)} not loaded; suite ")
    assert len(lines) == len(ALL) + 1


@pytest.mark.slow
def test_what_is_written_is_a_suite_with_hidden_sizes_of_three_kinds(imported: Workplace) -> None:
    suite = load_suite(imported.folder / "suite")
    assert [task.name for task in suite] == [
        "level1_19_relu",
        "level1_23_softmax",
        "level1_35_groupnorm",
        "level1_95_crossentropyloss",
        "level2_1_linear_inline",
        "level2_2_casts",
    ]
    assert [task.name for task in suite if task.policy.oracle == "task-precision"] == ["level2_2_casts"]
    for task in suite:
        names = [size.name for size in task.sizes]
        assert names[:5] == ["full", "small", "hidden_odd", "hidden_quad", "hidden_tiny"]
        assert set(names[5:]) <= {"hidden_wide1", "hidden_wide2"}
    odd = suite.task("level1_35_groupnorm").size("hidden_odd").constants
    assert odd["features"] % odd["num_groups"] == 0
    inline = suite.task("level2_1_linear_inline")
    assert all(size.constants["X_1"] == size.constants["IN_FEATURES"] for size in inline.sizes[1:])
    targets = suite.task("level1_95_crossentropyloss")
    assert all(size.constants["INPUT_SHAPE"] == size.constants["num_classes"] for size in targets.sizes[1:])


@pytest.mark.slow
def test_plans_may_call_the_operators_that_are_named(imported: Workplace) -> None:
    arguments = [imported.checkout, "--select", "1/19", "--library", "linear", "--library", "conv2d"]
    assert run(*arguments, "--output", str(imported.folder / "with operators"))[0] == 0
    (relu,) = load_suite(imported.folder / "with operators").tasks
    assert relu.policy.library == ("linear", "conv2d")
    assert load_suite(imported.folder / "suite").task("level1_19_relu").policy.library == ()


@pytest.mark.slow
def test_an_operator_that_torch_does_not_have_is_refused(
    imported: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = run(imported.checkout, "--library", "convolve2d", "--output", str(imported.folder / "refused"))
    assert code == 2
    assert "--library: torch and torch.nn.functional have no function 'convolve2d'" in capsys.readouterr().err
    assert not (imported.folder / "refused").exists()


@pytest.mark.slow
def test_sizes_come_from_the_cache_the_second_time(imported: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_search.SizeChooser.func, "_find", None)  # type: ignore[attr-defined]
    code, output = run(
        imported.checkout, "--output", str(imported.folder / "again"), "--level", "1", "--limit", "4", "--json"
    )
    assert code == 0
    result = json.loads(output)
    first = load_suite(imported.folder / "suite")
    assert [task["name"] for task in result["tasks"]] == ["level1_19_relu"]
    (second,) = load_suite(imported.folder / "again").tasks
    assert second.sizes == first.task("level1_19_relu").sizes
    assert result["tasks"][0]["sizes"]["small"] == second.size("small").constants
    assert result["tasks"][0]["admitted"] is True
    assert {item["origin"] for item in result["not_loaded"]} == {
        "level1/2_Broken.py",
        "level1/4_Random.py",
        "level1/5_Raises.py",
        "level1/6_Constant.py",
    }


@pytest.mark.slow
def test_where_nothing_can_be_used_nothing_is_written(imported: Workplace) -> None:
    output = imported.folder / "nothing"
    code, printed = run(imported.checkout, "--output", str(output), "--level", "4")
    assert code == 1
    assert printed.splitlines()[-1] == "0 tasks, 1 not loaded"
    assert not output.exists()


@pytest.mark.slow
def test_mistakes_are_one_line(imported: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, output in [
        ((imported.checkout, "--output", str(imported.folder)), "not empty, and no suite that was written here"),
        ((imported.checkout, "--output", "x", "--format", "y"), "there is no format 'y'"),
        ((imported.checkout, "--output", "x", "--level", "9"), "no task of level 9; levels: 1, 2, 3, 4"),
        ((imported.checkout, "--output", "x", "--select", "level1_23_sofmax"), "did you mean level1_23_softmax?"),
        ((str(imported.folder / "absent"), "--output", "x"), "there is no "),
    ]:
        assert run(*arguments)[0] == 2
        error = capsys.readouterr().err
        assert output in error
        assert "Traceback" not in error


@pytest.mark.slow
def test_a_selection_takes_tasks_and_what_is_not_loaded_alike(imported: Workplace) -> None:
    code, output = run(
        imported.checkout, "--output", str(imported.folder / "selected"), "--json",
        "--select", "1/23", "--select", "*_random", "--select", "level2",
    )  # fmt: skip
    assert code == 0
    result = json.loads(output)
    assert [task["name"] for task in result["tasks"]] == [
        "level1_23_softmax",
        "level2_1_linear_inline",
        "level2_2_casts",
    ]
    assert [item["origin"] for item in result["not_loaded"]] == ["level1/4_Random.py"]


@pytest.mark.slow
def test_what_does_not_end_and_what_a_package_would_cure_is_not_kept(imported: Workplace) -> None:
    kept = [path.read_text() for path in (imported.folder / "cache").rglob("*.json")]
    assert len(kept) == len(ALL) - len({"level1/2_Broken.py", "level4/1_Fetches.py", HUNG, PACKAGE})
    assert not any("does not end" in text or "No module named" in text for text in kept)


@pytest.mark.slow
def test_two_imports_are_equal_byte_for_byte_though_one_of_them_has_to_share_its_cores(
    imported: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    selected = ("--select", "level1_19*", "--select", "level1_35*")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        code, _ = run(imported.checkout, "--output", str(tmp_path / "suite"), *selected, "--jobs", "1")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert code == 0
    assert run(imported.checkout, "--output", str(tmp_path / "quiet"), *selected, "--refresh")[0] == 0
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("suite", "quiet")
    )
    assert first == second
    tasks = load_suite(tmp_path / "suite").tasks
    assert [task.digest for task in tasks] == [
        imported_task.model_copy(update={"suite": "suite"}).digest
        for imported_task in load_suite(imported.folder / "suite").select([task.name for task in tasks])
    ]


def test_progress_says_how_much_is_done_and_how_long_the_rest_takes() -> None:
    assert progress(50, 250, 60.0) == "50 of 250 tasks have sizes; about 4 min to go"
    assert progress(240, 250, 60.0) == "240 of 250 tasks have sizes; less than a minute to go"


def test_reasons_of_several_problems_are_counted() -> None:
    reasons = ["no 'a' in row 1", "no 'b' in row 2", "other", "no 'c' in row 30", "other"]
    assert frequent_reasons([NotLoaded("", reason) for reason in reasons]) == [("no … in row …", 3)]
