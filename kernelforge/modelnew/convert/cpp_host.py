"""Convert the statements of a C++ host function to a helper function of the plan."""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.modelnew.convert.cpp_expressions import (
    FLOATS,
    INTEGERS,
    Kind,
    Scope,
    Value,
    convert_expression,
    plan_name,
)
from kernelforge.modelnew.convert.cpp_tokens import (
    Problem,
    Token,
    Unconvertible,
    matching,
    outermost,
    split_commas,
    text_of,
)
from kernelforge.modelnew.convert.cpp_units import HostFunction, Kernel, Parameter, Unit

_DISPATCH = {
    "AT_DISPATCH_FLOATING_TYPES": ("float", "double"),
    "AT_DISPATCH_FLOATING_TYPES_AND_HALF": ("float", "double", "__half"),
    "AT_DISPATCH_FLOATING_TYPES_AND2": ("float", "double", "__half", "__nv_bfloat16"),
}
_TORCH_OF = {"float": "float32", "double": "float64", "__half": "float16", "__nv_bfloat16": "bfloat16"}
_COMPUTES_NOTHING = (
    "TORCH_CHECK AT_ASSERT AT_ASSERTM TORCH_INTERNAL_ASSERT C10_CUDA_CHECK C10_CUDA_KERNEL_LAUNCH_CHECK AT_CUDA_CHECK "
    "cudaGetLastError cudaSetDevice cudaDeviceSynchronize cudaStreamSynchronize cudaPeekAtLastError "
    "cudaFuncSetAttribute assert static_assert"
)
_LEFT_OUT = frozenset(_COMPUTES_NOTHING.split())
_GUARDS = frozenset({"OptionalCUDAGuard", "CUDAGuard", "DeviceGuard", "cudaStream_t", "cudaError_t"})
_TYPES = INTEGERS | FLOATS | {
    "auto", "dim3", "bool", "Tensor", "scalar_t", "vector", "string", "tuple", "IntArrayRef", "TensorOptions", "array",
    "optional",
}  # fmt: skip


def convert_host(
    function: HostFunction, unit: Unit, problems: list[Problem], notes: list[str], operators: dict[str, None]
) -> tuple[str, list[str]]:
    """The function as ``def host_NAME(...)`` and the host functions it calls; what has no counterpart is a problem."""
    scope = Scope(unit, notes=notes, operators=operators)
    names = []
    for parameter in function.parameters:
        scope.names[parameter.name] = _kind_of(parameter)
        names.append(plan_name(parameter.name))
    writer = _Writer(scope, problems)
    writer.several = bool({"vector", "tuple"} & set(function.returns))
    writer.block(function.body, 1)
    body = writer.lines or ["    pass"]
    return "\n".join([f"def host_{function.name}({', '.join(names)}):", *body]), scope.hosts_used


def _kind_of(parameter: Parameter) -> Kind:
    words = set(parameter.type)
    if "Tensor" in words and not words & {"vector", "ArrayRef"}:
        return "tensor"
    if words & {"IntArrayRef"} or (words & {"vector", "ArrayRef", "tuple", "array"} and words & INTEGERS):
        return "dims"
    if words & FLOATS:
        return "pointer" if parameter.is_pointer else "float"
    if words & {"bool"}:
        return "bool"
    return "int" if words & INTEGERS else "nothing"


