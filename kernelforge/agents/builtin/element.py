"""One thread per output element (or per ``V`` adjacent ones), with loops for whatever the element needs."""

from __future__ import annotations

from kernelforge.agents.builtin.emit import C_TYPES, Group, to_storage
from kernelforge.agents.builtin.ir import Value, product
from kernelforge.agents.builtin.kernel import THREADS, KernelText, Options, plan_int
from kernelforge.agents.builtin.loops import LoopEmitter, indent


def element_kernel(name: str, root: Value, stored: frozenset[Value], options: Options) -> KernelText:
    """A kernel over the elements of ``root`` in memory order."""
    vector = options.vectorise and bool(root.shape)
    em = LoopEmitter(stored - {root})
    group = Group("i", root.shape, vector=vector)
    total = product(root.shape)
    n = em.signature.extent(total)
    if vector:
        with em.lanes() as (before, body):
            em.add(f"result.v[k] = {to_storage(em.read(root, group.coords()), root.dtype)};")
        ctype = C_TYPES[root.dtype]
        core = [
            *before, f"Pack<{ctype}, V> result;", "#pragma unroll", "for (int k = 0; k < V; ++k) {", *indent(body), "}",
            "store<V>(out + i, result);",
        ]  # fmt: skip
    else:
        with em.scope() as core:
            em.add(f"out[i] = {to_storage(em.read(root, group.coords()), root.dtype)};")
    head = [
        f"{'template <int V> ' if vector else ''}__global__ void {name}({em.signature.parameters(root)}) {{",
        f"    const int i = (blockIdx.x * blockDim.x + threadIdx.x){' * V' if vector else ''};",
        f"    if (i >= {n}) return;",
    ]
    count = plan_int(total)
    width = f"{name}_v"
    setup: tuple[str, ...] = ()
    if vector:
        conditions = " and ".join(f"({text}) % 4 == 0" for text in dict.fromkeys([total.text, *em.divisors]))
        setup = (f"{width} = 4 if {conditions} else 1",)
    return KernelText(
        name=name,
        source="\n".join([*head, *indent(core), "}"]),
        signature=em.signature,
        root=root,
        grid=f"ceil_div({count}, {THREADS} * {width})" if vector else f"ceil_div({count}, {THREADS})",
        block=str(THREADS),
        setup=setup,
        template=(width,) if vector else (),
    )
