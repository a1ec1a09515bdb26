"""Attention in one kernel on tensor cores: no score reaches memory.

The softmax of a row is formed while its keys pass: its largest score so far scales what was added before ("online
softmax", T. Dao et al., "FlashAttention", 2022). The device code is ``AttentionTiles`` in ``helpers.toml``.
"""

from __future__ import annotations

from kernelforge.agents.builtin.codegen.cpp_emitter import indent
from kernelforge.agents.builtin.codegen.elementwise import element_statements
from kernelforge.agents.builtin.codegen.kernel import (
    MULTIPROCESSORS,
    KernelText,
    adjacent,
    cone,
    in_order,
    plan_int,
    put,
    same_shape,
)
from kernelforge.agents.builtin.codegen.loops import LoopEmitter
from kernelforge.agents.builtin.codegen.tensor_cores import plan_width
from kernelforge.agents.builtin.ir.iteration_space import LoopGroup
from kernelforge.agents.builtin.ir.nodes import (
    Attention,
    Contraction,
    Iota,
    Pointwise,
    Program,
    Reduce,
    Reshape,
    Value,
    View,
    product,
    unshaped,
)
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType

LONGEST_ROW = 128
"""Elements of a query and of a value, whose sums stay in a warp's registers."""


def fuse_attention(program: Program) -> None:
    """Put one value in place of each softmax of products that is multiplied by a matrix."""
    replaced: dict[Value, Value] = {}
    for value in in_order(program):
        if isinstance(value, Contraction) and value.dtype is DType.FLOAT32:
            scores = _softmax_of(value.a)
            dot = _product_in(scores) if scores is not None else None
            if (
                scores is not None
                and dot is not None
                and max(dot.a.shape[-1].value, value.shape[-1].value) <= LONGEST_ROW
            ):
                replaced[value] = Attention(
                    value.shape, value.dtype, dot.a, dot.b, value.b, scores, dot, origin=value.origin
                )
    put(program, replaced)


def _softmax_of(value: Value) -> Value | None:
    """The scores whose softmax over the last axis a value is."""
    value = unshaped(value)
    if not isinstance(value, Pointwise) or value.template != "{0} / {1}":
        return None
    grown, total = value.args[0], unshaped(value.args[1])
    if not isinstance(grown, Pointwise) or grown.template != "exp({0} - {1})":
        return None
    scores, top = grown.args[0], unshaped(grown.args[1])
    last = len(scores.shape) - 1
    rows = [(total, "sum", grown), (top, "max", scores)]
    for reduce, op, arg in rows:
        if not isinstance(reduce, Reduce) or (reduce.op, reduce.first, reduce.last) != (op, last, last):
            return None
        if reduce.arg is not arg:
            return None
    return scores


def _product_in(scores: Value) -> Contraction | None:
    """The one product that scores are made of, element by element, where nothing else in them takes a loop."""
    values = cone(scores, frozenset())
    products = [value for value in values if isinstance(value, Contraction)]
    if len(products) != 1 or products[0].dtype is not DType.FLOAT32 or not same_shape(products[0].shape, scores.shape):
        return None
    inputs = set(cone(products[0], frozenset()))
    rest = [value for value in values if value not in inputs]
    return products[0] if all(isinstance(value, Pointwise | View | Reshape | Iota) for value in rest) else None


