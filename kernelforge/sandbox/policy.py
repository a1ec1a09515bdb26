"""The jail policy as data: which role may have what. The data is ``sandbox/jail.toml``."""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelforge.errors import SandboxError


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


def data_folder() -> Path:
    """Where the jail policy and the supplied CUDA headers are: in the wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_data" / "sandbox", package.parent / "sandbox"):
        if (folder / "jail.toml").is_file():
            return folder
    raise SandboxError("the jail policy (sandbox/jail.toml) is missing; reinstall kernelforge")


def cuda_include_folders() -> tuple[Path, ...]:
    """CUDA's own headers from the nvidia-cuda-runtime, -crt and -cccl wheels; empty when none is installed."""
    for entry in sys.path:
        for include in sorted(glob.glob(os.path.join(entry or ".", "nvidia", "cu13", "include"))):
            folders = [Path(include), Path(include, "cccl")]
            return tuple(folder.resolve() for folder in folders if folder.is_dir())
    return ()


def import_path() -> list[str]:
    """``sys.path`` for a zygote: absolute, with the folder of this package, never the working directory as such."""
    home = str(Path(__file__).resolve().parent.parent.parent)
    entries = [os.path.abspath(entry) for entry in sys.path if entry]
    cwd = os.getcwd()
    kept = [entry for entry in entries if entry != cwd or entry == home]
    return list(dict.fromkeys([*kept, home]))


def _python_folders() -> list[str]:
    """The interpreter's libraries, installed packages and this package: not the folder that holds it."""
    package = Path(__file__).resolve().parent.parent
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    folders += [str(package), str(Path(sys.base_prefix, "lib"))]
    return folders


def _resolve(name: str) -> list[str]:
    match name:
        case "cuda":
            return [str(folder) for folder in cuda_include_folders()]
        case "python":
            return _python_folders()
        case "system_libraries":
            return ["/lib", "/lib64", "/usr/lib", "/usr/lib64"]
        case _:
            raise SandboxError(f"sandbox/jail.toml grants an unknown mount {name!r}")


def _outermost(paths: list[str]) -> tuple[str, ...]:
    """Existing folders, none inside another, symbolic links resolved and kept where they are."""
    real = sorted(
        {os.path.realpath(path) for path in paths if os.path.isdir(path)} | {p for p in paths if os.path.isdir(p)}
    )
    kept: list[str] = []
    for path in real:
        if not any(path.startswith(outer + "/") for outer in kept):
            kept.append(path)
    return tuple(kept)


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
        mounts = [path for name in table["mounts"] for path in _resolve(name)]
        return RolePolicy(
            role=role,
            module=table["module"],
            mounts=_outermost(mounts),
            devices=tuple(table["devices"]),
            headroom_bytes=int(table["headroom_mb"]) << 20,
            environment={name: value.replace("{cache}", cache_folder) for name, value in table["environment"].items()},
        )
    except (KeyError, tomllib.TOMLDecodeError) as error:
        raise SandboxError(f"sandbox/jail.toml has no usable role {role!r}: {error}") from error
