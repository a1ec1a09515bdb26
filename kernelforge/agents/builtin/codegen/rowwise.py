"""Row-wise kernels: reductions over adjacent axes, then the reduced values or a pass that uses them.

One thread per row at first; a warp or a block per row (threads combine by shuffles) with ``warp_reduce``. A row that
is read in several passes can stay in shared memory (``stage``). Reductions whose operands do not depend on
each other share a pass: the sum of a long row, and that of its squared distances from the mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from kernelforge.agents.builtin.codegen.cpp_emitter import indent
from kernelforge.agents.builtin.codegen.kernel import (
    DEFAULT_SHARED_BYTES,
    MULTIPROCESSORS,
    THREADS,
    KernelText,
    Options,
    cone,
    in_order,
    leaves,
    plan_int,
    put,
    same_shape,
)
from kernelforge.agents.builtin.codegen.loops import (
    LONGEST_RUN,
    LoopEmitter,
    combine_of,
    result_of,
    start_of,
    step_of,
    type_of,
)
from kernelforge.agents.builtin.ir.iteration_space import C_TYPES, ZERO, Coordinate, LoopGroup, to_storage
from kernelforge.agents.builtin.ir.lowering import LONG
from kernelforge.agents.builtin.ir.nodes import (
    ONE,
    Dim,
    Extent,
    Pointwise,
    Program,
    Reduce,
    Reshape,
    Scalar,
    StoredTensor,
    Value,
    product,
    unshaped,
)
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType

WARP = 32
LONG_ROW = 12 * 1024
"""Elements above which a row gets more threads: the fewer rows are read at a time, the more of them the L2 holds."""
VERY_LONG_ROW = 24 * 1024
"""Elements above which shared memory has a multiprocessor's only row."""
MOST_THREADS = 1024
FULL_GPU = 8 * MULTIPROCESSORS
"""Blocks of 256 threads that fill the GPU: of so many rows, one that is read once needs no more threads."""
STATIC_BYTES = 2 * 1024
"""Shared memory for the warps' shares of a block's reductions."""


def join_rows(program: Program) -> None:
    """Reduce what lowering reduced row by row in one loop, where there are blocks enough with a thread for each of
    its shorter runs."""
    reached = in_order(program)
    uses = Counter(operand for value in reached for operand in value.operands)
    joined: dict[Value, Value] = {}
    for value in reached:
        if not isinstance(value, Reduce) or not isinstance(value.arg, Reduce):
            continue
        inner = value.arg
        alike = (inner.op, inner.dtype, inner.parts, value.parts) == (value.op, value.dtype, None, None)
        adjacent = inner.last == len(inner.shape) - 1 and value.last == inner.first - 1
        rows = product(value.shape[: value.first]).value
        length = product(inner.arg.shape[value.first :]).value
        many = 2 * rows >= MULTIPROCESSORS and length <= MOST_THREADS * LONGEST_RUN
        if alike and adjacent and many and uses[inner] == 1 and inner not in program.outputs:
            joined[value] = Reduce(
                value.shape, value.dtype, value.op, inner.arg, value.first, inner.last, origin=value.origin
            )
    put(program, joined)


def spread_in_one_pass(program: Program) -> None:
    """Compute the squared distances of a long row from its mean in the pass that adds the row up."""
    reached = in_order(program)
    spreads: dict[Value, Value] = {}
    for value in reached:
        centred = _centred(value)
        if isinstance(value, Reduce) and centred is not None and _is_long(value):
            spreads[value] = Reduce(
                value.shape, value.dtype, "spread", centred, value.first, value.last, origin=value.origin
            )
    put(program, spreads)


def _is_long(value: Reduce) -> bool:
    to_end = value.last == len(value.shape) - 1
    return to_end and product(value.arg.shape[value.first :]).value > LONG_ROW and value.dtype is not DType.FLOAT64


