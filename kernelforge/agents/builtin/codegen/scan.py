"""Prefix sums and products along an axis: one thread per line, or one warp that scans by shuffles."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.agents.builtin.codegen.cpp_emitter import INFINITY, indent
from kernelforge.agents.builtin.codegen.kernel import THREADS, KernelText, Options, cone, plan_int, same_shape
from kernelforge.agents.builtin.codegen.loops import LoopEmitter
from kernelforge.agents.builtin.ir.iteration_space import C_TYPES, Coordinate, LoopGroup, compute_type, to_storage
from kernelforge.agents.builtin.ir.nodes import Scan, Value, product
from kernelforge.errors import UnsupportedError

_SIGNS = {"sum": ("0", "+"), "prod": ("1", "*")}


def scan_kernel(name: str, root: Value, stored: frozenset[Value], options: Options) -> KernelText:
    """A kernel for one :class:`Scan` and the elementwise work around it.

    Raises:
        UnsupportedError: the root has another shape than the scan.
    """
    (scan,) = (value for value in cone(root, stored) if isinstance(value, Scan))
    if not same_shape(root.shape, scan.shape) or len(root.shape) != len(scan.shape):
        raise UnsupportedError("a scan is stored under its own shape")
    outer, inner = scan.shape[: scan.axis], scan.shape[scan.axis + 1 :]
    by_warp = options.warp_reduce and not inner
    em = LoopEmitter(stored - {root})
    vector = by_warp and options.vectorise
    o, i = LoopGroup("o" if inner else "row", outer), LoopGroup("in", inner)
    j = LoopGroup("j", (scan.shape[scan.axis],), vector=vector)
    coords = (*o.coords(), *j.coords(), *i.coords())
    lines, count = em.signature.extent(product((*outer, *inner))), plan_int(product((*outer, *inner)))
    length = em.signature.extent(j.extent)
    with em.scope() as head:
        if inner:
            width = em.signature.extent(product(inner))
            em.add(f"const int o = row / {width}, in = row % {width};")
    if by_warp:
        core = _by_warp(em, scan, root, coords, length, vector)
        row = "blockIdx.x * blockDim.y + threadIdx.y;  // one warp per line"
        grid, block = f"ceil_div({count}, {THREADS // 32})", f"(32, {THREADS // 32})"
    else:
        core = _by_thread(em, scan, root, coords, length)
        row = "blockIdx.x * blockDim.x + threadIdx.x;"
        grid, block = f"ceil_div({count}, {THREADS})", str(THREADS)
    setup: tuple[str, ...] = ()
    if vector:
        conditions = " and ".join(f"({text}) % 4 == 0" for text in dict.fromkeys([j.extent.text, *em.divisors]))
        setup = (f"{name}_v = 4 if {conditions} else 1",)
    source = [
        f"{'template <int V> ' if vector else ''}__global__ void {name}({em.signature.parameters(root)}) {{",
        f"    const int row = {row}",
        f"    if (row >= {lines}) return;", *indent(head), *indent(core), "}",
    ]  # fmt: skip
    template = (f"{name}_v",) if vector else ()
    return KernelText(name, "\n".join(source), em.signature, root, grid, block, None, setup, template)


def _joined(scan: Scan) -> tuple[str, str, Callable[[str, str], str]]:
    """The type of the running value, what it starts from, and how two are joined."""
    ctype = compute_type(scan.dtype)
    if scan.op in _SIGNS:
        unit, sign = _SIGNS[scan.op]
        return ctype, unit, lambda a, b: f"{a} {sign} {b}"
    if not scan.dtype.is_floating:
        raise UnsupportedError("the built-in Coder knows running extremes of real numbers only")
    return ctype, INFINITY if scan.op == "min" else f"-{INFINITY}", lambda a, b: f"{scan.op}_of<{ctype}>({a}, {b})"


def _by_thread(em: LoopEmitter, scan: Scan, root: Value, coords: tuple[Coordinate, ...], length: str) -> list[str]:
    """One thread walks the line."""
    ctype, unit, joined = _joined(scan)
    with em.scope() as body:
        em.add(f"carry = {joined('carry', em.read(scan.arg, coords))};")
        em.bound[scan] = ("carry", coords)
        em.add(f"out[{em.offset(root.shape, coords)}] = {to_storage(em.read(root, coords), root.dtype)};")
    return [f"{ctype} carry = {unit};", f"for (int j = 0; j < {length}; ++j) {{", *indent(body), "}"]


def _by_warp(
    em: LoopEmitter, scan: Scan, root: Value, coords: tuple[Coordinate, ...], length: str, vector: bool
) -> list[str]:
    """A warp takes 32 elements (or 32 runs of ``V``) at a time: each lane sums its own, then lanes join by shuffles."""
    ctype, unit, joined = _joined(scan)
    within = f"({joined('before', 'value[k]')})"
    lanes, at = ("V", "[k]") if vector else ("1", "[0]")
    take = _lanes(em, vector, lambda: f"value{at} = {em.read(scan.arg, coords)};")
    em.bound[scan] = (f"value{at}", coords)
    target = "result.v[k]" if vector else f"out[{em.offset(root.shape, coords)}]"
    give = _lanes(em, vector, lambda: f"{target} = {to_storage(em.read(root, coords), root.dtype)};")
    if vector:
        start = em.offset(root.shape, coords)
        give = [f"Pack<{C_TYPES[root.dtype]}, V> result;", *give, f"store<V>(out + {start}, result);"]
    return [
        f"{ctype} carry = {unit};",
        f"for (int start = 0; start < {length}; start += 32 * {lanes}) {{",
        f"    const int j = start + threadIdx.x * {lanes};",
        f"    {ctype} value[{lanes}];",
        "    #pragma unroll",
        f"    for (int k = 0; k < {lanes}; ++k) value[k] = {unit};",
        f"    if (j < {length}) {{", *indent(indent(take)), "    }",
        "    #pragma unroll",
        f"    for (int k = 1; k < {lanes}; ++k) value[k] = {joined('value[k - 1]', 'value[k]')};",
        f"    {ctype} upto = value[{lanes} - 1];  // of this lane and all before it",
        "    #pragma unroll",
        "    for (int step = 1; step < 32; step <<= 1) {",
        f"        const {ctype} before = __shfl_up_sync(0xffffffffu, upto, step);",
        f"        if (threadIdx.x >= step) upto = {joined('before', 'upto')};",
        "    }",
        f"    {ctype} before = __shfl_up_sync(0xffffffffu, upto, 1);",
        f"    if (threadIdx.x == 0) before = {unit};",
        "    #pragma unroll",
        f"    for (int k = 0; k < {lanes}; ++k) value[k] = {joined('carry', within)};",
        f"    if (j < {length}) {{", *indent(indent(give)), "    }",
        f"    carry = {joined('carry', '__shfl_sync(0xffffffffu, upto, 31)')};",
        "}",
    ]  # fmt: skip


def _lanes(em: LoopEmitter, vector: bool, write: Callable[[], str]) -> list[str]:
    """One statement per element: plain, or in the loop over lanes after the vector loads it needs."""
    if not vector:
        with em.scope() as body:
            em.add(write())
        return body
    with em.lanes() as (before, body):
        em.add(write())
    return [*before, "#pragma unroll", "for (int k = 0; k < V; ++k) {", *indent(body), "}"]
