"""Generated suites (``[[grid]]``), suites of all tasks of another, and tasks with a C function (``c_source``)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kernelforge.errors import TaskError, UsageError
from kernelforge.tasks import data_path, load_suite, load_task, parse_task_file, size_source

FILE = '''"""Ones."""
ROWS = 64
COLS = 8
SCALE = 0.5
class Model(nn.Module):
    def forward(self, x):
        return x
def get_inputs():
    return []
def get_init_inputs():
    return []
'''

MANIFEST = """
title = "Mine"
tags = ["all"]

[[grid]]
file = "ones.py"
name = "r{ROWS}_c{COLS}"
title = "{ROWS} by {COLS}"
level = 2
tags = ["grid"]
full = { ROWS = [1, 2, 3], COLS = [10, 20] }
small = { ROWS = 4, COLS = 4 }
hidden.odd = { ROWS = 5, COLS = 7 }
policy.accumulator = "float64"
"""

DERIVED = """
title = "Derived"
base = "mine"
tags = ["half"]
policy.accumulator = "float16"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "ones.py").write_text(FILE)
    (tmp_path / "mine" / "suite.toml").write_text(MANIFEST)
    return tmp_path / "mine"


def change(folder: Path, old: str, new: str) -> None:
    path = folder / "suite.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_grid_makes_a_task_of_each_combination(folder: Path) -> None:
    suite = load_suite(folder)
    assert [task.name for task in suite] == ["r1_c10", "r1_c20", "r2_c10", "r2_c20", "r3_c10", "r3_c20"]
    task = suite.task("r2_c20")
    assert (task.title, task.level, task.tags) == ("2 by 20", 2, ("all", "grid"))
    assert task.policy.accumulator == "float64"
    assert parse_task_file(task.source, "t").constants == {"ROWS": 2, "COLS": 20, "SCALE": 0.5}
    assert "ROWS = 5\nCOLS = 7\n" in size_source(task, "hidden_odd")
    assert len({item.digest for item in suite}) == 6
    assert load_task(f"{folder}/r2_c20") == task


def test_a_grid_may_stand_beside_tasks_and_its_title_be_the_files(folder: Path) -> None:
    change(folder, 'title = "{ROWS} by {COLS}"\n', "")
    path = folder / "suite.toml"
    path.write_text(path.read_text() + '\n[[task]]\nname = "ones"\nsmall = { ROWS = 2 }\n')
    suite = load_suite(folder)
    assert [task.name for task in suite][:2] == ["ones", "r1_c10"]
    assert suite.task("r1_c10").title == "Ones."
    assert load_task(folder / "ones.py") == suite.task("ones")


def test_the_file_of_a_grid_is_no_task_of_its_own(folder: Path) -> None:
    with pytest.raises(
        UsageError, match=r"ones.py makes many tasks of the suite mine; name one of them, such as mine/r3_c20"
    ):
        load_task(folder / "ones.py")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("r{ROWS}_c{COLS}", "r{ROWS}", "task names repeat: r1, r2, r3"),
        (
            "r{ROWS}_c{COLS}",
            "r{ROW}",
            r"cannot fill in 'r\{ROW\}' \('ROW'\); names for the braces: \{ROWS\}, \{COLS\}",
        ),
        ("r{ROWS}_c{COLS}", "r{ROWS", r"cannot fill in 'r\{ROWS'"),
        ("r{ROWS}_c{COLS}", "r{ROWS.imag.x}", "cannot fill in"),
        ("r{ROWS}_c{COLS}", "R{ROWS}-{COLS}", r"grid 'R\{ROWS\}-\{COLS\}': name: .*given: 'R1-10'"),
        ("COLS = [10, 20]", "COLS = [10], WIDTH = [20]", "there is no module constant 'WIDTH'"),
        ("COLS = [10, 20]", "COLS = []", "full makes 0 tasks; a grid makes 1 to 10,000"),
        ("COLS = [10, 20]", f"COLS = {list(range(5000))}", "full makes 15,000 tasks"),
        ("COLS = [10, 20]", "COLS = 10", "full.COLS"),
        ("small = { ROWS = 4", "small = { ROW = 4", "there is no module constant 'ROW'"),
        ('file = "ones.py"', 'file = "../ones.py"', "outside the suite"),
        ('file = "ones.py"\n', "", "grid.0.file"),
        ("[[grid]]", "[[grind]]", "grind"),
        ('title = "Mine"', 'title = "Mine"\nbase = "core"', "it has no \\[\\[grid\\]\\] of its own"),
    ],
)
def test_a_faulty_grid_is_named(folder: Path, old: str, new: str, message: str) -> None:
    change(folder, old, new)
    with pytest.raises(TaskError, match=message):
        load_suite(folder)


