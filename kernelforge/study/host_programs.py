"""Host programs of CUDA suggestions: functions that allocate, copy and launch, split from the kernels that they launch.

The host's part becomes C++ that calls the runtime of :mod:`kernelforge.translation.host_runtime`: each
``kernel<<<grid, block>>>(...)`` is a call, each kernel an empty function with its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from importlib.resources import files
from typing import Final, NamedTuple

from kernelforge.modelnew.convert.cpp_tokens import (
    Token,
    Unconvertible,
    matching,
    outermost,
    split_commas,
    text_of,
    tokenize,
)
from kernelforge.modelnew.convert.cpp_units import HostFunction, Unit, item_end
from kernelforge.study.signatures import Function, Real, Underivable, host_function

_HEADER: Final = "host_runtime.h"
_API: Final = re.compile(
    r"\b(?:cuda[A-Z]\w*|cu[A-Z]\w*|(?:cublas|cusparse|cusolver|curand|cufft|nccl|thrust|cub)\w*)\b"
)
"""Names of CUDA's libraries and APIs."""
_DEVICE_NAME: Final = re.compile(
    r"__\w+_r[nzud]|__(?:ldg|syncthreads|syncwarp|shfl|ballot|any|all|threadfence|fdividef|brev|clz|ffs|popc|saturatef)\w*"
    r"|__(?:exp|exp10|log|log2|log10|sin|cos|tan|sincos|pow)f|__\w+_as_\w+|atomic[A-Z]\w*|r(?:sqrt|cbrt)f?"
    r"|(?:thread|block)Idx|__half2?|__nv_bfloat16\d*"
)
"""Names that only the device has. `blockDim` and its like are often variables of a host function too."""
_DEVICE_SPACES: Final = frozenset({"cooperative_groups", "cub", "nvcuda"})
"""Namespaces of the device, for which a host program may have another name."""
_CUDA_INCLUDE: Final = re.compile(
    r"#[ \t]*include[ \t]*[<\"](?:cu(?:da|blas|sparse|solver|rand|fft)|nccl|nvToolsExt|nvtx3/|device_|driver_|host_def"
    r"|builtin_types|channel_desc|cooperative_groups|mma|cub/|thrust/|crt/|sm_\d|math_(?:constants|functions)|vector_"
    r"|texture_|surface_|library_types)"
)
"""Headers of CUDA: the runtime has what a host program may use of them."""
_SAMPLES_INCLUDE: Final = re.compile(r"#[ \t]*include[ \t]*[<\"](?:helper_|common/)")


class HostProgram(NamedTuple):
    """A host function with the kernels that it launches."""

    function: Function
    source: str
    """The host's part as C++, with the runtime in front."""
    kernels: tuple[str, ...]
    """As launches name them: ``axpy`` or ``axpy<float>``."""
    device_memory: bool
    """Whether its arrays are device memory, for it launches kernels with them; else it copies them itself."""
    managed: bool
    """Whether that memory is managed, as the suggestion's own."""


_HIP_NAME: Final = re.compile(r"\bhip(?=[A-Z])")
_HIP_INCLUDE: Final = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]hip/[^\n]*$", re.MULTILINE)
_LAUNCH_CALL: Final = "cudaLaunchKernelGGL"
"""HIP's function in place of ``<<<...>>>``, by its name as CUDA."""
_LAUNCHES: Final = ("<<<", _LAUNCH_CALL)


def hip_as_cuda(code: str) -> str:
    """Put CUDA's names in the place of HIP's."""
    return _HIP_NAME.sub("cuda", _HIP_INCLUDE.sub("", code))


def read_host_program(code: str, unit: Unit, names: re.Pattern[str]) -> HostProgram | None:
    """The host function that a suggestion answers with: the only one that launches kernels and that no other such one
    calls, or the last one of them with the kernel's name. None where no function but ``main`` launches any.

    Args:
        code: of the suggestion.
        unit: its contents.
        names: in names of functions that compute the kernel.

    Raises:
        Underivable: there are several, or the program cannot be read or run.
    """
    launching = _launching(unit)
    callers = [name for name in launching if name != "main"]
    if not callers:
        return None
    called = {other for name in callers for other in _called(unit.hosts[name]) if other != name}
    tops = [name for name in callers if name not in called] or callers
    named = [name for name in tops if names.search(name)]
    if not named and "main" in unit.hosts and _launches(unit.hosts["main"]):
        raise Underivable("main launches its kernels, and takes no arguments")
    if not named and len(tops) > 1:
        raise Underivable(f"several functions launch kernels, none with the kernel's name: {', '.join(tops)}")
    host = unit.hosts[(named or tops)[-1]]
    function = host_function(host, unit)
    source, kernels = _host_part(code, _template_launches(unit, launching, function.real))
    try:
        passed = set(_passed(host, set(launching)))
    except Unconvertible as error:
        raise Underivable(f"its host part cannot be read: {error.problem}") from error
    return HostProgram(
        function,
        _with_runtime(source, {*unit.hosts, *unit.macros, *unit.constants, *unit.checks}),
        kernels,
        any(item.name in passed for item in function.parameters if item.kind in ("array", "index")),
        "cudaMallocManaged" in code,
    )