class _Writer:
    def __init__(self, scope: Scope, problems: list[Problem]) -> None:
        self.scope = scope
        self.lines: list[str] = []
        self._problems = problems
        self.several = False
        """Whether the function returns a sequence."""

    def block(self, tokens: Sequence[Token], depth: int) -> None:
        """Convert the statements of a block, each on its own: one that fails is a problem, the next is tried."""
        at = 0
        while at < len(tokens):
            try:
                at = self._statement(tokens, at, depth)
            except Unconvertible as error:
                self._problems.append(error.problem)
                at = _statement_end(tokens, at)

    def _statement(self, tokens: Sequence[Token], at: int, depth: int) -> int:
        """Convert one statement; returns where the next begins."""
        token = tokens[at]
        if token.text == ";" or token.kind == "directive":
            return at + 1
        if token.text == "{":
            end, names = matching(tokens, at), dict(self.scope.names)
            self.block(tokens[at + 1 : end], depth)
            self.scope.names = names
            return end + 1
        if token.text == "if":
            return self._if(tokens, at, depth)
        if token.text == "for":
            return self._for(tokens, at, depth)
        if token.text in ("while", "do", "switch", "try", "goto", "throw"):
            raise Unconvertible(token.line, text_of(tokens[at : at + 10]), f"a plan has no `{token.text}`")
        end = _semicolon(tokens, at)
        self._simple(tokens[at:end], depth)
        return end + 1

    def _emit(self, text: str, depth: int) -> None:
        pad = "    " * depth
        self.lines += [pad + line for line in dict.fromkeys(self.scope.ahead)]
        self.scope.ahead.clear()
        self.lines.append(pad + text)

    def _value(self, tokens: Sequence[Token]) -> Value:
        return convert_expression(tokens, self.scope)

    def _if(self, tokens: Sequence[Token], at: int, depth: int) -> int:
        start = at + 2 if tokens[at + 1].text == "constexpr" else at + 1
        close = matching(tokens, start)
        if [token.text for token in tokens[start + 2 : close]] == ["!=", "cudaSuccess"]:
            end = _statement_end(tokens, close + 1)
            self.scope.notes.append(f"line {tokens[at].line}: `{text_of(tokens[at:end])[:60]}` is left out: a check")
            return end
        condition = self._value(tokens[start + 1 : close])
        if condition.kind not in ("bool", "int", "float"):
            raise Unconvertible(tokens[at].line, text_of(tokens[at : close + 1]), f"a condition on a {condition.kind}")
        body = tokens[close + 1 : _statement_end(tokens, close + 1)]
        if _only_raises([token.text for token in body]):
            self._emit(f'assert not {condition.inner}, "refused by the candidate"', depth)
            at = close + 1 + len(body)
            if at < len(tokens) and tokens[at].text == "else":
                return self._statement(tokens, at + 1, depth)
            return at
        self._emit(f"if {condition.text}:", depth)
        strided = set(self.scope.strided)
        at = self._body(tokens, close + 1, depth + 1)
        if at < len(tokens) and tokens[at].text == "else":
            self._emit("else:", depth)
            at = self._body(tokens, at + 1, depth + 1)
        if "is_contiguous" not in [token.text for token in tokens[start:close]]:
            self.scope.strided |= strided
        return at

    def _for(self, tokens: Sequence[Token], at: int, depth: int) -> int:
        close = matching(tokens, at + 1)
        head = tokens[at + 2 : close]
        marks = [token.text for token in head]
        excerpt = text_of(tokens[at : close + 1])
        if marks.count(";") != 2:
            raise Unconvertible(tokens[at].line, excerpt, "a loop over a sequence")
        first, second = marks.index(";"), len(marks) - 1 - marks[::-1].index(";")
        name = marks[marks.index("=") - 1] if "=" in marks[:first] else ""
        step = marks[second + 1 :]
        by: str | None = None
        if step in ([name, "++"], ["++", name]):
            by = "1"
        elif step[:2] == [name, "+="]:
            by = self._value(head[second + 3 :]).text
        if not name or by is None or marks[first + 1 : first + 3] not in ([name, "<"], [name, "<="]):
            raise Unconvertible(tokens[at].line, excerpt, "a loop that is no plain count upwards")
        begin = self._value(head[marks.index("=") + 1 : first]).text
        stop = self._value(head[first + 3 : second]).text
        stop = f"{stop} + 1" if marks[first + 2] == "<=" else stop
        self._declare(name, "int", tokens[at])
        self._emit(f"for {plan_name(name)} in range({begin}, {stop}, {by}):", depth)
        strided = set(self.scope.strided)
        end = self._body(tokens, close + 1, depth + 1)
        del self.scope.names[name]
        if self.scope.strided & set(self.scope.names) - strided:
            raise Unconvertible(tokens[at].line, excerpt, "a loop after which a tensor is no more contiguous")
        self.scope.strided |= strided  # The loop may not run at all.
        return end

    def _body(self, tokens: Sequence[Token], at: int, depth: int) -> int:
        before, names = len(self.lines), dict(self.scope.names)
        end = self._statement(tokens, at, depth)
        if len(self.lines) == before:
            self._emit("pass", depth)
        self.scope.names = names
        return end

    def _simple(self, tokens: Sequence[Token], depth: int) -> None:
        marks = [token.text for token in tokens]
        first = marks[0]
        if first == "return":
            if len(marks) > 1:
                value = self._value(tokens[1:])
                text = value.text
                if value.strided:
                    raise Unconvertible(tokens[0].line, text_of(tokens), "it returns a tensor that is not contiguous")
                if value.kind in ("dims", "tensors") and text.startswith("(") and not self.several:
                    text = text[1:-1].rstrip(",")
                self._emit(f"return {text}", depth)
            else:
                self._emit("return", depth)
            return
        if first in _DISPATCH or first.startswith("AT_DISPATCH"):
            self._dispatch(tokens, depth)
            return
        if "<<<" in marks:
            self._emit(self._launch(tokens), depth)
            return
        if (named := _stream_at(marks)) is not None:
            self._declaration(tokens, named, depth)
            return
        if set(marks) & _GUARDS or first in self.scope.unit.checks or _called_name(marks) in _LEFT_OUT:
            self.scope.notes.append(f"line {tokens[0].line}: `{text_of(tokens)[:60]}` is left out: it computes nothing")
            return
        if first in ("auto", "const") and "[" in marks[:4] and "=" in marks:
            self._bindings(tokens, marks.index("["), depth)
            return
        declared = _declaration(tokens)
        if declared is not None:
            self._declaration(tokens, declared, depth)
            return
        if self.scope.names.get(first) == "dims" and self._changed_sequence(tokens, depth):
            return
        for mark in ("=", "+=", "-=", "*=", "/=", "%="):
            if mark in marks and tokens[0].kind == "name" and marks.index(mark) == 1:
                self._assignment(tokens, mark, depth)
                return
        if len(marks) == 2 and marks[1] in ("++", "--") and first in self.scope.names:
            self._emit(f"{plan_name(first)} {marks[1][0]}= 1", depth)
            return
        value = self._value(tokens)
        if value.kind != "nothing":
            raise Unconvertible(tokens[0].line, text_of(tokens), "a statement whose result is not used")
        self._emit(value.text, depth)

    def _changed_sequence(self, tokens: Sequence[Token], depth: int) -> bool:
        """``sizes.push_back(n)``, ``sizes.erase(...)``, ``sizes[n] = m``, as a new sequence.

        Returns:
            Whether the statement is one of these.
        """
        marks, name = [token.text for token in tokens], plan_name(tokens[0].text)
        if marks[1:2] == ["["]:
            close = matching(tokens, 1)
            if marks[close + 1 : close + 2] != ["="]:
                return False
            at = self._value(tokens[2:close]).inner
            value = self._value(tokens[close + 2 :]).text
            self._emit(f"{name} = [{value} if i_ == {at} % len({name}) else n_ for i_, n_ in enumerate({name})]", depth)
            return True
        if marks[1:2] != ["."] or marks[3:4] != ["("]:
            return False
        inner = tokens[4 : matching(tokens, 3)]
        if marks[2] in ("push_back", "emplace_back"):
            self._emit(f"{name} = {name} + [{self._value(inner).text}]", depth)
        elif marks[2] == "pop_back":
            self._emit(f"{name} = {name}[: len({name}) - 1]", depth)
        elif marks[2] == "erase" and [t.text for t in inner[:5]] == [tokens[0].text, ".", "begin", "(", ")"]:
            at = self._value(inner[6:]).inner if len(inner) > 6 else "0"
            self._emit(f"{name} = [n_ for i_, n_ in enumerate({name}) if i_ != {at}]", depth)
        else:
            return marks[2] == "reserve"
        return True

    def _assignment(self, tokens: Sequence[Token], mark: str, depth: int) -> None:
        name = tokens[0].text
        current = self.scope.names.get(name)
        if current is None:
            raise Unconvertible(tokens[0].line, text_of(tokens), f"unknown name `{name}`")
        value = self._value(tokens[2:])
        operator = "//=" if mark == "/=" and current == value.kind == "int" else mark
        if operator == "=" and value.text == plan_name(name):
            self._mark(name, value)
            self.scope.notes.append(f"line {tokens[0].line}: `{text_of(tokens)}` becomes an assertion")
            self.lines += ["    " * depth + line for line in dict.fromkeys(self.scope.ahead)]
            self.scope.ahead.clear()
            return
        if current == "tensor":
            if operator != "=" or value.kind != "tensor":
                raise Unconvertible(tokens[0].line, text_of(tokens), "an operator of torch that writes to a tensor")
            self._mark(name, value)
        self._emit(f"{plan_name(name)} {operator} {value.text}", depth)

    def _mark(self, name: str, value: Value) -> None:
        (self.scope.strided.add if value.strided else self.scope.strided.discard)(name)

    def _declaration(self, tokens: Sequence[Token], names_at: int, depth: int) -> None:
        kind_words = [token.text for token in tokens[:names_at]]
        for part in split_commas(tokens[names_at:]):
            while part[0].text in ("*", "&", "__restrict__"):
                kind_words.append(part[0].text)
                part = part[1:]
            name, rest = part[0].text, part[1:]
            if not rest:
                kind: Kind = "dims" if "dim3" in kind_words else "tensor" if "Tensor" in kind_words else "int"
                if "vector" in kind_words:
                    kind = "dims"
                    self._emit(f"{plan_name(name)} = ()", depth)
                self._declare(name, kind, part[0])
                continue
            value = self._initial(kind_words, rest)
            self._declare(name, value.kind, part[0])
            self._mark(name, value)
            if value.kind == "nothing":
                continue
            self._emit(f"{plan_name(name)} = {value.text}", depth)

    def _bindings(self, tokens: Sequence[Token], opened: int, depth: int) -> None:
        """``auto [a, b] = ...``."""
        close = matching(tokens, opened)
        value = self._value(tokens[close + 2 :])
        names = [part[0] for part in split_commas(tokens[opened + 1 : close])]
        for name in names:
            self._declare(name.text, "tensor" if value.kind in ("pair", "tensors") else "int", name)
        self._emit(f"{', '.join(plan_name(name.text) for name in names)} = {value.text}", depth)

    def _initial(self, kind_words: Sequence[str], rest: Sequence[Token]) -> Value:
        if rest[0].text == "=":
            value = self._value(rest[1:])
        elif "dim3" in kind_words:
            close = matching(rest, 0)
            texts = [self._value(part).text for part in split_commas(rest[1:close])]
            return Value(f"({', '.join(texts)}{',' if len(texts) == 1 else ''})", "dims")
        elif rest[0].text == "{" and "vector" in kind_words:
            value = self._value(rest)
        elif rest[0].text in ("(", "{"):
            parts = split_commas(rest[1 : matching(rest, 0)])
            ends = [token.text for token in parts[0][-3:]]
            copied = "vector" in kind_words and len(parts) == 2 and ends == ["begin", "(", ")"]
            value = self._value(parts[0] if copied else rest[1 : matching(rest, 0)])
        else:
            raise Unconvertible(rest[0].line, text_of(rest), "an initialiser that cannot be read")
        if set(kind_words) & INTEGERS and value.kind == "float":
            text = value.text if value.integer == value.text else f"int({value.text})"
            return Value(text, "int")
        if set(kind_words) & FLOATS and value.kind == "int" and "*" not in kind_words:
            return Value(value.text, "float", integer=value.text)
        if "dim3" in kind_words and value.kind == "int":
            return Value(f"({value.text},)", "dims")
        return value

    def _declare(self, name: str, kind: Kind, token: Token) -> None:
        if name in self.scope.names:
            raise Unconvertible(token.line, name, "this hides a name of the same function, which a plan cannot")
        self.scope.names[name] = kind

    def _dispatch(self, tokens: Sequence[Token], depth: int) -> None:
        name, excerpt = tokens[0].text, text_of(tokens[:6])
        if name not in _DISPATCH:
            raise Unconvertible(tokens[0].line, excerpt, "this dispatch macro is not known")
        arguments = split_commas(tokens[2 : matching(tokens, 1)])
        typed = next((part for part in arguments if "scalar_type" in [t.text for t in part]
                      or "type" in [t.text for t in part]), None)  # fmt: skip
        opened = next((at for at, token in enumerate(tokens) if token.text == "{"), None)
        if typed is None or opened is None:
            raise Unconvertible(tokens[0].line, excerpt, "a dispatch that cannot be read")
        source = self._value(typed)
        body = tokens[opened + 1 : matching(tokens, opened)]
        outer = dict(self.scope.names)
        for number, scalar in enumerate(_DISPATCH[name]):
            self.scope.scalar, self.scope.names = scalar, dict(outer)
            self._emit(f"{'elif' if number else 'if'} {source.inner} == {_TORCH_OF[scalar]}:", depth)
            before, problem_count = len(self.lines), len(self._problems)
            self.block(body, depth + 1)
            if len(self._problems) > problem_count:
                break
            if len(self.lines) == before:
                self._emit("pass", depth + 1)
        self._emit("else:", depth)
        self._emit('assert False, "the dispatch has no case for this dtype"', depth + 1)
        self.scope.scalar, self.scope.names = None, outer

    def _launch(self, tokens: Sequence[Token]) -> str:
        marks = [token.text for token in tokens]
        opened, closed = marks.index("<<<"), marks.index(">>>")
        qualified = next(at for at, mark in enumerate(marks) if mark in ("<", "<<<"))
        name, line = "".join(marks[:qualified]), tokens[0].line
        kernel = self.scope.unit.kernels.get(name)
        if kernel is None:
            raise Unconvertible(line, text_of(tokens[:8]), f"there is no kernel `{name}` in the source")
        config = [self._value(part) for part in split_commas(tokens[opened + 1 : closed])]
        if len(config) == 4 and config[3].kind != "nothing" and config[3].text != "0":
            raise Unconvertible(line, text_of(tokens[opened : closed + 1]), "a stream of its own")
        passed = split_commas(tokens[closed + 2 : matching(tokens, closed + 1)])
        if len(passed) != len(kernel.parameters):
            raise Unconvertible(line, text_of(tokens), f"{name} takes {len(kernel.parameters)} arguments")
        shape = [value.text for value in config[:3]]
        if shape[2:] == ["0"]:
            shape.pop()
        pairs = zip(passed, kernel.parameters, strict=True)
        bound = self._bound(tokens[qualified:opened], kernel)
        arguments = [typed_argument(self._value(part), parameter, bound, part[0].line, text_of(part))
                     for part, parameter in pairs]  # fmt: skip
        return f"{self._target(tokens[qualified:opened], kernel, line)}[{', '.join(shape)}]({', '.join(arguments)})"

    def _bound(self, template: Sequence[Token], kernel: Kernel) -> dict[str, str]:
        """Types that the kernel's template parameters stand for."""
        arguments = split_commas(template[1:-1]) if template else []
        bound = {}
        for name, part in zip(kernel.template, arguments, strict=False):
            word = text_of(part)
            bound[name] = (self.scope.scalar or "") if word == "scalar_t" else word
        return bound

    def _target(self, template: Sequence[Token], kernel: Kernel, line: int) -> str:
        if not kernel.template:
            return f'kernel("{kernel.name}")' if "::" in kernel.name else kernel.name
        if not template:
            raise Unconvertible(line, kernel.name, "a template kernel launched without its template arguments")
        parts = []
        for part in split_commas(template[1:-1]):
            word = text_of(part)
            if word == "scalar_t":
                if self.scope.scalar is None:
                    raise Unconvertible(line, word, "`scalar_t` outside a dispatch")
                parts.append(self.scope.scalar)
            elif word in self.scope.names:
                parts.append("{" + plan_name(word) + "}")
            else:
                parts.append(word)
        return f'kernel(f"{kernel.name}<{", ".join(parts)}>")'


