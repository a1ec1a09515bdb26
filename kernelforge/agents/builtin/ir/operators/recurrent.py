"""Recurrent layers: the products with a layer's inputs, then for each direction one walk over the steps."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.agents.builtin.ir.lowering import Lowering, lowers
from kernelforge.agents.builtin.ir.nodes import Recurrence, Value
from kernelforge.agents.builtin.ir.operators.products import linear
from kernelforge.agents.builtin.ir.operators.views import concat, select, stack, transpose
from kernelforge.errors import UnsupportedError


def _register(cell: str) -> None:
    @lowers(cell)
    def handler(
        lo: Lowering, x: Value, states: Value | Sequence[Value], weights: Sequence[Value], has_biases: bool,
        layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> list[Value]:  # fmt: skip
        starts = [states] if isinstance(states, Value) else list(states)
        directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
        if dropout and train:
            raise UnsupportedError("the built-in Coder knows recurrent layers without dropout only")
        if len(weights) != layers * directions * each:
            raise UnsupportedError("the built-in Coder knows recurrent layers without projections only")
        last: list[list[Value]] = [[] for _ in starts]
        for number in range(0, layers * directions, directions):
            results: list[Value] = []
            for walk in range(number, number + directions):
                backwards = walk > number
                of_inputs, weight, *biases = weights[walk * each : (walk + 1) * each]
                terms = linear(lo, x, of_inputs, biases[0] if biases else None)
                terms = transpose(lo, terms, 0, 1) if batch_first and number == 0 else terms
                begin = tuple(select(lo, start, 0, walk) for start in starts)
                shape = (*terms.shape[:2], weight.shape[1])
                bias = biases[1] if biases else None
                walked, cells = (
                    Recurrence(dims, x.dtype, cell, terms, weight, begin, bias, backwards, origin=lo.origin)
                    for dims in (shape, shape[1:])
                )
                results.append(walked)
                ends = [select(lo, walked, 0, 0 if backwards else -1), cells]
                for states_at_end, end in zip(last, ends, strict=False):
                    states_at_end.append(end)
            x = results[0] if directions == 1 else lo.pointwise("{0}", concat(lo, results, 2))
        return [transpose(lo, x, 0, 1) if batch_first else x, *(stack(lo, ends) for ends in last)]


for _cell in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    _register(_cell)
