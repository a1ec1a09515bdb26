"""Captured graphs of small models, made in this process: the child's part without its jail."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from kernelforge.capture.client import read_graph
from kernelforge.capture.records import CapturedGraph
from kernelforge.capture.worker import capture

PRELUDE = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def model_text(body: str, inputs: str, init: str = "pass") -> str:
    """A file with a model of this ``forward``, and its two functions."""
    return PRELUDE + (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"{textwrap.indent(textwrap.dedent(init).strip(), ' ' * 8)}\n"
        "    def forward(self, x, *others):\n"
        f"{textwrap.indent(textwrap.dedent(body).strip(), ' ' * 8)}\n"
        "def make_model():\n    return Net().eval()\n"
        f"def make_inputs():\n    return [{inputs}]\n"
    )


@pytest.fixture
def graph_of() -> Callable[..., CapturedGraph]:
    def make(body: str, inputs: str, init: str = "pass", module: str = "") -> CapturedGraph:
        text = model_text(body, inputs, init)
        return read_graph(capture(text, "make_model", text, "make_inputs", module))

    return make
