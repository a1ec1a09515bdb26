"""The six kernels of the Codex study: what a suggestion computes, by the parameters of its function.

A prompt names a kernel and no formula, so several textbook forms are right: with or without scalars, matrices by rows
or by columns. Each form is a task with a reference of its own; a suggestion is right if it agrees with one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from kernelforge.records import Size, Task, TaskPolicy
from kernelforge.study.signatures import Function, Parameter, Real, Underivable

ALPHA, BETA = 1.75, -0.5
"""Values of the scalars; no test of a suggestion depends on them."""


@dataclass(frozen=True)
class Form:
    """A formula, and how a function with these parameters is called for it."""

    kernel: str
    text: str
    """The formula, for people."""
    real: Real
    inputs: tuple[tuple[str, str], ...]
    """Arrays that the entry reads: name and element type."""
    scalars: tuple[str, ...]
    extents: tuple[tuple[str, str], ...]
    """Numbers of elements: name, and expression in the launch plan."""
    shape: str
    """Of the output, in the plan."""
    points: str
    """Threads that one-dimensional grids need: one per element, or per row."""
    sides: tuple[str, ...]
    """Extents of which each dimension of other grids covers the largest."""
    values: tuple[str, ...]
    """Of each parameter of the suggestion: an expression over the names above and ``out``."""
    sizes: Sequence[dict[str, int]]
    """Constants of the reference: at the full size, the small one, and hidden ones."""
    body: tuple[str, ...]
    """Statements of the reference's ``forward``."""
    draws: str
    """Statements of its ``get_inputs``."""
    terms: str | None = None
    """Terms in one output element, where the oracle cannot find them."""
    lengths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Extents of arrays by name, for vectors."""
    start: str = ""
    """Input with which the output begins; empty for none."""
    solver: bool = False
    """Whether the entry builds the system of conjugate gradients first."""

    @property
    def name(self) -> str:
        """Of the entry, and of the task."""
        return f"study_{self.kernel}"

    @property
    def declaration(self) -> str:
        """Of the entry in C."""
        numbers = [f"int {item}" for item, _ in self.extents] + [f"{self.real} {item}" for item in self.scalars]
        arrays = [f"const {kind} *{item}" for item, kind in self.inputs]
        result = "float" if self.solver else self.real
        return f"void {self.name}({', '.join([*numbers, *arrays, f'{result} *out'])})"

    @cached_property
    def task(self) -> Task:
        """The reference. Its ``c_source`` declares the entry that calls the suggestion."""
        full, small, *hidden = self.sizes
        takes = [*(item for item, _ in self.inputs), *self.scalars]
        return Task(
            name=self.name,
            suite="study",
            title=self.text,
            level=1,
            source=_source(self.text, full, takes, self.body, self.draws),
            c_source=f"{self.declaration};",
            sizes=(
                Size(name="full"),
                Size(name="small", constants=dict(small)),
                *(Size(name=f"hidden_{at}", constants=dict(values)) for at, values in enumerate(hidden, 1)),
            ),
            policy=TaskPolicy(
                accumulator="float64" if self.real == "double" else "float32", reduction_length=self.terms
            ),
        )


@dataclass(frozen=True)
class StudyKernel:
    """A kernel as the study names it."""

    name: str
    prompt: str
    names: re.Pattern[str]
    """In names of functions that compute it."""
    forms: Callable[[Function], list[Form]]
    """Forms that fit a function, the likeliest first.

    Raises:
        Underivable: none does; the message says why.
    """


def _source(title: str, constants: dict[str, int], takes: Sequence[str], body: Sequence[str], draws: str) -> str:
    head = "\n".join(f"{name} = {value}" for name, value in constants.items())
    lines = "\n".join(f"        {line}" for line in body)
    return (
        f'"""{title}"""\n\nimport torch\nimport torch.nn as nn\n\n{head}\n\n\nclass Model(nn.Module):\n'
        f"    def forward(self, {', '.join(takes)}):\n{lines}\n\n\ndef get_inputs():\n    {draws}\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )


def _dtype(real: Real) -> str:
    return "torch.float64" if real == "double" else "torch.float32"


def _roles(parameters: Sequence[Parameter], names: dict[str, str], order: Sequence[str]) -> dict[str, str] | None:
    """Role of each parameter: by its name, if each has another role by these patterns; else by position."""
    if len(parameters) != len(order):
        return None
    roles: dict[str, str] = {}
    for item in parameters:
        plain = re.sub(r"^(?:d|h|dev|host)_|_(?:d|h|dev|device)$", "", item.name, flags=re.IGNORECASE)
        role = next((role for role in order if re.fullmatch(names[role], plain, re.IGNORECASE)), None)
        if role is not None:
            roles[item.name] = role
    if len(set(roles.values())) == len(order):
        return roles
    return {item.name: role for item, role in zip(parameters, order, strict=True)}


def _written_last(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """Arrays with the only one that is not const last, where there is one; else in their order."""
    written = [item for item in parameters if not item.const]
    if len(written) != 1:
        return parameters
    return (*(item for item in parameters if item.const), written[0])


def _values(function: Function, roles: dict[str, str], expressions: dict[str, str]) -> tuple[str, ...]:
    return tuple(expressions[roles[item.name]] for item in function.parameters)


def _only(function: Function, *, index: int = 0) -> None:
    got = len(function.of_kind("index"))
    if got != index:
        raise Underivable(f"`{function.name}` takes {got} arrays of integers, and the kernel has {index}")


def _scalar_roles(function: Function, most: int) -> dict[str, str]:
    scalars = function.of_kind("real")
    if len(scalars) > most:
        raise Underivable(f"`{function.name}` takes {len(scalars)} real numbers, and the kernel has at most {most}")
    roles = _roles(scalars, {"alpha": r"alpha|a", "beta": r"beta|b"}, ("alpha", "beta")[: len(scalars)])
    return roles or {}


_STEP: Final = r"inc_?\w*|\w*stride\w*"


def _dimensions(
    function: Function, names: dict[str, str], choices: Sequence[tuple[str, ...]]
) -> Iterator[dict[str, str]]:
    """Roles of the integers, for each order that is possible; a single integer is ``square``.

    Names decide first. Letters alone do not settle it, as `n` rows and `m` columns are as common as the reverse: their
    order is tried too.

    Raises:
        Underivable: there is none, or another number of them.
    """
    integers = function.of_kind("int")
    steps = {item.name: "one" for item in integers if re.fullmatch(_STEP, item.name, re.IGNORECASE)}
    leading = {
        item.name: f"ld{match[1].lower()}"
        for item in integers
        if (match := re.fullmatch(r"ld([abc])", item.name, re.IGNORECASE))
    }
    fixed = steps | leading
    rest = [item for item in integers if item.name not in fixed]
    if len(rest) == 1:
        yield fixed | {rest[0].name: "square"}
        return
    if not rest and function.carries_extents:
        yield fixed
        return
    fitting = [order for order in choices if len(order) == len(rest)]
    if not fitting:
        raise Underivable(f"`{function.name}` takes {len(rest)} sizes, which no form of the kernel has")
    letters = all(len(item.name) == 1 for item in rest)
    by_name = [_roles(rest, names, order) or {} for order in fitting]
    by_order = [{item.name: role for item, role in zip(rest, order, strict=True)} for order in fitting if letters]
    seen: list[dict[str, str]] = []
    for roles in (*by_name, *by_order):
        if roles not in seen:
            seen.append(roles)
            yield fixed | roles


def _axpy(function: Function) -> list[Form]:
    _only(function)
    if len(function.of_kind("real")) != 1:
        raise Underivable(f"`{function.name}` takes no scalar alpha by value")
    arrays = _written_last(function.arrays)
    patterns = {"x": r"x|in|src", "y": r"y", "out": r"z|out\w*|res\w*|r|c|w"}
    roles = _roles(arrays, {**patterns, "y": r"y|out\w*|dst"}, ("x", "y"))
    separate = _roles(arrays, patterns, ("x", "y", "out"))
    bound = roles or separate
    if bound is None:
        raise Underivable(f"`{function.name}` takes {len(arrays)} arrays; an AXPY has two, or three")
    bound = bound | {function.of_kind("real")[0].name: "alpha"}
    forms = []
    for sizes in _dimensions(function, {}, ()):
        expressions = {
            "x": "x", "y": "out" if roles else "y", "out": "out", "alpha": "alpha", "square": "n", "one": "1",
        }  # fmt: skip
        dtype = _dtype(function.real)
        draws = f"return [torch.randn(N, dtype={dtype}), torch.randn(N, dtype={dtype}), {ALPHA}]"
        numbers = [{"N": value} for value in (8192, 4096, 10007, 7)]
        forms.append(
            Form(
                kernel="axpy",
                text="alpha x + y",
                real=function.real,
                inputs=(("x", function.real), ("y", function.real)),
                scalars=("alpha",),
                extents=(("n", "x.shape[0]"),),
                shape="(x.shape[0],)",
                points="x.shape[0]",
                sides=("x.shape[0]",),
                values=_values(function, bound | sizes, expressions),
                lengths=dict.fromkeys(("x", "y", "out"), ("n",)),
                start="y" if roles else "",
                sizes=numbers,
                body=("return alpha * x + y",),
                draws=draws,
            )
        )
    return forms


def _scaled(count: int, product: str) -> list[tuple[str, str, bool]]:
    """Formulas of a product with this many scalars: text, torch, and whether the output begins with y."""
    if count == 2:
        return [("alpha {} + beta y", f"alpha * {product} + beta * y", True)]
    if count == 1:
        return [("alpha {}", f"alpha * {product}", False), ("alpha {} + y", f"alpha * {product} + y", True)]
    return [("{}", product, False), ("{} + y", f"{product} + y", True)]


def _layouts(function: Function, roles: dict[str, str], matrices: Sequence[str]) -> tuple[bool, ...]:
    """Whether the matrices lie by columns. Flat arrays may lie either way; the others as their language has them."""
    kinds = {item.kind for item in function.parameters if roles.get(item.name) in matrices}
    return (False, True) if kinds <= {"array", "vector"} else (function.by_columns,)


def _gemv(function: Function) -> list[Form]:
    _only(function)
    arrays = _written_last(function.arrays)
    patterns = {"a": r"a|mat\w*|m", "x": r"x|v\w*|b", "out": r"y|out\w*|res\w*|c|r"}
    roles = _roles(arrays, patterns, ("a", "x", "out"))
    if roles is None:
        raise Underivable(f"`{function.name}` takes {len(arrays)} arrays; a GEMV has a matrix and two vectors")
    roles |= _scalar_roles(function, 2)
    count, dtype = len(function.of_kind("real")), _dtype(function.real)
    names = {"rows": r"m|n?_?rows?|num_?rows|height|h", "cols": r"n|n?_?cols?|num_?cols|width|w|k"}
    forms = []
    for sizes in _dimensions(function, names, (("rows", "cols"),)):
        square = "square" in sizes.values()
        for by_columns in _layouts(function, roles, ("a",)):
            first, second = ("cols", "rows") if by_columns else ("rows", "cols")
            for text, formula, adds in _scaled(count, "torch.mv(a.t(), x)" if by_columns else "torch.mv(a, x)"):
                rows, cols = ("a.shape[1]", "a.shape[0]") if by_columns else ("a.shape[0]", "a.shape[1]")
                expressions = {
                    "a": "a", "x": "x", "out": "out", "alpha": "alpha", "beta": "beta", "rows": "rows", "cols": "cols",
                    "square": "rows", "one": "1", "lda": second,
                }  # fmt: skip
                shape = f"{first.upper()}, {second.upper()}"
                y = f", torch.randn(ROWS, dtype={dtype})" if adds else ""
                scalars = ("alpha", "beta")[:count]
                numbers = "".join(f", {value}" for value in (ALPHA, BETA)[:count])
                draws = f"return [torch.randn({shape}, dtype={dtype}), torch.randn(COLS, dtype={dtype}){y}{numbers}]"
                extents = [(64, 64), (32, 32), (37, 37), (5, 5)] if square else [(64, 96), (32, 64), (37, 53), (5, 9)]
                numbers_of = [{"ROWS": m, "COLS": n} for m, n in extents]
                forms.append(
                    Form(
                        kernel="gemv",
                        text=text.format("A x") + (", A by columns" if by_columns else ", A by rows"),
                        real=function.real,
                        inputs=(("a", function.real), ("x", function.real), *((("y", function.real),) if adds else ())),
                        scalars=scalars,
                        extents=(("rows", rows), ("cols", cols)),
                        shape=f"({rows},)",
                        points=rows,
                        sides=(rows, cols),
                        values=_values(function, roles | sizes, expressions),
                        lengths={"a": (first, second), "x": ("cols",), "y": ("rows",), "out": ("rows",)},
                        start="y" if adds else "",
                        sizes=numbers_of,
                        body=(f"return {formula}",),
                        draws=draws,
                    )
                )
    return forms


def _gemm(function: Function) -> list[Form]:
    _only(function)
    arrays = _written_last(function.arrays)
    patterns = {"a": r"a\w*|m1?|x", "b": r"b\w*|n|m2|y", "out": r"c\w*|p|out\w*|res\w*|z"}
    roles = _roles(arrays, patterns, ("a", "b", "out"))
    if roles is None:
        raise Underivable(f"`{function.name}` takes {len(arrays)} arrays; a GEMM has three matrices")
    roles |= _scalar_roles(function, 2)
    count, dtype = len(function.of_kind("real")), _dtype(function.real)
    names = {
        "m": r"m|(?:num_?)?a_?rows?|rows?_?a|num_?rows?", "n": r"n|(?:num_?)?b_?col(?:umn)?s?|col(?:umn)?s?_?b",
        "k": r"k|(?:num_?)?a_?col(?:umn)?s?|col(?:umn)?s?_?a",
    }  # fmt: skip
    forms = []
    for sizes in _dimensions(function, names, (("m", "n", "k"), ("m", "k", "n"))):
        square = "square" in sizes.values()
        for by_columns in _layouts(function, roles, ("a", "b", "out")):
            product = "torch.matmul(b, a)" if by_columns else "torch.matmul(a, b)"
            for text, formula, adds in _scaled(count, product):
                order = {"a": ("k", "m"), "b": ("n", "k"), "out": ("n", "m")}
                shapes = order if by_columns else {name: pair[::-1] for name, pair in order.items()}
                m, k, n = (
                    ("a.shape[1]", "a.shape[0]", "b.shape[0]")
                    if by_columns
                    else ("a.shape[0]", "a.shape[1]", "b.shape[1]")
                )
                expressions = {
                    "a": "a", "b": "b", "out": "out", "alpha": "alpha", "beta": "beta", "m": "m", "n": "n", "k": "k",
                    "square": "m", "one": "1", "lda": shapes["a"][1], "ldb": shapes["b"][1], "ldc": shapes["out"][1],
                }  # fmt: skip
                drawn = [
                    f"torch.randn({', '.join(extent.upper() for extent in shapes[name])}, dtype={dtype})"
                    for name in ("a", "b", *(("out",) if adds else ()))
                ]
                drawn += [str(value) for value in (ALPHA, BETA)[:count]]
                extents = (
                    [(48, 48, 48), (32, 32, 32), (37, 37, 37), (5, 5, 5)]
                    if square
                    else [(48, 40, 56), (32, 48, 64), (19, 27, 37), (5, 3, 7)]
                )
                numbers = [{"M": a, "N": b, "K": c} for a, b, c in extents]
                forms.append(
                    Form(
                        kernel="gemm",
                        text=text.format("A B").replace("y", "C") + (", by columns" if by_columns else ", by rows"),
                        real=function.real,
                        inputs=(("a", function.real), ("b", function.real), *((("y", function.real),) if adds else ())),
                        scalars=("alpha", "beta")[:count],
                        extents=(("m", m), ("n", n), ("k", k)),
                        shape=f"({n}, {m})" if by_columns else f"({m}, {n})",
                        points=f"{m} * {n}",
                        sides=(m, n),
                        values=_values(function, roles | sizes, expressions),
                        lengths={**shapes, "y": shapes["out"]},
                        start="y" if adds else "",
                        sizes=numbers,
                        body=(f"return {formula}",),
                        draws=f"return [{', '.join(drawn)}]",
                    )
                )
    return forms


_CSR_BODY: Final = (
    "places = torch.arange(values.shape[0], device=values.device, dtype=row_start.dtype)",
    "rows = torch.searchsorted(row_start, places, right=True) - 1",
    "products = values * torch.index_select(x, 0, columns)",
    "zeros = torch.zeros(row_start.shape[0] - 1, dtype=values.dtype, device=values.device)",
    "product = zeros.index_add(0, rows, products)",
)


def _spmv(function: Function) -> list[Form]:
    _only(function, index=2)
    arrays = _written_last(function.arrays)
    patterns = {"values": r"val\w*|a|data|nz\w*|a_?val\w*", "x": r"x|v\w*|b", "out": r"y|out\w*|res\w*|r|c"}
    roles = _roles(arrays, patterns, ("values", "x", "out"))
    if roles is None:
        raise Underivable(f"`{function.name}` takes {len(arrays)} arrays of numbers; SpMV in CSR has three")
    pointers = {"row_start": r".*(?:row|ptr|offset|ia).*", "columns": r".*(?:col|ind|idx|ja).*"}
    indices = function.of_kind("index")
    by_name = [item for item in indices if re.fullmatch(pointers["row_start"], item.name, re.IGNORECASE)]
    if len(by_name) == 2:  # such as row_ptr and col_ptr
        by_name = [item for item in indices if not re.search("col", item.name, re.IGNORECASE)]
    first = by_name[0] if len(by_name) == 1 else indices[0]
    roles |= {item.name: "row_start" if item is first else "columns" for item in indices}
    roles |= _scalar_roles(function, 2)
    integers = function.of_kind("int")
    for item in integers:
        name = item.name.lower()
        roles[item.name] = "nnz" if "nnz" in name or "nz" in name else "cols" if "col" in name else "rows"
    if "rows" not in [roles[item.name] for item in integers] and not function.carries_extents:
        raise Underivable(f"`{function.name}` takes no number of rows")
    count, real, dtype = len(function.of_kind("real")), function.real, _dtype(function.real)
    forms = []
    for text, formula, adds in _scaled(count, "product"):
        rows = "row_start.shape[0] - 1"
        expressions = {
            name: name for name in ("values", "x", "out", "row_start", "columns", "alpha", "beta", "rows", "nnz")
        }
        expressions["cols"] = "rows"
        scalars = "".join(f", {value}" for value in (ALPHA, BETA)[:count])
        y = f", torch.randn(ROWS, dtype={dtype})" if adds else ""
        draws = "\n    ".join(
            (
                "ranks = (torch.rand(NNZ) ** 2 * ROWS).long().clamp(max=ROWS - 1)",
                "rows = torch.sort(ranks - (ranks % 4 == 3).long()).values",
                "row_start = torch.searchsorted(rows, torch.arange(ROWS + 1)).int()",
                "columns = torch.randint(0, ROWS, (NNZ,), dtype=torch.int32)",
                f"numbers = [torch.randn(NNZ, dtype={dtype}), torch.randn(ROWS, dtype={dtype})]",
                f"return [row_start, columns, *numbers{y}{scalars}]",
            )
        )
        sizes = [{"ROWS": m, "NNZ": nnz} for m, nnz in ((256, 2048), (128, 1024), (101, 1511), (5, 11))]
        forms.append(
            Form(
                kernel="spmv",
                text=text.format("A x") + ", A in CSR",
                real=real,
                inputs=(
                    ("row_start", "int"),
                    ("columns", "int"),
                    ("values", real),
                    ("x", real),
                    *((("y", real),) * adds),
                ),
                scalars=("alpha", "beta")[:count],
                extents=(("rows", rows), ("nnz", "values.shape[0]")),
                shape=f"({rows},)",
                points=rows,
                sides=(rows,),
                values=_values(function, roles, expressions),
                lengths={
                    "row_start": ("rows + 1",),
                    "columns": ("nnz",),
                    "values": ("nnz",),
                    "x": ("rows",),
                    "y": ("rows",),
                    "out": ("rows",),
                },
                start="y" if adds else "",
                sizes=sizes,
                body=(*_CSR_BODY, f"return {formula}"),
                draws=draws,
            )
        )
    return forms


_AVERAGE: Final = (
    "inner = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]",
    "inner = inner + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:]",
    "out = u.clone()",
)


def _jacobi(function: Function) -> list[Form]:
    _only(function)
    arrays = _written_last(function.arrays)
    names = {"u": r"u|u?_?old|in\w*|a|x|src|u0", "out": r"u?_?new|out\w*|b|y|dst|u1|unew|un"}
    roles = _roles(arrays, names, ("u", "out"))
    if roles is None:
        raise Underivable(f"`{function.name}` takes {len(arrays)} arrays; a Jacobi sweep reads one and writes another")
    if function.of_kind("real"):
        raise Underivable(f"`{function.name}` takes real numbers, and the mean of six neighbours has none")
    integers = function.of_kind("int")
    repeats = {item.name: "one" for item in integers if re.search(r"iter|step|sweep|max", item.name, re.IGNORECASE)}
    axes = [item for item in integers if item.name not in repeats]
    if len(axes) == 1:
        orders: list[dict[str, str]] = [{axes[0].name: "square"}]
    elif len(axes) == 3:
        by_letter = {item.name: item.name.lower().strip("_")[-1:] for item in axes}
        letters = sorted(by_letter.values()) == ["x", "y", "z"]
        letter_roles = {name: f"n{letter}" for name, letter in by_letter.items()}
        positions = {item.name: role for item, role in zip(axes, ("nx", "ny", "nz"), strict=True)}
        orders = [letter_roles if letters else positions]
    elif not axes and function.carries_extents:
        orders = [{}]
    else:
        raise Underivable(f"`{function.name}` takes {len(axes)} extents; a grid in three dimensions has one, or three")
    real, dtype, forms = function.real, _dtype(function.real), []
    for sizes in orders:
        square = "square" in sizes.values()
        for x_first in (True,) if square or not axes else (True, False):
            extents = [("nx", "u.shape[0]"), ("ny", "u.shape[1]"), ("nz", "u.shape[2]")]
            if not x_first:
                extents = [("nx", "u.shape[2]"), ("ny", "u.shape[1]"), ("nz", "u.shape[0]")]
            axes_of_u = ("nx", "ny", "nz") if x_first else ("nz", "ny", "nx")
            expressions = {"u": "u", "out": "out", "square": "nx", "one": "1", "nx": "nx", "ny": "ny", "nz": "nz"}
            draws = f"return [torch.randn({', '.join(name.upper() for name in axes_of_u)}, dtype={dtype})]"
            values = ((12, 12, 12), (8, 8, 8), (11, 11, 11), (3, 3, 3)) if square else (
                (12, 10, 16), (8, 8, 16), (11, 9, 7), (3, 4, 5)
            )  # fmt: skip
            numbers = [{"NX": a, "NY": b, "NZ": c} for a, b, c in values]
            body = (*_AVERAGE, "out[1:-1, 1:-1, 1:-1] = inner / 6.0", "return out")
            forms.append(
                Form(
                    kernel="jacobi3d",
                    text="mean of six neighbours" + ("" if square else f", {axes_of_u[-1][1]} fastest"),
                    real=real,
                    inputs=(("u", real),),
                    scalars=(),
                    extents=tuple(extents),
                    shape="u.shape",
                    points="u.numel()",
                    sides=tuple(expression for _, expression in extents),
                    values=_values(function, roles | sizes | repeats, expressions),
                    lengths={"u": axes_of_u, "out": axes_of_u},
                    start="u",
                    sizes=numbers,
                    body=body,
                    draws=draws,
                )
            )
    return forms


CG_ITERATIONS: Final = 4
"""Given as the largest number of iterations: the matrix has two eigenvalues, so two are enough."""
CG_TOLERANCE: Final = {"double": "1e-10", "float": "1e-6"}
"""Given as the tolerance; suggestions differ in what they compare with it."""


def _cg(function: Function) -> list[Form]:
    _only(function)
    arrays = function.arrays
    names = {"a": r"a|mat\w*", "b": r"b|rhs|f", "x": r"x|out\w*|sol\w*|u"}
    main = arrays[:3]
    roles = _roles(main, names, ("a", "b", "x"))
    if roles is None or len(arrays) != 3:
        raise Underivable(f"`{function.name}` takes {len(arrays)} arrays; this form of CG has a dense A, b and x")
    for item in function.of_kind("real"):
        if not re.search(r"tol|eps|thr|err", item.name, re.IGNORECASE):
            raise Underivable(f"`{function.name}` takes `{item.name}`, which is no tolerance by its name")
        roles[item.name] = "tolerance"
    integers = function.of_kind("int")
    repeats = [item for item in integers if re.search(r"iter|max|step|it\b", item.name, re.IGNORECASE)]
    rest = [item for item in integers if item not in repeats]
    if len(rest) > 1 or (not rest and not function.carries_extents):
        raise Underivable(f"`{function.name}` takes {len(rest)} sizes; CG has one")
    roles |= {item.name: "iterations" for item in repeats} | {item.name: "n" for item in rest}
    expressions = {
        "a": "a", "b": "b", "x": "x", "n": "n", "iterations": str(CG_ITERATIONS),
        "tolerance": CG_TOLERANCE[function.real],
    }  # fmt: skip
    body = (
        "s, t = s.double(), t.double()",
        "squares = (s * s).sum()",
        "shift = 1.0 + squares",
        "return ((t - s * ((s * t).sum() / (shift + squares))) / shift).float()",
    )
    draws = "return [torch.randint(-2, 3, (N,), dtype=torch.int32), torch.randint(1, 9, (N,), dtype=torch.int32)]"
    sizes = [{"N": value} for value in (64, 32, 37, 5)]
    return [
        Form(
            kernel="cg",
            text="A x = b by conjugate gradients, A dense",
            real=function.real,
            inputs=(("s", "int"), ("t", "int")),
            scalars=(),
            extents=(("n", "s.shape[0]"),),
            shape="(s.shape[0],)",
            points="s.shape[0]",
            sides=("s.shape[0]",),
            values=_values(function, roles, expressions),
            lengths={"a": ("n", "n"), "b": ("n",), "x": ("n",)},
            solver=True,
            sizes=sizes,
            body=body,
            draws=draws,
            terms="N * N",
        )
    ]


KERNELS: Final[dict[str, StudyKernel]] = {
    item.name: item
    for item in (
        StudyKernel("axpy", "AXPY", re.compile("axpy", re.I), _axpy),
        StudyKernel("gemv", "GEMV", re.compile("gemv|mat.*vec|mv", re.I), _gemv),
        StudyKernel("gemm", "GEMM", re.compile("gemm|mat.*mul|mm", re.I), _gemm),
        StudyKernel("spmv", "SpMV", re.compile("spmv|csr|sparse", re.I), _spmv),
        StudyKernel("jacobi3d", "3D Jacobi stencil", re.compile("jacobi|stencil", re.I), _jacobi),
        StudyKernel("cg", "CG", re.compile("cg|conj|gradient", re.I), _cg),
    )
}
"""By the name that ``--kernel`` takes, in the order of the paper."""
