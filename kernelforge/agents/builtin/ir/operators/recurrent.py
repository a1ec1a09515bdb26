"""Recurrent layers: the products with a layer's inputs, then for each direction one walk over the steps.

Loops of ``forward`` over an extent, which a graph has once (:mod:`~kernelforge.agents.builtin.ir.rolling`), as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.agents.builtin.codegen.pointwise import POINTWISE
from kernelforge.agents.builtin.ir.lowering import Lowering, lowers
from kernelforge.agents.builtin.ir.nodes import (
    Loop,
    LoopResult,
    Recurrence,
    StoredTensor,
    Value,
    computes,
    literal,
    product,
    unshaped,
)
from kernelforge.agents.builtin.ir.operators.products import linear
from kernelforge.agents.builtin.ir.operators.views import chunk, concat, flip, less, narrow, select, stack, transpose
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType


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


_sigmoid = POINTWISE["sigmoid"]


def _gates(lo: Lowering, x: Value, hidden: Value, weights: Sequence[Value]) -> tuple[Value, Value]:
    """Products of a cell's input and of its hidden state with their weights, and the biases."""
    of_input, of_hidden, *biases = weights
    first, second = biases if biases and biases[0] is not None else (None, None)
    return linear(lo, x, of_input, first), linear(lo, hidden, of_hidden, second)


@lowers("lstm_cell")
def _lstm_cell(lo: Lowering, x: Value, states: Sequence[Value], *weights: Value) -> list[Value]:
    hidden, cells = states
    lo.dtype = x.dtype  # the node has several results, and no element type of its own
    sums = lo.pointwise("{0} + {1}", *_gates(lo, x, hidden, weights))
    taken, forgotten, fresh, emitted = chunk(lo, sums, 4, 1)
    cells = lo.pointwise(f"{_sigmoid('{0}')} * {{1}} + {_sigmoid('{2}')} * tanh({{3}})", forgotten, cells, taken, fresh)
    return [lo.pointwise(f"{_sigmoid('{0}')} * tanh({{1}})", emitted, cells), cells]


@lowers("gru_cell")
def _gru_cell(lo: Lowering, x: Value, hidden: Value, *weights: Value) -> Value:
    of_input, of_hidden = (chunk(lo, gates, 3, 1) for gates in _gates(lo, x, hidden, weights))
    reset, update = (
        lo.pointwise(_sigmoid("({0} + {1})"), *pair) for pair in zip(of_input[:2], of_hidden[:2], strict=True)
    )
    fresh = lo.pointwise("tanh({0} + {1} * {2})", of_input[2], reset, of_hidden[2])
    return lo.pointwise("{0} + {1} * ({2} - {0})", fresh, update, hidden)


@lowers("rnn_tanh_cell")
def _rnn_tanh_cell(lo: Lowering, x: Value, hidden: Value, *weights: Value) -> Value:
    return lo.pointwise("tanh({0} + {1})", *_gates(lo, x, hidden, weights))


@lowers("rnn_relu_cell")
def _rnn_relu_cell(lo: Lowering, x: Value, hidden: Value, *weights: Value) -> Value:
    return lo.pointwise("max_of({0} + {1}, 0.0f)", *_gates(lo, x, hidden, weights))


@lowers("loop_begin")
def _loop_begin(lo: Lowering, rounds: int, starts: Sequence[Value], walked: Sequence[tuple[Value, int]]) -> list[Value]:
    """The body of a loop begins.

    Args:
        starts: the tensors that the first round takes over.
        walked: tensors and the axes along which each round takes another element of them.
    """
    near = [value.shape[axis] for value, axis in walked]
    return list(lo.begin_loop(lo.extent(rounds, *near), starts))


@lowers("loop_end")
def _loop_end(
    lo: Lowering, starts: Sequence[Value], ends: Sequence[Value], lasts: Sequence[Value], collected: Sequence[Value]
) -> list[Value]:
    """The body of a loop ends.

    Returns:
        What ``lasts`` are after the loop, then ``collected`` with a leading axis over the rounds.
    """
    begin, end = (tuple(_in_memory(lo, value, or_leaf=True) for value in values) for values in (starts, ends))
    of_last, of_all = ([_in_memory(lo, value) for value in values] for values in (lasts, collected))
    loop = Loop(
        (), DType.INT32, lo.rounds, lo.round, lo.states, begin, end, tuple(dict.fromkeys(of_last)),
        tuple(dict.fromkeys(of_all)), origin=lo.origin,
    )  # fmt: skip
    varying = loop.varying()
    loop.lasts, loop.collected = (
        tuple(base for base in bases if base in varying) for bases in (loop.lasts, loop.collected)
    )
    # One result of each, however many nodes have its elements.
    last = {
        base: LoopResult(base.shape, base.dtype, loop, position, False, origin=f"{base.origin}_last")
        for position, base in enumerate(loop.lasts)
    }
    every = {
        base: LoopResult((lo.rounds, *base.shape), base.dtype, loop, position, True, origin=f"{base.origin}_all")
        for position, base in enumerate(loop.collected)
    }
    results: list[Value] = []
    for value, base in zip(lasts, of_last, strict=True):
        results.append(lo.reshape(last[base], value.shape) if base in last else value)
    for value, base in zip(collected, of_all, strict=True):
        shape = (lo.rounds, *value.shape)
        results.append(lo.reshape(every[base], shape) if base in every else lo.expand(lo.insert(value, 0), shape))
    return results


def _in_memory(lo: Lowering, value: Value, *, or_leaf: bool = False) -> Value:
    """A value that is computed, or with ``or_leaf`` a contiguous input or state, with the same elements in order."""
    base = unshaped(value)
    if computes(base) or (or_leaf and isinstance(base, StoredTensor) and base.is_contiguous):
        return base
    return lo.pointwise("{0}", value, dtype=value.dtype)


@lowers("loop_join")
def _loop_join(lo: Lowering, parts: Sequence[tuple[Value, int, int, int]], axis: int, stacks: bool) -> Value:
    """Tensors joined along an axis, of which some are those of all rounds of a loop.

    Args:
        parts: a tensor and 0; or a tensor of all rounds, 1 (or -1 where the last round comes first), and how many of
            the first and of the last rounds are no part of it.
        stacks: whether the axis is new.
    """
    joined: list[Value] = []
    for value, direction, skipped, missing in parts:
        if not direction:
            joined.append(lo.insert(value, axis) if stacks else value)
            continue
        rank = len(value.shape) - 1
        at = axis % (rank + stacks)
        if skipped + missing:
            value = narrow(lo, value, 0, literal(skipped), less(value.shape[0], literal(skipped + missing)))
        if direction < 0:
            value = flip(lo, value, [0])
        value = lo.permute(value, [*range(1, at + 1), 0, *range(at + 1, rank + 1)])
        if not stacks:
            value = lo.reshape(value, (*value.shape[:at], product(value.shape[at : at + 2]), *value.shape[at + 2 :]))
        joined.append(value)
    return joined[0] if len(joined) == 1 else concat(lo, joined, axis)