def typed_argument(value: Value, parameter: Parameter, bound: dict[str, str], line: int, excerpt: str) -> str:
    """An argument of a launch with the type that the kernel's parameter has.

    Raises:
        Unconvertible: a plan cannot pass it.
    """
    if parameter.is_pointer:
        if value.kind not in ("pointer", "tensor"):
            raise Unconvertible(line, excerpt, f"the kernel's `{parameter.name}` is a pointer, this is a {value.kind}")
        return value.text
    words = [bound.get(word, word) for word in parameter.type if word not in ("const", "volatile")]
    if value.kind not in ("int", "float", "bool"):
        raise Unconvertible(line, excerpt, f"a {value.kind} for the kernel's `{parameter.name}`")
    wide = {"int64_t", "uint64_t", "size_t", "ptrdiff_t", "long"}
    if set(words) & wide:
        kind = "i64"
    elif set(words) <= {"int", "unsigned", "signed", "int32_t", "uint32_t"}:
        kind = "i32"
    else:
        kind = {"float": "f32", "double": "f64", "__half": "f16", "half": "f16", "__nv_bfloat16": "bf16"}.get(
            " ".join(words), ""
        )
    if not kind:
        raise Unconvertible(line, excerpt, f"a plan cannot pass a `{' '.join(words)}`")
    if kind[0] == "i" and value.kind == "float":
        return f"{kind}(int({value.text}))"
    return f"{kind}({value.text})"


