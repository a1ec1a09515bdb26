"""Commands of this program, to paste into a shell: quoted, and with the results folder where they need it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path("results")
"""The results folder where no other is named."""
RESULTS_VARIABLE = "KERNELFORGE_RESULTS"
"""Names another one in the environment."""


def named_results(folder: Path) -> str:
    """What ``--results`` has to be for a command to find a folder: as whoever opened it wrote it; empty where the
    command finds it without."""
    return "" if folder == RESULTS and Path(os.environ.get(RESULTS_VARIABLE) or RESULTS) == RESULTS else str(folder)


def command(verb: str, *words: str, options: Sequence[str] = (), results: str = "") -> str:
    """A command with its arguments, ready for a shell.

    Args:
        words: what it is about; ids from elsewhere may be anything.
        results: as :func:`named_results` has it.
    """
    more = [*options, *(("--results", results) if results else ())]
    # A word that begins like an option is none after "--".
    said = [*more, "--", *words] if any(word.startswith("-") for word in words) else [*words, *more]
    return shlex.join(["kernelforge", *verb.split(), *said])
