"""Prints as JSON how far each process with a GPU gets on this machine: ``python stages.py [--cuda] [triton] ...``.

With ``--cuda`` the workers are the product's own, on cupy and the CUDA build of torch; without it each role's child
starts CUDA by its library alone, which needs no package. Names of :data:`COMPILERS` are tried in both tiers instead.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from kernelforge.devices.cuda.tools.tool_process import replay_command, run_tool, tool_environment  # noqa: E402
from kernelforge.errors import KernelForgeError  # noqa: E402
from kernelforge.sandbox import Limits, Zygote, select_tier  # noqa: E402
from kernelforge.sandbox.jail import Tier  # noqa: E402
from kernelforge.sandbox.policy import role_policy  # noqa: E402

START = "start_worker"
CUPY = "kernelforge.devices.cuda.worker.cupy_driver:make"
TASK = """
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return []
"""
CANDIDATE = TASK.replace("class Model(", "torch.cuda.init()\nclass ModelNew(")
TRITON = TASK.replace(
    "class Model(",
    """
import os, triton, triton.language as tl
from triton.backends.nvidia.driver import CudaUtils, libcuda_dirs
from triton.compiler import ASTSource
from triton.backends.compiler import GPUTarget
@triton.jit
def copy(x, out, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(out + at, tl.load(x + at))
assert libcuda_dirs() == [os.environ["TRITON_LIBCUDA_PATH"]], libcuda_dirs()
CudaUtils()  # a C compiler builds Triton's own module against the driver
source = ASTSource(fn=copy, signature={"x": "*fp32", "out": "*fp32", "n": "constexpr"}, constexprs={"n": 128})
assert triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["cubin"]
class ModelNew(""",
)
EXTENSION = TASK.replace(
    "class Model(",
    '''
from torch.utils.cpp_extension import load_inline
cuda = """
__global__ void scale(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }
torch::Tensor twice(torch::Tensor x) { scale<<<1, 32>>>(x.data_ptr<float>(), x.numel()); return x; }
"""
module = load_inline("twice", "torch::Tensor twice(torch::Tensor x);", cuda, functions=["twice"])
assert module.twice
class ModelNew(''',
)
COMPILERS = {"triton": TRITON, "load_inline": EXTENSION}
"""Candidates of the ModelNew lane that build something when they are loaded; none of it needs a GPU."""
SIZES = [{"name": "full"}, {"name": "small"}]
REQUESTS: dict[str, list[dict[str, Any]]] = {
    "gpu-runner": [{"op": "open"}],
    "gpu-oracle": [
        {
            "op": "load", "threads": 1, "device": "cuda:0", "scales": {},
            "task": {"name": "t", "suite": "t", "title": "", "level": 0, "source": TASK, "sizes": SIZES},
        }
    ],
    "gpu-modelnew": [{"op": "start", "threads": 1, "device": "cuda:0"}, {"op": "load", "source": CANDIDATE}],
}  # fmt: skip
LIMITS = Limits(wall_s=600, cpu_s=600, memory_bytes=8 << 30, tmp_bytes=256 << 20, file_bytes=256 << 20)


def main(arguments: list[str]) -> int:
    real = "--cuda" in arguments
    report = select_tier()
    if compilers := [name for name in arguments if name in COMPILERS]:
        tiers: tuple[Tier, ...] = ("namespaces", "landlock") if report.tier == "namespaces" else (report.tier,)
        print(json.dumps({f"{name}, {tier}": built(COMPILERS[name], tier) for name in compilers for tier in tiers}))
        return 0
    stages: dict[str, Any] = {"tier": report.tier, "detail": report.detail}
    for role in REQUESTS:
        stages[role] = run_stage(lambda role=role: child_of(role, real))
    stages["replay"] = run_stage(lambda: replayed(CUPY if real else f"{START}:make"))
    print(json.dumps(stages))
    return 0


def run_stage(stage: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Result of a stage, or the sentence with which it was refused."""
    try:
        return stage()
    except KernelForgeError as error:
        return {"refused": str(error)}


def child_of(role: str, real: bool, tier: Tier | None = None) -> dict[str, Any]:
    """Open one child after another of a role; the second shows what opening costs a warm helper."""
    policy = role_policy(role) if real else replace(role_policy(role), module=START)
    options = {"driver": CUPY, "ordinal": 0} if real and role == "gpu-runner" else {}
    with Zygote(role, policy=policy, options=options, tier=tier) as zygote:
        zygote.start()
        for _ in range(2):
            begun = time.monotonic()
            with zygote.spawn(LIMITS) as child:
                answers = [outcome(child, request) for request in (REQUESTS[role] if real else [{}])]
                opened_ms = 1000 * (time.monotonic() - begun)
                layers = child.layers
    return {"answer": answers[-1], "layers": layers, "opened_ms": round(opened_ms, 1)}


def built(source: str, tier: Tier) -> str:
    """Load a candidate that runs compilers, as the ModelNew lane does."""
    with Zygote("gpu-modelnew", tier=tier, environment={"TORCH_CUDA_ARCH_LIST": "9.0a"}) as zygote:
        with zygote.spawn(LIMITS) as child:
            outcome(child, REQUESTS["gpu-modelnew"][0])
            return outcome(child, {"op": "load", "source": source})


def outcome(child: Any, request: dict[str, Any]) -> str:
    try:
        return json.dumps(child.call(request).data)
    except KernelForgeError as error:
        return str(error).strip().splitlines()[-1]


def replayed(driver: str) -> dict[str, Any]:
    """The replay program, as far as its driver."""
    with tempfile.TemporaryDirectory(prefix="kernelforge-") as name:
        folder = Path(name)
        request = {"mode": "time", "driver": {"driver": driver, "ordinal": 0}, "tensors": []}
        request["readable"] = role_policy("gpu-runner").mounts
        (folder / "request.json").write_text(json.dumps(request))
        (folder / "cubin").touch()
        ended = run_tool(replay_command(folder), folder=folder, environment=tool_environment(folder), deadline_s=120)
    return {"answer": ended.output.strip().splitlines()[-1], "status": ended.status}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
