"""Task sets published to do harm: each problem is loaded or listed, in bounded time, from the folder alone."""

from __future__ import annotations

import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelforge.errors import UsageError
from kernelforge.records import Size, TaskPolicy
from kernelforge.tasks import load_suite, parse_task_file
from kernelforge.tasks.loaders import ExternalTask, Loaded, NotLoaded, loader_named, rows
from kernelforge.tasks.loaders.rows import Taken, distinct, task_name
from kernelforge.tasks.loaders.write_suite import Origin, SizedTask, write_suite
from tests.support import kernelbench_files as files
from tests.tasks.loaders.test_definition_loaders import norm_definition, norm_workload, trace_set
from tests.tasks.loaders.test_robust_kbench_loader import MODULE
from tests.tasks.loaders.test_row_loaders import write_parquet

CPU_SECONDS = 12.0
SECRET = "canary-5a11"


def loaded(name: str, source: Path) -> Loaded:
    """Load a source in bounded time; every task is a task file with a unique name."""
    start = time.process_time()
    result = loader_named(name).load(source)
    assert time.process_time() - start < CPU_SECONDS
    names = [task.name for task in result.tasks]
    assert len(set(names)) == len(names)
    for task in result.tasks:
        assert len(task.name) < 100
        assert task.level >= 0
        parse_task_file(task.source, task.name)
        assert SECRET not in task.source
    assert SECRET not in str(result.not_loaded)
    return result


def inputs_of(body: str) -> str:
    return files.INLINE + f"\n\ndef get_inputs():\n    {body}\n    return [torch.randn(16, 64)]\n"


TEXTS = {
    "many numbers": inputs_of("x = [" + "8, " * 30_000 + "]"),
    "a long name for many": inputs_of('x = {"' + "k" * 200_000 + '": [' + "8, " * 200 + "]}"),
    "a huge number": inputs_of("x = 0x" + "f" * 100_000),
    "a deep sum": inputs_of("x = " + "+".join(["16"] * 2000)),
    "a chain of calls": inputs_of("x = " + "a.b()." * 900 + "c()"),
    "a keyword at a number": inputs_of("x = 16if 1 else 0x10or 3"),
    "a pattern": inputs_of("match 3:\n        case {16: y}:\n            pass"),
    "behind the docstring": '"doc"; shape = (\n 16, 16)\n' + files.INLINE,
    "behind an import": "from __future__ import annotations; shape = (\n 16, 16)\n" + files.INLINE,
    "old line ends": files.INLINE.replace("\n", "\r"),
    "half a pair": inputs_of("x = '\ud800'"),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_hostile_text_in_a_row_is_loaded_or_listed(tmp_path: Path, text: str) -> None:
    row = {"code": text, "ops": "[" * 5000, "data_source": "torch#2"}
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps(row), json.dumps(row | {"code": files.SOFTMAX})]))
    result = loaded("ops-6k", tmp_path / "rows.jsonl")
    assert len(result.tasks) + len(result.not_loaded) == 2
    assert result.tasks[-1].source.count("class Model")


def test_what_stands_close_to_a_number_stays_apart(tmp_path: Path) -> None:
    (tmp_path / "1_a.py").write_text(TEXTS["a keyword at a number"])
    (task,) = loaded("kernelbench", tmp_path).tasks
    assert " if 1 else" in task.source


def test_rows_beyond_the_bounds_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_MAX_LINE_BYTES", 4000)
    monkeypatch.setattr(rows, "_MOST_ROWS", 3)
    row = {"code": files.SOFTMAX, "ops": "[]", "data_source": "torch#1"}
    for path, content in (
        (tmp_path / "long.jsonl", json.dumps(row) + "\n" + "x" * 5000),
        (tmp_path / "many.jsonl", "\n".join([json.dumps(row)] * 5)),
    ):
        path.write_text(content)
        assert "no further" in loaded("ops-6k", path).not_loaded[0].reason
    write_parquet(tmp_path / "long.parquet", [row, {**row, "code": "x" * 5000}])
    write_parquet(tmp_path / "many.parquet", [row] * 5)
    for name in ("long", "many"):
        assert "no further" in loaded("ops-6k", tmp_path / f"{name}.parquet").not_loaded[0].reason


