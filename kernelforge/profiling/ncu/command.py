"""The command line of one profile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelforge.profiling.ncu.catalogue import SECTIONS, MetricSet

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

    ``--clock-control none`` is not an option of ours: the card's settings are left as they are. Caches are flushed
    and invalidated before every pass (``--cache-control all``), so that passes see the same cold caches.
    """

    ncu: str
    symbols: Sequence[str]
    """Mangled names of the kernels to profile."""
    report: str
    """Report file, ending in ``.ncu-rep``."""
    log: str
    """File for what ncu itself says."""
    metrics: Sequence[str]
    """Names that the chip has; without effect for the full set."""
    counters: MetricSet = "default"
    launches: int = 1
    """Most launches that are profiled."""
    source_folder: str | None = None
    """Where the candidate's source lies, for reports that show it."""
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
