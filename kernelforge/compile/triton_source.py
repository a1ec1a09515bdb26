"""Triton source as a candidate may hold it: kernels and constants. Checked as a syntax tree, never executed here.

Triton's front end runs Python while it compiles, so a kernel must not reach any: no host code, no imports, no attribute
that leads from a value to the interpreter. The jail of the compiler is the boundary; this is the gate before it, and
what is refused is refused with advice.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from kernelforge.candidate.resolved import Specialisation
from kernelforge.errors import CandidateError

TRITON_FILE = "candidate.py"
MAX_SOURCE_BYTES = 64 << 10
MAX_LINE_CHARS = 2_000
MAX_BRACKETS = 24
MAX_DEPTH = 72

_TOKEN = re.compile(
    r"""
      (?P<string> (?P<prefix>[A-Za-z]*) (?: \"\"\"[^\\]*?\"\"\" | '''[^\\]*?''' | "[^"\\\n]*" | '[^'\\\n]*' ) )
    | (?P<comment> \#[^\n]* ) | (?P<word> \w+ ) | (?P<open> [(\[{] ) | (?P<close> [)\]}] ) | (?P<bad> ["'\\] ) | [^\w]
    """,
    re.VERBOSE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_OF_LANGUAGE = """
abs advance arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas atomic_max atomic_min
atomic_or atomic_xchg atomic_xor bfloat16 block_type broadcast broadcast_to cast cat cdiv ceil clamp const constexpr
cos cumprod cumsum debug_barrier div_rn dot dot_scaled dtype erf exp exp2 expand_dims extra fdiv flip float16
float32 float64 float8e4b15 float8e4nv float8e5 floor fma full gather histogram int1 int16 int32 int64 int8
interleave join load log log2 make_block_ptr make_tensor_descriptor math max max_constancy max_contiguous maximum
min minimum multiple_of num_programs permute philox pi32_t pointer_type program_id rand rand4x randint randint4x
randn randn4x range ravel reduce reshape rsqrt sigmoid sin softmax sort split sqrt sqrt_rn squeeze static_assert
static_range store sum swizzle2d tensor topk trans uint16 uint32 uint64 uint8 umulhi unsqueeze view void where
xor_sum zeros zeros_like
"""
_OF_VALUES = """
T to shape dtype element_ty type is_floating is_int numel primitive_bitwidth scalar value item next_power_of_2
"""
_ATTRIBUTES = frozenset((_OF_LANGUAGE + _OF_VALUES).split())
"""Attributes that modules, tensors and constants may be asked for; none leads to an object of the interpreter."""
_BUILTINS = frozenset({"range", "min", "max", "abs", "len", "int", "float", "bool", "tuple", "isinstance"})
_OF_PYTHON = """
getattr hasattr setattr eval exec compile open globals locals vars dir input object type super memoryview breakpoint
help id iter next callable classmethod staticmethod property __import__
"""
_DTYPES = """
float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 int1
"""

_ADVICE = {
    "inline_asm_elementwise": "tl.inline_asm_elementwise is not allowed: write it with operations of tl",
    "device_print": "tl.device_print is not allowed in a scored kernel: remove it",
    "device_assert": "tl.device_assert is not allowed in a scored kernel: remove it",
    "static_print": "tl.static_print is not allowed: remove it",
    "print": "print is not allowed in a kernel: remove it",
    "globaltimer": "a kernel must not read the time: remove tl.extra.cuda.globaltimer",
    "smid": "a kernel must not ask where it runs: use tl.program_id",
    "autotune": "@triton.autotune is host code: list the values on a '# tune:' line of the plan and pass them by name",
    "heuristics": "@triton.heuristics is host code: compute the value in the plan and pass it by name",
    "Config": "triton.Config is host code: list the values on a '# tune:' line of the plan and pass them by name",
    "map_elementwise": "tl.map_elementwise is not allowed: write it with operations of tl on whole tensors",
}
_LIBDEVICE = frozenset({"libdevice", "tl.extra.libdevice", "tl.extra.cuda.libdevice"})
"""Spellings of the module of mathematical functions, all of which may be called."""
_STATEMENTS = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.For, ast.While, ast.Return, ast.Expr, ast.Pass, ast.Assert,
)  # fmt: skip
_EXPRESSIONS = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.keyword, ast.IfExp, ast.Subscript, ast.Slice,
    ast.Tuple, ast.List, ast.Name, ast.Attribute, ast.Constant, ast.Starred,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip
_WORDS = {
    ast.JoinedStr: "f-strings", ast.Lambda: "lambda", ast.ListComp: "comprehensions", ast.Dict: "dictionaries",
    ast.NamedExpr: "the operator :=", ast.FunctionDef: "functions inside functions", ast.ClassDef: "classes",
    ast.Import: "imports inside functions", ast.ImportFrom: "imports inside functions", ast.Try: "try",
    ast.With: "with", ast.Global: "global", ast.Delete: "del", ast.Raise: "raise",
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel."""

    name: str
    constant: bool
    """It is a ``tl.constexpr``."""
    optional: bool
    """It has a default."""


@dataclass(frozen=True)
class TritonSource:
    """Source that has passed the check."""

    functions: dict[str, tuple[Parameter, ...]]
    """Functions under ``@triton.jit``, by name, with their parameters."""
    free_names: frozenset[str]
    """Names that functions read and the module does not define: constants of the plan may stand for them."""


def read_source(text: str) -> TritonSource:
    """Check Triton source.

    Raises:
        CandidateError: it holds more than kernels and constants; the message says what to write instead.
    """
    _check_text(text)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise CandidateError(f"Triton source, line {error.lineno}: {error.msg}", line=error.lineno) from None
    except (RecursionError, MemoryError, ValueError, OverflowError):
        raise CandidateError("the Triton source is too deeply nested to be read") from None
    return _Check(tree).source()


def mismatch(source: TritonSource, launch: Specialisation) -> str | None:
    """The reason why a launch does not fit the parameters of its kernel."""
    parameters = source.functions.get(launch.kernel)
    if parameters is None:
        names = ", ".join(source.functions)
        return f"the plan launches {launch.kernel}, which the source does not define; it defines {names}"
    taken = [parameter for parameter in parameters if not parameter.constant]
    constants = {parameter.name: parameter for parameter in parameters if parameter.constant}
    named = {name for name, _ in launch.constants}
    needed = sum(not parameter.optional for parameter in taken)
    if not needed <= len(launch.arguments) <= len(taken):
        names = ", ".join(parameter.name for parameter in taken)
        return (
            f"{launch.kernel}: the plan passes {len(launch.arguments)} arguments by position, the kernel takes "
            f"{len(taken)} that are not tl.constexpr ({names})"
        )
    for name in sorted(named - constants.keys()):
        return f"{launch.kernel} has no tl.constexpr parameter {name!r}; options are num_warps and num_stages"
    for name, parameter in constants.items():
        if name not in named and not parameter.optional:
            return f"{launch.kernel}: the plan gives no value for the tl.constexpr {name}; add {name}=... to the launch"
    return None


def _check_text(text: str) -> None:
    """Refuse text on which Python's own parser may take very long or fail; lines end at newlines alone."""
    if len(text.encode()) > MAX_SOURCE_BYTES:
        raise CandidateError(f"the Triton source is larger than {MAX_SOURCE_BYTES:,} bytes")
    if match := _CONTROL.search(text):
        _refuse(text.count("\n", 0, match.start()) + 1, f"the control character {match[0]!r} is not allowed")
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_LINE_CHARS:
            _refuse(number, f"it has {len(line):,} characters; the limit is {MAX_LINE_CHARS:,}")
    depth = line_number = 0
    for match in _TOKEN.finditer(text):
        if match["string"] is not None or match["bad"] is not None or match["open"] is not None:
            line_number = text.count("\n", 0, match.start()) + 1
        if match["string"] is not None and "f" in match["prefix"].lower():
            _refuse(line_number, "Triton source has no f-strings: write the text in full")
        if match["bad"] is not None:
            _refuse(line_number, "Triton source has no backslashes, and every string ends on its line")
        depth += (match["open"] is not None) - (match["close"] is not None)
        if depth > MAX_BRACKETS:
            _refuse(line_number, f"more than {MAX_BRACKETS} brackets are open: split the expression")


def _refuse(line: int, message: str) -> NoReturn:
    raise CandidateError(f"Triton source, line {line}: {message}", line=line)


class _Check:
    """The rules for a module."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions: dict[str, ast.FunctionDef] = {}
        self._constants: set[str] = set()
        self._modules: set[str] = set()
        self._free: set[str] = set()

    def source(self) -> TritonSource:
        for node in self._tree.body:
            self._top_level(node)
        if not self._functions:
            raise CandidateError("the Triton source defines no function under @triton.jit")
        for function in self._functions.values():
            self._function(function)
        parameters = {name: tuple(_parameters(node)) for name, node in self._functions.items()}
        return TritonSource(parameters, frozenset(self._free))

    def _top_level(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
        elif isinstance(node, ast.FunctionDef):
            self._define(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            self._constant(node)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            _refuse(node.lineno, "the module holds constants and @triton.jit functions only; the plan launches them")

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        allowed = {"import triton": "triton", "import triton.language as tl": "tl"}
        allowed |= {"from triton import language as tl": "tl"}
        allowed |= {f"from triton.language.extra{path} import libdevice": "libdevice" for path in ("", ".cuda")}
        name = allowed.get(ast.unparse(node))
        if name is None:
            _refuse(node.lineno, "only triton and triton.language as tl may be imported: host code is the plan's")
        self._modules.add(name)

    def _define(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            for part in ast.walk(decorator):
                if isinstance(part, ast.Attribute) and part.attr in _ADVICE:
                    _refuse(decorator.lineno, _ADVICE[part.attr])
        if [ast.unparse(decorator) for decorator in node.decorator_list] != ["triton.jit"]:
            _refuse(node.lineno, f"{node.name} is host code: only functions under @triton.jit alone are allowed")
        self._own(node.name, node.lineno)
        self._functions[node.name] = node

    def _constant(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        wrapped = (
            isinstance(value, ast.Call)
            and ast.unparse(value.func) == "tl.constexpr"
            and len(value.args) == 1
            and not value.keywords
        )
        literal = value.args[0] if wrapped and isinstance(value, ast.Call) else None
        if len(targets) != 1 or not isinstance(targets[0], ast.Name) or literal is None or not _is_literal(literal):
            _refuse(node.lineno, "a constant of the module is written NAME = tl.constexpr(number)")
        self._own(targets[0].id, node.lineno)
        self._constants.add(targets[0].id)

    def _own(self, name: str, line: int) -> None:
        if name in self._functions or name in self._constants:
            _refuse(line, f"{name!r} is defined twice")
        if name.startswith("_") or not name.isascii() or name in (*_BUILTINS, "triton", "tl", "libdevice"):
            _refuse(line, f"{name!r} cannot be a name here; choose another")

    def _function(self, node: ast.FunctionDef) -> None:
        spec = node.args
        if spec.vararg or spec.kwarg or spec.kwonlyargs or spec.posonlyargs:
            _refuse(node.lineno, f"the parameters of {node.name} are plain names, with or without a default")
        for parameter in spec.args:
            self._local(parameter.arg, parameter.lineno)
            annotation = parameter.annotation
            if annotation is not None and ast.unparse(annotation) not in ("tl.constexpr", "tl.tensor", "tl.const"):
                _refuse(parameter.lineno, f"annotate {parameter.arg} with tl.constexpr or not at all")
        for default in spec.defaults:
            if not _is_literal(default):
                _refuse(default.lineno, "a default is a literal")
        local = {parameter.arg for parameter in spec.args}
        local |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        for statement in node.body:
            self._inside(statement, local, 0)

    def _local(self, name: str, line: int) -> None:
        if name.startswith("__") or not name.isascii() or name in ("triton", "tl", "libdevice"):
            _refuse(line, f"{name!r} cannot be a name here; choose another")

    def _inside(self, node: ast.AST, local: set[str], depth: int) -> None:
        line = getattr(node, "lineno", 0)
        if depth > MAX_DEPTH:
            _refuse(line, "this is nested too deeply; split it")
        if not isinstance(node, (*_STATEMENTS, *_EXPRESSIONS)):
            _refuse(line, f"a kernel has no {_WORDS.get(type(node), type(node).__name__)}")
        if isinstance(node, ast.Attribute):
            self._attribute(node, local)
            return
        if isinstance(node, ast.Name):
            self._name(node, local)
        for child in ast.iter_child_nodes(node):
            self._inside(child, local, depth + 1)

    def _name(self, node: ast.Name, local: set[str]) -> None:
        name, line = node.id, node.lineno
        if name in self._modules and isinstance(node.ctx, ast.Load):
            return
        self._local(name, line)
        if isinstance(node.ctx, ast.Store) or name in local:
            return
        if name in _ADVICE:
            _refuse(line, _ADVICE[name])
        if name in _OF_PYTHON.split():
            _refuse(line, f"{name!r} is not available in a kernel: it works on tensors and numbers alone")
        if name not in self._functions and name not in self._constants and name not in _BUILTINS:
            self._free.add(name)

    def _attribute(self, node: ast.Attribute, local: set[str]) -> None:
        path = ast.unparse(node)
        parts: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            parts.append(root.attr)
            root = root.value
        for part in parts:
            if part in _ADVICE:
                _refuse(node.lineno, _ADVICE[part])
        self._inside(root, local, 0)
        module, _, function = path.rpartition(".")
        if module in _LIBDEVICE and not function.startswith("_"):
            return
        for part in parts:
            if part not in _ATTRIBUTES:
                _refuse(node.lineno, f"{path[:80]} is not available in a kernel: write it with other operations of tl")
        if path.startswith("tl.extra"):
            _refuse(node.lineno, "of tl.extra only libdevice is allowed, as in tl.extra.cuda.libdevice.tanh(x)")
        if path.startswith("triton.") and path not in ("triton.cdiv", "triton.next_power_of_2"):
            _refuse(node.lineno, f"{path[:80]} is host code; a kernel may use triton.cdiv and triton.next_power_of_2")


def _parameters(node: ast.FunctionDef) -> Iterator[Parameter]:
    first_default = len(node.args.args) - len(node.args.defaults)
    for position, parameter in enumerate(node.args.args):
        constant = parameter.annotation is not None and ast.unparse(parameter.annotation) == "tl.constexpr"
        yield Parameter(parameter.arg, constant, position >= first_default)


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    if isinstance(node, ast.Attribute):
        return ast.unparse(node).removeprefix("tl.") in _DTYPES.split()
    return isinstance(node, ast.Constant) and type(node.value) in (int, float, bool, str, type(None))
