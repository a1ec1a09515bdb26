"""Recurrent layers: a block per sequence walks its steps, with the hidden state in shared memory."""

from __future__ import annotations

from kernelforge.agents.builtin.codegen.cpp_emitter import indent
from kernelforge.agents.builtin.codegen.kernel import KernelText, plan_int
from kernelforge.agents.builtin.codegen.loops import LoopEmitter
from kernelforge.agents.builtin.ir.iteration_space import Coordinate, to_storage
from kernelforge.agents.builtin.ir.nodes import Recurrence, Value
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType

_SIGMOID = "1.0f / (1.0f + exp(-({})))"


def recurrence_kernel(name: str, root: Value, stored: frozenset[Value]) -> KernelText:
    """A kernel for one :class:`Recurrence`.

    Raises:
        UnsupportedError: the root does more than that, or computes in another type than ``float``.
    """
    if not isinstance(root, Recurrence):
        raise UnsupportedError("a recurrence is stored without further operators")
    if root.dtype is not DType.FLOAT32:
        raise UnsupportedError(f"the built-in Coder knows recurrent layers of float32 only, not of {root.dtype}")
    em = LoopEmitter(stored - {root})
    b, t, u, k = (Coordinate(letter) for letter in ("b", "t", "u", "k"))
    steps, units = em.signature.extent(root.terms.shape[0]), em.signature.extent(root.weight.shape[1])
    gates = [Coordinate(f"({gate} * {units} + u)" if gate else "u") for gate in range(root.gates)]
    with em.scope() as first:
        for start, where in zip(root.starts, ("u", f"2 * {units} + u"), strict=False):
            em.add(f"shared[{where}] = {em.read(start, (b, u))};")
    sums = [f"acc{number}" for number in range(root.gates)]
    with em.scope() as step:
        for total, gate in zip(sums, gates, strict=True):
            em.add(f"float {total} = {'0.0f' if root.bias is None else em.read(root.bias, (gate,))};")
        with em.scope() as products:
            for total, gate in zip(sums, gates, strict=True):
                em.add(f"{total} += before[k] * {em.read(root.weight, (gate, k))};")
        em.lines += [f"for (int k = 0; k < {units}; ++k) {{", *indent(products), "}"]
        em.lines += _cell(root.cell, [em.read(root.terms, (t, b, gate)) for gate in gates], sums)
        if root.of_steps:
            em.add(f"out[{em.offset(root.shape, (t, b, u))}] = {to_storage('hidden', root.dtype)};")
    each = f"for (int u = threadIdx.x; u < {units}; u += blockDim.x) {{"
    cell = ["float* cells = shared + 2 * " + units + ";"] if root.cell == "lstm" else []
    last = []
    if not root.of_steps:
        where = em.offset(root.shape, (b, u))
        last = [each, f"    out[{where}] = {to_storage('cells[u]', root.dtype)};", "}"]
    source = [
        f"__global__ void {name}({em.signature.parameters(root)}) {{",
        "    extern __shared__ float shared[];  // the state before a step and after it, and the cells",
        *indent(cell),
        "    const int b = blockIdx.x;",
        f"    {each}", *indent(indent(first)), "    }",
        "    __syncthreads();",
        f"    for (int s = 0; s < {steps}; ++s) {{",
        f"        const int t = {f'{steps} - 1 - s' if root.backwards else 's'};",
        f"        const float* before = shared + s % 2 * {units};",
        f"        float* kept = shared + (s + 1) % 2 * {units};",
        f"        {each}", *indent(indent(indent(step))), "            kept[u] = hidden;", "        }",
        "        __syncthreads();",
        "    }",
        *indent(last), "}",
    ]  # fmt: skip
    batch, width = root.terms.shape[1], plan_int(root.weight.shape[1])
    block = f"min(1024, 32 * ceil_div({width}, 32))"
    shared = f"{3 if cell else 2} * {width} * 4"
    return KernelText(name, "\n".join(source), em.signature, root, plan_int(batch), block, shared)


def _cell(cell: str, terms: list[str], sums: list[str]) -> list[str]:
    """Statements from a unit's sums over the inputs and over the state to its new state."""
    if cell == "gru":
        return [
            f"const float reset = {_SIGMOID.format(f'{terms[0]} + {sums[0]}')};",
            f"const float update = {_SIGMOID.format(f'{terms[1]} + {sums[1]}')};",
            f"const float fresh = tanh({terms[2]} + reset * {sums[2]});",
            "const float hidden = fresh + update * (before[u] - fresh);",
        ]
    both = [f"{term} + {total}" for term, total in zip(terms, sums, strict=True)]
    if cell == "lstm":
        taken, forgotten, emitted = (_SIGMOID.format(both[gate]) for gate in (0, 1, 3))
        return [
            f"cells[u] = ({forgotten}) * cells[u] + ({taken}) * tanh({both[2]});",
            f"const float hidden = ({emitted}) * tanh(cells[u]);",
        ]
    return [f"const float hidden = {f'tanh({both[0]})' if cell == 'rnn_tanh' else f'max_of({both[0]}, 0.0f)'};"]
