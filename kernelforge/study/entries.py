"""Calls of suggestions: an entry that calls the suggestion's function, for a form, and the launch plan of a kernel.

The entry stands behind the suggestion in one file. Its parameters are the form's; it passes each to the parameter of
the suggestion that has its role. A ``__global__`` kernel becomes a ``__device__`` function that a kernel of ours calls.
"""

from __future__ import annotations

import re
from math import prod
from typing import Final

from kernelforge.candidate.reply import CodeBlock
from kernelforge.records import Candidate
from kernelforge.study.host_programs import HostProgram
from kernelforge.study.kernels import Form
from kernelforge.study.signatures import Function, Parameter, Underivable
from kernelforge.translation.evaluator import c_candidate
from kernelforge.translation.kokkos import ENTRY_HEADER
from kernelforge.translation.offload import Offload
from kernelforge.translation.thrust import HOST_FRAMES

_BLOCKS: Final = {1: (256,), 2: (16, 16), 3: (8, 8, 4)}
"""Threads of a block by the number of dimensions that a kernel uses, where it names no constant for it."""
_BLOCK_NAME: Final = r"(?:BLOCK|TILE|THREADS)\w*|BS|TS"
_BLOCK_CONSTANT: Final = re.compile(
    rf"^[ \t]*#[ \t]*define[ \t]+(?P<macro>{_BLOCK_NAME})[ \t]+(?P<value>\d{{1,9}})(?!\d)"
    rf"|\b(?:const|constexpr)\b[\w \t]{{0,80}}\b(?P<name>{_BLOCK_NAME})[ \t]*=[ \t]*(?P<number>\d{{1,9}})(?!\d)",
    re.MULTILINE,
)
_BOUNDS: Final = re.compile(r"__launch_bounds__\s*\([^)]*\)")


def _argument(item: Parameter, value: str, *, typed: bool) -> str:
    """A pointer is cast, for the entry's are const where the suggestion's need not be."""
    if item.kind in ("array", "index"):
        kind = item.real or "int"
        return f"({kind} *){value}" if typed else f"(void *){value}"
    return value


def _call(form: Form, function: Function, values: dict[str, str], *, typed: bool) -> str:
    arguments = [
        values.get(item.name, _argument(item, value, typed=typed))
        for item, value in zip(function.parameters, form.values, strict=True)
    ]
    return f"{function.name}({', '.join(arguments)});"


def _extent(form: Form, name: str) -> str:
    return " * ".join(f"(size_t)({item})" for item in form.lengths[name])


# ---- C and C++ ------------------------------------------------------------------------------------------------------

_SOLVER_C: Final = """    {real} *a = ({real} *)malloc(sizeof({real}) * n * n);
    {real} *b = ({real} *)malloc(sizeof({real}) * n);
    {real} *x = ({real} *)calloc(n, sizeof({real})), shift = 1;
    for (int i = 0; i < n; i++) {{ shift += ({real})s[i] * s[i]; b[i] = t[i]; }}
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) a[i * n + j] = ({real})s[i] * s[j] + (i == j ? shift : 0);"""


def _around(form: Form) -> tuple[list[str], list[str]]:
    """Statements before and after the call: of a solver's system, and of an array that is added to."""
    before, after = [], []
    if form.solver:
        before.append(_SOLVER_C.format(real=form.real))
        after.append("    for (int i = 0; i < n; i++) out[i] = (float)x[i];")
    if form.start:
        before.append(f"    memcpy(out, {form.start}, sizeof({form.real}) * {_extent(form, 'out')});")
    return before, after


