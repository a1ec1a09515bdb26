"""Shared parts of the MCP server's tests: a suite of small sizes, candidates for it, and the SDK's own client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
from mcp import Client
from mcp_types import Implementation

from kernelforge.mcp.server import build_server
from kernelforge.mcp.service import Service

ME = Implementation(name="Test Agent, v2", version="1.0")
CODER = "mcp:Test-Agent-v2/1.0"

_SOURCE = """
extern "C" __global__ void gelu(const float* x, float* y, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) {
        const float v = x[i];
        y[i] = EXPRESSION;
    }
}
"""
WRONG = _SOURCE.replace("EXPRESSION", "v > 0.0f ? v : 0.0f")
RIGHT = _SOURCE.replace("EXPRESSION", "0.5f * v * (1.0f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)))")
BROKEN = _SOURCE.replace("EXPRESSION", "no_such_name")
PLAN = """
def forward(x):
    out = empty_like(x)
    gelu[ceil_div(x.numel(), 256), 256](x, out, i64(x.numel()))
    return out
"""

_TASK = """
import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 64
COLS = 512


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""
_MANIFEST = """
title = "Small operators"
level = 1

[[task]]
name = "gelu"
small = { ROWS = 8, COLS = 32 }
hidden.odd = { ROWS = 3, COLS = 7919 }
hidden.wide = { ROWS = 2, COLS = 5284 }

[[task]]
name = "other"
file = "gelu.py"
small = { ROWS = 4, COLS = 64 }
"""
VISIBLE_COLS, HIDDEN_COLS = (512, 32), (7919, 5284)

T = TypeVar("T")
Call = Callable[..., Awaitable[dict[str, Any]]]


def write_suite(folder: Path) -> Path:
    """A suite of a task whose sizes are small, so that an evaluation takes no time; ``other`` is the same again."""
    folder.mkdir()
    (folder / "gelu.py").write_text(_TASK)
    (folder / "suite.toml").write_text(_MANIFEST)
    return folder


class Refused(Exception):
    """The tool answered with an error."""


def caller(client: Client) -> Call:
    """``await call("evaluate", task=...)``: the structured answer, or the error as an exception."""

    async def call(name: str, **arguments: Any) -> dict[str, Any]:
        result = await client.call_tool(name, arguments)
        if result.is_error:
            raise Refused(result.content[0].text)  # type: ignore[union-attr]
        assert result.structured_content is not None
        return result.structured_content

    return call


def talk(service: Service, script: Callable[[Call], Awaitable[T]], mode: str = "auto") -> T:
    """Have a client say what ``script`` says to a server in this process."""

    refused: list[Refused] = []

    async def main() -> T | None:
        async with Client(build_server(service), client_info=ME, mode=mode) as client:
            try:
                return await script(caller(client))
            except Refused as error:  # taken out of the client's task groups, which would wrap it
                refused.append(error)
                return None

    result = anyio.run(main)
    if refused:
        raise refused[0]
    return result  # type: ignore[return-value]


def ask(service: Service, name: str, **arguments: Any) -> dict[str, Any]:
    """One call."""
    return talk(service, lambda call: call(name, **arguments))