def _launching(unit: Unit) -> list[str]:
    """Host functions that launch a kernel, or call one that does, in their order."""
    callers: dict[str, list[str]] = {}
    for name, host in unit.hosts.items():
        for other in set(_called(host)):
            callers.setdefault(other, []).append(name)
    queue = [name for name, host in unit.hosts.items() if _launches(host)]
    launching = set(queue)
    for name in queue:
        more = [caller for caller in callers.get(name, ()) if caller not in launching]
        launching.update(more)
        queue += more
    return [name for name in unit.hosts if name in launching]


def _template_launches(unit: Unit, launching: Sequence[str], real: Real) -> dict[str, str]:
    """Names of template kernels in launches without template arguments: with the type of the function's arrays, where
    that is the only argument, a pointer to it tells the compiler and no function has arrays of another; else empty."""
    names = {}
    other = "float" if real == "double" else "double"
    mixed = any(item.is_pointer and other in item.type for name in launching for item in unit.hosts[name].parameters)
    for kernel in unit.kernels.values():
        deduced = (
            len(kernel.template) == 1
            and not mixed
            and any(item.is_pointer and kernel.template[0] in item.type for item in kernel.parameters)
        )
        if kernel.template:
            names[kernel.name] = f"{kernel.name}<{real}>" if deduced else ""
    return names


def _launches(host: HostFunction) -> bool:
    """Whether a function launches a kernel itself."""
    return any(token.text in _LAUNCHES for token in host.body)


def _called(host: HostFunction) -> Iterator[str]:
    for at, token in enumerate(host.body[:-1]):
        if token.kind == "name" and host.body[at + 1].text == "(":
            yield token.text


def _passed(host: HostFunction, launching: Set[str]) -> Iterator[str]:
    """Names within the arguments of launches, and of calls of functions that launch."""
    for at, token in enumerate(host.body[:-1]):
        call = host.body[at + 1].text == "("
        if call and (token.text in (">>>", _LAUNCH_CALL) or token.text in launching):
            yield from (item.text for item in host.body[at + 2 : matching(host.body, at + 1)] if item.kind == "name")


def _with_runtime(source: str, own: Set[str]) -> str:
    """The host's part with the runtime in front; ``own`` are names that the suggestion defines.

    Raises:
        Underivable: it uses what the runtime does not have.
    """
    header = files("kernelforge.translation").joinpath(_HEADER).read_text()
    offered = set(own)
    for token in tokenize(header):
        offered.update(token.text.split() if token.kind == "directive" else [token.text])
    used: set[str] = set()
    for token in tokenize(source):
        if token.kind in ("name", "directive"):
            used.update(_API.findall(token.text))
        if token.kind == "name" and _DEVICE_NAME.fullmatch(token.text):
            used.add(token.text)
    lacking = sorted(used - offered)
    if lacking:
        raise Underivable(f"its host part uses {', '.join(lacking[:4])}, which no host program here can call")
    return f"{header}\n#line 1\n{source}"


# ---- splitting ------------------------------------------------------------------------------------------------------