def test_an_empty_suite_is_refused(folder: Path) -> None:
    (folder / "suite.toml").write_text('title = "Nothing"\n')
    with pytest.raises(TaskError, match="the suite would be empty"):
        load_suite(folder)


def test_a_suite_may_take_all_tasks_of_another_and_change_how_they_are_judged(folder: Path) -> None:
    derived = folder.parent / "derived"
    derived.mkdir()
    (derived / "suite.toml").write_text(DERIVED)
    base, suite = load_suite(folder), load_suite(derived)
    assert [task.name for task in suite] == [task.name for task in base]
    task = suite.task("r2_c20")
    assert (task.suite, task.policy.accumulator, task.tags) == ("derived", "float16", ("all", "grid", "half"))
    assert (task.source, task.sizes) == (base.task("r2_c20").source, base.task("r2_c20").sizes)
    (derived / "suite.toml").write_text(DERIVED.replace('"float16"', '"float8"'))
    with pytest.raises(TaskError, match=r"derived/suite\.toml: accumulator"):
        load_suite(derived)
    (derived / "suite.toml").write_text(DERIVED + '\n[[task]]\nname = "r1_c10"\nfull.COLS = 30\n')
    (item,) = load_suite(derived)
    assert item.policy.accumulator == "float16"
    assert "COLS = 30\n" in item.source


def test_the_file_of_a_grid_is_parsed_once_for_all_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = ast.parse
    monkeypatch.setattr(
        ast, "parse", lambda source, *rest, **named: parsed.append(source) or parse(source, *rest, **named)
    )
    assert len(load_suite("hgemm")) == 1000
    assert 1 <= len(parsed) < 5


def test_an_unknown_name_in_a_large_suite_does_not_list_it_all() -> None:
    with pytest.raises(UsageError, match=r"and 900 more$"):
        load_suite("hgemm").task("m1_n1_k1")


C_MANIFEST = """
title = "Mine"

[[task]]
name = "ones"
c_source = "ones.c"
small = { ROWS = 2 }
"""


@pytest.fixture
def c_folder(folder: Path) -> Path:
    (folder / "suite.toml").write_text(C_MANIFEST)
    (folder / "ones.c").write_bytes(b"void ones(int rows, float *x)\r\n{\r\n}\r\n")
    return folder


def test_a_task_may_have_a_c_function(c_folder: Path) -> None:
    task = load_suite(c_folder).task("ones")
    assert task.c_source == "void ones(int rows, float *x)\n{\n}\n"
    before = task.digest
    (c_folder / "ones.c").write_text("void ones(int rows, const float *x)\n{\n}\n")
    assert load_suite(c_folder).task("ones").digest != before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"there is no C file .*ones\.c; c_source names a file in the suite's folder"),
        (b" \n", r"ones\.c is empty"),
        (b"// \xff\n", r"ones\.c is not UTF-8 text \(byte 3\)"),
        (b"// " + b"x" * (64 << 10), r"ones\.c has more than 65,536 bytes"),
    ],
)
def test_a_faulty_c_file_is_named(c_folder: Path, content: bytes | None, message: str) -> None:
    (c_folder / "ones.c").unlink()
    if content is not None:
        (c_folder / "ones.c").write_bytes(content)
    with pytest.raises(TaskError, match=message):
        load_suite(c_folder)


def test_a_c_file_lies_in_the_suites_folder(c_folder: Path) -> None:
    change(c_folder, '"ones.c"', '"../ones.c"')
    with pytest.raises(TaskError, match="outside the suite's folder"):
        load_suite(c_folder)


def test_the_examples_of_the_docs_load(folder: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "tasks.md").read_text()
    grid = page.split("### Generated suites")[1].split("```toml\n")[1].split("```")[0]
    (folder / "suite.toml").write_text(grid)
    (folder / "gemm.py").write_bytes((data_path("tasks") / "hgemm" / "gemm.py").read_bytes())
    assert len(load_suite(folder)) == 8
    translation = page.split("### Translating C")[1]
    (folder / "suite.toml").write_text(translation.split("```toml\n")[1].split("```")[0])
    for name in ("heat_step.c", "heat_step.py"):
        (folder / name).write_bytes((data_path("tasks") / "translate" / name).read_bytes())
    task = load_suite(folder).task("heat_step")
    signature = translation.split("```c\n")[1].split("\n")[1]
    assert signature in task.c_source
