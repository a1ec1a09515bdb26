"""Triton suggestions: the kernel that answers, and a launch of it that is derived from its parameters and its text.

The Python that launches it is not run; only integers that it gives to ``tl.constexpr`` parameters are read.
"""

from __future__ import annotations

import ast
import re
from copy import copy, deepcopy
from itertools import chain
from typing import Final, NamedTuple

from kernelforge.records import Candidate
from kernelforge.study.kernels import Form
from kernelforge.study.python_functions import parsed
from kernelforge.study.signatures import Function, Kind, Parameter, Underivable

_HEADER: Final = "import triton\nimport triton.language as tl\n"
_COPY: Final = """
@triton.jit
def study_copy(study_from, study_to, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(study_to + at, tl.load(study_from + at, mask=at < n), mask=at < n)
"""
_REALS: Final = r"alpha|beta"
_INTEGERS: Final = r"[mnk]|n[xyz]|nnz|n_?\w+|num_?\w+|\w*numel|\w*(?:rows?|cols?)|\w*size|ld[abc]|dim\w*"
_INDICES: Final = r"row_?ptrs?|row_?pointers|indptr|crow\w*|row_?(?:start|off)\w*|col\w*|indices|\w*idx"
_STRIDE: Final = r"stride_?([abcxy])?_?(\w)?|([abcxy])_?(?:(?:row|col)_)?stride_?(\w)?"
_LARGEST_BLOCK: Final = 65_536


class TritonKernel(NamedTuple):
    """A kernel that can be launched."""

    function: Function
    """Without strides and sizes of blocks."""
    node: ast.FunctionDef
    source: str
    """The jitted functions and the constants, without the host's part."""
    literals: dict[str, int]
    """Sizes that a launch, a configuration, an assignment or a default gives by name."""