def c_entry(code: str, function: Function, form: Form, *, cpp: bool, offload: Offload | None = None) -> Candidate:
    """A candidate of lane ``c`` that calls a function of the host.

    Args:
        offload: ``thrust`` for pointers of the device where the code says so of one of its parameters, ``kokkos`` for
            views; others change nothing here.
    """
    before, after = _around(form)
    values: dict[str, str] = {}
    result = "x" if form.solver else "out"
    of_device = offload == "thrust" and _takes_device_pointers(code, function)
    for item, value in zip(function.parameters, form.values, strict=True):
        raw = item.kind in ("array", "index") and not item.container
        if item.rank:
            values[item.name] = f"v_{value}"
            made, copied = _view_of(form, function, item, value)
            before += made
            if value == result and not item.const:
                after.insert(0, copied)
        elif item.container.startswith("thrust::") or (raw and of_device):
            values[item.name] = _thrust_argument(item, value)
            holder = "host_vector" if item.container == "thrust::host_vector" else "device_vector"
            kind, length = item.real or "int", _extent(form, value)
            before.append(f"    thrust::{holder}<{kind}> v_{value}({value}, {value} + {length});")
            if value == result and not item.const:
                after.insert(0, f"    thrust::copy(v_{value}.begin(), v_{value}.end(), {value});")
        elif item.kind == "vector":
            values[item.name] = f"v_{value}"
            length = _extent(form, value)
            before.append(f"    std::vector<{item.real}> v_{value}({value}, {value} + {length});")
            if value == result and not item.const:
                after.insert(0, f"    memcpy({value}, v_{value}.data(), sizeof({item.real}) * {length});")
        elif item.kind in ("matrix", "rows"):
            if len(form.lengths[value]) != 2:
                raise Underivable(f"the parameter `{item.name}` of `{function.name}` has rows, which {value} has not")
            first, second = form.lengths[value]
            values[item.name] = f"v_{value}"
            before += _rows_of(item, value, first, second)
            if item.kind == "matrix" and value == "out":
                after.insert(
                    0,
                    f"    for (int i = 0; i < {first}; i++) "
                    f"memcpy(out + (size_t)i * {second}, v_out[i].data(), sizeof({item.real}) * {second});",
                )
    call = f"    {_call(form, function, values, typed=cpp)}"
    linkage = 'extern "C" ' if cpp else ""
    frames = [HOST_FRAMES] if offload == "thrust" else []
    lines = [f"{linkage}{form.declaration} {{", *frames, *before, call, *after, "}"]
    head = "#include <stdlib.h>\n#include <string.h>\n" + ("#include <vector>\n" if cpp else "")
    if offload == "kokkos":
        head += f"#include <{ENTRY_HEADER}>\n"
        lines = [lines[0], "    try {", *lines[1:-1], _REPORTED, "}"]
    if any("thrust::" in line for line in lines):
        lines = [
            "#include <thrust/copy.h>",
            "#include <thrust/device_vector.h>",
            "#include <thrust/host_vector.h>",
            *lines,
        ]
    return c_candidate("\n".join([f"{head}#line 1", code, *lines, ""]))


_REPORTED: Final = "    } catch (const std::exception &error) { kernelforge::fail(error.what()); }"


def _view_of(form: Form, function: Function, item: Parameter, value: str) -> tuple[list[str], str]:
    """Statements that make a view of Kokkos of an array, and the one that copies it back."""
    lengths = form.lengths[value]
    if item.rank not in (1, len(lengths)):
        raise Underivable(f"the parameter `{item.name}` of `{function.name}` is a view of {item.rank} dimensions")
    extents = ", ".join(lengths)
    made = [
        f"    auto study_{value} = kernelforge::view_of<{item.container}>({value}, {extents});",
        f"    {item.container} v_{value} = study_{value};",
    ]
    return made, f"    kernelforge::copy_back(v_{value}, {value}, {extents});"


def _takes_device_pointers(code: str, function: Function) -> bool:
    """Whether a function makes pointers of the device of its parameters, or gives them to algorithms on the device."""
    pointers = "|".join(
        re.escape(item.name) for item in function.parameters if item.kind in ("array", "index") and not item.container
    )
    wraps = rf"\bdevice_ptr\s*<[^;<>]*>\s*\w*\s*[({{]\s*(?:{pointers})\b|\bdevice_pointer_cast\s*\(\s*(?:{pointers})\b"
    policy = rf"\bthrust\s*::\s*device\s*,\s*(?:{pointers})\b"
    return bool(pointers) and re.search(f"{wraps}|{policy}", code) is not None


def _thrust_argument(item: Parameter, value: str) -> str:
    match item.container:
        case "":
            return f"thrust::raw_pointer_cast(v_{value}.data())"
        case "thrust::device_ptr":
            return f"v_{value}.data()"
        case _:
            return f"v_{value}"


