"""Classes of PTX instructions, for counters and for the model."""

from __future__ import annotations

from collections.abc import Mapping

CLASSES = ("fp32", "fp64", "fp16", "int", "special", "convert", "memory", "warp", "barrier", "control", "move", "other")
"""Every PTX operation is in exactly one.

``special`` are the functions of the special-function unit, divisions and roots among them; ``warp`` are shuffles, votes
and matches; ``move`` are moves, selections and address conversions, most of which cost nothing on hardware.
"""

_BY_OPERATION = {
    **dict.fromkeys(("ld", "ldu", "st", "atom", "red", "prefetch", "cp", "ldmatrix", "stmatrix"), "memory"),
    **dict.fromkeys(("shfl", "vote", "match", "activemask", "redux", "elect"), "warp"),
    **dict.fromkeys(("bar", "barrier", "membar", "fence", "mbarrier"), "barrier"),
    **dict.fromkeys(("bra", "brx", "call", "ret", "exit", "trap", "nanosleep"), "control"),
    **dict.fromkeys(("mov", "cvta", "selp", "isspacep", "mapa", "getctarank"), "move"),
    **dict.fromkeys(("ex2", "lg2", "sin", "cos", "tanh", "rcp", "sqrt", "rsqrt"), "special"),
    "cvt": "convert",
}
_BY_TYPE = {
    "f32": "fp32",
    "f32x2": "fp32",
    "f64": "fp64",
    **dict.fromkeys(("f16", "f16x2", "bf16", "bf16x2"), "fp16"),
    **{f"{kind}{bits}": "int" for kind in "usb" for bits in (8, 16, 32, 64)},
    "pred": "int",
}


def instruction_class(operation: str) -> str:
    """Class of an operation as the emulator names it: ``fma.f32``, ``ld.global``, ``bar.sync``."""
    head, *qualifiers = operation.split(".")
    if head in _BY_OPERATION:
        return _BY_OPERATION[head]
    kinds = [_BY_TYPE[qualifier] for qualifier in qualifiers if qualifier in _BY_TYPE]
    if head == "div" and kinds and kinds[0] != "int":
        return "special"
    return kinds[0] if kinds else "other"


def integer_divisions(mix: Mapping[str, tuple[float, float]]) -> dict[int, float]:
    """Warp instructions that divide integers, remainders among them, by width in bits.

    They are single PTX instructions that become loops of tens of machine instructions.
    """
    found = {32: 0.0, 64: 0.0}
    for operation, (warps, _) in mix.items():
        head, *qualifiers = operation.split(".")
        if head in ("div", "rem") and instruction_class(operation) == "int":
            found[64 if qualifiers[-1].endswith("64") else 32] += warps
    return found


def matrix_instructions(mix: Mapping[str, tuple[float, float]]) -> float:
    """Warp instructions of the tensor cores."""
    return sum(warps for operation, (warps, _) in mix.items() if operation.split(".")[0] in ("mma", "wmma", "wgmma"))


def by_class(mix: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Warp instructions of every class; classes that do not occur are 0."""
    totals = dict.fromkeys(CLASSES, 0.0)
    for operation, (warps, _) in mix.items():
        totals[instruction_class(operation)] += warps
    return totals
