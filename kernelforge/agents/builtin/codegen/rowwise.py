"""Row-wise kernels: reductions over adjacent axes, then the reduced values or a pass that uses them.

One thread per row at first; a warp or a block per row (threads combine by shuffles) with ``warp_reduce``. A row that
is read in several passes can stay in shared memory (``stage``).
"""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.agents.builtin.codegen.cpp_emitter import indent
from kernelforge.agents.builtin.codegen.kernel import THREADS, KernelText, Options, cone, leaves, plan_int, same_shape
from kernelforge.agents.builtin.codegen.loops import LoopEmitter, combine_of, result_of, start_of, step_of, type_of
from kernelforge.agents.builtin.ir.iteration_space import C_TYPES, ZERO, Coordinate, LoopGroup, to_storage
from kernelforge.agents.builtin.ir.lowering import LONG
from kernelforge.agents.builtin.ir.nodes import Dim, Reduce, Value, product
from kernelforge.errors import UnsupportedError
from kernelforge.records import DType

WARP = 32


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
        self.parts = () if pattern.parts is None else (pattern.parts,)
        for reduce in self.reduces:
            if not same_shape(reduce.arg.shape, full) or (reduce.first, reduce.last) != (pattern.first, pattern.last):
                raise UnsupportedError("the reductions walk different rows")
        self.maps = same_shape(root.shape, full) and product(self.axis).value != 1
        rows = product((*self.parts, *self.outer, *self.inner))
        ranks = tuple(len(self.parts) + rank for rank in (len(full), len(self.outer) + len(self.inner)))
        if not self.maps and (product(root.shape).value != rows.value or len(root.shape) not in ranks):
            raise UnsupportedError("the result is neither a row nor one value per row")
        self.shared_rows = options.warp_reduce and not self.inner
        self.vector = options.vectorise and self.shared_rows
        self.cached = self._repeated() if options.stage and self.shared_rows else []
        self.rows = rows
        self.o = LoopGroup("o" if self.inner else "row", self.outer)
        self.j = LoopGroup("j", self.axis, vector=self.vector)
        self.i = LoopGroup("in", self.inner)
        self.extent = self.em.signature.extent(product(self.axis))

    def _repeated(self) -> list[Value]:
        """Stored values of the row's own shape that more than one pass reads."""
        passes = [reduce.arg for reduce in self.reduces] + ([self.root] if self.maps else [])
        bound = self.stored | set(self.reduces)
        seen: dict[Value, int] = {}
        for end in passes:
            direct = [end] if end in self.stored or not end.operands else leaves(end, frozenset(bound))
            for leaf in direct:
                if same_shape(leaf.shape, self.full) and leaf.dtype is DType.FLOAT32 and not isinstance(leaf, Reduce):
                    seen[leaf] = seen.get(leaf, 0) + 1
        return [leaf for leaf, count in seen.items() if count > 1]

    def write(self) -> KernelText:
        em = self.em
        with em.scope() as core:
            if self.inner:
                width = em.signature.extent(product(self.inner))
                em.add(f"const int o = row / {width}, in = row % {width};")
            self._stage()
            coords = (*self.o.coords(), *self.j.coords(), *self.i.coords())
            kept = (*self.o.coords(), *(ZERO for _ in self.axis), *self.i.coords())
            for reduce in self.reduces:
                self._reduce(reduce, coords, kept)
            if self.maps:
                self._map(coords)
            else:
                at = kept if len(self.root.shape) == len(self.full) else (*self.o.coords(), *self.i.coords())
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

    def _reduce(self, reduce: Reduce, coords: tuple[Coordinate, ...], kept: tuple[Coordinate, ...]) -> None:
        em = self.em
        total = em.fresh(reduce.op)
        em.add(f"{type_of(reduce)} {total} = {start_of(reduce)};")
        at = "j + k" if self.vector else "j"

        def take(into: str) -> None:
            em.add(step_of(reduce, into, em.read(reduce.arg, coords), at))

        if not self.shared_rows:
            em.over(self.j, total, "", take, summed=type_of(reduce) if reduce.op == "sum" else None)
        else:
            self._passes(lambda: take(total))
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
        setup = [f"{t} = 32 if {length.text} <= 256 or ({length.text} <= 1024 and {count} >= 1024) else 256"]
        if self.vector:
            setup.append(f"{v} = 4 if {divides(length, list(em.divisors))} else 1")
        smem = None
        if self.cached:
            need = f"256 // {t} * {len(self.cached)} * {plan_int(length)} * 4"
            setup += [f"{name}_bytes = {need}", f"{s} = 1 if {name}_bytes <= 49152 else 0"]
            smem = f"{name}_bytes * {s}"
        source = [
            f"template <{', '.join(f'int {word}' for word, _ in template)}> "
            f"__global__ void {name}({em.signature.parameters(self.root)}) {{",
            *(["    extern __shared__ __align__(16) float shared[];"] if self.cached else []),
            "    const int row = blockIdx.x * blockDim.y + threadIdx.y;  // T threads, whole warps, share a row",
            f"    if (row >= {rows}) return;", *indent(core), "}",
        ]  # fmt: skip
        return KernelText(
            name, "\n".join(source), em.signature, self.root, f"ceil_div({count}, 256 // {t})", f"({t}, 256 // {t})",
            smem, tuple(setup), tuple(word for _, word in template),
        )  # fmt: skip


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
