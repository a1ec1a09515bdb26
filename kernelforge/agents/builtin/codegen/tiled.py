"""Kernels with tiles in shared memory: matrix products, convolutions and transposing copies."""

from __future__ import annotations

from dataclasses import replace

from kernelforge.agents.builtin.codegen.cpp_emitter import indent
from kernelforge.agents.builtin.codegen.elementwise import element_statements
from kernelforge.agents.builtin.codegen.kernel import (
    KernelText,
    Options,
    adjacent,
    cone,
    plan_int,
    same_shape,
    templated,
)
from kernelforge.agents.builtin.codegen.loops import LoopEmitter
from kernelforge.agents.builtin.codegen.product_axes import ProductAxes
from kernelforge.agents.builtin.codegen.tensor_cores import tensor_tile
from kernelforge.agents.builtin.ir.iteration_space import LoopGroup, compute_type, sum_type, to_storage
from kernelforge.agents.builtin.ir.nodes import Contraction, Convolution, Value, View, product
from kernelforge.errors import UnsupportedError

FEWEST_BLOCKS = 132
"""Blocks from which tiles of 128 x 128 results keep a large GPU busy."""
TRANSPOSE_SIDE = 64
"""Rows and columns of a tile that is turned by patches: a row of float32 is two lines of 128 bytes."""


def contraction_tile(name: str, root: Value, stored: frozenset[Value], options: Options) -> KernelText | None:
    """A blocked product: tiles of both operands in shared memory, ``TM`` x ``TN`` results per thread.

    Convolutions come as products over (channel, row, column) of the window. None where the form is not covered.
    """
    (anchor,) = (value for value in cone(root, stored) if isinstance(value, Contraction | Convolution))
    if options.tensor_cores:
        try:
            return tensor_tile(name, root, anchor, stored, options)
        except UnsupportedError:
            pass
    if (
        not options.tile
        or (isinstance(anchor, Contraction) and anchor.parts)
        or not same_shape(root.shape, anchor.shape)
        or len(root.shape) != len(anchor.shape)
    ):
        return None
    try:
        return _TileWriter(name, root, anchor, stored, options).write()
    except UnsupportedError:
        return None