def host_program_entry(program: HostProgram, form: Form) -> Candidate:
    """A candidate of lane ``c`` that calls a host program, with its arrays in device memory where it takes them so."""
    function = program.function
    before, after = _around(form)
    values: dict[str, str] = {}
    if bad := next((item for item in function.parameters if item.kind in ("rows", "vector", "matrix")), None):
        raise Underivable(f"the parameter `{bad.name}` of `{function.name}` cannot be passed to a host program")
    if program.device_memory:
        result = "x" if form.solver else "out"
        allocate = "cudaMallocManaged" if program.managed else "cudaMalloc"
        for item, value in zip(function.parameters, form.values, strict=True):
            if item.kind not in ("array", "index"):
                continue
            values[item.name], kind = f"d_{value}", item.real or "int"
            count = f"sizeof({kind}) * {_extent(form, value)}"
            before += [
                f"    {kind} *d_{value};",
                f"    {allocate}(&d_{value}, {count});",
                f"    cudaMemcpy(d_{value}, {value}, {count}, cudaMemcpyHostToDevice);",
            ]
            if value == result:
                after.insert(0, f"    cudaMemcpy({value}, d_{value}, {count}, cudaMemcpyDeviceToHost);")
    call = f"    {_call(form, function, values, typed=True)}"
    lines = [f'extern "C" {form.declaration} {{', *before, call, *after, "}"]
    return c_candidate("\n".join([program.source, *lines, ""]))


def _rows_of(item: Parameter, value: str, first: str, second: str) -> list[str]:
    """Statements that make row pointers, or a vector of vectors, of an array by rows."""
    if item.kind == "rows":
        return [
            f"    {item.real} **v_{value} = ({item.real} **)malloc(sizeof({item.real} *) * {first});",
            f"    for (int i = 0; i < {first}; i++) v_{value}[i] = ({item.real} *){value} + (size_t)i * {second};",
        ]
    row = f"std::vector<{item.real}>"
    return [
        f"    std::vector<{row}> v_{value};",
        f"    for (int i = 0; i < {first}; i++) v_{value}.push_back("
        f"{row}({value} + (size_t)i * {second}, {value} + (size_t)(i + 1) * {second}));",
    ]


# ---- CUDA -----------------------------------------------------------------------------------------------------------

_COPY: Final = """__global__ void study_copy(const {real} *from, {real} *to, long long n) {{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i];
}}
"""
_SOLVER_CUDA: Final = """
__global__ void study_system(const int *s, const int *t, {real} *a, {real} *b, {real} *x, int n) {{
    {real} shift = 1;
    for (int i = 0; i < n; i++) shift += ({real})s[i] * s[i];
    for (int i = threadIdx.x; i < n; i += blockDim.x) {{
        b[i] = t[i];
        x[i] = 0;
        for (int j = 0; j < n; j++) a[i * n + j] = ({real})s[i] * s[j] + (i == j ? shift : ({real})0);
    }}
}}
__global__ void study_solution(const {real} *x, float *out, int n) {{
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = (float)x[i];
}}
"""


def cuda_entry(code: str, function: Function, form: Form) -> Candidate:
    """A candidate with a derived launch of a suggestion's kernel.

    Args:
        code: the suggestion's device code.

    Raises:
        Underivable: the launch cannot be derived.
    """
    if bad := next((item for item in function.parameters if item.kind in ("rows", "vector", "matrix")), None):
        raise Underivable(f"the parameter `{bad.name}` of `{function.name}` cannot be passed to a kernel")
    head = re.compile(rf"\b__global__\b(?=[^;{{}}]{{0,2000}}\b{re.escape(function.name)}\s*\()")
    source = head.sub("__device__", _BOUNDS.sub("", code))
    real = form.real
    arrays = [f"const {kind} *{name}" for name, kind in form.inputs]
    outputs = [f"{real} *out"]
    helpers = _COPY.format(real=real) if form.start else ""
    if form.solver:
        arrays, outputs = [], [f"{real} *a", f"{real} *b", f"{real} *x"]
        helpers += _SOLVER_CUDA.format(real=real)
    parameters = [
        *arrays, *outputs, *(f"{real} {name}" for name in form.scalars), *(f"int {name}" for name, _ in form.extents)
    ]  # fmt: skip
    entry = (
        f"__global__ void {form.name}({', '.join(parameters)}) {{\n    {_call(form, function, {}, typed=True)}\n}}\n"
    )
    return Candidate(source=f"{source}\n{helpers}{entry}", plan=_plan(code, form))


