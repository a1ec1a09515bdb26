"""What ``ncu --query-metrics`` prints: the metrics a chip has, by base name."""

from __future__ import annotations

import re

from kernelforge.errors import DeviceError

_CHIPS = {
    (7, 0): "gv100",
    (7, 5): "tu102",
    (8, 0): "ga100",
    (8, 6): "ga102",
    (8, 7): "ga10b",
    (8, 9): "ad102",
    (9, 0): "gh100",
    (10, 0): "gb100",
    (10, 3): "gb110",
    (12, 0): "gb202",
    (12, 1): "gb20b",
}
"""A chip of each compute capability.

The names are those of ``ncu --list-chips``: up to 9.0 of version 2024.1, from 10.0 on those that the library of
NVIDIA's wheel ``ncu-report`` 2026.3.1 lists (``NVPW_GetSupportedChipNames``). B200, B300, the RTX 50 series and GB10
have these chips by pci.ids.

An ncu that does not know a name, being older than the chip or, as with ``gv100`` of late, having dropped it, says so;
then the GPUs of the machine are asked instead.
"""

_NAME = re.compile(r"[A-Za-z]\w*(?:\.\w+)*__\w+\s", re.ASCII)


def chip(compute_capability: tuple[int, int]) -> str | None:
    """Name of a chip with that compute capability; None where we know of none."""
    return _CHIPS.get(compute_capability)


def query_arguments(chip_name: str | None) -> list[str]:
    """Arguments of ncu that list a chip's metrics, or those of the GPUs of this machine. Chips need no GPU."""
    return ["--query-metrics", *([] if chip_name is None else ["--chips", chip_name])]


def base_names(text: str) -> frozenset[str]:
    """Base names in the output of :func:`query_arguments`.

    A name begins its line; descriptions go on over lines that begin with spaces. There is a table per unit of the
    chip, each with columns of its own width.

    Raises:
        DeviceError: there is no such table.
    """
    found = {line.split(None, 1)[0] for line in text.splitlines() if _NAME.match(line)}
    if not found:
        raise DeviceError(f"ncu listed no metrics; it said: {text.strip()[:300] or 'nothing'}")
    return frozenset(found)


def version(text: str) -> tuple[int, ...] | None:
    """Version in the output of ``ncu --version`` or ``compute-sanitizer --version``."""
    match = re.search(r"^Version (\d+(?:\.\d+)*)", text, re.MULTILINE)
    return tuple(int(part) for part in match[1].split(".")) if match else None