def attention_kernel(name: str, root: Value, anchor: Attention, stored: frozenset[Value]) -> KernelText:
    """One kernel for a value that is attention, element by element.

    Raises:
        UnsupportedError: the result has another shape, or an operand is computed, not read from memory.
    """
    if not same_shape(root.shape, anchor.shape):
        raise UnsupportedError("the result has the rows of attention in another shape")
    em = LoopEmitter(stored - {root})
    em.signature.constant = True
    b, m, n = (
        LoopGroup("batch", anchor.shape[:-2]),
        LoopGroup("m", anchor.shape[-2:-1]),
        LoopGroup("n", anchor.shape[-1:]),
    )
    key, at = LoopGroup("key", anchor.dot.shape[-1:]), LoopGroup("at", anchor.q.shape[-1:])
    rows, keys, of_query, of_value = (em.signature.extent(group.extent) for group in (m, key, at, n))
    longest = max(int(group.extent.value) for group in (at, n))
    many = -(-int(m.extent.value) // 64) * int(b.extent.value) >= 2 * MULTIPROCESSORS
    # Where there are few rows, warps share them; as many as their tiles fit shared memory.
    q_warps, k_warps, step = (4, 1, 32) if many else (1, 4 if longest > LONGEST_ROW // 2 else 8, 16)
    widths, core = [], []
    for letter, value, coords, line, last, limits in (
        ("q", anchor.q, (*b.coords(), *m.coords(), *at.coords()), m, at, (rows, of_query)),
        ("k", anchor.k, (*b.coords(), *at.coords(), *key.coords()), key, at, (keys, of_query)),
        ("v", anchor.v, (*b.coords(), *key.coords(), *n.coords()), key, n, (keys, of_value)),
    ):
        with em.scope() as body:
            pointer = em.pointer(value, coords)
            if pointer is None:
                raise UnsupportedError("an operand of attention is computed, not read from memory")
            inside = f"{line.var} < {limits[0]} && {last.var} < {limits[1]}"
            em.add(f"copy_async<V{letter.upper()}>(to, {pointer}, {inside});")
        group, extent = adjacent(value, coords, stored)
        run = (last.extent.text, extent.text) if group is last and extent is not None else ()
        widths.append(plan_width(4, run))
        start = ["const int m = m_start + line;"] if letter == "q" else []
        parameter = "line" if letter == "q" else "key"
        core += [
            f"const auto copy_{letter} = [&](float* to, int {parameter}, int {last.var}) {{",
            *indent([*start, *body]), "};",
        ]  # fmt: skip
    em.bound[anchor.dot] = ("acc[0]", (*b.coords(), *m.coords(), *key.coords()))
    with em.scope() as score:
        em.add(f"return {em.read(anchor.scores, (*b.coords(), *m.coords(), *key.coords()))};")
    coords = (*b.coords(), *m.coords(), *n.coords())
    em.bound[anchor] = ("acc[0]", coords)
    with em.scope() as put:
        where = em.offset(root.shape, coords)
        em.lines += element_statements(em, root, coords, False, where)
    core += [
        "const auto score = [&](int line, int key, const float* acc) -> float {",
        *indent(["const int m = m_start + line;", f"if (m >= {rows}) return 0.0f;", *score]), "};",
        "const auto put = [&](int line, int n, const float* acc) {",
        *indent(["const int m = m_start + line;", f"if (m < {rows}) {{", *indent(put), "}"]), "};",
        f"using Tiles = AttentionTiles<{of_query}, {of_value}, {q_warps}, {k_warps}, {step}>;",
        f"Tiles::run<VQ, VK, VV>(tiles, {keys}, copy_q, copy_k, copy_v, score, put);",
    ]  # fmt: skip
    head = [
        "extern __shared__ __align__(16) float tiles[];",
        f"const int batch = blockIdx.y, m_start = blockIdx.x * {16 * q_warps};",
    ]
    extents = {variable: f"{name}_{variable}" for variable in em.signature.template_extents.values()}
    setup = [f"{plan} = {text}" for plan, text in zip(extents.values(), em.signature.template_extents, strict=True)]
    setup += [f"{name}_v{letter} = {width}" for letter, width in zip("qkv", widths, strict=True)]
    pitches = [f"(({plan_int(dim)} + 7) // 8 * 8 + 4)" for dim in (at.extent, n.extent)]
    tile = step * k_warps
    setup.append(f"{name}_bytes = 4 * (({16 * q_warps} + 2 * {tile}) * {pitches[0]} + 2 * {tile} * {pitches[1]})")
    template = {"VQ": f"{name}_vq", "VK": f"{name}_vk", "VV": f"{name}_vv", **extents}
    source = [
        f"template <{', '.join(f'int {word}' for word in template)}> __global__ void "
        f"__launch_bounds__({32 * q_warps * k_warps}) {name}({em.signature.parameters(root)}) {{",
        *indent([*head, *core]), "}",
    ]  # fmt: skip
    grid = f"(ceil_div({plan_int(m.extent)}, {16 * q_warps}), {plan_int(product(anchor.shape[:-2]))})"
    return KernelText(
        name,
        "\n".join(source),
        em.signature,
        root,
        grid,
        str(32 * q_warps * k_warps),
        f"{name}_bytes",
        tuple(setup),
        tuple(template.values()),
    )