def _only_raises(marks: Sequence[str]) -> bool:
    """Whether a statement does nothing but raise."""
    inner = list(marks[1:-1] if marks[:1] == ["{"] else marks)
    raises = inner[:1] in (["throw"], ["AT_ERROR"]) or inner[:3] == ["TORCH_CHECK", "(", "false"]
    return raises and inner.count(";") == 1 and inner[-1] == ";"


def _called_name(marks: Sequence[str]) -> str:
    opened = marks.index("(") if "(" in marks else 0
    return marks[opened - 1] if opened else ""


def _stream_at(marks: Sequence[str]) -> int | None:
    """Index of the name in ``cudaStream_t stream = ...``."""
    at = 1 if marks[:1] == ["const"] else 0
    return at + 1 if marks[at : at + 1] == ["cudaStream_t"] and marks[at + 2 : at + 3] == ["="] else None


def _declaration(tokens: Sequence[Token]) -> int | None:
    """Index of the first declared name, if this is a declaration."""
    at, seen = 0, False
    while at < len(tokens):
        word = tokens[at].text
        if seen and at + 1 < len(tokens) and tokens[at + 1].text in ("=", ",") and word == "dim3":
            break  # a variable of that name
        if word in ("const", "constexpr", "static", "unsigned", "long", "signed") or word in _TYPES:
            seen = seen or word not in ("const", "constexpr", "static")
            at += 1
        elif word in ("torch", "at", "std", "c10") and at + 1 < len(tokens) and tokens[at + 1].text == "::":
            at += 2
        elif word == "<" and seen:
            while tokens[at].text != ">":
                at += 1
            at += 1
        elif word in ("*", "&") and seen:
            at += 1
        else:
            break
    named = at < len(tokens) and tokens[at].kind == "name"
    follows = tokens[at + 1].text if at + 1 < len(tokens) else ""
    if not (seen and named and follows in ("", "=", "(", "{", ",")):
        return None
    while at and tokens[at - 1].text in ("*", "&"):
        at -= 1
    return at


def _semicolon(tokens: Sequence[Token], at: int) -> int:
    return next((position for position in outermost(tokens, at) if tokens[position].text == ";"), len(tokens))


def _statement_end(tokens: Sequence[Token], at: int) -> int:
    """One past a statement that could not be converted."""
    for position in outermost(tokens, at):
        if tokens[position].text in (";", "{"):
            return (position if tokens[position].text == ";" else matching(tokens, position)) + 1
    return len(tokens)