def _plan(code: str, form: Form) -> str:
    grid, block = _launch(code, form)
    shared = f", {16 * prod(block)}" if re.search(r"\bextern\s+__shared__\b", code) else ""
    names = [name for name, _ in form.inputs]
    dtype = "float64" if form.real == "double" else "float32"
    typed = "f64" if form.real == "double" else "f32"
    lines = [f"def forward({', '.join([*names, *form.scalars])}):"]
    numbers = [*(f"{typed}({name})" for name in form.scalars), *(f"i32({value})" for _, value in form.extents)]
    launch = f"{form.name}[({', '.join(grid)},), {block}{shared}]"
    if form.solver:
        n = form.extents[0][1]
        lines += [
            f"    a = empty(({n}, {n}), dtype={dtype})",
            f"    b = empty(({n},), dtype={dtype})",
            f"    x = empty(({n},), dtype={dtype})",
            f"    out = empty(({n},), dtype=float32)",
            f"    study_system[1, 256](s, t, a, b, x, i32({n}))",
            f"    {launch}(a, b, x, {', '.join(numbers)})",
            f"    study_solution[1, 256](x, out, i32({n}))",
        ]
    else:
        lines.append(f"    out = empty({form.shape}, dtype={dtype})")
        if form.start:
            count = f"{form.start}.numel()"
            lines.append(f"    study_copy[ceil_div({count}, 256), 256]({form.start}, out, i64({count}))")
        lines.append(f"    {launch}({', '.join([*names, 'out', *numbers])})")
    return "\n".join([*lines, "    return out", ""])


def _launch(code: str, form: Form) -> tuple[list[str], tuple[int, ...]]:
    """Grid, as expressions, and block of a kernel.

    Raises:
        Underivable: the constants of the code make no block.
    """
    letters = [letter for letter in "xyz" if re.search(rf"\b(?:thread|block)Idx\s*\.\s*{letter}\b", code)]
    dimensions = max((("xyz".index(letter) + 1) for letter in letters), default=1)
    block = _block(code, dimensions)
    warps = 32 if re.search(r"/\s*(?:32|warpSize|WARP_?SIZE)\b|>>\s*5\b", code) else 1
    if form.solver:
        if re.search(r"\bblockIdx\b", code):
            raise Underivable("a solver in one kernel can wait for its own block alone, and this one uses several")
        return ["1"], block
    largest = form.sides[0] if len(form.sides) == 1 else f"max({', '.join(form.sides)})"
    grid = []
    for at in range(dimensions):
        letter = "xyz"[at]
        extent = f"({form.points}) * {warps}" if dimensions == 1 else largest
        if not re.search(rf"\bblockIdx\s*\.\s*{letter}\b", code):
            grid.append("1")
        elif _is_tiled(code, letter):
            grid.append(f"ceil_div({extent}, {block[at]})")
        else:
            grid.append(form.points if dimensions == 1 else largest)
    return grid, block


def _is_tiled(code: str, letter: str) -> bool:
    """Whether the index of a block is multiplied, so that a block has several items along this dimension."""
    index = rf"blockIdx\s*\.\s*{letter}"
    return re.search(rf"\b{index}\s*\)?\s*\*|\*\s*(?:\(\s*\w+\s*\)\s*)?{index}\b", code) is not None


def _block(code: str, dimensions: int) -> tuple[int, ...]:
    constants = {
        match["macro"] or match["name"]: int(match["value"] or match["number"])
        for match in _BLOCK_CONSTANT.finditer(code)
    }
    if not constants:
        return _BLOCKS[dimensions]
    extents = []
    for letter in "xyz"[:dimensions]:
        own = [size for name, size in constants.items() if re.search(rf"(?:_{letter}|DIM{letter})$", name, re.I)]
        extents.append(own[0] if own else next(iter(constants.values())))
    threads = prod(extents)
    if not 1 <= threads <= 1024:
        raise Underivable(f"its constants make blocks of {threads} threads, and a block has at most 1,024")
    return tuple(extents)


# ---- replies --------------------------------------------------------------------------------------------------------

_SHELL: Final = frozenset(
    {"sh", "bash", "shell", "console", "zsh", "text", "txt", "output", "plaintext", "makefile", "cmake", "json"}
)
"""Labels of blocks that are no code of a suggestion."""
_BEGINS: Final = re.compile(
    r"\s*(?:#|//|/\*|__global__|template\b|extern\b|static\b|void\b|using\b|int\b|double\b|float\b|import\b|from\b|def\b"
    r"|subroutine\b|program\b|function\b|@)",
    re.IGNORECASE,
)


def code_of(blocks: list[CodeBlock], reply: str) -> CodeBlock | None:
    """The code of a suggestion: the first block of a reply that is no shell command; of a reply without any block, the
    reply, if it begins like code. None where there is none."""
    for block in blocks:
        if block.label not in _SHELL and block.text.strip():
            return block
    if not blocks and _BEGINS.match(reply):
        return CodeBlock("", reply)
    return None
