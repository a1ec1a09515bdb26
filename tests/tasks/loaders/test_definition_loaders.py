"""FlashInfer-Bench and SOL-ExecBench: files in their formats, written here, become tasks that the oracle runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import UsageError
from kernelforge.records import Size, Task
from kernelforge.sandbox import Zygote
from kernelforge.tasks import parse_task_file
from kernelforge.tasks.loaders.base import ExternalTask, Loaded
from kernelforge.tasks.loaders.flashinfer import FlashInferBench, SolExecBench

NORM = """import torch

@torch.no_grad()
def run(x, gain, eps):
    rows, width = x.shape
    assert width == 96
    assert torch.isfinite(x).all(), (
        "finite"
    )
    scale = torch.rsqrt(x.to(torch.float32).square().mean(-1, keepdim=True) + eps)
    return (x * scale * gain).to(x.dtype)
"""


def norm_definition(**changes: Any) -> dict[str, Any]:
    return {
        "name": "scaled_norm_w96",
        "op_type": "norm",
        "description": 'Scaled norm of rows, width "96".\nMore text.',
        "tags": ["status:draft"],
        "axes": {"rows": {"type": "var", "description": "tokens"}, "width": {"type": "const", "value": 96}},
        "inputs": {
            "x": {"shape": ["rows", "width"], "dtype": "bfloat16", "description": None},
            "gain": {"shape": ["width"], "dtype": "bfloat16"},
            "eps": {"shape": None, "dtype": "float32"},
        },
        "outputs": {"y": {"shape": ["rows", "width"], "dtype": "bfloat16"}},
        "reference": NORM,
    } | changes


def norm_workload(rows: int, **inputs: Any) -> dict[str, Any]:
    sources = {"x": {"type": "random"}, "gain": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-5}}
    return {"uuid": f"rows-{rows}", "axes": {"rows": rows}, "inputs": sources | inputs}


def trace_set(folder: Path, definition: Any, workloads: list[Any], name: str = "norm/one") -> Path:
    for kind, suffix, text in (
        ("definitions", ".json", definition if isinstance(definition, str) else json.dumps(definition)),
        ("workloads", ".jsonl", "\n".join(item if isinstance(item, str) else json.dumps(item) for item in workloads)),
    ):
        path = folder / kind / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def traced(workload: dict[str, Any], definition: str = "scaled_norm_w96") -> dict[str, Any]:
    return {"definition": definition, "workload": workload, "solution": None, "evaluation": None}


def one_task(loaded: Loaded) -> ExternalTask:
    assert not loaded.not_loaded
    (task,) = loaded.tasks
    return task


def one_reason(loaded: Loaded) -> str:
    assert not loaded.tasks
    (failed,) = loaded.not_loaded
    assert "\n" not in failed.reason
    return failed.reason


def outputs_of(task: ExternalTask, constants: dict[str, Any] | None = None) -> tuple[Any, tuple[Any, ...]]:
    """Inputs and outputs, by the class that the oracle's child uses. The text is ours, so it may run here."""
    from kernelforge.evaluation.oracle.worker.reference import Reference

    reference = Reference(task.source, constants or {})
    inputs = reference.inputs(1)
    return inputs, reference.run(inputs)


def test_a_definition_with_its_workloads_becomes_a_task_at_the_largest(tmp_path: Path) -> None:
    workloads = [traced(norm_workload(rows)) for rows in (7, 4096, 30)]
    task = one_task(FlashInferBench().load(trace_set(tmp_path, norm_definition(), workloads)))
    parsed = parse_task_file(task.source, task.name)
    assert (task.name, task.origin) == ("scaled_norm_w96", "definitions/norm/one.json")
    assert task.title == parsed.title.replace("'", '"') == 'Scaled norm of rows, width "96".'
    assert parsed.constants == {"rows": 4096, "width": 96, "eps": 1e-5}
    assert parsed.parameters == ("x", "gain", "eps")
    assert task.tags == ("norm", "status:draft")
    assert list(task.sizes.values()) == [{"rows": 7}, {"rows": 30}]
    assert {"width", "eps", "run"} <= task.fixed
    assert "rows" not in task.fixed


def test_the_reference_computes_what_it_says_without_its_assertions(tmp_path: Path) -> None:
    import torch

    task = one_task(FlashInferBench().load(trace_set(tmp_path, norm_definition(), [norm_workload(5)])))
    assert "assert" not in task.source
    (x, gain, eps), (y,) = outputs_of(task, {"rows": 3})
    assert (x.shape, x.dtype, gain.shape, eps) == ((3, 96), torch.bfloat16, (96,), 1e-5)
    expected = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5) * gain.double()
    assert torch.allclose(y.double(), expected, rtol=2e-2, atol=1e-2)


