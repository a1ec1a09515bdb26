"""Prefix sums and products along an axis: one thread per line, or one warp that scans by shuffles."""

from __future__ import annotations

from kernelforge.agents.builtin.emit import Group, compute_type, to_storage
from kernelforge.agents.builtin.ir import Scan, Value, product
from kernelforge.agents.builtin.kernel import THREADS, KernelText, Options, cone, plan_int, same_shape
from kernelforge.agents.builtin.loops import LoopEmitter, indent
from kernelforge.errors import UnsupportedError


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
    o, j, i = Group("o" if inner else "row", outer), Group("j", (scan.shape[scan.axis],)), Group("in", inner)
    coords = (*o.coords(), *j.coords(), *i.coords())
    lines, count = em.signature.extent(product((*outer, *inner))), plan_int(product((*outer, *inner)))
    length = em.signature.extent(j.extent)
    ctype, unit = compute_type(scan.dtype), "0" if scan.op == "sum" else "1"
    sign = "+" if scan.op == "sum" else "*"
    with em.scope() as head:
        if inner:
            width = em.signature.extent(product(inner))
            em.add(f"const int o = row / {width}, in = row % {width};")
    with em.scope() as take:
        em.add(f"value = {em.read(scan.arg, coords)};")
    with em.scope() as give:
        em.bound[scan] = ("value" if by_warp else "carry", coords)
        em.add(f"out[{em.offset(root.shape, coords)}] = {to_storage(em.read(root, coords), root.dtype)};")
    if by_warp:
        core = [
            f"{ctype} carry = {unit};",
            f"for (int start = 0; start < {length}; start += 32) {{",
            "    const int j = start + threadIdx.x;",
            f"    {ctype} value = {unit};",
            f"    if (j < {length}) {{", *indent(indent(take)), "    }",
            "    #pragma unroll",
            "    for (int step = 1; step < 32; step <<= 1) {",
            f"        const {ctype} before = __shfl_up_sync(0xffffffffu, value, step);",
            f"        if (threadIdx.x >= step) value = before {sign} value;",
            "    }",
            f"    value = carry {sign} value;",
            f"    if (j < {length}) {{", *indent(indent(give)), "    }",
            "    carry = __shfl_sync(0xffffffffu, value, 31);",
            "}",
        ]  # fmt: skip
        row = "blockIdx.x * blockDim.y + threadIdx.y;  // one warp per line"
        grid, block = f"ceil_div({count}, {THREADS // 32})", f"(32, {THREADS // 32})"
    else:
        core = [
            f"{ctype} carry = {unit};", f"for (int j = 0; j < {length}; ++j) {{",
            f"    {ctype} value;", *indent(take), f"    carry = carry {sign} value;", *indent(give), "}",
        ]  # fmt: skip
        row = "blockIdx.x * blockDim.x + threadIdx.x;"
        grid, block = f"ceil_div({count}, {THREADS})", str(THREADS)
    source = [
        f"__global__ void {name}({em.signature.parameters(root)}) {{", f"    const int row = {row}",
        f"    if (row >= {lines}) return;", *indent(head), *indent(core), "}",
    ]  # fmt: skip
    return KernelText(name, "\n".join(source), em.signature, root, grid, block)