@pytest.mark.slow
def test_a_text_that_a_parquet_file_has_once_is_not_held_for_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a megabyte for 40,000 rows would be 20 GB."""
    monkeypatch.setattr(rows, "_MOST_BYTES", 16 << 20)
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 40_000), pyarrow.array(["#" * (1 << 19)]))
    nothing = pyarrow.array([None] * 40_000, pyarrow.string())
    table = pyarrow.table({"code": text, "ops": nothing, "data_source": nothing})
    parquet.write_table(table, tmp_path / "bomb.parquet", compression="zstd")
    result = loaded("ops-6k", tmp_path / "bomb.parquet")
    assert not result.tasks
    assert "no further" in result.not_loaded[-1].reason


@pytest.mark.parametrize("level", [-1, 10**9, None])
def test_a_level_that_is_none_is_none(tmp_path: Path, level: int | None) -> None:
    row = {"code": files.SOFTMAX, "level": level, "name": "1_\x1b[31m\u202e" + "a" * 500, "problem_id": -5}
    write_parquet(tmp_path / "a.parquet", [row, row])
    assert [task.level for task in loaded("kernelbench-parquet", tmp_path).tasks] == [1, 1]


@pytest.mark.parametrize("level", [True, False])
def test_a_truth_is_no_level(tmp_path: Path, level: bool) -> None:
    write_parquet(tmp_path / "a.parquet", [{"code": files.SOFTMAX, "level": level, "name": "a", "problem_id": 1}])
    assert [task.level for task in loaded("kernelbench-parquet", tmp_path).tasks] == [1]


@pytest.mark.parametrize("content", [b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"PAR1\xff\xff\xff\xffPAR1"])
def test_a_parquet_file_that_is_none_is_one_error(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(content)
    for name in ("kernelbench-parquet", "ops-6k"):
        assert loader_named(name).recognises(tmp_path) in (True, False)
        with pytest.raises(UsageError, match=r"cannot read .*a\.parquet"):
            loader_named(name).load(tmp_path)


def test_names_cost_little_however_alike_they_are() -> None:
    taken: Taken = {}
    start = time.process_time()
    result = {distinct("same", taken) for _ in range(30_000)}
    assert task_name("a" + "\u0316\u0300" * 500_000) == "a"
    assert time.process_time() - start < CPU_SECONDS
    assert len(result) == 30_000
    assert distinct("same_7", taken) not in result


def plant(folder: Path) -> dict[str, Path]:
    """A secret next to the published folder, and things in it that are no plain files."""
    secret = folder / "private"
    secret.mkdir(parents=True)
    (secret / "1_key.py").write_text(f"# {SECRET}\n{files.SOFTMAX}")
    (secret / "func_forward.py").write_text(f"# {SECRET}\n{MODULE}")
    (secret / "key.json").write_text(json.dumps(norm_definition(description=SECRET)))
    (secret / "key.jsonl").write_text(json.dumps(norm_workload(4)))
    return {"link": secret, "device": Path("/dev/zero")}


def test_kernelbench_is_read_within_its_folder(tmp_path: Path) -> None:
    secret = plant(tmp_path)["link"]
    source = tmp_path / "set"
    (source / "level1").mkdir(parents=True)
    (source / "level1" / "1_a.py").write_text(files.SOFTMAX)
    (source / "level1" / "2_b.py").symlink_to(secret / "1_key.py")
    (source / "level1" / "3_c.py").symlink_to("/dev/zero")
    os.mkfifo(source / "level1" / "4_d.py")
    (source / "level2").symlink_to(secret)
    result = loaded("kernelbench", source)
    assert [task.origin for task in result.tasks] == ["level1/1_a.py"]
    assert len(result.not_loaded) >= 4


def test_robust_kbench_is_read_within_its_folder(tmp_path: Path) -> None:
    secret = plant(tmp_path)["link"]
    source = tmp_path / "set"
    for name in ("a", "b", "c", "d"):
        (source / name).mkdir(parents=True)
        (source / name / "config_forward.json").write_text("{}")
    (source / "a" / "func_forward.py").symlink_to(secret / "func_forward.py")
    (source / "b" / "func_forward.py").symlink_to("/dev/zero")
    os.mkfifo(source / "c" / "func_forward.py")
    (source / "d" / "func_forward.py").write_text(MODULE)
    (source / "d" / "config_forward.json").unlink()
    os.mkfifo(source / "d" / "config_forward.json")
    result = loaded("robust-kbench", source)
    assert (len(result.tasks), len(result.not_loaded)) == (0, 4)


@pytest.mark.parametrize(
    "config",
    [
        '{"single_input_configs": [{"batch_size": NaN}]}',
        '{"single_input_configs": [{"batch_size": -1e999}]}',
        '{"single_input_configs": [{"batch_size": 1, "BATCH_SIZE": 2}]}',
        '{"single_input_configs": [{"batch_size": ' + "[" * 900 + "]" * 900 + "}]}",
        "[" * 100_000,
        '{"single_input_configs": [{"batch_size": ' + "1" * 4000 + "}]}",
    ],
)
def test_hostile_settings_are_listed(tmp_path: Path, config: str) -> None:
    (tmp_path / "func_forward.py").write_text(MODULE)
    (tmp_path / "config_forward.json").write_text(config)
    assert len(loaded("robust-kbench", tmp_path).not_loaded) == 1


@pytest.mark.parametrize("head", ["def \\\n get_inputs(", "def \uff47et_inputs("])
def test_a_name_that_is_not_plainly_written_is_listed(tmp_path: Path, head: str) -> None:
    (tmp_path / "func_forward.py").write_text(MODULE.replace("def get_inputs(", head))
    (tmp_path / "config_forward.json").write_text("{}")
    assert len(loaded("robust-kbench", tmp_path).not_loaded) == 1


def test_definitions_are_read_within_their_folder(tmp_path: Path) -> None:
    secret = plant(tmp_path)["link"]
    source = trace_set(tmp_path / "set", norm_definition(), [norm_workload(4)])
    for name, target in {"link": secret / "key.json", "device": Path("/dev/zero")}.items():
        (source / "definitions" / "norm" / f"{name}.json").symlink_to(target)
        (source / "workloads" / "norm" / f"{name}.jsonl").symlink_to(secret / "key.jsonl")
    os.mkfifo(source / "definitions" / "norm" / "pipe.json")
    (source / "workloads" / "norm" / "pipe.jsonl").write_text("")
    result = loaded("flashinfer-bench", source)
    assert (len(result.tasks), len(result.not_loaded)) == (1, 3)


DEFINITIONS: dict[str, dict[str, Any]] = {
    "code in the name": {"name": '"""\nimport os\n"""'},
    "code in the description": {"description": 'a\\"""; import os\r\x0b"""'},
    "half a pair": {"tags": ["\ud800"], "op_type": "\udfff\n\x1b[2J"},
    "a long name": {"name": "n" * 100_000},
    "a huge axis": {"axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": 10**4000}}},
    "an infinite axis": {"axes": {"rows": {"type": "var"}, "width": {"type": "expr", "expression": "1e999"}}},
    "an imaginary axis": {"axes": {"rows": {"type": "var"}, "width": {"type": "expr", "expression": "(-1)**0.5"}}},
    "a deep axis": {"axes": {"rows": {"type": "var"}, "width": {"type": "expr", "expression": "-" * 400 + "rows"}}},
    "many axes": {"outputs": {"y": {"shape": ["rows"] * 100_000, "dtype": "bfloat16"}}},
    "many mistakes": {"inputs": {f"x{number}": 1 for number in range(50_000)}},
    "old line ends": {"reference": NORM.replace("\n", "\r")} if (NORM := norm_definition()["reference"]) else {},
    "a hidden name": {"reference": NORM.replace("def run", "def \\\n run"), "axes": norm_definition()["axes"]},
    "many names": {"reference": NORM + "\nrows = 1\n" + "assert rows\n" * 3000 + "rows + rows\n" * 3000},
}


@pytest.mark.parametrize("changes", DEFINITIONS.values(), ids=DEFINITIONS)
def test_a_hostile_definition_is_loaded_or_listed(tmp_path: Path, changes: dict[str, Any]) -> None:
    source = trace_set(tmp_path, norm_definition(**changes), [norm_workload(4)])
    trace_set(tmp_path, norm_definition(), [norm_workload(4)], name="norm/two")
    result = loaded("flashinfer-bench", source)
    assert len(result.tasks) + len(result.not_loaded) == 2
    for task in result.tasks:
        assert "\nimport os" not in task.source
        f"{task.title}{task.tags}".encode()


@pytest.mark.parametrize(
    "workload",
    [
        norm_workload(10**300),
        norm_workload(-1),
        norm_workload(4, eps={"type": "scalar", "value": float("nan")}),
        norm_workload(4, eps={"type": "scalar", "value": float("-inf")}),
        norm_workload(4, eps={"type": "scalar", "value": 10**4000}),
        "[" * 100_000,
        "1" * 5000,
    ],
)
def test_a_hostile_workload_is_listed(tmp_path: Path, workload: Any) -> None:
    assert len(loaded("flashinfer-bench", trace_set(tmp_path, norm_definition(), [workload])).not_loaded) == 1


@pytest.mark.parametrize("path", ["a\0b", "../private/key", "/etc/hostname", "x" * 5000, "circle", "."])
def test_tensors_come_from_within_the_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    plant(tmp_path.parent / f"{tmp_path.name}-outside")
    definition = norm_definition()
    definition["inputs"]["gain"]["dtype"] = "int32"
    workload = norm_workload(4, gain={"type": "safetensors", "path": path, "tensor_key": "a"})
    assert len(loaded("flashinfer-bench", trace_set(tmp_path, definition, [workload])).not_loaded) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=JSON)
def test_no_value_anywhere_in_a_definition_is_a_bug(tmp_path: Path, data: st.DataObject, value: Any) -> None:
    made: list[Any] = [copy.deepcopy(norm_definition()), copy.deepcopy(norm_workload(4))]
    node: Any = made
    while True:
        keys = list(range(len(node))) if isinstance(node, list) else list(node)
        key = data.draw(st.sampled_from(keys))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = value
    result = loader_named("flashinfer-bench").load(trace_set(tmp_path, made[0], [made[1]]))
    assert len(result.tasks) + len(result.not_loaded) == 1


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    source=st.sampled_from([files.SOFTMAX, files.INLINE, files.GROUP_NORM]),
    start=st.integers(0, 1200),
    length=st.integers(0, 30),
    new=st.text(max_size=6) | st.sampled_from(["\r", "\x0c", "\0", "((", '"""', "16if", "\\\n", "match", "=", "*"]),
)
def test_no_change_of_a_file_is_a_bug(tmp_path: Path, source: str, start: int, length: int, new: str) -> None:
    changed = source[:start] + new + source[start + length :]
    (tmp_path / "1_a.py").write_bytes(changed.encode(errors="surrogatepass"))
    result = loader_named("kernelbench").load(tmp_path)
    assert len(result.tasks) + len(result.not_loaded) == 1


