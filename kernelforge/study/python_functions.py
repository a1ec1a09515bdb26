"""Python suggestions: the function that answers, what its parameters are by their names, and a call of it for a form.

Of codes for a GPU (cuPy, pyCUDA) the text of a kernel is read and judged as CUDA; their Python is not run.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Final, NamedTuple

from kernelforge.records import Candidate
from kernelforge.study.kernels import Form, StudyKernel
from kernelforge.study.signatures import Function, Kind, Parameter, Real, Underivable
from kernelforge.translation.evaluator import c_candidate

_RESULT: Final = "out"
"""Parameter that stands for a returned array."""
_REALS: Final = r"alpha|beta|\w*tol\w*|\w*eps\w*|thresh\w*"
_SCALE: Final = r"a|s|da|scalar|c"
"""Names of AXPY's scalar; in other kernels ``a`` is the matrix."""
_INTEGERS: Final = (
    r"[mnk]|n[xyz]|\w*nnz|n_?(?:rows?|cols?)|num_?(?:rows?|cols?)|rows?|cols?|ld[abc]|inc_?[xy]|size|"
    r"\w*(?:iter|step|sweep)\w*|max_?it"
)
_INDICES: Final = r"\w*(?:ptr|pointer|indices|offset|idx|ind)\w*|[ij]a|col(?:umn)?s|rows?_?start\w*"
_INTEGER_BITS: Final = 128
_KERNEL_TEXTS: Final = frozenset({"RawKernel", "RawModule", "SourceModule"})


class PythonFunction(NamedTuple):
    """A function that can be called."""

    function: Function
    returned: bool
    """Whether the last of its parameters stands for what it returns."""


def kernel_text(code: str) -> str:
    """The CUDA text that a cuPy or pyCUDA suggestion hands to its compiler.

    Raises:
        Underivable: there is none, or there are several.
    """
    tree = parsed(code)
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    texts = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in _KERNEL_TEXTS:
            continue
        named = [keyword.value for keyword in node.keywords if keyword.arg in ("code", "source")]
        value = (node.args[:1] or named or [ast.Constant(None)])[0]
        value = constants.get(value.id, value) if isinstance(value, ast.Name) else value
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            raise Underivable(f"the text of its {name} is not written out")
        texts.append(value.value)
    if not texts:
        raise Underivable(
            "its arrays are a GPU's, which no Python here drives; only the text of a RawKernel, RawModule or "
            "SourceModule is judged"
        )
    if len(set(texts)) != 1:
        raise Underivable("it has several kernels, and in which order they run cannot be derived")
    return texts[0]


def python_function(code: str, kernel: StudyKernel) -> tuple[PythonFunction, list[Form]]:
    """The function that a suggestion answers with, its only one or the last one that is named so, and its forms.

    Raises:
        Underivable: there is none, or no form fits it.
    """
    tree = parsed(code)
    functions = [item for item in tree.body if isinstance(item, ast.FunctionDef) and item.name != "main"]
    named = [item for item in functions if kernel.names.search(item.name)]
    if not functions:
        raise Underivable("it defines no function")
    if len(functions) > 1 and not named:
        listed = ", ".join(item.name for item in functions)
        raise Underivable(f"it has several functions, none with the kernel's name: {listed}")
    node = (named or functions)[-1]
    if any("cuda" in ast.unparse(decorator) for decorator in node.decorator_list):
        raise Underivable("its kernel is one of numba.cuda, which no Python here drives")
    positional = [*node.args.posonlyargs, *node.args.args]
    required = positional[: len(positional) - len(node.args.defaults)]
    if node.args.vararg or [item for item in node.args.kw_defaults if item is None]:
        raise Underivable(f"`{node.name}` takes more than its positional parameters")
    real = _real_of(node)
    parameters = tuple(_parameter(item, kernel.name, real) for item in required)
    function = Function(node.name, parameters, real, False)
    try:
        return PythonFunction(function, False), kernel.forms(function)
    except Underivable as error:
        result = Parameter(_RESULT, "shaped", real, False)
        longer = function._replace(parameters=(*parameters, result))
        try:
            return PythonFunction(longer, True), kernel.forms(longer)
        except Underivable:
            raise error from None


def python_entry(code: str, call: PythonFunction, form: Form) -> Candidate:
    """A candidate of lane ``c``, in Python, that calls a function for a form.

    What the function returns is the result, if it has dimensions; else what it wrote.
    """
    numbers = [name for name, _ in form.extents]
    arrays = [name for name, _ in form.inputs]
    lines = [f"def {form.name}({', '.join([*numbers, *form.scalars, *arrays, 'out'])}):", "import numpy as study_numpy"]
    result = "x" if form.solver else "out"
    dtype = "study_numpy.float64" if form.real == "double" else "study_numpy.float32"
    if form.solver:
        lines += [
            f"s = s.astype({dtype})",
            "study_shift = 1 + s @ s",
            "a = study_numpy.outer(s, s) + study_shift * study_numpy.eye(n, dtype=s.dtype)",
            f"b = t.astype({dtype})",
            f"x = study_numpy.zeros(n, {dtype})",
        ]
    else:
        lines += [f"{name} = {name}.reshape({', '.join(form.lengths[name])},)" for name in (*arrays, "out")]
    if form.start:
        lines.append(f"out[...] = {form.start}")
    passed = call.function.parameters[:-1] if call.returned else call.function.parameters
    arguments = ", ".join(value for _, value in zip(passed, form.values, strict=False))
    lines += [
        f"study_result = {call.function.name}({arguments})",
        "if isinstance(study_result, tuple):",
        "    study_result = study_result[0]",
        "if study_numpy.ndim(study_result) == 0:",
        f"    study_result = {result}",
        f"out[...] = study_numpy.asarray(study_result).reshape({result}.shape)",
    ]
    return c_candidate(f"{code}\n\n\n" + "\n    ".join(lines) + "\n")


def parsed(code: str) -> ast.Module:
    """The statements of a Python code.

    Raises:
        Underivable: it is no Python, or has an integer that could not be written again.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in a kernel's text
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Underivable(f"it cannot be read: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value.bit_length() > _INTEGER_BITS:
            raise Underivable(f"it has an integer of more than {_INTEGER_BITS} bits")
    return tree


def _real_of(node: ast.FunctionDef) -> Real:
    """Type of a function's arrays: float64, but where the signatures in its decorators name float32 alone."""
    signatures = " ".join(ast.unparse(item) for item in node.decorator_list)
    single = re.search(r"\b(?:float32|f4)\b", signatures) and not re.search(r"\b(?:float64|f8|double)\b", signatures)
    return "float" if single else "double"


def _parameter(item: ast.arg, kernel: str, real: Real) -> Parameter:
    annotation = ast.unparse(item.annotation) if item.annotation else ""
    name = item.arg.lower()
    kind: Kind = "shaped"
    if annotation == "float" or re.fullmatch(f"{_REALS}|{_SCALE}" if kernel == "axpy" else _REALS, name):
        kind = "real"
    elif kernel == "spmv" and re.fullmatch(_INDICES, name) and not re.fullmatch(r"num_?\w*|n_?(?:rows|cols)", name):
        kind = "index"
    elif annotation == "int" or re.fullmatch(_INTEGERS, name):
        kind = "int"
    return Parameter(item.arg, kind, None if kind in ("index", "int") else real, False)