def _centred(value: Value) -> Value | None:
    """Operand of a sum of squared distances from the mean along the same axes; None where a value is another."""
    if not isinstance(value, Reduce) or value.op != "sum" or value.parts is not None:
        return None
    square = value.arg
    if not isinstance(square, Pointwise):
        return None
    if square.template == "{0} * {0}":
        apart = square.args[0]
        if not isinstance(apart, Pointwise) or apart.template != "{0} - {1}":
            return None
    elif square.template == "({0} - {1}) * ({0} - {1})":
        apart = square
    else:
        return None
    x, mean = apart.args
    if not isinstance(mean, Pointwise) or mean.template != "{0} / {1}":
        return None
    total, count = mean.args
    if not isinstance(total, Reduce) or not isinstance(count, Extent) or total.op != "sum" or total.arg is not x:
        return None
    axes = product(x.shape[value.first : value.last + 1])
    return x if (total.first, total.last, count.dim) == (value.first, value.last, axes) else None


def keep_groups(program: Program) -> None:
    """Compute arithmetic on a regrouped tensor before it is regrouped, so that it can join the rows' kernel.

    A group norm splits the channels; its weights and what follows see them together.
    """
    kept: dict[Value, Reshape] = {}
    for value in in_order(program):
        value.replace(kept)
        if not isinstance(value, Pointwise):
            continue
        shapes = [
            arg.base.shape
            for arg in value.args
            if isinstance(arg, Reshape) and isinstance(arg.base, Pointwise) and same_shape(arg.shape, value.shape)
        ]
        args = _grouped(value.args, value.shape, shapes[0]) if shapes else None
        if args is not None:
            inner = Pointwise(shapes[0], value.dtype, value.template, args, origin=value.origin)
            kept[value] = Reshape(value.shape, value.dtype, inner, origin=value.origin)
    program.outputs = tuple(kept[value].base if value in kept else value for value in program.outputs)
    program.ends = tuple(kept.get(value, value) for value in program.ends)


def _grouped(args: Sequence[Value], shape: tuple[Dim, ...], grouped: tuple[Dim, ...]) -> tuple[Value, ...] | None:
    """Operands of a shape with one of its axes split as in ``grouped``; None where that takes more than views."""
    more = len(grouped) - len(shape)
    axis = next((axis for axis, (a, b) in enumerate(zip(shape, grouped, strict=False)) if a != b), len(shape))
    if more < 1 or axis == len(shape) or shape[axis + 1 :] != grouped[axis + 1 + more :]:
        return None
    split = []
    for arg in args:
        at = axis - (len(shape) - len(arg.shape))
        base = unshaped(arg)
        if at < 0:
            split.append(arg)
            continue
        if isinstance(base, Pointwise) and not same_shape(base.shape, grouped):
            return None
        if not isinstance(base, Pointwise | StoredTensor | Scalar):
            return None
        middle = (ONE,) * (1 + more) if arg.shape[at].value == 1 else grouped[axis : axis + 1 + more]
        view = (*arg.shape[:at], *middle, *arg.shape[at + 1 :])
        split.append(base if view == base.shape else Reshape(view, arg.dtype, base, origin=arg.origin))
    return tuple(split)