HOSTILE_TEXT = st.text(
    st.characters(codec=None) | st.sampled_from("\n\r\t\0\x0b\x1b\x7f\x85\u2028\"'\\#[]=\ud800"),
    min_size=1,
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(title=HOSTILE_TEXT, tag=HOSTILE_TEXT, note=HOSTILE_TEXT, origin=HOSTILE_TEXT, reason=HOSTILE_TEXT)
def test_no_text_writes_anything_else_into_a_suite(
    tmp_path: Path, title: str, tag: str, note: str, origin: str, reason: str
) -> None:
    task = ExternalTask(name="softmax", title=title, source=files.SOFTMAX, origin=origin, tags=(tag,))
    sizes = (Size(name="full"), Size(name="small", constants={"dim": 64}))
    folder = tmp_path / "suite"
    sized = SizedTask(task, sizes, (note, f"{note}\n[[task]]\nname = 'x'", f"{note}\rpolicy = 1"))
    write_suite(folder, Origin("kernelbench", tmp_path), title, [sized], [NotLoaded(origin, reason)])
    (result,) = load_suite(folder).tasks
    assert (result.name, result.sizes, result.policy) == ("softmax", sizes, TaskPolicy())
    assert (result.title, result.tags[0]) == tuple(item.encode(errors="replace").decode() for item in (title, tag))


def test_what_a_user_put_into_a_suites_folder_is_not_written_over(tmp_path: Path) -> None:
    task = ExternalTask(name="softmax", title="t", source=files.SOFTMAX, origin="o")
    sized = SizedTask(task, (Size(name="full"), Size(name="small", constants={"dim": 64})))
    origin, own = Origin("kernelbench", tmp_path), tmp_path / "mine"
    own.mkdir()
    (own / "thesis.txt").write_text("years of work")
    for put in (
        lambda folder: (folder / "link").symlink_to(own),
        lambda folder: os.mkfifo(folder / "pipe"),
        lambda folder: (folder / "softmax.py").rename(own / "a.py").rename(folder / "b.py"),
        lambda folder: (folder / "import.json").write_text("[" * 100_000),
    ):
        folder = tmp_path / f"suite{len(list(tmp_path.iterdir()))}"
        write_suite(folder, origin, "t", [sized], [])
        put(folder)
        before = sorted(path.name for path in folder.iterdir())
        with pytest.raises(UsageError):
            write_suite(folder, origin, "t", [sized], [])
        assert sorted(path.name for path in folder.iterdir()) == before
    assert (own / "thesis.txt").read_text() == "years of work"
