"""Command lines of Nsight Compute: which metrics a GPU offers, and a profile of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelforge.errors import DeviceError
from kernelforge.hardware.specs import MULTIPROCESSORS
from kernelforge.profiling.ncu.catalogue import SECTIONS, MetricSet

_NAME = re.compile(r"[A-Za-z]\w*(?:\.\w+)*__\w+\s", re.ASCII)


def chip(compute_capability: tuple[int, int]) -> str | None:
    """Name of a chip with that compute capability; None if unknown.

    An ncu that does not know the name, because it is older than the chip or dropped it (recently ``gv100``), reports an
    error; then the GPUs of the machine are queried instead.
    """
    sm = MULTIPROCESSORS.get(compute_capability)
    return None if sm is None else sm.chip


def query_arguments(chip_name: str | None) -> list[str]:
    """Arguments of ncu that list a chip's metrics, or those of the GPUs of this machine. Chips need no GPU."""
    return ["--query-metrics", *([] if chip_name is None else ["--chips", chip_name])]


def base_names(text: str) -> frozenset[str]:
    """Base names in the output of :func:`query_arguments`.

    A name begins its line; descriptions go on over lines that begin with spaces. There is a table per unit of the
    chip, each with columns of its own width.

    Raises:
        DeviceError: there is no table.
    """
    names = {line.split(None, 1)[0] for line in text.splitlines() if _NAME.match(line)}
    if not names:
        raise DeviceError(f"ncu listed no metrics; it said: {text.strip()[:300] or 'nothing'}")
    return frozenset(names)


def version(text: str) -> tuple[int, ...] | None:
    """Version in the output of ``ncu --version`` or ``compute-sanitizer --version``."""
    match = re.search(r"^Version (\d+(?:\.\d+)*)", text, re.MULTILINE)
    return tuple(int(part) for part in match[1].split(".")) if match else None


_SYMBOL = re.compile(r"[A-Za-z_$][\w$.]*\Z", re.ASCII)


def kernel_filter(symbols: Sequence[str]) -> str:
    """A filter that matches kernels of exactly these mangled names.

    Substrings would be wrong: ``foo`` is in ``foo_bar``.

    Raises:
        ValueError: none is given, or one is not a symbol.
    """
    if not symbols:
        raise ValueError("no kernel to profile")
    for symbol in symbols:
        if not _SYMBOL.match(symbol):
            raise ValueError(f"{symbol!r} is not a symbol")
    escaped = (re.sub(r"([.$])", r"\\\1", symbol) for symbol in dict.fromkeys(symbols))
    return f"regex:^(?:{'|'.join(escaped)})$"


@dataclass(frozen=True)
class ProfileCommand:
    """One run of a program under ncu, into a report file.

    ``--clock-control none`` leaves the card's clocks unchanged. ``--cache-control all`` flushes and invalidates caches
    before every pass, so that all passes have cold caches.
    """

    ncu: str
    symbols: Sequence[str]
    """Mangled names of the kernels to profile."""
    report: str
    """Report file, ending in ``.ncu-rep``."""
    log: str
    """File for ncu's own messages."""
    metrics: Sequence[str]
    """Names that the chip has; without effect for the full set."""
    counters: MetricSet = "default"
    launches: int = 1
    """Largest number of launches to profile."""
    source_folder: str | None = None
    """Folder of the candidate's source, for reports that show it."""
    program: Sequence[str] = field(default_factory=tuple)

    def arguments(self) -> list[str]:
        """The whole command line.

        Raises:
            ValueError: a kernel is not a symbol, or nothing would be collected.
        """
        if self.counters == "full":
            what = ["--set", "full"]
        elif self.metrics:
            what = [part for section in SECTIONS for part in ("--section", section)]
            what += ["--metrics", ",".join(self.metrics)]
        else:
            raise ValueError("no metric is left to collect")
        source = []
        if self.source_folder is not None:
            source = ["--import-source", "yes", "--source-folders", self.source_folder]
        return [
            self.ncu,
            "--config-file", "no",
            "--target-processes", "application-only",
            "--profile-from-start", "off",
            "--replay-mode", "kernel",
            "--clock-control", "none",
            "--cache-control", "all",
            "--kernel-name-base", "mangled",
            "--kernel-name", kernel_filter(self.symbols),
            "--launch-count", str(self.launches),
            *what,
            "--apply-rules", "no",
            *source,
            "--log-file", self.log,
            "--export", self.report,
            "--force-overwrite",
            *self.program,
        ]  # fmt: skip


def import_arguments(ncu: str, report: str) -> list[str]:
    """The command line that prints a report's metrics as CSV: full numbers, base units, mangled names."""
    return [
        ncu, "--config-file", "no", "--import", report, "--csv", "--page", "raw",
        "--print-units", "base", "--print-kernel-base", "mangled",
    ]  # fmt: skip
