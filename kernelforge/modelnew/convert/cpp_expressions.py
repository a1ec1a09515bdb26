"""Convert C++ host expressions to expressions of the plan language, with their types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kernelforge.modelnew.convert.cpp_tokens import Token, Unconvertible, matching, split_commas, text_of
from kernelforge.modelnew.convert.cpp_units import Unit
from kernelforge.modelnew.convert.torch_operators import Argument, ArgumentKind, bound_call, find_operator

Kind = Literal[
    "int", "float", "bool", "tensor", "tensors", "pair", "pointer", "dims", "dtype", "options", "string", "nothing"
]  # fmt: skip

DTYPES = {
    "kFloat": "float32", "kFloat32": "float32", "kDouble": "float64", "kFloat64": "float64", "kHalf": "float16",
    "kFloat16": "float16", "kBFloat16": "bfloat16", "kInt": "int32", "kInt32": "int32", "kLong": "int64",
    "kInt64": "int64", "kInt8": "int8", "kChar": "int8", "kUInt8": "uint8", "kByte": "uint8", "kBool": "bool",
}  # fmt: skip
_INTEGERS = "int int32_t int64_t uint32_t uint64_t unsigned long short size_t ptrdiff_t char signed int16_t uint8_t"
INTEGERS: frozenset[str] = frozenset(_INTEGERS.split())
FLOATS: frozenset[str] = frozenset({"float", "double"})
_BINARY = {
    "||": 3, "&&": 4, "==": 8, "!=": 8, "<": 9, ">": 9, "<=": 9, ">=": 9, "<<": 10, ">>": 10, "+": 11, "-": 11,
    "*": 12, "/": 12, "%": 12,
}  # fmt: skip
_SAME_NAME = {"min": "min", "max": "max", "fmin": "min", "fmax": "max", "fminf": "min", "fmaxf": "max", "abs": "abs"}
_ROOTS = {"sqrt": "sqrt", "sqrtf": "sqrt", "log2": "log2", "log2f": "log2"}
_WORDS = (
    "in is lambda def pass from import as not and or if else for assert True False None w attrs min max sum prod abs "
    "len range float int bool kernel empty zeros inf tuple list"
)
_RESERVED = frozenset(_WORDS.split())


@dataclass(frozen=True)
class Value:
    """An expression of the plan."""

    text: str
    kind: Kind
    integer: str | None = None
    """The integer expression that a float was made from."""
    quotient: tuple[str, str] | None = None
    """The two integers that a float is the quotient of: what ``ceil`` wants to know."""
    atom: bool = True
    strided: bool = False
    """Whether torch would have a tensor here that is not contiguous."""

    @property
    def inner(self) -> str:
        """The text as an operand."""
        return self.text if self.atom else f"({self.text})"


@dataclass
class Scope:
    """Names known inside one host function."""

    unit: Unit
    names: dict[str, Kind] = field(default_factory=dict)
    strided: set[str] = field(default_factory=set)
    """Names of tensors that torch would not have contiguous."""
    scalar: str | None = None
    """What ``scalar_t`` stands for inside a dispatch."""
    notes: list[str] = field(default_factory=list)
    hosts_used: list[str] = field(default_factory=list)
    operators: dict[str, None] = field(default_factory=dict)
    """Operators of torch that are called."""
    ahead: list[str] = field(default_factory=list)
    """Statements to be put before the one at hand."""


def plan_name(name: str) -> str:
    """A C++ name as a name of the plan."""
    return name + "_" if name in _RESERVED else name


def convert_expression(tokens: Sequence[Token], scope: Scope) -> Value:
    """The whole of ``tokens`` as one expression.

    Raises:
        Unconvertible: part of it has no counterpart.
    """
    if not tokens:
        raise Unconvertible(0, "", "an empty expression")
    reader = _Reader(tokens, scope)
    value = reader.ternary()
    if reader.at < len(tokens):
        raise Unconvertible(tokens[reader.at].line, text_of(tokens), f"cannot read on at `{tokens[reader.at].text}`")
    return value


class _Reader:
    def __init__(self, tokens: Sequence[Token], scope: Scope) -> None:
        self.tokens = tokens
        self.scope = scope
        self.at = 0

    @property
    def text(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def fail(self, why: str, start: int | None = None) -> Unconvertible:
        begin = self.at if start is None else start
        begin = min(begin, len(self.tokens) - 1)
        return Unconvertible(self.tokens[begin].line, text_of(self.tokens[begin : self.at + 6]), why)

    def ternary(self) -> Value:
        condition = self.binary(3)
        if self.text != "?":
            return condition
        self.at += 1
        yes = self.ternary()
        if self.text != ":":
            raise self.fail("a conditional without `:`")
        self.at += 1
        no = self.ternary()
        if {yes.kind, no.kind} == {"pointer", "nothing"}:
            # A plan passes no null pointer: where this would be one, it is refused at that size.
            yes, no = (replace(v, text=v.text or "None", kind="pointer", atom=v.atom or not v.text) for v in (yes, no))
        kind = yes.kind if yes.kind == no.kind else "float"
        return Value(f"{yes.inner} if {condition.inner} else {no.inner}", kind, atom=False)

    def binary(self, lowest: int) -> Value:
        lhs = self.unary()
        while (power := _BINARY.get(self.text, 0)) >= lowest:
            mark = self.text
            self.at += 1
            lhs = self._combine(mark, lhs, self.binary(power + 1))
        return lhs

    def _combine(self, mark: str, lhs: Value, rhs: Value) -> Value:
        if lhs.kind == "pointer" and mark == "+" and rhs.kind == "int":
            return Value(f"{lhs.inner}.flatten()[{rhs.text}:]", "pointer")
        if mark in _TENSOR_MARKS and {lhs.kind, rhs.kind} in ({"tensor"}, {"tensor", "int"}, {"tensor", "float"}):
            return self._arithmetic(mark, lhs, rhs)
        if mark in ("==", "!=") and "dtype" in (lhs.kind, rhs.kind):
            return Value(f"{lhs.inner} {mark} {rhs.inner}", "bool", atom=False)
        for side in (lhs, rhs):
            if side.kind not in ("int", "float", "bool"):
                raise self.fail(f"`{mark}` on a {side.kind}")
        if mark in ("&&", "||"):
            return Value(f"{lhs.inner} {'and' if mark == '&&' else 'or'} {rhs.inner}", "bool", atom=False)
        if mark in ("==", "!=", "<", ">", "<=", ">="):
            return Value(f"{lhs.inner} {mark} {rhs.inner}", "bool", atom=False)
        if mark in ("<<", ">>"):
            return Value(f"{lhs.inner} {'*' if mark == '<<' else '//'} 2 ** {rhs.inner}", "int", atom=False)
        if lhs.kind == rhs.kind == "int":
            return Value(f"{lhs.inner} {'//' if mark == '/' else mark} {rhs.inner}", "int", atom=False)
        quotient = None
        if mark == "/":
            a = lhs.text if lhs.kind == "int" else lhs.integer
            b = rhs.text if rhs.kind == "int" else rhs.integer
            quotient = (a, b) if a is not None and b is not None else None
        return Value(f"{lhs.inner} {mark} {rhs.inner}", "float", quotient=quotient, atom=False)

    def _arithmetic(self, mark: str, lhs: Value, rhs: Value) -> Value:
        """An operator of torch on one or two tensors."""
        name = _TENSOR_MARKS[mark]
        if lhs.kind == rhs.kind:
            return self._operator(name, [lhs, rhs], self.at)
        if rhs.kind != "tensor":
            return self._operator(f"{name}_number", [lhs, rhs], self.at)
        if name in ("add", "mul"):
            return self._operator(f"{name}_number", [rhs, lhs], self.at)
        if name == "sub":
            return self._operator("rsub", [rhs, lhs], self.at)
        return self._operator("mul_number", [self._operator("reciprocal", [rhs], self.at), lhs], self.at)

    def _operator(self, name: str, values: Sequence[Value], start: int) -> Value:
        """A call of an operator of torch."""
        operator = find_operator(name)
        if operator is None:
            raise self.fail(f"a plan has no counterpart for torch's `{name}`", start)
        line = self.tokens[min(start, len(self.tokens) - 1)].line
        text = bound_call(operator, [_as_argument(value) for value in values], {}, line, text_of(self.tokens[start:]))
        self.scope.operators[name] = None
        strided = operator.strides == "permuted" or (operator.strides == "like" and any(v.strided for v in values))
        return Value(text, "pair" if operator.returns == "Pair" else "tensor", strided=strided)

    def unary(self) -> Value:
        if self.text in ("-", "+", "!"):
            mark = self.text
            self.at += 1
            value = self.unary()
            if value.kind == "tensor" and mark == "-":
                return self._operator("neg", [value], self.at - 1)
            if mark == "!":
                return Value(f"not {value.inner}", "bool", atom=False)
            return Value(f"{mark}{value.inner}", value.kind, atom=False)
        if self.text == "(" and (cast := self._cast()) is not None:
            return cast
        return self.postfix(self.primary())

    def _cast(self) -> Value | None:
        close = matching(self.tokens, self.at)
        words = [token.text for token in self.tokens[self.at + 1 : close]]
        plain = INTEGERS | FLOATS | {"const", "*", "scalar_t", "bool"}
        if not words or not (all(word in plain for word in words) or words[-1] == "*"):
            return None
        self.at = close + 1
        return self._as_type(words, self.unary())

    def _as_type(self, words: Sequence[str], value: Value) -> Value:
        if "*" in words:
            if value.kind != "pointer":
                raise self.fail("a cast to a pointer")
            return value
        if set(words) & FLOATS or "scalar_t" in words:
            integer = value.text if value.kind == "int" else value.integer
            return Value(value.text, "float", integer=integer, quotient=value.quotient, atom=value.atom)
        if "bool" in words:
            return Value(value.text, "bool", atom=value.atom)
        return value if value.kind == "int" else Value(f"int({value.text})", "int")

    def primary(self) -> Value:
        token = self.tokens[self.at] if self.at < len(self.tokens) else self.tokens[-1]
        if self.at >= len(self.tokens):
            raise self.fail("the expression ends early")
        if token.kind == "number":
            self.at += 1
            return _number(token)
        if token.kind == "string":
            self.at += 1
            return Value(token.text, "string")
        if token.text == "(":
            close = matching(self.tokens, self.at)
            value = convert_expression(self.tokens[self.at + 1 : close], self.scope)
            self.at = close + 1
            return value
        if token.text == "{":
            items = self._arguments()
            tensors = bool(items) and all(item.kind == "tensor" for item in items)
            strided = any(item.strided for item in items)
            return Value(_tuple([item.text for item in items]), "tensors" if tensors else "dims", strided=strided)
        if token.kind != "name":
            raise self.fail(f"`{token.text}` has no counterpart in a plan")
        return self._named()

    def _named(self) -> Value:
        start = self.at
        parts = [self.text]
        self.at += 1
        while self.text == "::":
            self.at += 1
            parts.append(self.text)
            self.at += 1
        last = parts[-1]
        template = self._template() if self.text == "<" and (last.endswith("_cast") or last in _TEMPLATED) else []
        if last == "get" and parts[0] == "std" and self.text == "<":
            (position,) = self._template()
            (value,) = self._arguments()
            return Value(f"{value.inner}[{position}]", "tensor" if value.kind == "pair" else "int")
        if last in ("static_cast", "reinterpret_cast", "const_cast"):
            (value,) = self._arguments()
            return self._as_type(template, value)
        if self.text in ("(", "{") and (len(parts) > 1 or last not in self.scope.names):
            return self._called(parts, start)
        if len(parts) > 1 and parts[0] in ("torch", "at", "c10", "ScalarType") and last in DTYPES:
            return Value(DTYPES[last], "dtype")
        if len(parts) > 1 and parts[0] in ("torch", "at", "c10"):
            if last in ("Float", "Double", "Half", "BFloat16", "Int", "Long") and "ScalarType" in parts:
                return Value(DTYPES["k" + last], "dtype")
            if last == "kCUDA":
                return Value("", "nothing")
        return self._name(last, start)

    def _name(self, name: str, start: int) -> Value:
        scope = self.scope
        if name in scope.names:
            return Value(plan_name(name), scope.names[name], strided=name in scope.strided)
        if name in scope.unit.constants:
            inner = Scope(scope.unit)
            value = convert_expression(scope.unit.constants[name], inner)
            return Value(f"({value.text})" if not value.atom else value.text, value.kind)
        if name in ("true", "false"):
            return Value(name.capitalize(), "bool")
        if name == "INFINITY":
            return Value("inf", "float")
        if name in ("nullptr", "NULL", "nullopt"):
            return Value("", "nothing")
        raise self.fail(f"unknown name `{name}`", start)

    def _template(self) -> list[str]:
        words: list[str] = []
        self.at += 1
        while self.text not in (">", ""):
            words.append(self.text)
            self.at += 1
        self.at += 1
        return words

    def _arguments(self) -> list[Value]:
        close = matching(self.tokens, self.at)
        parts = split_commas(self.tokens[self.at + 1 : close])
        values = [convert_expression(part, self.scope) for part in parts]
        self.at = close + 1
        return values

    def _called(self, parts: list[str], start: int) -> Value:
        name = parts[-1]
        if name in ("getCurrentCUDAStream", "getDefaultCUDAStream", "device"):
            self._arguments()
            return Value("", "nothing")
        if name == "sizeof":
            close = matching(self.tokens, self.at)
            words = [token.text for token in self.tokens[self.at + 1 : close]]
            self.at = close + 1
            return Value(str(self._bytes(words, start)), "int")
        if name in self.scope.unit.macros and len(parts) == 1:
            return self._macro(name)
        values = self._arguments()
        texts = [value.text for value in values]
        if name == "dim3":
            return Value(_tuple(texts), "dims")
        if parts[0] in ("torch", "at") and values and values[0].kind in ("tensor", "tensors") and name not in _LIKE:
            return self._on_tensor(name, values, start)
        if name in _SAME_NAME and len(parts) <= 2:
            kind: Kind = "int" if all(value.kind == "int" for value in values) else "float"
            return Value(f"{_SAME_NAME[name]}({', '.join(texts)})", kind)
        if name in _ROOTS:
            return Value(f"{_ROOTS[name]}({texts[0]})", "float")
        if name in ("ceil", "ceilf"):
            if values[0].quotient is None:
                raise self.fail("`ceil` of what is no quotient of integers", start)
            integer = f"ceil_div({values[0].quotient[0]}, {values[0].quotient[1]})"
            return Value(integer, "float", integer=integer)
        if name in INTEGERS | FLOATS:
            return self._as_type([name], values[0])
        if name == "make_tuple" or (name in ("vector", "tuple") and parts[0] == "std"):
            tensors = bool(values) and all(value.kind == "tensor" for value in values)
            return Value(_tuple(texts), "tensors" if tensors else "dims")
        if name in ("TensorOptions", "dtype"):
            return Value(texts[0] if texts else "float32", "options")
        if parts[0] in ("torch", "at") and name in ("empty_like", "zeros_like", "empty", "zeros"):
            return self._allocated(name, values)
        if name in self.scope.unit.hosts:
            if any(value.strided for value in values):
                raise self.fail("a function is given a tensor that is not contiguous", start)
            return self._host(name, values)
        raise self.fail(f"`{'::'.join(parts)}` has no counterpart in a plan", start)

    def _allocated(self, name: str, values: list[Value]) -> Value:
        options = next((value.text for value in values[1:] if value.kind in ("options", "dtype")), None)
        if name.endswith("_like"):
            dtype = f", dtype={options}" if options else ""
            return Value(f"{name}({values[0].text}{dtype})", "tensor")
        if values[0].kind == "int":
            values = [Value(f"({values[0].text},)", "dims"), *values[1:]]
        if values[0].kind != "dims":
            raise self.fail(f"the shape of `{name}` is a {values[0].kind}")
        return Value(f"{name}({values[0].text}, dtype={options or 'float32'})", "tensor")

    def _host(self, name: str, values: list[Value]) -> Value:
        self.scope.hosts_used.append(name)
        returns = set(self.scope.unit.hosts[name].returns)
        kind: Kind = "int" if returns & INTEGERS else "float"
        if "void" in returns:
            kind = "nothing"
        elif "Tensor" in returns:
            kind = "pair" if returns & {"vector", "tuple"} else "tensor"
        return Value(f"host_{name}({', '.join(value.text for value in values)})", kind)

    def _macro(self, name: str) -> Value:
        parameters, body = self.scope.unit.macros[name]
        values = dict(zip(parameters, self._arguments(), strict=True))
        inner = Scope(self.scope.unit, {parameter: value.kind for parameter, value in values.items()})
        value = convert_expression(body, inner)
        return Value(
            _substituted(value.text, {plan_name(n): v.inner for n, v in values.items()}), value.kind, atom=False
        )

    def _bytes(self, words: Sequence[str], start: int) -> int:
        sizes = {"float": 4, "int": 4, "double": 8, "__half": 2, "half": 2, "float4": 16, "float2": 8, "char": 1,
                 "int64_t": 8, "__nv_bfloat16": 2, "unsigned": 4, "int32_t": 4}  # fmt: skip
        words = [self.scope.scalar or "" if word == "scalar_t" else word for word in words]
        if len(words) == 1 and words[0] in sizes:
            return sizes[words[0]]
        raise self.fail(f"sizeof({' '.join(words)}) is not known", start)

    def postfix(self, value: Value) -> Value:
        while self.text in (".", "->", "["):
            if self.text == "[":
                (index,) = self._arguments()
                kinds: dict[Kind, Kind] = {"dims": "int", "pair": "tensor", "tensors": "tensor"}
                value = Value(f"{value.inner}[{index.text}]", kinds.get(value.kind, value.kind), strided=value.strided)
                continue
            start = self.at
            self.at += 1
            name = self.text
            self.at += 1
            if self.text == "<":
                self._template()
            if value.kind == "dims" and name in ("x", "y", "z"):
                value = Value(f"{value.inner}[{'xyz'.index(name)}]", "int")
                continue
            arguments = self._arguments() if self.text == "(" else []
            value = self._method(value, name, arguments, start)
        return value

    def _method(self, value: Value, name: str, arguments: list[Value], start: int) -> Value:
        texts = [argument.text for argument in arguments]
        if value.kind in ("options", "nothing"):
            if name == "dtype" and texts:
                return Value(texts[0], "options")
            return value
        if value.kind == "dims" and name == "size":
            return Value(f"len({value.text})", "int")
        if value.kind == "dims" and name in ("vec", "begin"):
            return value
        if value.kind == "dims" and name in ("back", "front"):
            return Value(f"{value.inner}[{-1 if name == 'back' else 0}]", "int")
        if value.kind != "tensor":
            raise self.fail(f"`.{name}` of a {value.kind}", start)
        method = _METHODS.get(name)
        if method is None:
            return self._on_tensor(name, [value, *arguments], start)
        if name in _POINTERS and value.strided:
            raise self.fail("a kernel would read the memory of a tensor that is not contiguous", start)
        if name in ("contiguous", "is_contiguous"):
            if name == "contiguous" and value.text.isidentifier() and not value.strided:
                self.scope.ahead.append(f'assert {value.text}.is_contiguous(), "{value.text} is not contiguous"')
            return (
                Value(value.text, "tensor") if name == "contiguous" else Value(f"{value.text}.is_contiguous()", "bool")
            )
        result = method(value, texts)
        return replace(result, strided=value.strided) if result.kind == "tensor" else result

    def _on_tensor(self, name: str, values: list[Value], start: int) -> Value:
        """A function or method of torch whose first argument is a tensor."""
        if name in _UNCHANGED or (name == "to" and all(v.kind in ("nothing", "bool") for v in values[1:])):
            return values[0]
        if name in ("add", "sub", "mul", "div") and len(values) > 1 and values[1].kind != "tensor":
            name += "_number"
        if name in ("max", "min") and len(values) > 1:
            tensors = values[1].kind == "tensor"
            name = {"max": "maximum", "min": "minimum"}[name] if tensors else f"{name}_along"
        return self._operator(name, values, start)


_TENSOR_MARKS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_LIKE = frozenset({"empty_like", "zeros_like"})
_UNCHANGED = frozenset({"cuda", "detach"})
_POINTERS = frozenset({"data_ptr", "mutable_data_ptr", "const_data_ptr", "data"})
_METHODS: dict[str, Callable[[Value, list[str]], Value]] = {
    "size": lambda v, t: Value(f"{v.inner}.size({t[0]})", "int"),
    "stride": lambda v, t: Value(f"{v.inner}.stride({t[0]})", "int"),
    "sizes": lambda v, t: Value(f"{v.inner}.shape", "dims"),
    "numel": lambda v, t: Value(f"{v.inner}.numel()", "int"),
    "dim": lambda v, t: Value(f"{v.inner}.ndim", "int"),
    "ndimension": lambda v, t: Value(f"{v.inner}.ndim", "int"),
    "scalar_type": lambda v, t: Value(f"{v.inner}.dtype", "dtype"),
    "dtype": lambda v, t: Value(f"{v.inner}.dtype", "dtype"),
    "options": lambda v, t: Value(f"{v.inner}.dtype", "options"),
    "device": lambda v, t: Value("", "nothing"),
    "data_ptr": lambda v, t: Value(v.text, "pointer", atom=v.atom),
    "mutable_data_ptr": lambda v, t: Value(v.text, "pointer", atom=v.atom),
    "const_data_ptr": lambda v, t: Value(v.text, "pointer", atom=v.atom),
    "data": lambda v, t: Value(v.text, "pointer", atom=v.atom),
    "view": lambda v, t: Value(f"{v.inner}.view({', '.join(t)})", "tensor"),
    "reshape": lambda v, t: Value(f"{v.inner}.reshape({', '.join(t)})", "tensor"),
    "type": lambda v, t: Value(f"{v.inner}.dtype", "dtype"),
    "strides": lambda v, t: Value(f"{v.inner}.stride()", "dims"),
    "is_cuda": lambda v, t: Value("True", "bool"),
    "defined": lambda v, t: Value(f"{v.inner} is not None", "bool", atom=False),
    "has_value": lambda v, t: Value(f"{v.inner} is not None", "bool", atom=False),
    "value": lambda v, t: v,
    "contiguous": lambda v, t: v,
    "is_contiguous": lambda v, t: v,
}
_TEMPLATED = frozenset({"min", "max", "vector", "tuple"})


def _as_argument(value: Value) -> Argument:
    kind = _ARGUMENTS.get(value.kind, "other")
    return Argument("None" if value.kind == "nothing" else value.text, kind)


_ARGUMENTS: dict[Kind, ArgumentKind] = {
    "int": "number", "float": "number", "bool": "number", "tensor": "tensor", "tensors": "tensors",
    "dims": "sequence", "string": "string", "nothing": "none",
}  # fmt: skip


def _number(token: Token) -> Value:
    text = token.text.replace("'", "").lower()
    if text.startswith("0x"):
        return Value(str(int(text.rstrip("ul"), 16)), "int")
    if "." in text or "e" in text or text.endswith("f"):
        body = text.rstrip("fl")
        number = float(body)
        integer = str(int(number)) if number.is_integer() and abs(number) < 2**53 else None
        return Value(repr(number), "float", integer=integer)
    return Value(text.rstrip("ul"), "int")


def _tuple(items: Sequence[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _substituted(text: str, values: dict[str, str]) -> str:
    """``text``, an expression of the plan, with names replaced by expressions."""
    import ast

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(values[node.id], mode="eval").body if node.id in values else node

    return ast.unparse(Put().visit(ast.parse(text, mode="eval")))