def test_the_oracle_admits_a_loaded_task(tmp_path: Path, kept_zygotes: Callable[..., Zygote]) -> None:
    from kernelforge.evaluation.oracle.client import Oracle

    external = one_task(FlashInferBench().load(trace_set(tmp_path, norm_definition(), [norm_workload(40)])))
    sizes = (Size(name="full"), Size(name="small", constants={"rows": 9}))
    task = Task(name=external.name, suite="x", title="", level=2, source=external.source, sizes=sizes)
    with Oracle(kept_zygotes("oracle"), task) as oracle:
        assert oracle.trace("small").nodes
        assert oracle.admit().ok


SCATTER = """from __future__ import annotations
import torch

LIMIT = 3

def get_inputs(axes_and_scalars, device):
    rows = axes_and_scalars["rows"]
    return {
        "index": torch.arange(rows * axes_and_scalars["copies"], device=device) % rows,
        "source": torch.randn(axes_and_scalars["picked"], LIMIT, device=device),
    }


def run(index, source):
    out = source.new_zeros(int(index.shape[0]) // 2, LIMIT)
    return out.index_add(0, index, source)
"""


def scatter(folder: Path, **changes: Any) -> Path:
    definition = {
        "name": "scatter_add",
        "axes": {
            "rows": {"type": "var"},
            "copies": {"type": "const", "value": 2},
            "picked": {"type": "expr", "expression": "rows * copies"},
            "wide": {"type": "const", "value": 3},
        },
        "custom_inputs_entrypoint": "get_inputs",
        "inputs": {
            "index": {"shape": ["picked"], "dtype": "int64"},
            "source": {"shape": ["picked", "wide"], "dtype": "float32"},
        },
        "outputs": {"out": {"shape": ["rows", "wide"], "dtype": "float32"}},
        "reference": SCATTER,
    } | changes
    custom = {name: {"type": "custom"} for name in definition["inputs"]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "definition.json").write_text(json.dumps(definition))
    (folder / "workload.jsonl").write_text(json.dumps({"uuid": "u1", "axes": {"rows": 50}, "inputs": custom}) + "\n")
    return folder


def test_sol_execbench_problems_make_their_own_inputs_and_compute_axes(tmp_path: Path) -> None:
    import torch

    scatter(tmp_path / "L1" / "scatter")
    task = one_task(SolExecBench().load(tmp_path))
    assert task.origin == "L1/scatter"
    assert parse_task_file(task.source, "t").constants["picked"] == 100
    (index, source), (out,) = outputs_of(task, {"rows": 4})
    assert index.tolist() == [0, 1, 2, 3] * 2
    assert torch.equal(out, source[:4] + source[4:])


def test_bytes_of_eight_bit_floats_cross_as_uint8(tmp_path: Path) -> None:
    import torch

    definition = norm_definition(
        name="sum8",
        inputs={"x": {"shape": ["rows", "width"], "dtype": "float8_e4m3fn"}},
        outputs={"y": {"shape": ["rows"], "dtype": "float32"}},
        reference="import torch\ndef run(x):\n    return x.float().sum(1)\n",
    )
    workload = {"uuid": "a", "axes": {"rows": 6}, "inputs": {"x": {"type": "random"}}}
    task = one_task(FlashInferBench().load(trace_set(tmp_path, definition, [workload])))
    (x,), (y,) = outputs_of(task)
    assert x.dtype == torch.uint8
    assert torch.allclose(y, x.view(torch.float8_e4m3fn).float().sum(1))


def test_probabilities_to_sample_from_are_probabilities(tmp_path: Path) -> None:
    definition = norm_definition(
        op_type="sampling",
        inputs={"probs": {"shape": ["rows", "width"], "dtype": "float32"}},
        outputs={"best": {"shape": ["rows"], "dtype": "int64"}},
        reference="import torch\ndef run(probs):\n    return probs.argmax(1)\n",
    )
    workload = {"uuid": "a", "axes": {"rows": 6}, "inputs": {"probs": {"type": "random"}}}
    task = one_task(FlashInferBench().load(trace_set(tmp_path, definition, [workload])))
    (probs,), _ = outputs_of(task)
    assert probs.sum(1).sub(1).abs().max() < 1e-5


