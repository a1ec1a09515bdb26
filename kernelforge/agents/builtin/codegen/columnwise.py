"""Reductions over outer axes: the threads of a block share columns, so that a warp reads adjacent elements.

Each warp of a block walks its own share of the reduced axis, and the warps combine their results in shared memory. A
reduction with too few columns for a GPU is dealt out to several blocks as well, whose results a second kernel combines.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.agents.builtin.codegen.cpp_emitter import indent
from kernelforge.agents.builtin.codegen.elementwise import element_statements
from kernelforge.agents.builtin.codegen.kernel import (
    DEFAULT_SHARED_BYTES,
    MULTIPROCESSORS,
    KernelText,
    Options,
    in_order,
    plan_int,
)
from kernelforge.agents.builtin.codegen.loops import LONGEST_RUN, combine_of, result_of, start_of, step_of, type_of
from kernelforge.agents.builtin.codegen.rowwise import RowWriter, divides
from kernelforge.agents.builtin.ir.iteration_space import C_TYPES, ZERO, Coordinate, LoopGroup, to_storage
from kernelforge.agents.builtin.ir.nodes import ONE, Dim, Program, Reduce, Value, View, product
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType

LANES = 32
"""Columns of a block, or packs of columns."""
MOST_THREADS = 16
"""Threads that share a column which is read once."""
MOST_THREADS_AGAIN = 32
"""The same of a long one that several passes read: fewer blocks are resident then, whose columns stay in the caches."""
LONG_COLUMN = 512
SHORT_COLUMN = 4 * MOST_THREADS
"""Below it, threads that walk a column alone are as fast in several passes: 32 elements take 1.5 % longer by blocks."""
LEAST_PART = 256
"""Elements of a column that one block takes: 16 for each thread."""


def column_kernel(name: str, root: Value, stored: frozenset[Value], options: Options) -> KernelText:
    """A kernel whose blocks walk columns.

    Raises:
        UnsupportedError: the value is not made of passes over the same columns, or these are too few for a warp.
    """
    return _ColumnWriter(name, root, stored, options).write()


def split_columns(program: Program, options: Options) -> None:
    """Deal out reductions that have too few columns for a GPU: as results of parts, combined afterwards."""
    replaced: dict[Value, Value] = {}
    total: dict[Value, Value] = {}
    reached = in_order(program)
    for value in reached:
        if isinstance(value, Reduce) and value.op in ("sum", "prod", "max", "min") and value.parts is None:
            length = product(value.arg.shape[value.first : value.last + 1])
            most = _parts(value, options)
            if most > 1:
                parts = Dim(f"min({most}, ceil_div({length.text}, {LEAST_PART}))", most)
                halves = value.dtype in (DType.FLOAT16, DType.BFLOAT16)
                dtype = DType.FLOAT32 if halves else value.dtype
                shape = (parts, *value.shape)
                shares = Reduce(shape, dtype, value.op, value.arg, value.first, value.last, parts, origin=value.origin)
                joined = Reduce((ONE, *value.shape), value.dtype, value.op, shares, 0, 0, origin=value.origin)
                index = ("0", *(f"{{{axis}}}" for axis in range(len(value.shape))))
                total[value] = joined
                replaced[value] = View(value.shape, value.dtype, joined, index, origin=value.origin)
    for user in reached:
        user.replace(replaced)
    program.outputs = tuple(total.get(value, value) for value in program.outputs)
    program.ends = tuple(replaced.get(value, value) for value in program.ends)


def _parts(value: Reduce, options: Options) -> int:
    """Blocks that share each column: 1 where columns alone keep half of the GPU busy."""
    outer, inner = (product(dims) for dims in (value.shape[: value.first], value.shape[value.last + 1 :]))
    width = LANES * (4 if options.vectorise and inner.value % 4 == 0 else 1)
    blocks = int(outer.value) * -(-int(inner.value) // width)
    length = int(product(value.arg.shape[value.first : value.last + 1]).value)
    if inner.value < LANES or 2 * blocks > MULTIPROCESSORS:
        return 1
    return max(1, min(2 * MULTIPROCESSORS // blocks, length // LEAST_PART))


class _ColumnWriter(RowWriter):
    """Writes one column kernel: ``T`` warps walk 32 columns, or 32 packs of ``V``."""

    def __init__(self, name: str, root: Value, stored: frozenset[Value], options: Options) -> None:
        super().__init__(name, root, stored, options)
        outer, inner, length = (int(product(dims).value) for dims in (self.outer, self.inner, self.axis))
        parts = int(product(self.parts).value)
        if inner < LANES:
            raise UnsupportedError("a row has too few columns for a warp")
        if length > parts * MOST_THREADS * LONGEST_RUN:
            raise UnsupportedError("a thread would add up too many terms")
        if self.parts and root is not self.reduces[0]:
            raise UnsupportedError("results of parts are stored without further operators")
        self.again = len(self.reduces) + self.maps > 1
        if self.again and length < SHORT_COLUMN:
            raise UnsupportedError("columns that several passes read are too short for several threads")
        self.vector = (
            options.vectorise and not self.again and outer * -(-inner // (4 * LANES)) * parts >= MULTIPROCESSORS
        )
        sizes = [8 if type_of(reduce) in ("Best", "double", "long long") else 4 for reduce in self.reduces]
        threads = MOST_THREADS_AGAIN if self.again else MOST_THREADS
        if threads * LANES * (4 if self.vector else 1) * sum(sizes) > DEFAULT_SHARED_BYTES:
            raise UnsupportedError("the results of a block's threads do not fit shared memory")
        self.i = LoopGroup("in", self.inner, vector=self.vector)
        self.lane, self.width = ("[k]", "V") if self.vector else ("[0]", "1")

    def write(self) -> KernelText:
        em = self.em
        inner = em.signature.extent(product(self.inner))
        step = f"{LANES} * V" if self.vector else str(LANES)
        part = LoopGroup("part", self.parts).coords()
        with em.scope() as core:
            em.lines += [
                f"const int tiles = ({inner} + {step} - 1) / ({step});",
                *(["const int o = blockIdx.x / tiles;"] if self.outer else []),
                f"const int column = (blockIdx.x % tiles * {LANES} + threadIdx.x){' * V' if self.vector else ''};",
                f"const bool inside = column < {inner};",
                "const int in = inside ? column : 0;  // a thread outside takes part, and stores nothing",
            ]
            if self.parts:
                share = f"({self.extent} + gridDim.z - 1) / gridDim.z"
                em.lines += [
                    f"const int part = blockIdx.z, share = {share}, first = part * share;",
                    f"const int end = first + share < {self.extent} ? first + share : {self.extent};",
                ]
            coords = (*self.o.coords(), *self.j.coords(), *self.i.coords())
            kept = (*part, *self.o.coords(), *(ZERO for _ in self.axis), *self.i.coords())
            for reduce in self.reduces:
                self._reduce(reduce, coords, kept)
            if self.maps:
                with em.scope() as body:
                    self._map(coords)
                em.lines += ["if (inside) {", *indent(body), "}"]
            else:
                flat = len(self.root.shape) == len(self.parts) + len(self.outer) + len(self.inner)
                at = (*part, *self.o.coords(), *self.i.coords()) if flat else kept
                with em.scope() as body:
                    where = em.offset(self.root.shape, at)
                    em.lines += element_statements(em, self.root, at, self.vector, where)
                em.lines += ["if (threadIdx.y == 0 && inside) {", *indent(body), "}"]
        return self._kernel(core)

    def _walk(self, write: Callable[[], None], end: Callable[[], list[str]] = list) -> None:
        """One pass: the loop over a thread's share of its columns around what ``write`` adds for each of them."""
        em = self.em
        with em.scope() as body:
            if self.vector:
                with em.lanes() as (before, lanes):
                    write()
                em.lines += [*before, "#pragma unroll", "for (int k = 0; k < V; ++k) {", *indent(lanes), "}"]
            else:
                write()
            em.lines += end()
        first, limit = ("first + ", "end") if self.parts else ("", self.extent)
        em.lines += [
            "#pragma unroll 4",
            f"for (int j = {first}threadIdx.y; j < {limit}; j += T) {{", *indent(body), "}",
        ]  # fmt: skip

    def _reduce(self, reduce: Reduce, coords: tuple[Coordinate, ...], kept: tuple[Coordinate, ...]) -> None:
        em = self.em
        total = em.fresh(reduce.op)
        em.lines += [
            f"{type_of(reduce)} {total}[{self.width}];",
            "#pragma unroll",
            f"for (int k = 0; k < {self.width}; ++k) {total}[k] = {start_of(reduce)};",
        ]
        self._walk(lambda: em.add(step_of(reduce, total + self.lane, em.read(reduce.arg, coords), "j")))
        em.add(f"column_reduce<T>({total}, [](auto a, auto b) {{ return {combine_of(reduce)}(a, b); }});")
        em.bound[reduce] = (result_of(reduce, total + self.lane), kept)

    def _map(self, coords: tuple[Coordinate, ...]) -> None:
        em, root = self.em, self.root

        def write() -> None:
            target = "result.v[k]" if self.vector else f"out[{em.offset(root.shape, coords)}]"
            em.add(f"{target} = {to_storage(em.read(root, coords), root.dtype)};")

        def store() -> list[str]:
            return [f"store<V>(out + {em.offset(root.shape, coords)}, result);"] if self.vector else []

        if self.vector:
            em.add(f"Pack<{C_TYPES[root.dtype]}, V> result;")
        self._walk(write, store)

    def _kernel(self, core: list[str]) -> KernelText:
        em, name = self.em, self.name
        t, v = f"{name}_t", f"{name}_v"
        length, inner = product(self.axis), product(self.inner)
        long = f"{MOST_THREADS_AGAIN} if {length.text} >= {LONG_COLUMN} else " if self.again else ""
        setup = [f"{t} = {long}{MOST_THREADS} if {length.text} >= {SHORT_COLUMN} else 4"]
        template = [("T", t)]
        across = str(LANES)
        if self.vector:
            setup.append(f"{v} = 4 if {divides(inner, list(em.divisors))} else 1")
            template.append(("V", v))
            across = f"{LANES} * {v}"
        source = [
            f"template <{', '.join(f'int {word}' for word, _ in template)}> "
            f"__global__ void {name}({em.signature.parameters(self.root)}) {{", *indent(core), "}",
        ]  # fmt: skip
        columns = f"ceil_div({plan_int(inner)}, {across}) * {plan_int(product(self.outer))}"
        parts = plan_int(product(self.parts))
        return KernelText(
            name, "\n".join(source), em.signature, self.root, f"({columns}, 1, {parts})", f"({LANES}, {t})",
            None, tuple(setup), tuple(word for _, word in template),
        )  # fmt: skip
