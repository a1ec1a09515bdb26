"""A small task, ``2x + y``, with a kernel and a plan that are right: what tests of the cascade make worse."""

from __future__ import annotations

from kernelforge.records import Size, Task

REFERENCE = """
import torch
import torch.nn as nn

ROWS = 64
COLS = 96


class Model(nn.Module):
    def forward(self, x, y):
        return x * 2 + y


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""

KERNEL = """__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
"""

PLAN = """def forward(x, y):
    out = empty_like(x)
    axpy[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
"""

SIZES = (
    Size(name="full"),
    Size(name="small", constants={"ROWS": 8, "COLS": 32}),
    Size(name="hidden_odd", constants={"ROWS": 7, "COLS": 33}),
    Size(name="hidden_tiny", constants={"ROWS": 1, "COLS": 5}),
)


def axpy_task(source: str = REFERENCE, sizes: tuple[Size, ...] = SIZES) -> Task:
    return Task(name="axpy", suite="test", title="2x + y", level=1, source=source, sizes=sizes)
