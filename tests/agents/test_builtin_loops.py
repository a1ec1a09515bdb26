"""The built-in Coder writes loops of ``forward`` over an extent as loops of the plan, right at every size."""

from __future__ import annotations

import re

import pytest

from kernelforge.agents.builtin.codegen.render import Rendered, render
from kernelforge.agents.builtin.coder import readable
from kernelforge.agents.builtin.design import MOVES, Design
from kernelforge.agents.builtin.ir.rolling import rolled
from kernelforge.compile import Compiler
from kernelforge.evaluation.oracle.worker.reference import Reference
from kernelforge.evaluation.oracle.worker.tracing import trace_source
from tests.agents import agent_setup as workbench
from tests.agents.test_builtin_operators import run_and_compare

TASK = """
import torch
import torch.nn as nn
T, B, D, H, C = 9, 3, 8, 6, 4
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.i2h = nn.Linear(D + H, H)
        self.x2g, self.h2g, self.h2o = nn.Linear(D, 4 * H), nn.Linear(H, 4 * H), nn.Linear(H, D)
        self.first, self.second = nn.Linear(D + H, H), nn.Linear(2 * H, H)
        self.lstm, self.gru, self.rnn = nn.LSTMCell(D, H), nn.GRUCell(H, H), nn.RNNCell(H, H, bias=False)
    def forward(self, x, h, c):
{body}
def get_inputs():
    return [torch.randn(T, B, D), torch.randn(B, H), torch.randn(B, H)]
def get_init_inputs():
    return []
"""
SMALL = {"T": 5, "B": 2, "D": 6, "H": 5, "C": 2}
OTHER = {"T": 7, "B": 5, "D": 4, "H": 8, "C": 3}

FORMS = {
    "a state joined with the inputs, stacked outputs": """
        outs = []
        for t in range(x.shape[0]):
            h = torch.tanh(self.i2h(torch.cat((x[t], h), 1)))
            outs.append(self.h2o(h))
        return torch.stack(outs)
""",
    "an LSTM's cell, states stacked along another axis, and both last ones": """
        x = x.transpose(0, 1)
        outs = []
        for t in range(x.size(1)):
            i, f, g, o = (self.x2g(x[:, t, :]) + self.h2g(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outs.append(h.unsqueeze(1))
        return torch.cat(outs, 1), h, c
""",
    "a GRU's cell over a tensor's elements, the last state alone": """
        h = torch.zeros_like(h)
        for step in x:
            r, z, n, _ = self.x2g(step).chunk(4, -1)
            p, q, m, _ = self.h2g(h).chunk(4, -1)
            z = torch.sigmoid(z + q)
            h = (1 - z) * torch.tanh(n + torch.sigmoid(r + p) * m) + z * h
        return self.h2o(h)
""",
    "both directions, and a second layer over what they made": """
        forwards, backwards, top, size = [], [], [], x.shape[0]
        for t in range(size):
            h = torch.tanh(self.first(torch.cat((x[t], h), 1)))
            forwards.append(h)
        for t in range(size - 1, -1, -1):
            c = torch.relu(self.first(torch.cat((x[t], c), 1)))
            backwards.insert(0, c)
        state = torch.ones_like(h)
        for a, b in zip(forwards, backwards):
            state = torch.sigmoid(self.second(torch.cat((a + b, state), 1)))
            top.append(state)
        return torch.stack(top, 1), torch.stack(backwards)
""",
    "a sum that begins with the first element, the number of the round, slices": """
        total = 0
        for t in range(x.shape[0] - 1):
            total = total + (x[t + 1 : t + 2] - x[t : t + 1]).abs() * (t + 1)
        return total, x[-1] + 1
""",
    "states that change places, and one that stays as it was": """
        start, outs = h, []
        for t in range(x.shape[0]):
            h, c = c, torch.tanh(h + c) * start + self.h2g(h)[:, : h.shape[1]]
            outs.append(h)
        return torch.stack(outs[1:]), outs[0], outs[-2], c
""",
    "a negative number of the round, and outputs under two shapes": """
        stacked, joined = [], []
        for t in range(x.shape[0]):
            h = torch.tanh(h * (-t - 1)) + self.h2g(h)[:, : h.shape[1]]
            stacked.append(h)
            joined.append(h.unsqueeze(1))
        return torch.stack(stacked), torch.cat(joined, 1)
""",
    "cells of torch.nn": """
        state, last = torch.zeros_like(h), torch.zeros_like(h)
        for step in x.unbind():
            h, c = self.lstm(step, (h, c))
            state = self.gru(h, state)
            last = self.rnn(state, last)
        return h, c, last
""",
    "outputs that do not depend on the round before": """
        outs = [torch.softmax(x[x.shape[0] - 1 - t] @ x[t].t(), 1) for t in range(x.shape[0])]
        return torch.cat(outs, 0), torch.stack([h.exp() for _ in outs])
""",
}


