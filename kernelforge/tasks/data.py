"""Where the data that ships with KernelForge lies: suites, prompt templates, jail policy."""

from __future__ import annotations

from pathlib import Path

from kernelforge.errors import UsageError


def data_path(name: str) -> Path:
    """Folder of shipped data: ``tasks``, ``prompts``, ``sandbox`` or ``docs``.

    A wheel carries the folders as ``kernelforge/_data/<name>``; in a checkout they lie beside the package.

    Raises:
        UsageError: the installation lacks the folder.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_data" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise UsageError(
        f"this installation of kernelforge has no '{name}' folder (looked beside and inside {package}); "
        "reinstall it, or run from a complete checkout"
    )
