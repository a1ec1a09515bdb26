"""Products and convolutions on tensor cores: tiles in shared memory, copied ahead of the arithmetic.

Half-precision operands are multiplied as they are, with sums in float32. A float32 operand is split into two TF32
numbers that hold 22 of its 24 bits, and three of the four products are added ("3xTF32", CUTLASS example 27), which is
as exact as sums in float32 are. The device code is ``TensorTiles`` in ``helpers.toml``.

On Hopper GPUs large products of halves are written for ``wgmma``, with tiles that come by tensor maps, and a plan falls
back to the other kernel at sizes whose rows are no multiple of 16 bytes (``WarpgroupTiles``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from kernelforge.agents.builtin.codegen.cpp_emitter import indent
from kernelforge.agents.builtin.codegen.elementwise import element_statements
from kernelforge.agents.builtin.codegen.kernel import (
    MULTIPROCESSORS,
    KernelText,
    Options,
    adjacent,
    in_order,
    plan_int,
    same_shape,
    templated,
)
from kernelforge.agents.builtin.codegen.loops import LoopEmitter
from kernelforge.agents.builtin.codegen.product_axes import ProductAxes
from kernelforge.agents.builtin.ir.iteration_space import (
    BOX,
    C_TYPES,
    MOST_ELEMENTS,
    Coordinate,
    LoopGroup,
    TensorMap,
    to_storage,
)
from kernelforge.agents.builtin.ir.nodes import (
    ONE,
    Contraction,
    Convolution,
    Dim,
    Program,
    Reduce,
    StoredTensor,
    Value,
    View,
    product,
)
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType

_KINDS = {DType.FLOAT16: "HALF", DType.BFLOAT16: "BFLOAT", DType.FLOAT32: "SINGLE"}


class Shape(NamedTuple):
    """Results of a block and of each of its warps, and the depth and number of its tiles."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    depth: int
    stages: int

    @property
    def threads(self) -> int:
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32


_SINGLE = (
    Shape(64, 128, 32, 64, 16, 4), Shape(128, 64, 64, 32, 16, 4), Shape(64, 64, 32, 32, 16, 4),
    Shape(32, 128, 32, 32, 16, 4), Shape(128, 32, 32, 32, 16, 4),
)  # fmt: skip
_HALF = (
    Shape(128, 128, 64, 64, 32, 3), Shape(64, 64, 32, 32, 64, 3), Shape(32, 128, 32, 32, 32, 4),
    Shape(128, 32, 32, 32, 32, 4),
)  # fmt: skip
# Registers and shared memory of each leave room for two blocks on a multiprocessor: one waits while the other computes.
_BALANCE = {"SINGLE": 35, "HALF": 106, "BFLOAT": 106}
"""Multiply-adds of a multiprocessor in the time of one element from the L2, as the emulated H100 has them: 62 % of the
dense rate, a third of it for three products, over 25 bytes a cycle."""
_UNITS = {"SINGLE": 6, "HALF": 1, "BFLOAT": 1}
"""Time of a multiply-add over that of halves: three products at half of the rate."""
_WARPGROUP_SHARE = 0.62
"""Time of a multiply-add by ``wgmma`` over that by ``mma.sync``: ``product_share`` of a Hopper GPU."""
_LAUNCH = 7e6
"""Multiply-adds of halves, by a multiprocessor, in the time of one more launch: 3 us on the emulated H100."""
_OF_BYTE = 0.8
"""The same in the time of one byte from DRAM, by all multiprocessors: 2,850 GB/s."""
_LEAST_TERMS = 128
"""Of a sum that is dealt out: eight tiles of float32, so that copies run ahead."""