def triton_kernel(code: str, names: re.Pattern[str], kernel: str) -> TritonKernel:
    """The kernel that a suggestion answers with: its only one that no other calls, or the only one that is named so.

    Raises:
        Underivable: there is none, or there are several.
    """
    tree = parsed(code)
    jitted = [item for item in tree.body if isinstance(item, ast.FunctionDef) and _is_jitted(item)]
    called = {
        node.func.id
        for item in jitted
        for node in ast.walk(item)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    kernels = [item for item in jitted if item.name not in called]
    if not kernels:
        raise Underivable("it has no kernel under @triton.jit")
    candidates = kernels if len(kernels) == 1 else [item for item in kernels if names.search(item.name)]
    if len(candidates) != 1:
        listed = ", ".join(item.name for item in kernels)
        raise Underivable(f"it has several kernels ({listed}), and in which order they run cannot be derived")
    node = candidates[0]
    if node.args.vararg or node.args.kwarg:
        raise Underivable(f"`{node.name}` takes more than the parameters that it names")
    parameters = tuple(
        _parameter(item.arg, kernel) for item in _arguments(node) if not _is_block(item) and not _stride(item.arg)
    )
    if not any(item.is_real_array for item in parameters):
        raise Underivable(f"`{node.name}` takes no pointer")
    source = "\n\n\n".join(
        [
            _HEADER,
            *(_constant(item) for item in tree.body if isinstance(item, ast.Assign) and _constant(item)),
            *(f"@triton.jit\n{_undecorated(item, launched=item is node)}" for item in jitted),
        ]
    )
    return TritonKernel(Function(node.name, parameters, "float", False), node, source, _literals(tree))


def triton_entry(kernel: TritonKernel, form: Form) -> Candidate:
    """A candidate with a derived launch of a Triton kernel.

    Raises:
        Underivable: the launch cannot be derived.
    """
    if form.solver:
        raise Underivable("a solver takes several launches, and no host part in Python is run")
    extents = dict(form.extents)
    values = dict(zip((item.name for item in kernel.function.parameters), form.values, strict=True))
    kinds = {item.name: item.kind for item in kernel.function.parameters}
    text = ast.unparse(kernel.node)
    blocks = {item.arg: _block(item.arg, kernel, form, text) for item in _arguments(kernel.node) if _is_block(item)}
    positional, named = [], [f"{name}={value}" for name, value in blocks.items()]
    for item in _arguments(kernel.node):
        if item.arg in blocks:
            continue
        plain = _plain(item.arg)
        if _stride(item.arg):
            value = _stride_value(item.arg, form, extents)
        else:
            value = extents.get(values[plain], values[plain])
        if _is_constant(item):
            named.append(f"{item.arg}={value}")
        elif kinds.get(plain) in ("array", "index"):
            positional.append(value)
        else:
            positional.append(f"{'f32' if kinds.get(plain) == 'real' else 'i32'}({value})")
    inputs = [name for name, _ in form.inputs]
    lines = [
        f"def forward({', '.join([*inputs, *form.scalars])}):",
        f"    out = empty({form.shape}, dtype=float32)",
    ]
    source = kernel.source
    if form.start:
        count = f"{form.start}.numel()"
        lines.append(f"    study_copy[ceil_div({count}, 256)]({form.start}, out, i32({count}), BLOCK=256)")
        source += f"\n{_COPY}"
    grid = ", ".join(_grid(text, form, blocks, kernel.node.name))
    lines += [f"    {kernel.node.name}[{grid}]({', '.join([*positional, *named])})", "    return out", ""]
    return Candidate(source=f"{source}\n", plan="\n".join(lines))


def _is_jitted(node: ast.FunctionDef) -> bool:
    return any(re.search(r"\btriton\.jit\b|^jit\b", ast.unparse(item)) for item in node.decorator_list)


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    """Every parameter of a function, those by keyword alone last."""
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _literals(tree: ast.Module) -> dict[str, int]:
    """Powers of two that a code gives to names; arguments count before dictionaries, assignments and defaults."""
    defaults: dict[str, ast.expr] = {}
    assigned: dict[str, ast.expr] = {}
    entries: dict[str, ast.expr] = {}
    named: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(args=parameters):
                positional = [*parameters.posonlyargs, *parameters.args][::-1]
                by_keyword = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
                pairs = [*zip(positional, parameters.defaults[::-1], strict=False), *by_keyword]
                defaults |= {item.arg: value for item, value in pairs if value is not None}
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                assigned[name] = value
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        entries[key.value] = value
            case ast.keyword(arg=str(name), value=value):
                named[name] = value
    sizes: dict[str, int] = {}
    for name, value in chain(defaults.items(), assigned.items(), entries.items(), named.items()):
        final = assigned.get(value.id, value) if isinstance(value, ast.Name) else value
        number = final.value if isinstance(final, ast.Constant) else None
        if type(number) is int and 1 <= number <= _LARGEST_BLOCK and number.bit_count() == 1:
            sizes[name] = number
    return sizes


def _undecorated(node: ast.FunctionDef, *, launched: bool) -> str:
    """The text of a function, without its decorators and its docstring; a kernel that is launched gets every argument,
    so its parameters have no defaults."""
    plain = copy(node)
    if launched:
        plain.args = ast.arguments(posonlyargs=[], args=_arguments(node), kwonlyargs=[], kw_defaults=[], defaults=[])
    plain.decorator_list = []
    plain.body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
    return ast.unparse(_ExactProducts().visit(deepcopy(plain)))


class _ExactProducts(ast.NodeTransformer):
    """Gives every ``tl.dot`` without a precision products of float32: TF32, the default, is no wrong formula."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        named = {keyword.arg for keyword in node.keywords}
        if ast.unparse(node.func).endswith(".dot") and not named & {"input_precision", "allow_tf32"}:
            node.keywords.append(ast.keyword("input_precision", ast.Constant("ieee")))
        return node


def _constant(node: ast.Assign) -> str:
    """An integer of the file's top level as a constant of kernels; empty for another statement."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, int):
        return f"{target.id} = tl.constexpr({value.value})"
    return ""


def _plain(name: str) -> str:
    """A parameter's name in small letters, without what says that it is a pointer."""
    lower = name.lower()
    return lower if lower == "row_ptr" else re.sub(r"_?(?:ptrs?|pointer)$", "", lower) or lower


def _parameter(name: str, kernel: str) -> Parameter:
    plain = _plain(name)
    kind: Kind = "array"
    if kernel == "spmv" and re.fullmatch(_INDICES, plain) and not re.fullmatch(r"n\w*|cols", plain):
        kind = "index"
    elif re.fullmatch(f"{_REALS}|a|s" if kernel == "axpy" else _REALS, plain):
        kind = "real"
    elif plain == name.lower() and re.fullmatch(_INTEGERS, plain):
        kind = "int"
    return Parameter(plain, kind, None if kind in ("index", "int") else "float", False)


def _is_block(item: ast.arg) -> bool:
    """Whether a parameter is the size of a block: a constant that is no extent."""
    return (_is_constant(item) and re.fullmatch(_INTEGERS, item.arg.lower()) is None) or "BLOCK" in item.arg.upper()


def _is_constant(item: ast.arg) -> bool:
    return item.annotation is not None and "constexpr" in ast.unparse(item.annotation)


def _stride(name: str) -> re.Match[str] | None:
    return re.fullmatch(_STRIDE, _plain(name))


def _stride_value(name: str, form: Form, extents: dict[str, str]) -> str:
    """Distance of elements along the dimension that a stride is named for; of rows, where it names none."""
    match = _stride(name)
    assert match is not None
    letter = match[1] or match[3] or "a"
    array = {"c": "out", "y": "out"}.get(letter, letter)
    lengths = form.lengths.get(array)
    if lengths is None:
        raise Underivable(f"the stride `{name}` is of no array of the kernel")
    dimension = match[2] or match[4] or ""
    if len(lengths) == 1 or "col" in name.lower():
        return "1"
    named = {"rows": "m", "cols": "n"}
    last = named.get(lengths[-1], lengths[-1])
    dimension = "n" if dimension == "k" and last in ("m", "n") and form.kernel == "gemv" else dimension
    return "1" if dimension == last else extents[lengths[-1]]


def _block(name: str, kernel: TritonKernel, form: Form, text: str) -> str:
    """Size of a block: what the host's part gives; else what a loop goes over several times, or what covers the largest
    extent where there is no loop."""
    if name in kernel.literals or "GROUP" in name.upper():
        return str(kernel.literals.get(name, 8))
    multiplied = re.search(rf"\*\s*{name}\b|\b{name}\s*\*", text) is not None
    looped = re.search(rf"\brange\([^\n]*\b{name}\b", text) is not None
    if not multiplied and not looped:
        return f"next_pow2(max({', '.join([*form.sides, '16'])}))"
    return "32" if looped or form.kernel == "gemm" else "128"


def _grid(text: str, form: Form, blocks: dict[str, str], name: str) -> list[str]:
    """Programs along each dimension.

    Raises:
        Underivable: the kernel asks for no number of its program, or for one that is not written out.
    """
    axes = {int(match[1]) for match in re.finditer(r"\bprogram_id\((?:axis=)?([012])\)", text)}
    if not axes:
        raise Underivable(f"`{name}` asks for no number of its program")
    largest = form.sides[0] if len(form.sides) == 1 else f"max({', '.join(form.sides)})"
    grid = []
    for axis in range(max(axes) + 1):
        expression = rf"\w*\.?program_id\((?:axis=)?{axis}\)"
        variable = re.search(rf"^[ \t]*(\w+) = {expression}$", text, re.MULTILINE)
        index = rf"(?:{expression}{rf'|{variable[1]}' if variable else ''})"
        size = next(
            (block for block in blocks if re.search(rf"\b{index} \* {block}\b|\b{block} \* {index}", text)), None
        )
        extent = form.points if max(axes) == 0 else largest
        if axis not in axes:
            grid.append("1")
        elif size is not None:
            grid.append(f"ceil_div({extent}, {blocks[size]})")
        elif max(axes) == 0 and form.kernel == "gemm":
            rows, cols = (next((b for b in blocks if b.upper().endswith(letter)), None) for letter in "MN")
            if rows is None or cols is None:
                raise Underivable(f"how the programs of `{name}` cover the result cannot be derived")
            grid.append(f"ceil_div({form.sides[0]}, {blocks[rows]}) * ceil_div({form.sides[1]}, {blocks[cols]})")
        else:
            grid.append(extent)
    return grid
