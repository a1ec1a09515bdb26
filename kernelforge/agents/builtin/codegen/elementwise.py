"""Elementwise kernels: one thread per output element, or per ``V`` adjacent elements."""

from __future__ import annotations

from dataclasses import replace

from kernelforge.agents.builtin.codegen.cpp_emitter import indent
from kernelforge.agents.builtin.codegen.kernel import THREADS, KernelText, Options, plan_int
from kernelforge.agents.builtin.codegen.loops import LoopEmitter
from kernelforge.agents.builtin.ir.iteration_space import C_TYPES, Coordinate, LoopGroup, to_storage
from kernelforge.agents.builtin.ir.nodes import Dim, Value
from kernelforge.errors import UnsupportedError


def element_kernel(name: str, root: Value, stored: frozenset[Value], options: Options) -> KernelText:
    """A kernel over the elements of ``root``, in blocks of one dimension, or of two where that saves divisions."""
    if options.vectorise:
        try:
            return _written(name, root, stored, options)
        except UnsupportedError:
            options = replace(options, vectorise=False)
    return _written(name, root, stored, options)


def _written(name: str, root: Value, stored: frozenset[Value], options: Options) -> KernelText:
    flat = _flat_kernel(name, root, stored, options)
    if options.block_shape and len(root.shape) > 1 and " % " in flat.source:
        return _shaped_kernel(name, root, stored, options)
    return flat


def element_statements(
    em: LoopEmitter, root: Value, coords: tuple[Coordinate, ...], vector: bool, where: str
) -> list[str]:
    """Statements that compute the element at ``coords`` (or the ``V`` from there) and store it at ``where``."""
    if not vector:
        with em.scope() as core:
            em.add(f"out[{where}] = {to_storage(em.read(root, coords), root.dtype)};")
        return core
    with em.lanes() as (before, body):
        em.add(f"result.v[k] = {to_storage(em.read(root, coords), root.dtype)};")
    loop = ["#pragma unroll", "for (int k = 0; k < V; ++k) {", *indent(body), "}"]
    return [*before, f"Pack<{C_TYPES[root.dtype]}, V> result;", *loop, f"store<V>(out + {where}, result);"]


def _width(name: str, total: Dim, em: LoopEmitter, vector: bool) -> tuple[str, tuple[str, ...]]:
    """Plan name of the vector width, and the line that sets it."""
    if not vector:
        return "1", ()
    conditions = " and ".join(f"({text}) % 4 == 0" for text in dict.fromkeys([total.text, *em.divisors]))
    return f"{name}_v", (f"{name}_v = 4 if {conditions} else 1",)


def _flat_kernel(name: str, root: Value, stored: frozenset[Value], options: Options) -> KernelText:
    vector = options.vectorise and bool(root.shape)
    em = LoopEmitter(stored - {root})
    group = LoopGroup("i", root.shape, vector=vector)
    n = em.signature.extent(group.extent)
    core = element_statements(em, root, group.coords(), vector, "i")
    index = "blockIdx.x * blockDim.x + threadIdx.x"
    source = [
        f"{'template <int V> ' if vector else ''}__global__ void {name}({em.signature.parameters(root)}) {{",
        f"    const int i = {f'({index}) * V' if vector else index};",
        f"    if (i >= {n}) return;", *indent(core), "}",
    ]  # fmt: skip
    width, setup = _width(name, group.extent, em, vector)
    return KernelText(
        name=name,
        source="\n".join(source),
        signature=em.signature,
        root=root,
        grid=f"ceil_div({plan_int(group.extent)}, {THREADS}{f' * {width}' if vector else ''})",
        block=str(THREADS),
        setup=setup,
        template=(width,) if vector else (),
    )


def _shaped_kernel(name: str, root: Value, stored: frozenset[Value], options: Options) -> KernelText:
    """Threads in 32 x 8 over the last two axes; blocks in z walk the axes before them."""
    vector = options.vectorise
    em = LoopEmitter(stored - {root})
    plane, line = LoopGroup("plane", root.shape[:-2]), LoopGroup("line", root.shape[-2:-1])
    column = LoopGroup("column", root.shape[-1:], vector=vector)
    coords = (*plane.coords(), *line.coords(), *column.coords())
    planes, lines, columns = (em.signature.extent(group.extent) for group in (plane, line, column))
    with em.scope() as statements:
        where = em.offset(root.shape, coords)
    core = [*statements, *element_statements(em, root, coords, vector, where)]
    index = "blockIdx.x * blockDim.x + threadIdx.x"
    source = [
        f"{'template <int V> ' if vector else ''}__global__ void {name}({em.signature.parameters(root)}) {{",
        f"    const int column = {f'({index}) * V' if vector else index};",
        "    const int line = blockIdx.y * blockDim.y + threadIdx.y;",
        f"    if (column >= {columns} || line >= {lines}) return;",
        f"    for (int plane = blockIdx.z; plane < {planes}; plane += gridDim.z) {{", *indent(indent(core)),
        "    }", "}",
    ]  # fmt: skip
    width, setup = _width(name, column.extent, em, vector)
    across = f"ceil_div({plan_int(column.extent)}, 32{f' * {width}' if vector else ''})"
    return KernelText(
        name=name,
        source="\n".join(source),
        signature=em.signature,
        root=root,
        grid=f"({across}, ceil_div({plan_int(line.extent)}, 8), min({plan_int(plane.extent)}, 65535))",
        block="(32, 8)",
        setup=setup,
        template=(width,) if vector else (),
    )
