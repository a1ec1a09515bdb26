"""The jail policy, read from ``sandbox/jail.toml``: what each role may access."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernelforge.errors import SandboxError
from kernelforge.hardware.wheels import RELEASES, cuda_include_folders
from kernelforge.sandbox import gpu_access as gpu

_PROGRAM_FOLDERS = (
    "/bin", "/usr/bin", "/usr/libexec", "/usr/include", "/usr/local/include", "/etc/alternatives",
)  # fmt: skip
_LIBRARY_NAME = re.compile(r".+\.so(\.[\w.+-]+)?")


@dataclass(frozen=True)
class RolePolicy:
    """One role's grants, with every path resolved on this machine."""

    role: str
    module: str
    mounts: tuple[str, ...]
    """Paths mounted read-only, each at its own place."""
    devices: tuple[str, ...]
    headroom_bytes: int
    environment: dict[str, str]
    """``{tmp}`` stands for the child's own temporary folder."""
    gpu: bool = False
    """The machine's GPUs: see :mod:`kernelforge.sandbox.gpu_access`."""
    programs: bool = False
    """May start processes and run programs, all inside the same jail; ``/tmp`` is executable."""
    processes: int = 0
    """Threads and processes beyond those of :attr:`Limits.processes`: what CUDA and compilers start themselves."""
    passes: tuple[str, ...] = ()
    """Environment variables that a parent may add."""


def data_folder() -> Path:
    """Where the jail policy and the supplied CUDA headers are: in the wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_data" / "sandbox", package.parent / "sandbox"):
        if (folder / "jail.toml").is_file():
            return folder
    raise SandboxError("the jail policy (sandbox/jail.toml) is missing; reinstall kernelforge")


def import_path() -> list[str]:
    """``sys.path`` for a zygote: absolute, with the folder of this package, never the working directory as such."""
    home = str(Path(__file__).resolve().parent.parent.parent)
    entries = [os.path.abspath(entry) for entry in sys.path if entry]
    cwd = os.getcwd()
    kept = [entry for entry in entries if entry != cwd or entry == home]
    return list(dict.fromkeys([*kept, home]))


def _python_paths() -> list[str]:
    """The interpreter's libraries, installed packages and this package: not the folder that holds it."""
    package = Path(__file__).resolve().parent.parent
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [entry for entry in sys.path if _holds_packages(Path(entry))]
    folders += [str(package), str(Path(sys.base_prefix, "lib"))]
    return [*folders, *(path for folder in interpreter_libraries() for path in _library_files(folder))]


def _holds_packages(folder: Path) -> bool:
    """Whether a folder of ``sys.path`` is one that packages are installed into, ``pip --target`` included."""
    if folder.name in ("site-packages", "dist-packages"):
        return True
    return folder.is_absolute() and str(folder) != os.getcwd() and any(folder.glob("*.dist-info"))


def _python_programs() -> list[str]:
    """Where this Python's own programs are: ninja, for one, which ``load_inline`` runs."""
    return [os.path.dirname(sys.executable), os.path.join(sys.base_prefix, "bin")]


def _found_here(table: dict[str, Any]) -> dict[str, str]:
    """Environment that depends on where this machine keeps its programs and its driver."""
    found = {}
    toolkit = gpu.cuda_toolkit() if table.get("programs") else None
    if table.get("programs"):
        folders = [*_python_programs(), *([f"{toolkit}/bin"] if toolkit else []), "/usr/local/bin", "/usr/bin", "/bin"]
        found["PATH"] = os.pathsep.join(dict.fromkeys(folders))
    if toolkit:
        found["CUDA_HOME"] = toolkit
    libraries = (*(gpu.library_path() if table.get("gpu") else ()), *interpreter_libraries())
    if libraries:
        found["LD_LIBRARY_PATH"] = os.pathsep.join(dict.fromkeys(libraries))
    if table.get("gpu") and table.get("programs") and gpu.driver_folders():
        found["TRITON_LIBCUDA_PATH"] = gpu.driver_folders()[0]  # else Triton runs ldconfig, which is not granted
    return found