class _TileWriter:
    def __init__(
        self, name: str, root: Value, anchor: Contraction | Convolution, stored: frozenset[Value], options: Options
    ) -> None:
        self.name, self.root, self.anchor, self.stored = name, root, anchor, stored
        self.em = LoopEmitter(stored - {root})
        self.axes = ProductAxes.of(self.em, anchor)
        self.b, self.m, self.n, self.k = self.axes.b, self.axes.m, self.axes.n, self.axes.k
        self.em.signature.constant = bool(self.axes.phases)  # a list of taps has a constant length
        self.real = sum_type(anchor.dtype)
        self.zero = "0.0" if self.real == "double" else "0.0f"
        self.bm, self.bn, self.bk, self.tm, self.tn = self._tile(options)

    def _tile(self, options: Options) -> tuple[int, int, int, int, int]:
        """Rows and columns of the result per block, the depth of its tiles, and rows and columns per thread."""
        if not options.register_tile:
            return 16, 16, 16, 1, 1
        rows, columns, batch = (group.extent.value for group in (self.m, self.n, self.b))
        batch *= product(self.axes.phases).value
        if batch * (rows // 128) * (columns // 128) < FEWEST_BLOCKS:
            return 64, 64, 16, 4, 4
        return 128, 128, 16, 8, 8

    def _operand(self, side: str) -> tuple[str, bool]:
        """An element of the left operand (m, kk) or of the right one (kk, n), and whether kk is its fast coordinate."""
        em = self.em
        value, coords, condition = self.axes.row_operand() if side == "a" else self.axes.column_operand()
        group = adjacent(value, coords, self.stored).group
        element = (
            em.guarded(value.dtype, self.zero, [(condition, value, coords)]) if condition else em.read(value, coords)
        )
        return element, group is not self.m if side == "a" else group is self.k

    def _fill(self, side: str, extent: int, axis: LoopGroup, limits: tuple[str, str]) -> list[str]:
        """The loop in which the block's threads load one operand's tile."""
        with self.em.scope() as body:
            element, k_is_fast = self._operand(side)
        depth, threads = self.bk, (self.bm // self.tm) * (self.bn // self.tn)
        k_at, r_at = (f"e % {depth}", f"e / {depth}") if k_is_fast else (f"e / {extent}", f"e % {extent}")
        return [
            "#pragma unroll",
            f"for (int e = tid; e < {extent * depth}; e += {threads}) {{",
            f"    const int c = {k_at}, r = {r_at};",
            f"    const int kk = k0 + c, {axis.var} = {axis.var}_start + r;",
            f"    {self.real} value = {self.zero};",
            f"    if (kk < {limits[1]} && {axis.var} < {limits[0]}) {{",
            *indent(indent([*body, f"value = {element};"])), "    }",
            f"    tile_{side}[c][r] = value;", "}",
        ]  # fmt: skip

    def write(self) -> KernelText:
        em, bm, bn, bk, tm, tn = self.em, self.bm, self.bn, self.bk, self.tm, self.tn
        m_of, n_of = (em.signature.extent(group.extent) for group in (self.m, self.n))
        k_of = self.axes.terms
        across, down = bn // tn, bm // tm
        fill_a = self._fill("a", bm, self.m, (m_of, k_of))
        right = self._fill("b", bn, self.n, (n_of, k_of))
        with em.scope() as end:
            coords, condition = self.axes.result()
            em.bound[self.anchor] = ("acc[r][c]", coords)
            with em.scope() as stored:
                element = to_storage(em.read(self.root, coords), self.root.dtype)
                em.add(f"out[{em.offset(self.root.shape, coords)}] = {element};")
            em.lines += [f"if ({condition}) {{", *indent(stored), "}"] if condition else stored
        row, pad = ("ty", 1) if tm == 1 else (f"ty * 4 + r % 4 + r / 4 * {4 * down}", 4)
        rows_of_a = ["for (int r = 0; r < 1; ++r) x[r] = tile_a[s][ty];"] if tm == 1 else [
            f"for (int r = 0; r < {tm}; r += 4) {{",
            f"    const auto four = load<4>(&tile_a[s][ty * 4 + r * {down}]);  // the same for all threads of a row",
            "    #pragma unroll",
            "    for (int k = 0; k < 4; ++k) x[r + k] = four.v[k];", "}",
        ]  # fmt: skip
        size = 8 if self.real == "double" else 4
        core = [
            f"__shared__ __align__({4 * size}) {self.real} tile_a[{bk}][{bm + pad}];  // padded against bank conflicts",
            f"__shared__ {self.real} tile_b[{bk}][{bn + 1}];",
            f"const int tid = threadIdx.x, tx = tid % {across}, ty = tid / {across};",
            f"const int batch = blockIdx.z, m_start = blockIdx.y * {bm}, n_start = {self.axes.columns} * {bn};",
            *self.axes.head(),
            f"{self.real} acc[{tm}][{tn}] = {{}};",
            f"for (int k0 = 0; k0 < {k_of}; k0 += {bk}) {{",
            *indent([*fill_a, *right, "__syncthreads();"]),
            "    #pragma unroll",
            f"    for (int s = 0; s < {bk}; ++s) {{",
            f"        {self.real} x[{tm}], y[{tn}];",
            "        #pragma unroll",
            *indent(indent(rows_of_a)),
            "        #pragma unroll",
            f"        for (int c = 0; c < {tn}; ++c) y[c] = tile_b[s][tx + c * {across}];",
            "        #pragma unroll",
            f"        for (int r = 0; r < {tm}; ++r)",
            "            #pragma unroll",
            f"            for (int c = 0; c < {tn}; ++c) acc[r][c] += x[r] * y[c];",
            "    }",
            "    __syncthreads();",
            "}",
            "#pragma unroll",
            f"for (int r = 0; r < {tm}; ++r) {{",
            "    #pragma unroll",
            f"    for (int c = 0; c < {tn}; ++c) {{",
            f"        const int m = m_start + {row}, n = n_start + tx + c * {across};",
            f"        if (m < {m_of} && n < {n_of}) {{", *indent(indent(indent(end))), "        }",
            "    }", "}",
        ]  # fmt: skip
        source, setup, template = templated(self.name, em.signature, self.root, {}, "", core)
        rows, batch = (plan_int(group.extent) for group in (self.m, self.b))
        grid = f"({self.axes.blocks(bn)}, ceil_div({rows}, {bm}), {batch})"
        return KernelText(
            self.name, source, em.signature, self.root, grid, str(across * down), setup=setup, template=template
        )


def transpose_tile(name: str, root: Value, stored: frozenset[Value], options: Options) -> KernelText | None:
    """A tile that is read along the operand's rows and written along the result's. None where none applies.

    With ``vectorise`` threads move 4 x 4 elements by 16 bytes where the extents of both rows allow it.
    """
    groups = [LoopGroup(f"d{axis}", (dim,)) for axis, dim in enumerate(root.shape)]
    coords = tuple(group.coords()[0] for group in groups)
    if len(groups) < 2:
        return None
    crossed: dict[Value, LoopGroup] = {}
    for view in cone(root, stored):
        if isinstance(view, View) and same_shape(view.shape, root.shape) and len(view.shape) == len(root.shape):
            along = adjacent(view, coords, stored).group
            if along is not None and along is not groups[-1]:
                crossed[view] = along
    tops = [view for view in crossed if not any(view in other.operands for other in crossed)]
    if len(tops) != 1:
        return None
    axis = groups.index(crossed[tops[0]])
    if not options.vectorise:
        return _write_transpose(name, root, stored, tops[0], axis)
    by_elements = _write_transpose(f"any_{name}", root, stored, tops[0], axis)
    try:
        return replace(_write_wide_transpose(name, root, stored, tops[0], axis), alternative=by_elements)
    except UnsupportedError:
        return replace(by_elements, name=name, source=by_elements.source.replace(f"any_{name}", name))


def _planes(em: LoopEmitter, others: list[LoopGroup]) -> list[str]:
    """Coordinates of the axes that a block does not tile."""
    with em.scope() as head:
        rest = "blockIdx.z"
        for group in reversed(others[1:]):
            extent = em.signature.extent(group.extent)
            em.add(f"const int {group.var} = {rest} % {extent};")
            rest = f"({rest} / {extent})"
        if others:
            em.add(f"const int {others[0].var} = {rest};")
    return head


def _write_transpose(name: str, root: Value, stored: frozenset[Value], view: Value, axis: int) -> KernelText:
    em = LoopEmitter(stored - {root})
    groups = [LoopGroup(f"d{number}", (dim,)) for number, dim in enumerate(root.shape)]
    p, q = groups[axis], groups[-1]
    others = [group for group in groups if group is not p and group is not q]
    coords = tuple(group.coords()[0] for group in groups)
    p_of, q_of = em.signature.extent(p.extent), em.signature.extent(q.extent)
    with em.scope() as take:
        em.add(f"tile[r][threadIdx.x] = {em.read(view, coords)};")
    em.bound[view] = ("tile[threadIdx.x][r]", None)
    with em.scope() as give:
        em.add(f"out[{em.offset(root.shape, coords)}] = {to_storage(em.read(root, coords), root.dtype)};")
    core = [
        f"__shared__ {compute_type(view.dtype)} tile[32][33];  // padded against bank conflicts",
        f"const int {p.var}_start = blockIdx.y * 32, {q.var}_start = blockIdx.x * 32;", *_planes(em, others),
        "for (int r = threadIdx.y; r < 32; r += 8) {",
        f"    const int {p.var} = {p.var}_start + threadIdx.x, {q.var} = {q.var}_start + r;",
        f"    if ({p.var} < {p_of} && {q.var} < {q_of}) {{", *indent(indent(take)), "    }", "}",
        "__syncthreads();",
        "for (int r = threadIdx.y; r < 32; r += 8) {",
        f"    const int {p.var} = {p.var}_start + r, {q.var} = {q.var}_start + threadIdx.x;",
        f"    if ({p.var} < {p_of} && {q.var} < {q_of}) {{", *indent(indent(give)), "    }", "}",
    ]  # fmt: skip
    source = [f"__global__ void {name}({em.signature.parameters(root)}) {{", *indent(core), "}"]
    batch = plan_int(product(tuple(group.extent for group in others)))
    grid = f"(ceil_div({plan_int(q.extent)}, 32), ceil_div({plan_int(p.extent)}, 32), {batch})"
    return KernelText(name, "\n".join(source), em.signature, root, grid, "(32, 8)")


def _write_wide_transpose(name: str, root: Value, stored: frozenset[Value], view: Value, axis: int) -> KernelText:
    """The same by patches of 4 x 4: each is turned in registers, so that shared memory is accessed by 16 bytes too.

    Packs of a tile's row change places by an XOR with the row's number, so that no two lanes of a group of eight meet
    in a bank.
    """
    em = LoopEmitter(stored - {root})
    last = len(root.shape) - 1
    # Loads are adjacent along p, stores along q.
    loads, stores = (
        [LoopGroup(f"d{number}", (dim,), vector=number == wide) for number, dim in enumerate(root.shape)]
        for wide in (axis, last)
    )
    p, q = loads[axis], loads[last]
    others = [group for number, group in enumerate(loads) if number not in (axis, last)]
    p_of, q_of = em.signature.extent(p.extent), em.signature.extent(q.extent)
    with em.lanes() as (before, lanes):
        em.add(f"patch[k].v[r] = {em.read(view, tuple(group.coords()[0] for group in loads))};")
    coords = tuple(group.coords()[0] for group in stores)
    em.bound[view] = ("pack.v[k]", None)
    with em.scope() as where:
        offset = em.offset(root.shape, coords)
    give = element_statements(em, root, coords, True, offset)
    dtype = compute_type(view.dtype)
    core = [
        f"constexpr int V = 4, SIDE = {TRANSPOSE_SIDE}, PACKS = SIDE / V;",
        f"__shared__ Pack<{dtype}, V> tile[SIDE][PACKS];",
        f"const int {p.var}_start = blockIdx.y * SIDE, {q.var}_start = blockIdx.x * SIDE;", *_planes(em, others),
        f"Pack<{dtype}, V> patch[V] = {{}};",
        "#pragma unroll",
        "for (int r = 0; r < V; ++r) {",
        f"    const int {p.var} = {p.var}_start + threadIdx.x * V, {q.var} = {q.var}_start + threadIdx.y * V + r;",
        f"    if ({p.var} < {p_of} && {q.var} < {q_of}) {{",
        *indent(indent([*before, "#pragma unroll", "for (int k = 0; k < V; ++k) {", *indent(lanes), "}"])), "    }",
        "}",
        "#pragma unroll",
        "for (int k = 0; k < V; ++k) tile[threadIdx.x * V + k][threadIdx.y ^ threadIdx.x] = patch[k];",
        "__syncthreads();",
        "#pragma unroll",
        "for (int r = threadIdx.y; r < SIDE; r += PACKS) {",
        f"    const int {p.var} = {p.var}_start + r, {q.var} = {q.var}_start + threadIdx.x * V;",
        f"    if ({p.var} < {p_of} && {q.var} < {q_of}) {{",
        "        const auto pack = tile[r][threadIdx.x ^ (r / V)];",
        *indent(indent([*where, *give])), "    }", "}",
    ]  # fmt: skip
    source = [f"__global__ void {name}({em.signature.parameters(root)}) {{", *indent(core), "}"]
    batch = plan_int(product(tuple(group.extent for group in others)))
    side = TRANSPOSE_SIDE
    grid = f"(ceil_div({plan_int(q.extent)}, {side}), ceil_div({plan_int(p.extent)}, {side}), {batch})"
    extents = dict.fromkeys([p.extent.text, q.extent.text, *em.divisors])
    condition = " and ".join(f"({text}) % 4 == 0" for text in extents)
    return KernelText(
        name, "\n".join(source), em.signature, root, grid, f"({side // 4}, {side // 4})", condition=condition
    )
