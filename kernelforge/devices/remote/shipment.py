"""Contents of an installation on another machine: this package, and its requirements in the versions here."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from kernelforge.errors import UsageError
from kernelforge.sandbox.policy import data_folder
from kernelforge.version import DISTRIBUTION

_EXTRA = re.compile(r"\s*;\s*extra\s*==\s*['\"](\w+)['\"]\s*$")
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Shipment:
    """The package as a ZIP archive."""

    digest: str
    """Of every file's path and content."""
    archive: bytes


@cache
def package_shipment() -> Shipment:
    """The files of the running package, with the jail policy and the headers."""
    package = Path(__file__).resolve().parents[2]
    folders = {"kernelforge": package, "kernelforge/_data/sandbox": data_folder()}
    files = {
        f"{name}/{path.relative_to(folder)}": path
        for name, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and not {"__pycache__", "_data"} & set(path.relative_to(folder).parts)
    }
    digest, buffer = hashlib.sha256(), io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(files.items()):
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return Shipment(digest.hexdigest()[:16], buffer.getvalue())


@dataclass(frozen=True)
class Environment:
    """Packages for pip."""

    requirements: tuple[str, ...]
    constraints: tuple[str, ...]
    """The versions installed here, so that both sides have the same compiler and the same PyTorch."""

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join([*self.requirements, "", *self.constraints]).encode()).hexdigest()[:16]


@cache
def needed_environment(*, gpu: bool) -> Environment:
    """Requirements of the package for evaluations.

    Args:
        gpu: on a GPU too.

    Raises:
        UsageError: the package is not installed here, so its requirements are unknown.
    """
    try:
        entries = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        raise UsageError(
            f"{DISTRIBUTION} is not installed here, so what another machine needs is unknown: install it with pip, or "
            "name an environment there with ?python=PATH"
        ) from None
    extras = {"gpu"} if gpu else set[str]()
    extras |= {"triton"} if _installed("triton") else set()
    requirements = []
    for entry in entries:
        extra = _EXTRA.search(entry)
        if extra is None or extra[1] in extras:
            requirements.append(_EXTRA.sub("", entry))
    pins: dict[str, str] = {}
    waiting = list(requirements)
    while waiting:
        name = _name(waiting.pop())
        version = _installed(name)
        if version is None or name in pins:
            continue
        pins[name] = version.partition("+")[0]  # a local label is no version of a package index
        waiting += [entry for entry in metadata.requires(name) or [] if "extra ==" not in entry]
    return Environment(tuple(sorted(requirements)), tuple(f"{name}=={pins[name]}" for name in sorted(pins)))


def _name(requirement: str) -> str:
    matched = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", matched[0]).lower() if matched else ""


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
