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
"""Default results folder."""
RESULTS_VARIABLE = "KERNELFORGE_RESULTS"
"""Environment variable that names another one."""


def results_option(folder: Path) -> str:
    """Value of ``--results`` for a command on a folder; empty where the default leads there."""
    return "" if folder == RESULTS and Path(os.environ.get(RESULTS_VARIABLE) or RESULTS) == RESULTS else str(folder)


def shell_command(verb: str, *words: str, options: Sequence[str] = (), results: str = "") -> str:
    """A ``kernelforge`` command, quoted for a shell.

    Args:
        words: positional arguments; ids in imported records may be any text.
        results: from :func:`results_option`.
    """
    more = [*options, *(("--results", results) if results else ())]
    # After "--", a word that starts with a dash is no option.
    arguments = [*more, "--", *words] if any(word.startswith("-") for word in words) else [*words, *more]
    return shlex.join(["kernelforge", *verb.split(), *arguments])


def install_hint(*extras: str, reinstall: bool = False) -> str:
    """The command that installs this package with extras into the Python that runs.

    The source is the checkout that the package is imported from, otherwise the folder, wheel or repository that pip
    recorded in ``direct_url.json`` (PEP 610). If that is unknown (pip records nothing for a wheel found by name) or
    gone, the command installs the requirements of the extras from the installed metadata; for the package itself it is
    a command to run in a checkout. The command never names the distribution alone: it is not on PyPI, where anyone
    could register that name.

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
    """Source that pip installed the distribution from: an existing path, or the part after the name in a requirement.

    None if it is unknown or gone.
    """
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
    """Requirements of extras in the metadata of the installed distribution; empty if it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        listed = distribution(DISTRIBUTION).requires or []
    except PackageNotFoundError:
        return []
    parsed = (_OF_EXTRA.fullmatch(line) for line in listed)
    return [match[1] for match in parsed if match is not None and match[2] in extras]


def _constraints(path: Path) -> tuple[str, ...]:
    """pip's option for the tested versions, if the constraints file exists."""
    return ("-c", str(path)) if path.is_file() else ()


def _pip_install(*words: str) -> str:
    """Install command for the running Python, independent of the shell's environment."""
    if find_spec("pip") is None:
        return shlex.join(["uv", "pip", "install", "--python", sys.executable, *words])
    return shlex.join([sys.executable, "-m", "pip", "install", *words])