def _blocks(shape: Shape, rows: int, columns: int, batch: int) -> int:
    return -(-rows // shape.rows) * -(-columns // shape.columns) * batch


def choose_shape(kind: str, rows: int, columns: int, batch: int) -> Shape:
    """The shape whose waves of blocks take the least time: multiply-adds, and elements from the L2.

    A block alone on its multiprocessor takes as long as two that overlap.
    """
    shapes = _SINGLE if kind == "SINGLE" else _HALF
    return min(shapes, key=lambda shape: _cost(kind, shape, rows, columns, batch))


def _cost(kind: str, shape: Shape, rows: int, columns: int, batch: int) -> int:
    return max(2, -(-_blocks(shape, rows, columns, batch) // MULTIPROCESSORS)) * _work(kind, shape)


def _work(kind: str, shape: Shape) -> int:
    """Of a block for one term."""
    return shape.rows * shape.columns + _BALANCE[kind] * (shape.rows + shape.columns)


class WarpgroupShape(NamedTuple):
    """Results of a block, number of its tiles, and blocks of a cluster down and across."""

    rows: int
    columns: int
    stages: int
    down: int
    across: int
    resident: int
    """Blocks of a multiprocessor: registers and shared memory have room for them."""

    @property
    def threads(self) -> int:
        """A warpgroup for each 64 rows, and a warp that copies."""
        return 2 * self.rows + 32

    @property
    def shared_bytes(self) -> int:
        """Tiles of halves that begin at a multiple of 1,024 bytes."""
        return (self.rows + self.columns) * BOX * 2 * self.stages + 1024


_WARPGROUP_TILES = ((128, 128, 3, 2), (128, 64, 3, 3))
"""Rows, columns, stages and blocks of a multiprocessor. Clusters of 2 x 2 blocks fetch half of what single ones do."""


def choose_warpgroups(rows: int, columns: int, batch: int) -> WarpgroupShape | None:
    """The shape of a product of halves by ``wgmma``; None where one by ``mma.sync`` takes less time."""
    best = min(_warpgroup_shapes(rows, columns), key=lambda shape: _warpgroup_cost(shape, rows, columns, batch))
    by_warps = _cost("HALF", choose_shape("HALF", rows, columns, batch), rows, columns, batch)
    return best if _warpgroup_cost(best, rows, columns, batch) < by_warps else None


def _warpgroup_shapes(rows: int, columns: int) -> list[WarpgroupShape]:
    return [
        WarpgroupShape(m, n, stages, 1 + (rows > m), 1 + (columns > n), resident)
        for m, n, stages, resident in _WARPGROUP_TILES
    ]


def _warpgroup_cost(shape: WarpgroupShape, rows: int, columns: int, batch: int, units: int = 0) -> float:
    """Of one term. With ``units``: where the two groups of a cluster share so many tiles for each of their blocks."""
    # Of a tile that ends beyond the operands, tensor maps fetch what is inside.
    loaded = min(shape.rows, rows) / shape.across + min(shape.columns, columns) / shape.down
    waves = -(-_warpgroup_blocks(shape, rows, columns, batch, units) // MULTIPROCESSORS)
    tile = _WARPGROUP_SHARE * shape.rows * shape.columns + _BALANCE["HALF"] * loaded
    return max(2, waves) * tile * (units / 2 if units else 1)


def _warpgroup_blocks(shape: WarpgroupShape, rows: int, columns: int, batch: int, units: int = 0) -> int:
    groups = -(-rows // (shape.rows * shape.down)) * -(-columns // (shape.columns * shape.across))
    if units:
        groups = 2 * -(-groups // units)
    return groups * shape.down * shape.across * batch


class Stream(NamedTuple):
    """A product by stream-K: the shape of its blocks, and the tiles that two of them share the terms of."""

    shape: WarpgroupShape
    units: int


_STREAM_UNITS = (1, 3, 5)
"""Tiles of a pair of blocks. With an even number each block has complete tiles, as without stream-K."""
_STREAM_GAIN = 0.95
"""Predicted time from which stream-K is written, over that without. A fall by 5 % of the modelled time is what the
search believes (``kernelforge.agents.acceptance``): of smaller ones half were real on GPUs."""


def choose_stream(kind: str, rows: int, columns: int, batch: int, terms: int) -> Stream | None:
    """Stream-K for a product of halves by ``wgmma``; None where it would not make up for what the last wave loses.

    Stream-K (Osama et al. 2023, arXiv 2301.03598) gives each of the blocks that run at a time an equal share of the
    terms of all tiles. Here the two groups of a cluster share those of an odd number of tiles: waves are filled by
    halves of a tile, and the one tile that both have terms of is added up through the cluster's shared memory. Sums
    that pass between any blocks of a grid would be written to memory, and wait there for a second launch or for flags:
    a launch takes as long as the last wave loses where it loses much.
    """
    if kind == "SINGLE" or terms % 8:  # rows of operands that no bulk copy reads
        return None

    def cost(stream: Stream) -> float:
        shape, units = stream
        blocks = _warpgroup_blocks(shape, rows, columns, batch, units)
        # Half of a tile's sums, of four bytes each, are written to shared memory, and read by another block.
        exchanged = -(-blocks // MULTIPROCESSORS) * _BALANCE["HALF"] * shape.rows * shape.columns
        return _warpgroup_cost(shape, rows, columns, batch, units) * terms + exchanged

    streams = [Stream(shape, units) for shape in _warpgroup_shapes(rows, columns) for units in _STREAM_UNITS]
    best = min(streams, key=cost)
    parts = choose_parts(kind, rows, columns, batch, terms, warpgroups=True)
    otherwise = _split_cost(kind, rows, columns, batch, terms, parts, warpgroups=True)
    # What no way of dealing terms out changes, as if nothing hid it.
    rest = _LAUNCH + _OF_BYTE * 2 * batch * (rows * terms + terms * columns + rows * columns)
    return best if cost(best) + rest < _STREAM_GAIN * (otherwise + rest) else None


class Share(NamedTuple):
    """A product whose terms the blocks of a cluster share, by ``mma.sync``."""

    shape: Shape
    blocks: int
    """Of a cluster."""
    units: int
    """Tiles of a cluster: so many complete ones for each block, and one whose terms all of them share."""


_SHARED_BLOCKS = (2, 4, 8)
_COMPLETE_TILES = (0, 1, 2)


def choose_share(kind: str, rows: int, columns: int, batch: int, terms: int, *, parts: int, moved: int) -> Share | None:
    """Stream-K for a product or a convolution by ``mma.sync``; None where it would not make up for what waves lose.

    Args:
        parts: sums that the terms would be dealt out to otherwise, for another kernel to add up.
        moved: bytes that any kernel for it moves.
    """
    if terms < 2 * _LEAST_TERMS:
        return None
    unit = _UNITS[kind]

    def cost(share: Share) -> float:
        shape, blocks, units = share
        waves = -(-_blocks(shape, rows, columns, 1) // units) * blocks * batch / MULTIPROCESSORS
        # What the others finish of a tile's sums, of four bytes each, is written to shared memory, and read there.
        exchanged = math.ceil(waves) * 2 * _BALANCE["HALF"] * shape.rows * shape.columns * (blocks - 1) / blocks
        return max(2, math.ceil(waves)) * _work(kind, shape) * terms * units / blocks + exchanged / unit

    shares = [
        Share(shape, blocks, complete * blocks + 1)
        for shape in (_SINGLE if kind == "SINGLE" else _HALF)
        for blocks in _SHARED_BLOCKS
        for complete in _COMPLETE_TILES
        if terms >= blocks * _LEAST_TERMS
    ]
    best = min(shares, key=cost)
    otherwise = _split_cost(kind, rows, columns, batch, terms, parts, warpgroups=False)
    rest = (_LAUNCH + _OF_BYTE * moved) / unit
    return best if cost(best) + rest < _STREAM_GAIN * (otherwise + rest) else None


def _added_cost(parts: int, results: int) -> float:
    """Of another kernel that adds up sums, in multiply-adds of halves.

    Each sum passes the L2 twice, four halves' bytes, and is written to DRAM, which takes as long again.
    """
    return _LAUNCH + 8 * _BALANCE["HALF"] * parts * results / MULTIPROCESSORS


def _split_cost(kind: str, rows: int, columns: int, batch: int, terms: int, parts: int, *, warpgroups: bool) -> float:
    """Of all terms, dealt out to so many sums that another kernel adds up."""
    shape = choose_warpgroups(rows, columns, batch * parts) if warpgroups and kind != "SINGLE" else None
    if shape is None:
        each: float = _cost(kind, choose_shape(kind, rows, columns, batch * parts), rows, columns, batch * parts)
    else:
        each = _warpgroup_cost(shape, rows, columns, batch * parts)
    added = _added_cost(parts, batch * rows * columns) / _UNITS[kind] if parts > 1 else 0
    return each * terms / parts + added


def choose_parts(kind: str, rows: int, columns: int, batch: int, terms: int, *, warpgroups: bool = False) -> int:
    """The number of sums that a product's terms are dealt out to, for what takes the least time: sums, and the kernel
    that adds them up."""
    shapes = [_blocks(shape, rows, columns, batch) for shape in (_SINGLE if kind == "SINGLE" else _HALF)]
    if warpgroups and kind != "SINGLE":
        shapes += [_warpgroup_blocks(shape, rows, columns, batch) for shape in _warpgroup_shapes(rows, columns)]
    filling = {min(2 * MULTIPROCESSORS // blocks, terms // _LEAST_TERMS) for blocks in shapes}
    size = 4 if kind == "SINGLE" else 2
    rest = (_LAUNCH + _OF_BYTE * size * batch * (rows * terms + terms * columns + rows * columns)) / _UNITS[kind]

    def cost(parts: int) -> float:
        return _split_cost(kind, rows, columns, batch, terms, parts, warpgroups=warpgroups) + rest

    best = min(sorted(parts for parts in filling if parts > 1), key=cost, default=1)
    return best if cost(best) < _STREAM_GAIN * cost(1) else 1


def split_sums(program: Program, options: Options) -> None:
    """Deal out the terms of products that have too few results for a GPU: as sums of parts, added up afterwards.

    Not those of which stream-K makes one kernel.
    """
    replaced: dict[Value, Value] = {}
    total: dict[Value, Value] = {}
    reached = in_order(program)
    for value in reached:
        if isinstance(value, Contraction) and value.a.dtype is value.b.dtype and value.a.dtype in _KINDS:
            batch, rows, columns = product(value.shape[:-2]), *value.shape[-2:]
            terms = value.a.shape[-1]
            kind = _KINDS[value.a.dtype]
            sizes = [int(dim.value) for dim in (rows, columns, batch, terms)]
            most = choose_parts(kind, *sizes, warpgroups=options.warpgroups)
            if most > 1 and not _is_shared(value, kind, sizes, options, most):
                parts = Dim(f"min({most}, ceil_div({terms.text}, {_LEAST_TERMS}))", most)
                sums = Contraction((parts, *value.shape), DType.FLOAT32, value.a, value.b, parts, origin=value.origin)
                added = Reduce((ONE, *value.shape), value.dtype, "sum", sums, 0, 0, origin=value.origin)
                index = ("0", *(f"{{{axis}}}" for axis in range(len(value.shape))))
                total[value] = added
                replaced[value] = View(value.shape, value.dtype, added, index, origin=value.origin)
    for user in reached:
        user.replace(replaced)
    program.outputs = tuple(total.get(value, value) for value in program.outputs)
    program.ends = tuple(replaced.get(value, value) for value in program.ends)


def _is_shared(value: Contraction, kind: str, sizes: list[int], options: Options, parts: int) -> bool:
    """Whether stream-K makes one kernel of a product whose terms would be dealt out to so many sums."""
    if options.stream_k and options.warpgroups and choose_stream(kind, *sizes):
        return True
    return _share(value, kind, sizes, options, parts) is not None


def _share(
    anchor: Contraction | Convolution, kind: str, sizes: list[int], options: Options, parts: int = 1
) -> Share | None:
    """Stream-K for an anchor of so many rows, columns, matrices and terms, where it is written for ``mma.sync``."""
    halves = isinstance(anchor, Contraction) and kind != "SINGLE"
    if not (options.stream_k and options.clusters) or (options.warpgroups and halves):
        return None
    operands = anchor.operands[:2]
    moved = sum(int(product(value.shape).value) * value.dtype.itemsize for value in (anchor, *operands))
    return choose_share(kind, *sizes, parts=parts, moved=moved)


class _Copy(NamedTuple):
    """Statements that copy one operand's tile, and what they assume."""

    along: bool
    """Whether adjacent terms of the sum are adjacent in memory, not adjacent lines of the result."""
    body: list[str]
    run: tuple[str, ...]
    """Extents that 16 bytes must divide for one copy to take as many; none where elements are copied one by one."""


def tensor_tile(
    name: str, root: Value, anchor: Contraction | Convolution, stored: frozenset[Value], options: Options
) -> KernelText:
    """A product or a convolution on tensor cores.

    Raises:
        UnsupportedError: the operands have no type that tensor cores multiply exactly enough.
    """

    def written(name: str, vector: bool, by: type[_TensorWriter]) -> KernelText | None:
        try:
            return by(name, root, anchor, stored, options, vector=vector).write()
        except UnsupportedError:
            return written(name, False, by) if vector else None

    by_warpgroups = written(name, True, _WarpgroupWriter) if options.warpgroups else None
    by_warps = written(name if by_warpgroups is None else f"any_{name}", True, _TensorWriter)
    if by_warps is None:
        raise UnsupportedError("tensor cores do not cover this product")
    return by_warps if by_warpgroups is None else replace(by_warpgroups, alternative=by_warps)


class _TensorWriter:
    def __init__(
        self,
        name: str,
        root: Value,
        anchor: Contraction | Convolution,
        stored: frozenset[Value],
        options: Options,
        *,
        vector: bool,
    ) -> None:
        self.name, self.root, self.anchor, self.stored, self.options = name, root, anchor, stored, options
        self.left, self.right = (anchor.a, anchor.b) if isinstance(anchor, Contraction) else (anchor.weight, anchor.x)
        if self.left.dtype is not self.right.dtype or self.left.dtype not in _KINDS:
            raise UnsupportedError(f"no tensor core multiplies {self.left.dtype} by {self.right.dtype}")
        self.dtype, self.kind = self.left.dtype, _KINDS[self.left.dtype]
        self.em = LoopEmitter(stored - {root})
        self.em.signature.constant = True
        self.parts = anchor.parts if isinstance(anchor, Contraction) else None
        self.axes = ProductAxes.of(self.em, anchor, vector=vector)
        self.b, self.m, self.n, self.k = self.axes.b, self.axes.m, self.axes.n, self.axes.k
        self.sizes = [int(group.extent.value) for group in (self.m, self.n, self.b, self.k)]
        self.sizes[2] *= int(product(self.axes.phases).value)
        # A tile may reach over the end.
        self.narrow = max(self.sizes) < MOST_ELEMENTS - 1024
        # Phases differ in their terms.
        shared = self.parts is None and not self.axes.phases
        self.share = _share(anchor, self.kind, self.sizes, options) if shared else None
        self.shape = choose_shape(self.kind, *self.sizes[:3]) if self.share is None else self.share.shape

    def _results(self, own: tuple[Coordinate, ...]) -> tuple[Coordinate, ...]:
        """Coordinates of a result in the root, whose leading axes may be those of the product in another shape."""
        root, anchor = self.root.shape, self.anchor.shape
        if same_shape(root, anchor):
            return own
        if not self.b.dims and same_shape(root[-1:], anchor[-1:]):
            return (*LoopGroup("m", root[:-1]).coords(), *own[-1:])
        if len(self.b.dims) == 1 and same_shape(root[-2:], anchor[-2:]):
            return (*LoopGroup("batch", root[:-2]).coords(), *own[-2:])
        raise UnsupportedError("the result has the product's rows in another shape")

    def _copy(self, side: str) -> _Copy:
        """Statements that copy ``V`` elements of an operand to ``to``, from a line of the result and a term on."""
        em = self.em
        line = self.m if side == "a" else self.n
        inside = f"{line.var} < {em.signature.extent(line.extent)} && kk < {self.axes.terms}"
        with em.scope() as body:
            value, coords, condition = self.axes.row_operand() if side == "a" else self.axes.column_operand()
            inside = f"{inside} && {condition}" if condition else inside
            group, extent = adjacent(value, coords, self.stored)
            pointer = em.pointer(value, coords)
            if pointer is not None:
                em.add(f"copy_async<V{side.upper()}>(to, {pointer}, {inside});")
            else:
                with em.scope() as guarded:
                    em.add(f"value = {to_storage(em.read(value, coords), self.dtype)};")
                em.add(f"{C_TYPES[self.dtype]} value{{}};")
                em.lines += [f"if ({inside}) {{", *indent(guarded), "}", "*to = value;"]
        run: tuple[str, ...] = ()
        if pointer is not None and group in (self.k, line) and extent is not None:
            run = (group.extent.text, extent.text)
        return _Copy(group is not self.m if side == "a" else group is self.k, body, run)

    def _store(self) -> list[str]:
        """Statements that store ``V`` results, which are in ``acc``, from row m and column n on."""
        em = self.em
        with em.scope() as body:
            own, condition = self.axes.result()
            em.bound[self.anchor] = ("acc[k]" if self.n.vector else "acc[0]", own)
            coords = self._results(own)
            with em.scope() as stored:
                where = em.offset(self.root.shape, coords)
                em.lines += element_statements(em, self.root, coords, self.n.vector, where)
            em.lines += [f"if ({condition}) {{", *indent(stored), "}"] if condition else stored
        inside = f"m < {em.signature.extent(self.m.extent)} && n < {em.signature.extent(self.n.extent)}"
        return [f"if ({inside}) {{", *indent(body), "}"]

    def write(self) -> KernelText:
        em, name, shape, share, ctype = self.em, self.name, self.shape, self.share, C_TYPES[self.dtype]
        copies = {side: self._copy(side) for side in "ab"}
        store = self._store()
        flags = ", ".join("true" if copies[side].along else "false" for side in "ab")
        numbers = ", ".join(map(str, (*shape[:4], shape.depth, shape.stages)))
        lines, first, terms = self._terms(shape.depth)
        core = [
            f"using Tiles = TensorTiles<{ctype}, {self.kind}, {numbers}, {flags}>;",
            "extern __shared__ __align__(16) char tiles[];",
        ]
        if share is None:
            start, m_start, n_start, call = "", "m_start", "n_start", "Tiles::run<VA, VB, V>"
            core += [
                f"const int batch = blockIdx.z, m_start = blockIdx.y * {shape.rows};",
                f"const int n_start = {self.axes.columns} * {shape.columns};", *self.axes.head(), *lines,
            ]  # fmt: skip
        else:
            start, m_start, n_start = "int2 start, ", "start.y", "start.x"
            call = f"SharedTiles<Tiles, {share.blocks}, {share.units}>::run<VA, VB, V>"
            core += ["const int batch = blockIdx.z;"]
            terms += "".join(f", {em.signature.extent(group.extent)}" for group in (self.m, self.n))
        for side, line, at in (("a", "m", m_start), ("b", "n", n_start)):
            core += [
                f"const auto copy_{side} = [&]({ctype}* to, {start}int line, int term) {{",
                *indent([f"const int {line} = {at} + line, kk = {first} + term;", *copies[side].body]), "};",
            ]  # fmt: skip
        core += [
            f"const auto put = [&]({start}int line, int column, const float* acc) {{",
            *indent([f"const int m = {m_start} + line, n = {n_start} + column;", *store]), "};",
            f"{call}(reinterpret_cast<{ctype}*>(tiles), {terms}, copy_a, copy_b, put);",
        ]  # fmt: skip
        most = 16 // self.dtype.itemsize
        widths = {f"V{side.upper()}": plan_width(most, copies[side].run) for side in "ab"} | {"V": self._store_width()}
        source, setup, template = templated(
            name, em.signature, self.root, widths, f"__launch_bounds__({shape.threads}) ", core
        )
        rows, batch = (plan_int(group.extent) for group in (self.m, self.b))
        across, down = self.axes.blocks(shape.columns), f"ceil_div({rows}, {shape.rows})"
        grid = f"({across}, {down}, {batch})"
        if share is not None:
            clusters = f"{across} * {down}" if share.units == 1 else f"ceil_div({across} * {down}, {share.units})"
            grid = f"({clusters} * {share.blocks}, 1, {batch})"
        return KernelText(
            name, source, em.signature, self.root, grid, str(shape.threads), str(self._shared_bytes(copies)), setup,
            template, narrow=self.narrow, cluster=1 if share is None else share.blocks,
        )  # fmt: skip

    def _terms(self, depth: int) -> tuple[list[str], str, str]:
        """Statements before a block's sum, its first term and the number of its terms, where tiles have ``depth``."""
        terms = self.axes.terms
        if self.parts is None:
            return [], "0", terms
        parts = self.em.signature.extent(self.parts)
        with self.em.scope() as lines:
            part = self.em.text(self.b.coords()[0])
        each = f"constexpr int each = ({terms} + {parts} * {depth} - 1) / ({parts} * {depth}) * {depth};"
        return [each, *lines, f"const int first = {part} * each;"], "first", f"min(each, {terms} - first)"

    def _store_width(self) -> str:
        """The plan's text of how many results are stored at a time: four lanes store 32 bytes, a sector."""
        widest = {2: 4, 4: 2}.get(self.root.dtype.itemsize, 1)
        return plan_width(widest, (self.n.extent.text, *self.em.divisors) if self.n.vector else ())

    def _shared_bytes(self, copies: dict[str, _Copy]) -> int:
        """As ``Tile`` counts them."""
        size, total = self.dtype.itemsize, 0
        for copy, lines in ((copies["a"], self.shape.rows), (copies["b"], self.shape.columns)):
            depth = self.shape.depth
            total += lines * (depth + 16 // size) if copy.along else depth * (lines + 8)
        # Where blocks share terms, their sums wait for each other where the tiles were.
        sums = 0 if self.share is None else 4 * self.shape.rows * self.shape.columns
        return max(total * size * self.shape.stages, sums)


class _WarpgroupWriter(_TensorWriter):
    """Writes a product of halves for ``wgmma``, of operands that tensor maps can copy."""

    def _map(self, side: str) -> bool:
        """Add an operand's map to the kernel's parameters. Returns whether adjacent terms of the sum are adjacent in
        memory.

        Raises:
            UnsupportedError: the operand is not all of a tensor in memory.
        """
        line = self.m if side == "a" else self.n
        with self.em.scope():
            value, coords, _ = self.axes.row_operand() if side == "a" else self.axes.column_operand()
            walked = self.em.walk(value, coords)
        holder, groups = walked if walked is not None else (self.root, ())
        inner, along = groups[-2:], groups[-1:] == (self.k,)
        if set(inner) != {line, self.k} or groups[:-2] not in ((), (self.b,)):
            raise UnsupportedError("no tensor map copies this operand")
        if isinstance(holder, StoredTensor) and not holder.is_contiguous:
            raise UnsupportedError("a tensor map needs a contiguous tensor")
        batch = self.b.extent if self.b in groups else ONE
        self.em.signature.maps[f"tiles_{side}"] = TensorMap(holder, (batch, inner[0].extent, inner[1].extent))
        return along

    def write(self) -> KernelText:
        em, name, anchor = self.em, self.name, self.anchor
        sizes, stream = self.sizes, None
        if self.options.stream_k and self.parts is None:
            stream = choose_stream(self.kind, *sizes)
        shape = stream.shape if stream is not None else choose_warpgroups(*sizes[:3]) if self.kind != "SINGLE" else None
        if shape is None or not isinstance(anchor, Contraction):
            raise UnsupportedError("warpgroups would not be faster")
        along = ", ".join("true" if self._map(side) else "false" for side in "ab")
        store = self._store()
        lines, first, terms = self._terms(BOX)
        rows, columns = (em.signature.extent(group.extent) for group in (self.m, self.n))
        blocks = shape.down * shape.across
        maps = em.signature.maps
        matrices = ", ".join("0" if maps[f"tiles_{side}"].extents[0] is ONE else "batch" for side in "ab")
        core = [
            f"using Tiles = WarpgroupTiles<{C_TYPES[self.dtype]}, {', '.join(map(str, shape[:5]))}, {along}>;",
            "extern __shared__ __align__(16) char tiles[];" if stream else "extern __shared__ char tiles[];",
        ]
        if stream is None:
            core += [
                f"const int2 start = Tiles::start({rows}, {columns});",
                "const int batch = blockIdx.z, m_start = start.y, n_start = start.x;",
                *lines, "const auto put = [&](int line, int column, const float* acc) {",
                *indent(["const int m = m_start + line, n = n_start + column;", *store]), "};",
                f"Tiles::run<V>(tiles, tiles_a, tiles_b, {first}, {terms}, start, {matrices}, put);",
            ]  # fmt: skip
        else:
            core += [
                "const int batch = blockIdx.z;",
                "const auto put = [&](int2 start, int line, int column, const float* acc) {",
                *indent(["const int m = start.y + line, n = start.x + column;", *store]), "};",
                f"Tiles::stream<V, {stream.units}>"
                f"(tiles, tiles_a, tiles_b, {terms}, {rows}, {columns}, {matrices}, put);",
            ]  # fmt: skip
        bounds = f"__launch_bounds__({shape.threads}, {shape.resident}) "
        source, setup, template = templated(name, em.signature, self.root, {"V": self._store_width()}, bounds, core)
        groups = (
            f"ceil_div({plan_int(self.n.extent)}, {shape.columns * shape.across}) * "
            f"ceil_div({plan_int(self.m.extent)}, {shape.rows * shape.down})"
        )
        if stream is not None:
            blocks *= 2
            groups = groups if stream.units == 1 else f"ceil_div({groups}, {stream.units})"
        grid = f"({groups} * {blocks}, 1, {plan_int(self.b.extent)})"
        inner = dict.fromkeys(item.extents[-1].text for item in maps.values())
        return KernelText(
            name, source, em.signature, self.root, grid, str(shape.threads), str(shape.shared_bytes), setup, template,
            narrow=self.narrow, cluster=blocks, condition=" and ".join(f"({text}) % 8 == 0" for text in inner),
        )  # fmt: skip


def plan_width(most: int, extents: tuple[str, ...]) -> str:
    """The plan's text of how many elements move at a time: ``most`` where that divides all of the extents."""
    if not extents:
        return "1"
    conditions = " and ".join(f"({text}) % {most} == 0" for text in dict.fromkeys(extents))
    return f"{most} if {conditions} else 1"