@cache
def interpreter_libraries() -> tuple[str, ...]:
    """Folders of ``LD_LIBRARY_PATH`` from which this process has loaded libraries, as Pythons of clusters' modules do.

    Helper processes get none of this process's environment, and without these folders such a Python does not start.
    They get the folders in ``LD_LIBRARY_PATH``, and may read the libraries in them and no other file.
    """
    listed = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    if not listed:
        return ()
    with open("/proc/self/maps") as file:
        mapped = {os.path.dirname(line.split(maxsplit=5)[-1].strip()) for line in file if ".so" in line}
    return tuple(folder for folder in dict.fromkeys(listed) if os.path.realpath(folder) in mapped)


def _library_files(folder: str) -> list[str]:
    """Shared libraries that the dynamic linker may find by a folder of ``LD_LIBRARY_PATH``: by name in the folder
    itself and in those of ``glibc-hwcaps`` (ld.so(8)).

    All of them, not only those that this process has loaded: a helper process loads more. One that imports torch also
    needs libstdc++, libgomp and libssl, which this process need not have by then.
    """
    searched = (Path(folder), *Path(folder).glob("glibc-hwcaps/*"))
    return [str(path) for place in searched for path in place.glob("*.so*") if _LIBRARY_NAME.fullmatch(path.name)]


def _resolve(name: str) -> list[str]:
    match name:
        case "cuda":
            return [str(folder) for major in RELEASES for folder in cuda_include_folders(major)]
        case "python":
            return _python_paths()
        case "system_libraries":
            return ["/lib", "/lib64", "/usr/lib", "/usr/lib64"]
        case "programs":
            config = os.path.join(sys.prefix, "pyvenv.cfg")  # an environment's Python finds its packages by it
            headers = [sysconfig.get_paths()[name] for name in ("include", "platinclude")]  # Python.h
            toolkit = gpu.cuda_toolkit()
            return [*_PROGRAM_FOLDERS, *_python_programs(), config, *headers, *([toolkit] if toolkit else [])]
        case "gpu":
            return [*gpu.SYSTEM_FOLDERS, *gpu.driver_folders(), "/etc/ld.so.cache"]
        case _:
            raise SandboxError(f"sandbox/jail.toml grants an unknown mount {name!r}")


def _outermost(paths: list[str]) -> tuple[str, ...]:
    """Existing paths, none inside another, symbolic links resolved and kept where they are."""
    there = [os.path.normpath(path) for path in paths if os.path.exists(path)]
    real = sorted({*there, *map(os.path.realpath, there)})
    kept: list[str] = []
    for path in real:
        if not any(path.startswith(outer + "/") for outer in kept):
            kept.append(path)
    return tuple(kept)


def extra_environment(policy: RolePolicy, extra: Mapping[str, str]) -> dict[str, str]:
    """``extra``, once it is known to be what the role lets its parent add.

    Raises:
        SandboxError: a name that the role does not pass, or a value with characters that no such variable has.
    """
    for name, value in extra.items():
        if name not in policy.passes:
            allowed = ", ".join(policy.passes) or "none"
            raise SandboxError(f"the {policy.role} role takes no {name} from its parent; it takes: {allowed}")
        if not re.fullmatch(r"[A-Za-z0-9_.,:;+/ -]{0,512}", value):
            raise SandboxError(f"{name} for the {policy.role} role has characters that are not allowed: {value!r}")
    return dict(extra)


@cache
def role_policy(role: str) -> RolePolicy:
    """The policy of ``role``.

    Raises:
        SandboxError: no such role, or the policy file is malformed.
    """
    try:
        table = tomllib.loads((data_folder() / "jail.toml").read_text())[role]
        from platformdirs import user_cache_dir

        cache_folder = user_cache_dir("kernelforge")
        named = [
            *table["mounts"],
            *(["gpu"] if table.get("gpu") else []),
            *(["programs"] if table.get("programs") else []),
        ]
        mounts = [path for name in named for path in _resolve(name)]
        return RolePolicy(
            role=role,
            module=table["module"],
            mounts=_outermost(mounts),
            devices=tuple(table["devices"]),
            headroom_bytes=int(table["headroom_mb"]) << 20,
            environment=_found_here(table)
            | {name: value.replace("{cache}", cache_folder) for name, value in table["environment"].items()},
            gpu=table.get("gpu", False),
            programs=table.get("programs", False),
            processes=table.get("processes", 0),
            passes=tuple(table.get("passes", ())),
        )
    except (KeyError, tomllib.TOMLDecodeError) as error:
        raise SandboxError(f"sandbox/jail.toml has no usable role {role!r}: {error}") from error
