"""Functions and ``__global__`` kernels of a suggestion, and what their parameters are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from kernelforge.modelnew.convert.cpp_units import HostFunction, Unit, read_unit
from kernelforge.modelnew.convert.cpp_units import Parameter as Declared

Real = Literal["float", "double"]
Kind = Literal["array", "shaped", "columns", "rows", "vector", "matrix", "index", "int", "real"]
"""``shaped``: an array that carries its extents. ``columns``: one of several dimensions, by columns. ``rows``: an array
of pointers to rows. ``matrix``: a vector of vectors. ``index``: an array of integers."""

_QUALIFIERS: Final = frozenset(
    {"const", "restrict", "__restrict__", "__restrict", "volatile", "*", "&", "[", "static", "register", "struct"}
)
_INTEGERS: Final = frozenset({
    "int", "unsigned", "signed", "long", "short", "size_t", "ssize_t", "ptrdiff_t", "std", "::", "int32_t", "int64_t",
    "uint32_t", "uint64_t",
})  # fmt: skip
_HOST_INCLUDE: Final = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?!cuda_fp16|cuda_bf16|mma\.h|cooperative_groups|cub/)[^\n]*$", re.MULTILINE
)

_CLOSING_TWO: Final = re.compile(r"(\bvector\s*<\s*\w+\s*)>>")
"""Of nested vectors, which the tokens of C++ would read as a shift."""


class Underivable(Exception):
    """No call of a suggestion can be derived; the message says why."""


class ViewType(NamedTuple):
    """A type of Kokkos's views."""

    text: str
    element: str
    """Empty where it cannot be read."""
    rank: int
    const: bool
    """Whether its elements are."""


class Parameter(NamedTuple):
    """A parameter of a function."""

    name: str
    kind: Kind
    real: Real | None
    """Type of the elements, or of the number; None for integers."""
    const: bool
    container: str = ""
    """What holds the elements, such as ``std::vector`` or ``thrust::device_ptr``; empty for a raw pointer."""
    rank: int = 0
    """Dimensions of a view of Kokkos, whose type is the container; 0 for all else."""

    @property
    def is_real_array(self) -> bool:
        return self.kind in ("array", "shaped", "columns", "rows", "vector", "matrix")


class Function(NamedTuple):
    """A function that can be called."""

    name: str
    parameters: tuple[Parameter, ...]
    real: Real
    """Type of its arrays."""
    template: bool
    by_columns: bool = False
    """Whether its language keeps matrices by columns, where they are no flat pointers."""

    def of_kind(self, *kinds: Kind) -> tuple[Parameter, ...]:
        """Parameters of these kinds, in order."""
        return tuple(item for item in self.parameters if item.kind in kinds)

    @property
    def carries_extents(self) -> bool:
        """Whether an array tells the function how large it is."""
        return bool(self.of_kind("shaped", "vector", "matrix"))

    @property
    def arrays(self) -> tuple[Parameter, ...]:
        """Parameters that hold several real numbers, in order."""
        return tuple(item for item in self.parameters if item.is_real_array)


def device_code(code: str) -> tuple[str, Unit]:
    """The device code of a CUDA or HIP suggestion, without includes of the host, and its contents.

    Raises:
        Underivable: it cannot be read.
    """
    unit = _read(_HOST_INCLUDE.sub("", code))
    return unit.device_code(), unit


def entry_kernel(unit: Unit, names: re.Pattern[str]) -> Function:
    """The kernel that the suggestion answers with: its only one, or the only one that is named so.

    Raises:
        Underivable: there is none, or there are several.
    """
    kernels = [item for item in unit.kernels.values() if item.parameters]
    if not kernels:
        raise Underivable("it has no `__global__` kernel with parameters")
    named = [item for item in kernels if names.search(item.name)]
    candidates = kernels if len(kernels) == 1 else named
    if len(candidates) != 1:
        listed = ", ".join(item.name for item in kernels)
        raise Underivable(f"it has several kernels ({listed}), and in which order they run cannot be derived")
    kernel = candidates[0]
    return _function(kernel.name, kernel.parameters, kernel.template, unit)


def without_marks(code: str) -> str:
    """A Thrust code without the marks of functions for host and device, which do not change what is called."""
    return re.sub(r"\b__(?:host|device)__\b", "", code)


def entry_function(code: str, names: re.Pattern[str], views: Mapping[str, ViewType] = MappingProxyType({})) -> Function:
    """The C or C++ function that the suggestion answers with: its only one, or the last one that is named so.

    Args:
        code: of the suggestion.
        names: in names of functions that compute the kernel.
        views: types of Kokkos's views by the words that stand for them in the code.

    Raises:
        Underivable: there is none.
    """
    unit = _read(code)
    hosts = [item for name, item in unit.hosts.items() if name != "main"]
    named = [item for item in hosts if names.search(item.name)]
    if not hosts:
        only_main = "main" in unit.hosts
        raise Underivable("its only function is main" if only_main else "it defines no function that can be read")
    if len(hosts) > 1 and not named:
        raise Underivable(f"it has several functions, none with the kernel's name: {', '.join(h.name for h in hosts)}")
    return host_function(named[-1] if named else hosts[0], unit, views)