def written(body: str, design: Design) -> tuple[str, Rendered]:
    task = TASK.format(body=body.strip("\n"))
    full, small = trace_source(task, {}), trace_source(task, SMALL, "small")
    attributes = readable(Reference(task, {}).attributes(), Reference(task, SMALL).attributes())
    return task, render(full, design, attributes, small)


@pytest.mark.slow
@pytest.mark.one_in(18)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("moves", [(), tuple(MOVES)], ids=["first", "all moves"])
def test_a_loop_is_right_at_sizes_that_were_not_traced(form: str, moves: tuple[str, ...], compiler: Compiler) -> None:
    task, item = written(FORMS[form], Design(moves))
    assert "for round1 in range(" in item.plan
    for constants in (OTHER, {**SMALL, "T": 4}):
        reference = Reference(task, constants)
        run_and_compare(item, workbench.Bench(reference, reference.inputs(5)), compiler)


def operators(body: str) -> tuple[list[str], list[str]]:
    """Operators of the graphs at both sizes, with loops where they are written as such."""
    task = TASK.format(body=body.strip("\n"))
    graphs = rolled(trace_source(task, {}), trace_source(task, SMALL, "small"))
    full, small = ([node.op for node in graph.nodes if node.kind == "op"] for graph in graphs)
    return full, small


@pytest.mark.slow
def test_rounds_become_one_body() -> None:
    full, small = operators(FORMS["a state joined with the inputs, stacked outputs"])
    body = ["aten.select.int", "aten.cat", "aten.linear", "aten.tanh", "aten.linear"]
    assert full == small == ["loop_begin", "getitem", *body, "loop_end", "getitem", "loop_join"]


NO_LOOPS = {
    "rounds that grow": """
        outs = [h]
        for t in range(x.shape[0]):
            outs.append(torch.cat(outs, 1).sum(1, keepdim=True) + h)
        return outs[-1]
""",
    "places that do not grow evenly": """
        for t in range(x.shape[0]):
            h = torch.tanh(self.i2h(torch.cat((x[t * t % 3], h), 1)))
        return h
""",
    "a state that gets wider in the first round": """
        total = h[:1]
        for t in range(x.shape[0]):
            total = torch.tanh(total + c)
        return total
""",
    "a part of a tensor that is written in place": """
        out = torch.zeros(x.shape[0], *h.shape)
        for t in range(x.shape[0]):
            out[t] = torch.tanh(h * t)
        return out
""",
}


@pytest.mark.parametrize("form", NO_LOOPS)
def test_what_is_no_loop_stays_written_out(form: str) -> None:
    assert "loop_begin" not in operators(NO_LOOPS[form])[0]


CELL = """
import torch
import torch.nn as nn
B, D, H = 3, 8, 6
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(D, H, dtype=torch.{dtype})
    def forward(self, x, h, c):
        return self.cell(x, (h, c))
def get_inputs():
    return [torch.randn(*shape, dtype=torch.{dtype}) for shape in ((B, D), (B, H), (B, H))]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_cell_keeps_its_element_type(dtype: str) -> None:
    plan = render(trace_source(CELL.format(dtype=dtype), {}), Design(())).plan
    results = re.search(r"return (\w+), (\w+)", plan)
    assert results
    for name in results.groups():
        assert re.search(rf"^ +{name} = empty\(.*, {dtype}\)$", plan, re.MULTILINE)
