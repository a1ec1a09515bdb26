"""The jail policy, read from ``sandbox/jail.toml``: the grants of each role, and resource limits of a child."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from signal import SIGKILL
from typing import Any, Literal

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
    """Paths mounted read-only, each at the same path."""
    devices: tuple[str, ...]
    headroom_bytes: int
    environment: dict[str, str]
    """``{tmp}`` stands for the child's temporary folder."""
    gpu: bool = False
    """Grant the machine's GPUs: see :mod:`kernelforge.sandbox.gpu_access`."""
    programs: bool = False
    """Allow processes and programs, all inside the same jail; ``/tmp`` is executable."""
    files: bool = False
    """Receive memory files, also such as it may write; a role without a GPU makes none."""
    processes: int = 0
    """Threads and processes that CUDA and compilers start, in addition to :attr:`Limits.processes`."""
    passes: tuple[str, ...] = ()
    """Environment variables that a parent may add."""


def data_folder() -> Path:
    """Folder of the jail policy and the supplied CUDA headers: in the wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_data" / "sandbox", package.parent / "sandbox"):
        if (folder / "jail.toml").is_file():
            return folder
    raise SandboxError("the jail policy (sandbox/jail.toml) is missing; reinstall kernelforge")


def import_path() -> list[str]:
    """``sys.path`` for a zygote: absolute, with the folder of this package, without the working directory."""
    home = str(Path(__file__).resolve().parent.parent.parent)
    entries = [os.path.abspath(entry) for entry in sys.path if entry]
    cwd = os.getcwd()
    kept = [entry for entry in entries if entry != cwd or entry == home]
    return list(dict.fromkeys([*kept, home]))


def _python_paths() -> list[str]:
    """The interpreter's libraries, installed packages and this package, without its parent folder."""
    package = Path(__file__).resolve().parent.parent
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [entry for entry in sys.path if _holds_packages(Path(entry))]
    folders += [str(package), str(Path(sys.base_prefix, "lib"))]
    return [*folders, *(path for folder in interpreter_libraries() for path in _library_files(folder))]


def _holds_packages(folder: Path) -> bool:
    """Whether a folder of ``sys.path`` holds installed packages, also by ``pip --target``."""
    if folder.name in ("site-packages", "dist-packages"):
        return True
    return folder.is_absolute() and str(folder) != os.getcwd() and any(folder.glob("*.dist-info"))


def _python_programs() -> list[str]:
    """Folders of this Python's programs, such as ninja, which ``load_inline`` runs."""
    return [os.path.dirname(sys.executable), os.path.join(sys.base_prefix, "bin")]


def _local_variables(table: dict[str, Any]) -> dict[str, str]:
    """Environment with this machine's folders of programs and of the driver."""
    variables = {}
    toolkit = gpu.cuda_toolkit() if table.get("programs") else None
    if table.get("programs"):
        folders = [*_python_programs(), *([f"{toolkit}/bin"] if toolkit else []), "/usr/local/bin", "/usr/bin", "/bin"]
        variables["PATH"] = os.pathsep.join(dict.fromkeys(folders))
    if toolkit:
        variables["CUDA_HOME"] = toolkit
    libraries = (*(gpu.library_path() if table.get("gpu") else ()), *interpreter_libraries())
    if libraries:
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(dict.fromkeys(libraries))
    if table.get("gpu") and table.get("programs") and gpu.driver_folders():
        variables["TRITON_LIBCUDA_PATH"] = gpu.driver_folders()[0]  # else Triton runs ldconfig, which is not granted
    return variables


@cache
def interpreter_libraries() -> tuple[str, ...]:
    """Folders of ``LD_LIBRARY_PATH`` from which this process has loaded libraries, as Pythons of cluster modules do.

    Helper processes do not inherit this environment, and such a Python needs these folders to start. They get the
    folders in ``LD_LIBRARY_PATH``, and may read the libraries in them and no other file.
    """
    listed = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    if not listed:
        return ()
    with open("/proc/self/maps") as file:
        mapped = {os.path.dirname(line.split(maxsplit=5)[-1].strip()) for line in file if ".so" in line}
    return tuple(folder for folder in dict.fromkeys(listed) if os.path.realpath(folder) in mapped)


