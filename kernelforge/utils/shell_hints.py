"""Shell commands to show to users: of this program with its results folder, and of pip for extras."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from kernelforge.version import DISTRIBUTION

_OF_EXTRA = re.compile(r"\s*(.+?)\s*;\s*extra\s*==\s*['\"]([\w-]+)['\"]\s*")
"""``Requires-Dist`` of an extra (core metadata specifications): the requirement, and the extra's name."""

RESULTS = Path("results")
"""The results folder where no other is named."""
RESULTS_VARIABLE = "KERNELFORGE_RESULTS"
"""Names another one in the environment."""


def results_option(folder: Path) -> str:
    """What ``--results`` has to be for a command to find a folder: as whoever opened it wrote it; empty where the
    command finds it without."""
    return "" if folder == RESULTS and Path(os.environ.get(RESULTS_VARIABLE) or RESULTS) == RESULTS else str(folder)


def shell_command(verb: str, *words: str, options: Sequence[str] = (), results: str = "") -> str:
    """A command with its arguments, ready for a shell.

    Args:
        words: what it is about; ids from elsewhere may be anything.
        results: as :func:`named_results` has it.
    """
    more = [*options, *(("--results", results) if results else ())]
    # A word that begins like an option is none after "--".
    said = [*more, "--", *words] if any(word.startswith("-") for word in words) else [*words, *more]
    return shlex.join(["kernelforge", *verb.split(), *said])


def install_hint(*extras: str, reinstall: bool = False) -> str:
    """The command that installs this package with extras into the Python that runs.

    It installs from where the package came from: the checkout that it is imported from, else what pip recorded in
    ``direct_url.json`` (PEP 610), which is a folder, a wheel or a repository. Where that is unknown (pip records none
    for a wheel that it found by name, in a folder or on an index) or gone, the command installs what the extras require
    according to the installed metadata; for the package itself it is one to run in a checkout. The distribution is
    never asked for by its name: it is not on PyPI, where anybody could take that name.

    Args:
        extras: Names of extras, as in ``pyproject.toml``; none for the package alone.
        reinstall: Replace what is installed, dependencies included.
    """
    options = ["--force-reinstall"] if reinstall else []
    versions = "constraints-gpu12.txt" if "gpu12" in extras else "constraints.txt"
    suffix = f"[{','.join(extras)}]" if extras else ""
    checkout = Path(__file__).resolve().parents[2]
    if _is_checkout(checkout):
        return _pip_install(*options, *_constraints(checkout / versions), "-e", f"{checkout}{suffix}")
    origin = _origin()
    required = [] if reinstall else _requirements(extras)
    if origin is None and required:
        return _pip_install(*required)
    if origin is None:
        return f"{_pip_install(*options, '-c', versions, f'.{suffix}')} (in a checkout of KernelForge)"
    if isinstance(origin, Path):
        return _pip_install(*options, *_constraints(origin / versions), f"{origin}{suffix}")
    return _pip_install(*options, f"{DISTRIBUTION}{suffix}{origin}")


def _is_checkout(folder: Path) -> bool:
    try:
        return f'name = "{DISTRIBUTION}"' in (folder / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return False


def _origin() -> Path | str | None:
    """Where pip installed the distribution from: a folder or file that is still there; else what follows the name in a
    requirement; None where it is unknown or gone."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        recorded = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    if recorded is None:
        return None
    origin = json.loads(recorded)
    if "vcs_info" in origin:
        return f" @ {origin['vcs_info']['vcs']}+{origin['url']}@{origin['vcs_info']['commit_id']}"
    url = urlsplit(origin["url"])
    if url.scheme != "file":
        return f" @ {origin['url']}"
    path = Path(unquote(url.path))
    return path if path.exists() else None


def _requirements(extras: Sequence[str]) -> list[str]:
    """What extras require by the metadata of the installed distribution; empty where it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        listed = distribution(DISTRIBUTION).requires or []
    except PackageNotFoundError:
        return []
    parsed = (_OF_EXTRA.fullmatch(line) for line in listed)
    return [found[1] for found in parsed if found is not None and found[2] in extras]


def _constraints(path: Path) -> tuple[str, ...]:
    """pip's option for the versions that the tests ran with, where the file is there."""
    return ("-c", str(path)) if path.is_file() else ()


def _pip_install(*words: str) -> str:
    """A command for the Python that runs, whichever environment is active in the shell."""
    if find_spec("pip") is None:
        return shlex.join(["uv", "pip", "install", "--python", sys.executable, *words])
    return shlex.join([sys.executable, "-m", "pip", "install", *words])
