"""A model of two equal blocks, and packages of operators for its groups, written by hand."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.capture.client import equal_groups, read_graph
from kernelforge.capture.records import CapturedGroup
from kernelforge.capture.worker import capture
from kernelforge.hardware.specs import spec_by_key
from kernelforge.packaging.manifest import (
    EVALUATION,
    KERNELS,
    MANIFEST,
    PLAN,
    REFERENCE,
    Manifest,
    PackagedSize,
    PackagedSpeedup,
    PackagedTask,
    PackagedTime,
    Provenance,
)
from kernelforge.records import Candidate, TaskPolicy, WeightSpec

TWO_BLOCKS = """
import torch
from torch import nn
import torch.nn.functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(32), nn.Linear(32, 64)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x):
        first, second = self.up(self.norm(x)).chunk(2, -1)
        return x + first.sin() * second.cos(), first

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        gates = []
        for layer in self.layers:
            x, gate = layer(x)
            gates.append(gate.mean())
        return {"y": x, "gates": gates, "name": "net"}

def make_model():
    return Net().eval()

def make_inputs():
    return [torch.randn(4, 16, 32)]
"""

NORM = """
__global__ void norm_rows(const float* x, const float* weight, const float* bias, float* out, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float mean = 0.0f, squares = 0.0f;
    for (int i = 0; i < 32; ++i) mean += x[row * 32 + i];
    mean /= 32;
    for (int i = 0; i < 32; ++i) squares += (x[row * 32 + i] - mean) * (x[row * 32 + i] - mean);
    float scale = 1.0f / sqrtf(squares / 32 + EPSILON);
    for (int i = 0; i < 32; ++i) out[row * 32 + i] = (x[row * 32 + i] - mean) * scale * weight[i] + bias[i];
}
"""
NORM_PLAN = """
def forward(x):
    out = empty_like(x)
    norm_rows[1, 64](x, w["p0"], w["p1"], out, i32(64))
    return out
"""
NORM_REFERENCE = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0, self.p1 = nn.Parameter(torch.ones(32)), nn.Parameter(torch.ones(32))

    def forward(self, x0):
        return torch.ops.aten.layer_norm.default(x0, [32], self.p0, self.p1)

def get_inputs():
    return [torch.randn(4, 16, 32)]

def get_init_inputs():
    return []
"""


def groups_of_model(text: str) -> dict[str, CapturedGroup]:
    """Groups of a model by the names of their operators."""
    graph = read_graph(capture(text, "make_model", text, "make_inputs", ""))
    groups = equal_groups(graph, {}, spec_by_key("h100"))
    return {" ".join(group.operators): group for group in groups}


def written_package(
    folder: Path, computed: CapturedGroup, source: str, plan: str, reference: str = NORM_REFERENCE, **changes: object
) -> Path:
    """A package of an operator for a group, without a project around it."""
    folder.mkdir(parents=True)
    size = PackagedSize(
        name="full",
        inputs=computed.input_specs,
        weights=tuple(WeightSpec(name=each.name, spec=each.spec, kind="parameter") for each in computed.weights),
        outputs=tuple(spec.model_copy(update={"stride": contiguous(spec.shape)}) for spec in computed.output_specs),
    )
    files = {KERNELS["cuda"]: source, PLAN: plan, REFERENCE: reference, EVALUATION: "{}"}
    for name, text in files.items():
        (folder / name).write_text(text)
    manifest = Manifest(
        name="kernelforge-op-norm",
        module="kernelforge_op_norm",
        task=PackagedTask(
            name="g01-norm", suite="mine", title="layer_norm", digest="0" * 16, level=1, policy=TaskPolicy()
        ),
        language="cuda",
        device="emulated:h100",
        gpu="NVIDIA H100 80GB HBM3",
        emulated="emulated:h100",
        arch="sm_90a",
        evaluator_version="13",
        candidate=Candidate(source=source, plan=plan).hash,
        sizes=(size,),
        time=PackagedTime(us=2.0, origin="modelled", source="emulated/7"),
        reference_us=PackagedTime(us=4.0, low_us=3.0, high_us=16 / 3, origin="predicted", source="a test"),
        speedup=PackagedSpeedup(value=2.0, low=1.0, high=4.0, origin="predicted"),
        group=computed.digest,
        licence="Apache-2.0",
        provenance=Provenance(run="r", attempt="a", author="test", written="2026-11-28T00:00:00Z", kernelforge="0"),
        files={name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()},
    ).model_copy(update=changes)
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    return folder


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@pytest.fixture
def norm_package(tmp_path: Path) -> Callable[..., Path]:
    """Makes a package of the layer norm of :data:`TWO_BLOCKS`, with an epsilon."""

    def make(epsilon: str = "1e-5f", name: str = "norm", **changes: object) -> Path:
        group = groups_of_model(TWO_BLOCKS)["layer_norm"]
        source = NORM.replace("EPSILON", epsilon)
        return written_package(tmp_path / name, group, source, NORM_PLAN, **changes)

    return make