def paged(folder: Path, pages: int, path: str = "blobs/pages.safetensors") -> Path:
    numpy = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    definition = norm_definition(
        inputs={
            "table": {"shape": ["rows"], "dtype": "int32"},
            "cache": {"shape": ["width", "width"], "dtype": "float32"},
        },
        outputs={"y": {"shape": ["rows", "width"], "dtype": "float32"}},
        reference="import torch\ndef run(table, cache):\n    return cache[table]\n",
    )
    sources = {
        "table": {"type": "safetensors", "path": path, "tensor_key": "table"},
        "cache": {"type": "safetensors", "path": path, "tensor_key": "cache"},
    }
    (folder / "blobs").mkdir(parents=True)
    table = numpy.arange(pages, dtype=numpy.int32)[::-1].copy()
    safetensors.save_file({"table": table}, folder / "blobs" / "pages.safetensors")
    return trace_set(folder, definition, [{"uuid": "p", "axes": {"rows": pages}, "inputs": sources}])


def test_few_integers_of_a_file_are_written_into_the_task_and_hold_its_axis(tmp_path: Path) -> None:
    task = one_task(FlashInferBench().load(paged(tmp_path, 6)))
    (table, cache), _ = outputs_of(task)
    assert table.tolist() == [5, 4, 3, 2, 1, 0]
    assert cache.shape == (96, 96)
    assert "rows" in task.fixed


def test_many_integers_of_a_file_are_a_reason(tmp_path: Path) -> None:
    assert "600 integers from a file" in one_reason(FlashInferBench().load(paged(tmp_path, 600)))


def test_files_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    inside = paged(tmp_path / "set", 6, path="../../secret.safetensors")
    assert "outside the folder" in one_reason(FlashInferBench().load(inside))


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in norm_definition().items() if key != name}


@pytest.mark.parametrize(
    ("definition", "workloads", "reason"),
    [
        ("{", [], "not JSON"),
        ("[" * 100_000, [], "not JSON"),
        (without("reference"), [], "reference: Field required"),
        (norm_definition(reference="import flashinfer\ndef run(x): ..."), [norm_workload(1)], "imports flashinfer"),
        (norm_definition(reference="def run(:"), [norm_workload(1)], "its reference, line 1"),
        (norm_definition(reference="def walk(x): ..."), [norm_workload(1)], "no function `run`"),
        (norm_definition(outputs={"y": {"shape": None, "dtype": "float32"}}), [norm_workload(1)], "Python number"),
        (norm_definition(outputs={"y": {"shape": [], "dtype": "float4_e2m1"}}), [norm_workload(1)], "float4_e2m1"),
        (norm_definition(outputs={"y": {"shape": ["z"], "dtype": "int8"}}), [norm_workload(1)], "axis 'z'"),
        (norm_definition(axes={"a b": {"type": "var"}}), [norm_workload(1)], "cannot be a name"),
        (norm_definition(), [], "no workloads"),
        (norm_definition(), ["{"], "workload line 1: not JSON"),
        (norm_definition(), [{"uuid": "u", "axes": {}, "inputs": {}}], "no value for the axis 'rows'"),
        (norm_definition(), [{"uuid": "u", "axes": {"rows": 3}, "inputs": {}}], "has no input 'x'"),
        (norm_definition(), [norm_workload(3, eps={"type": "random"})], "scalar input 'eps'"),
        (norm_definition(), [norm_workload(3, eps={"type": "scalar"})], "'eps' has no value"),
        (norm_definition(), [norm_workload(3, x={"type": "custom"})], "made by a function"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_listed_with_the_reason(
    tmp_path: Path, definition: Any, workloads: list[Any], reason: str
) -> None:
    assert reason in one_reason(FlashInferBench().load(trace_set(tmp_path, definition, workloads)))


def test_one_broken_definition_leaves_the_others(tmp_path: Path) -> None:
    trace_set(tmp_path, norm_definition(), [norm_workload(8)])
    trace_set(tmp_path, "nonsense", [], name="norm/two")
    loaded = FlashInferBench().load(tmp_path)
    assert [task.name for task in loaded.tasks] == ["scaled_norm_w96"]
    assert [failed.origin for failed in loaded.not_loaded] == ["definitions/norm/two.json"]


def test_each_loader_recognises_its_own_format(tmp_path: Path) -> None:
    trace_set(tmp_path / "fib", norm_definition(), [norm_workload(8)])
    scatter(tmp_path / "sol" / "L1" / "scatter")
    assert [FlashInferBench().recognises(tmp_path / name) for name in ("fib", "sol")] == [True, False]
    assert [SolExecBench().recognises(tmp_path / name) for name in ("fib", "sol")] == [False, True]


@pytest.mark.parametrize("loader", [FlashInferBench(), SolExecBench()], ids=lambda loader: loader.name)
def test_a_folder_in_another_format_is_refused_with_what_was_looked_for(tmp_path: Path, loader: Any) -> None:
    with pytest.raises(UsageError, match=r"definition"):
        loader.load(tmp_path)