def host_function(host: HostFunction, unit: Unit, views: Mapping[str, ViewType] = MappingProxyType({})) -> Function:
    """A function of the host, by its parameters.

    Raises:
        Underivable: it returns its result, or a parameter has no role.
    """
    returns = [word for word in host.returns if word not in ("template", "__host__")]
    if returns != ["void"] and not set(returns) <= _INTEGERS | {"double", "float", "bool"}:
        raise Underivable(f"`{host.name}` returns its result, and only results in arguments are compared")
    return _function(host.name, host.parameters, (), unit, views)


def is_cpp(code: str, label: str) -> bool:
    """Whether a suggestion of the host is C++: its fence says so, or its text."""
    if label in ("cpp", "c++", "cc", "cxx"):
        return True
    return re.search(r"\bstd::|#\s*include\s*<[a-z_]+>|\busing\s+namespace\b|\btemplate\s*<|\bauto\s", code) is not None


def _read(code: str) -> Unit:
    unit = Unit()
    try:
        read_unit(_CLOSING_TWO.sub(r"\1> >", code), 1, unit)
    except (LookupError, ValueError, StopIteration) as error:  # source that a compiler would refuse as well
        raise Underivable("it is cut short or malformed") from error
    if unit.problems and not unit.kernels and not unit.hosts:
        raise Underivable(f"it cannot be read: {unit.problems[0]}")
    return unit


def _function(
    name: str,
    declared: Sequence[Declared],
    template: Sequence[str],
    unit: Unit,
    views: Mapping[str, ViewType] = MappingProxyType({}),
) -> Function:
    aliases: dict[str, Real] = dict.fromkeys(template, "double")
    for macro, tokens in unit.constants.items():
        words = [token.text for token in tokens]
        if words in (["float"], ["double"]):
            aliases[macro] = "float" if words == ["float"] else "double"
    for text in unit.device:
        for match in re.finditer(r"\btypedef\s+(float|double)\s+(\w+)|\busing\s+(\w+)\s*=\s*(float|double)", text):
            aliases[match[2] or match[3]] = "float" if "float" in (match[1], match[4]) else "double"
    parameters = tuple(
        _view_parameter(item, views[word], aliases, name)
        if (word := next((word for word in item.type if word in views), ""))
        else _parameter(item, aliases, name)
        for item in declared
    )
    reals = {item.real for item in parameters if item.is_real_array}
    if len(reals) != 1:
        raise Underivable(f"`{name}` has no array of float or double" if not reals else f"`{name}` mixes two types")
    real = reals.pop()
    assert real is not None
    return Function(name, parameters, real, bool(template))


def _parameter(item: Declared, aliases: dict[str, Real], function: str) -> Parameter:
    core = [word for word in item.type if word not in _QUALIFIERS]
    text, pointers = " ".join(core), item.type.count("*") + item.type.count("[")
    real = _real(text, aliases)
    const = "const" in item.type
    if real is not None and pointers <= 2 and "[" not in item.type:
        kinds: tuple[Kind, ...] = ("real", "array", "rows")
        return Parameter(item.name, kinds[pointers], real, const)
    if real is not None and item.type.count("[") == 1:
        return Parameter(item.name, "array", real, const)
    vector = re.fullmatch(r"(?:std :: )?vector < (?:(?:std :: )?vector < (\w+) > >|(\w+) >)", text)
    if vector is not None and pointers == 0:
        inner = vector[1] or vector[2]
        element = _real(inner, aliases)
        if element is not None:
            return Parameter(item.name, "matrix" if vector[1] else "vector", element, const, "std::vector")
    thrust = re.fullmatch(r"(?:thrust :: )?((?:host|device)_vector|device_ptr) < ([\w ]+) >", text)
    if thrust is not None and pointers == 0:
        container, element = f"thrust::{thrust[1]}", _real(thrust[2], aliases)
        if element is not None:
            return Parameter(item.name, "array" if thrust[1] == "device_ptr" else "vector", element, const, container)
        if set(thrust[2].split()) <= _INTEGERS:
            return Parameter(item.name, "index", None, const, container)
    if core and set(core) <= _INTEGERS and pointers <= 1:
        return Parameter(item.name, "index" if pointers else "int", None, const)
    raise Underivable(f"the parameter `{' '.join(item.type)} {item.name}` of `{function}` has no known role")


def _view_parameter(item: Declared, view: ViewType, aliases: dict[str, Real], function: str) -> Parameter:
    element = _real(view.element, aliases)
    if item.is_pointer or not view.element or (element is None and not set(view.element.split()) <= _INTEGERS):
        raise Underivable(f"the parameter `{view.text} {item.name}` of `{function}` has no known role")
    kind: Kind = "index" if element is None else "vector" if view.rank == 1 else "shaped"
    return Parameter(item.name, kind, element, view.const, view.text, view.rank)


def _real(text: str, aliases: dict[str, Real]) -> Real | None:
    if text in ("float", "double"):
        return "float" if text == "float" else "double"
    return aliases.get(text)