def _host_part(code: str, templates: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The host's part of a CUDA source, and the kernels that it launches.

    Args:
        code: of the suggestion.
        templates: how launches name template kernels where the text gives no arguments; empty for no way.

    Raises:
        Underivable: it cannot be split.
    """
    kernels: dict[str, None] = {}
    try:
        tokens = tokenize(code)[:-1]
        parts = list(_items(code, tokens, kernels, templates))
    except Unconvertible as error:
        raise Underivable(f"its host part cannot be read: {error.problem}") from error
    return "\n".join(parts) + "\n", tuple(kernels)


def _items(code: str, tokens: Sequence[Token], kernels: dict[str, None], templates: Mapping[str, str]) -> Iterator[str]:
    """Texts of the top level, as the host needs them; fills ``kernels``."""
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "directive":
            if any(launch in token.text for launch in _LAUNCHES):
                raise Unconvertible(token.line, token.text, "a macro that launches a kernel")
            if _SAMPLES_INCLUDE.match(token.text):
                raise Unconvertible(token.line, token.text, "a header of CUDA's samples")
            if not _CUDA_INCLUDE.match(token.text):
                yield token.text
            at += 1
            continue
        end = item_end(tokens, at)
        yield _item(code, tokens[at:end], kernels, templates)
        at = end


def _item(code: str, tokens: Sequence[Token], kernels: dict[str, None], templates: Mapping[str, str]) -> str:
    words = [token.text for token in tokens]
    body = next((at for at in outermost(tokens, 0) if words[at] == "{"), None)
    head = code[tokens[0].start : tokens[body if body is not None else -1].end]
    if "__global__" in words:
        if words[0] == "namespace" or (words[0] == "extern" and words[2] == "{"):
            raise Unconvertible(tokens[0].line, head, "kernels within a block of names")
        return f"{head}}}" if body is not None else head
    if "__constant__" in words:
        raise Unconvertible(tokens[0].line, head, "a variable of the device, whose content no launch keeps")
    if "__device__" in words and "__host__" not in words:
        if body is None or "(" not in words[:body]:
            raise Unconvertible(tokens[0].line, head, "a variable of the device, whose content no launch keeps")
        return ""
    if body is None and words[0] in ("namespace", "using") and _DEVICE_SPACES & set(words):
        return ""
    if body is not None and "main" in words[:body]:
        return ""
    if not {*_LAUNCHES}.isdisjoint(words) and words[0] in ("template", "namespace", "struct", "class"):
        raise Unconvertible(tokens[0].line, head, "a launch within a template, a namespace or a class")
    return _with_calls(code, tokens, kernels, templates)


def _with_calls(code: str, tokens: Sequence[Token], kernels: dict[str, None], templates: Mapping[str, str]) -> str:
    """The text of some tokens, each launch as a call."""
    text, done, at = "", tokens[0].start, 0
    while at < len(tokens):
        if tokens[at].text == _LAUNCH_CALL and at + 1 < len(tokens):
            end = matching(tokens, at + 1)
            parts = _arguments(code, tokens[at + 2 : end])
            if len(parts) < 5 or not parts[0].isidentifier():
                raise Unconvertible(tokens[at].line, text_of(tokens[at : end + 1]), "a launch of no kernel by its name")
            text += code[done : tokens[at].start] + _call(
                _named(parts[0], tokens[at], templates), ", ".join(parts[1:5]), parts[5:], kernels
            )
            done, at = tokens[end].end, end + 1
            continue
        if tokens[at].text != "<<<":
            at += 1
            continue
        first = _expression_start(tokens, at)
        close = next((to for to in outermost(tokens, at) if tokens[to].text == ">>>"), None)
        if close is None or tokens[close + 1].text != "(":
            raise Unconvertible(tokens[at].line, "<<<", "a launch without arguments")
        expression = code[tokens[first].start : tokens[at].start].strip()
        end = matching(tokens, close + 1)
        configuration = code[tokens[at].end : tokens[close].start]
        arguments = _arguments(code, tokens[close + 2 : end])
        expression = _named(expression, tokens[at], templates)
        text += code[done : tokens[first].start] + _call(expression, configuration, arguments, kernels)
        done, at = tokens[end].end, end + 1
    return text + code[done : tokens[-1].end]


def _arguments(code: str, tokens: Sequence[Token]) -> list[str]:
    """Texts of a launch's arguments."""
    for token in tokens:
        if token.text in _LAUNCHES:
            raise Unconvertible(token.line, token.text, "a launch within the arguments of a launch")
    return [code[part[0].start : part[-1].end] for part in split_commas(tokens)]


def _named(expression: str, token: Token, templates: Mapping[str, str]) -> str:
    """The kernel of a launch with its template arguments."""
    name = templates.get(expression, expression)
    if not name:
        raise Unconvertible(token.line, expression, "a launch of a template, whose arguments cannot be derived")
    return name


def _call(kernel: str, configuration: str, arguments: Sequence[str], kernels: dict[str, None]) -> str:
    """A launch as a call of the runtime; enters the kernel into ``kernels``."""
    kernels[kernel] = None
    values = [f'"{kernel}"', f"&{kernel}", f"host_runtime_configuration({configuration})", *arguments]
    return f"host_runtime_launch({', '.join(values)})"


def _expression_start(tokens: Sequence[Token], at: int) -> int:
    """Position of the kernel that is launched at ``at``: its name, with template arguments behind it or without."""
    first = at - 1
    if tokens[first].text == ">":
        depth = 0
        while first >= 0:
            depth += {">": 1, "<": -1}.get(tokens[first].text, 0)
            if depth == 0:
                break
            first -= 1
        first -= 1
    if first < 0 or tokens[first].kind != "name":
        raise Unconvertible(tokens[at].line, "<<<", "a launch of no kernel by its name")
    return first