class RowWriter:
    """Writes one row kernel."""

    def __init__(self, name: str, root: Value, stored: frozenset[Value], options: Options) -> None:
        self.name, self.root, self.stored = name, root, stored - {root}
        self.em = LoopEmitter(self.stored)
        self.reduces = [value for value in cone(root, self.stored) if isinstance(value, Reduce)]
        pattern = self.reduces[0]
        full = pattern.arg.shape
        self.full = full
        self.outer, self.axis, self.inner = (
            full[: pattern.first],
            full[pattern.first : pattern.last + 1],
            full[pattern.last + 1 :],
        )
        self.ones = 0
        """Axes of extent 1 behind the row, which is no column then."""
        if options.warp_reduce and all(dim == ONE for dim in self.inner):
            self.ones = len(self.inner)
            self.axis, self.inner = full[pattern.first :], ()
        self.parts = () if pattern.parts is None else (pattern.parts,)
        for reduce in self.reduces:
            if not same_shape(reduce.arg.shape, full) or (reduce.first, reduce.last) != (pattern.first, pattern.last):
                raise UnsupportedError("the reductions walk different rows")
        self.maps = same_shape(root.shape, full) and product(self.axis).value != 1
        rows = product((*self.parts, *self.outer, *self.inner))
        flat = len(self.outer) + len(self.inner) + self.ones
        ranks = tuple(len(self.parts) + rank for rank in (len(full), flat))
        if not self.maps and (product(root.shape).value != rows.value or len(root.shape) not in ranks):
            raise UnsupportedError("the result is neither a row nor one value per row")
        self.shared_rows = options.warp_reduce and not self.inner
        self.vector = options.vectorise and self.shared_rows
        self.shared_bytes = options.shared_bytes
        self.cached = self._repeated() if options.stage and self.shared_rows else []
        self.rows = rows
        self.o = LoopGroup("o" if self.inner else "row", self.outer)
        self.j = LoopGroup("j", self.axis, vector=self.vector)
        self.i = LoopGroup("in", self.inner)
        self.extent = self.em.signature.extent(product(self.axis))

    def _repeated(self) -> list[Value]:
        """Tensors with as many elements as the rows have, in their order, that more than one pass reads."""
        passes = [[reduce.arg for reduce in together] for together in self._passes_of()]
        bound = self.stored | set(self.reduces)
        seen: dict[Value, int] = {}
        for ends in [*passes, *([[self.root]] if self.maps else [])]:
            for leaf in dict.fromkeys(leaf for end in ends for leaf in self._rows_read(end, frozenset(bound))):
                seen[leaf] = seen.get(leaf, 0) + 1
        return [leaf for leaf, count in seen.items() if count > 1]

    def _rows_read(self, end: Value, bound: frozenset[Value]) -> list[Value]:
        """The float32 tensors in memory whose rows computing ``end`` reads."""
        if end in self.stored or not end.operands:
            read = [(end, end.shape)]
        else:
            values = cone(end, bound)
            read = [(leaf, leaf.shape) for leaf in leaves(end, bound)]
            read += [(value.base, value.shape) for value in values if isinstance(value, Reshape)]
        direct = _read_in_order(end, bound)
        rows = [leaf for leaf, shape in read if same_shape(shape, self.full) and leaf.dtype is DType.FLOAT32]
        return [leaf for leaf in rows if leaf in direct and (leaf in self.stored or isinstance(leaf, StoredTensor))]

    def _passes_of(self) -> list[list[Reduce]]:
        """The reductions, together where none needs another's result."""
        passes: list[list[Reduce]] = []
        for reduce in self.reduces:
            needed = set(cone(reduce.arg, self.stored))
            if passes and self.shared_rows and not needed & set(passes[-1]):
                passes[-1].append(reduce)
            else:
                passes.append([reduce])
        return passes

    def write(self) -> KernelText:
        em = self.em
        with em.scope() as core:
            if self.inner:
                width = em.signature.extent(product(self.inner))
                em.add(f"const int o = row / {width}, in = row % {width};")
            self._stage()
            coords = (*self.o.coords(), *self.j.coords(), *self.i.coords())
            kept = (*self.o.coords(), *(ZERO for _ in self.axis), *self.i.coords())
            for together in self._passes_of():
                self._reduce_all(together, coords, kept)
            if self.maps:
                self._map(coords)
            else:
                flat = (*self.o.coords(), *(ZERO,) * self.ones, *self.i.coords())
                at = kept if len(self.root.shape) == len(self.full) else flat
                text = f"out[row] = {to_storage(em.read(self.root, at), self.root.dtype)};"
                em.add(f"if (threadIdx.x == 0) {text}" if self.shared_rows else text)
        return self._kernel(core)

    def _passes(self, write: Callable[[], None], around: tuple[str, ...] = ()) -> None:
        """One pass over the row: the loop of this kernel's mode around the statements that ``write`` adds.

        ``around`` are a statement before the lanes' loop and one after it, where there is such a loop.
        """
        em = self.em
        with em.scope() as body:
            if self.vector:
                with em.lanes() as (before, lanes):
                    write()
                em.lines += [*before, *around[:1], "#pragma unroll"]
                em.lines += ["for (int k = 0; k < V; ++k) {", *indent(lanes), "}", *around[1:]]
            else:
                write()
        width = " * V" if self.vector else ""
        head = f"for (int j = threadIdx.x{width}; j < {self.extent}; j += T{width}) {{"
        if not self.shared_rows:
            head = f"for (int j = 0; j < {self.extent}; ++j) {{"
        em.lines += [head, *indent(body), "}"]

    def _reduce_all(self, reduces: list[Reduce], coords: tuple[Coordinate, ...], kept: tuple[Coordinate, ...]) -> None:
        """One pass for several reductions: by one thread only one."""
        em = self.em
        totals = [em.fresh(reduce.op) for reduce in reduces]
        for reduce, total in zip(reduces, totals, strict=True):
            em.add(f"{type_of(reduce)} {total} = {start_of(reduce)};")
        at = "j + k" if self.vector else "j"

        def take(reduce: Reduce, into: str) -> None:
            em.add(step_of(reduce, into, em.read(reduce.arg, coords), at))

        def take_all() -> None:
            for reduce, total in zip(reduces, totals, strict=True):
                take(reduce, total)

        if not self.shared_rows:
            ((reduce, total),) = zip(reduces, totals, strict=True)
            summed = type_of(reduce) if reduce.op == "sum" else None
            em.over(self.j, total, "", lambda into: take(reduce, into), summed=summed)
        else:
            self._passes(take_all)
        for reduce, total in zip(reduces, totals, strict=True):
            if self.shared_rows:
                combine = f"[](auto a, auto b) {{ return {combine_of(reduce)}(a, b); }}"
                em.add(f"{total} = row_reduce<T>({total}, {combine});")
            em.bound[reduce] = (result_of(reduce, total), kept)

    def _map(self, coords: tuple[Coordinate, ...]) -> None:
        em = self.em

        def write() -> None:
            element = to_storage(em.read(self.root, coords), self.root.dtype)
            target = "result.v[k]" if self.vector else f"out[{em.offset(self.root.shape, coords)}]"
            em.add(f"{target} = {element};")

        where = "row" if not self.inner else "o"
        result = f"Pack<{C_TYPES[self.root.dtype]}, V> result;"
        self._passes(write, (result, f"store<V>(out + {where} * {self.extent} + j, result);"))

    def _stage(self) -> None:
        """Pointers to the rows that stay: in shared memory where they fit, else in place."""
        em = self.em
        step = "V" if self.vector else "1"
        for number, value in enumerate(self.cached):
            pointer = f"row_{em.signature.tensor(value)}"
            source = f"{em.signature.tensor(value)} + {'row' if self.outer else '0'} * {self.extent}"
            em.lines += [
                f"const float* {pointer} = {source};",
                "if (STAGE) {",
                f"    float* kept = shared + (threadIdx.y * {len(self.cached)} + {number}) * {self.extent};",
                f"    for (int j = threadIdx.x * {step}; j < {self.extent}; j += T * {step})",
                f"        store<{step}>(kept + j, load<{step}>({pointer} + j));",
                f"    {pointer} = kept;  // each thread reads back what it wrote itself",
                "}",
            ]
            em.cached_rows[value] = pointer

    def _kernel(self, core: list[str]) -> KernelText:
        em, name = self.em, self.name
        rows = em.signature.extent(self.rows)
        count, length = plan_int(self.rows), product(self.axis)
        if not self.shared_rows:
            source = [
                f"__global__ void {name}({em.signature.parameters(self.root)}) {{",
                "    const int row = blockIdx.x * blockDim.x + threadIdx.x;",
                f"    if (row >= {rows}) return;", *indent(core), "}",
            ]  # fmt: skip
            # Blocks of long rows are small: they spread over the GPU, and one of them can still be profiled.
            threads = WARP if length.value > LONG else THREADS
            return KernelText(
                name, "\n".join(source), em.signature, self.root, f"ceil_div({count}, {threads})", str(threads)
            )
        t, v, s = f"{name}_t", f"{name}_v", f"{name}_s"
        template = [("T", t), *([("V", v)] if self.vector else []), *([("STAGE", s)] if self.cached else [])]
        long = length.value > LONG_ROW
        many = "256"
        if long:
            once = len(self._passes_of()) == 1 and not self.maps
            few = f" and {count} < {FULL_GPU}" if once else ""
            many = (
                f"{MOST_THREADS} if {length.text} > {VERY_LONG_ROW}{few} "
                f"else 512 if {length.text} > {LONG_ROW}{few} else 256"
            )
        setup = [f"{t} = 32 if {length.text} <= 256 or ({length.text} <= 1024 and {count} >= 1024) else {many}"]
        together = f"max(1, 256 // {t})" if long else f"256 // {t}"
        if self.vector:
            setup.append(f"{v} = 4 if {divides(length, list(em.divisors))} else 1")
        smem = None
        if self.cached:
            need = f"{together} * {len(self.cached)} * {plan_int(length)} * 4"
            most = self.shared_bytes - STATIC_BYTES if long else DEFAULT_SHARED_BYTES
            setup += [f"{name}_bytes = {need}", f"{s} = 1 if {name}_bytes <= {most} else 0"]
            smem = f"{name}_bytes * {s}"
        bounds = "__launch_bounds__(T < 256 ? 256 : T, T == 512 ? 3 : 1) " if long else ""
        source = [
            f"template <{', '.join(f'int {word}' for word, _ in template)}> "
            f"__global__ void {bounds}{name}({em.signature.parameters(self.root)}) {{",
            *(["    extern __shared__ __align__(16) float shared[];"] if self.cached else []),
            "    const int row = blockIdx.x * blockDim.y + threadIdx.y;  // T threads, whole warps, share a row",
            f"    if (row >= {rows}) return;", *indent(core), "}",
        ]  # fmt: skip
        return KernelText(
            name, "\n".join(source), em.signature, self.root, f"ceil_div({count}, {together})", f"({t}, {together})",
            smem, tuple(setup), tuple(word for _, word in template),
        )  # fmt: skip


def _read_in_order(end: Value, bound: frozenset[Value]) -> set[Value]:
    """Values that ``end`` reads element by element: not by a view that turns rows around, a gather or padding."""
    reached: set[Value] = set()
    pending = [end]
    while pending:
        value = pending.pop()
        if value not in reached:
            reached.add(value)
            if isinstance(value, Pointwise | Reshape) and (value is end or value not in bound):
                pending += value.operands
    return reached


def divides(length: Dim, others: list[str]) -> str:
    """The plan's condition that 4 divides extents."""
    return " and ".join(f"({text}) % 4 == 0" for text in dict.fromkeys([length.text, *others]))


def row_kernel(name: str, root: Value, stored: frozenset[Value], options: Options) -> KernelText:
    """A kernel whose threads walk rows.

    Raises:
        UnsupportedError: the value is not made of passes over the same rows.
    """
    writer = RowWriter(name, root, stored, options)
    if writer.parts:
        raise UnsupportedError("results of parts are written by blocks of columns alone")
    return writer.write()