def _library_files(folder: str) -> list[str]:
    """Shared libraries in a folder of ``LD_LIBRARY_PATH`` and its folders of ``glibc-hwcaps`` (ld.so(8)).

    All of them, not only those that this process has loaded: a helper process that imports torch also needs libstdc++,
    libgomp and libssl.
    """
    searched = (Path(folder), *Path(folder).glob("glibc-hwcaps/*"))
    return [
        str(path) for directory in searched for path in directory.glob("*.so*") if _LIBRARY_NAME.fullmatch(path.name)
    ]


def _resolve(name: str) -> list[str]:
    match name:
        case "cuda":
            return [str(folder) for major in RELEASES for folder in cuda_include_folders(major)]
        case "python":
            return _python_paths()
        case "system_libraries":
            return ["/lib", "/lib64", "/usr/lib", "/usr/lib64"]
        case "programs":
            config = os.path.join(sys.prefix, "pyvenv.cfg")  # for a virtual environment's Python
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
    """``extra``, checked against the variables that the role lets its parent add.

    Raises:
        SandboxError: the role does not pass a name, or a value has characters that are not allowed.
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
            environment=_local_variables(table)
            | {name: value.replace("{cache}", cache_folder) for name, value in table["environment"].items()},
            gpu=table.get("gpu", False),
            programs=table.get("programs", False),
            files=table.get("files", False),
            processes=table.get("processes", 0),
            passes=tuple(table.get("passes", ())),
        )
    except (KeyError, tomllib.TOMLDecodeError) as error:
        raise SandboxError(f"sandbox/jail.toml has no usable role {role!r}: {error}") from error


@dataclass(frozen=True)
class Limits:
    """Limits of one child. Memory counts beyond that of its warm zygote."""

    wall_s: float = 60.0
    """Longest wait for one reply (:meth:`Child.call`); then the parent kills the child."""
    idle_s: float | None = None
    """Seconds without CPU time after which a child whose reply is awaited hangs, and the parent kills it; None for as
    long as ``wall_s``."""
    answer_cpu_s: float | None = None
    """CPU time for one reply, after which the parent kills the child; None for as much as there is in ``wall_s``. On a
    busy machine it is no less, as ``wall_s`` is."""
    cpu_s: float = 60.0
    """CPU time of the child, all threads together; rounded up to seconds."""
    memory_bytes: int = 2 << 30
    reserved_bytes: int = 0
    """Address space beyond ``memory_bytes`` of which most pages are never touched; of a child that has such, the parent
    watches the memory that it holds."""
    tmp_bytes: int = 64 << 20
    """Size of the private ``/tmp``."""
    processes: int = 1
    """Threads of the child; a role may add some. Roles with ``programs`` may have processes as well.

    Not enforced for an unprivileged user without namespaces, whose other processes would count as well.
    """
    file_bytes: int = 64 << 20
    """Largest file; at least ``reply_bytes`` in roles with a GPU, whose replies are memory files."""
    reply_bytes: int = 8 << 30
    """Largest sum of blobs in one reply."""


@dataclass(frozen=True)
class ExitReport:
    """Cause of a child's end. ``killed`` means by its parent; ``memory`` is certain or, for SIGKILL, most likely."""

    cause: Literal["exit", "signal", "memory", "cpu", "disk", "killed"]
    exit_code: int | None = None
    signal: int | None = None
    max_rss_bytes: int | None = None
    cpu_s: float | None = None

    @property
    def may_be_foreign(self) -> bool:
        """Whether another process may have ended the child, such as the kernel when memory runs out."""
        return self.signal == SIGKILL and self.cause in ("signal", "memory")

    def __str__(self) -> str:
        match self.cause:
            case "exit":
                return f"exit code {self.exit_code}"
            case "signal":
                return f"signal {self.signal}"
            case "memory":
                return "out of memory"
            case "cpu":
                return "out of CPU time"
            case "disk":
                return "out of temporary space"
            case "killed":
                return "killed by its parent"


PATIENCE = 5.0
"""Largest wall-clock time of a run that does not get the CPU, as a multiple of its limit."""


class Deadline:
    """The end of a run: ``seconds`` from now by the wall clock and by this process's CPU time, the later of both.

    On a busy machine a limit by the wall clock alone would end runs that are not slow.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wall = time.monotonic()
        self._cpu = time.process_time()

    def remaining(self) -> float:
        """Guaranteed seconds until the end of the run; 0 at its end."""
        wall, cpu = time.monotonic() - self._wall, time.process_time() - self._cpu
        return max(min(self._seconds - min(wall, cpu), PATIENCE * self._seconds - wall), 0.0)
