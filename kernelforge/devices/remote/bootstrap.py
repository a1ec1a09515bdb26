"""The first program on another machine: brings the package and its environment there, and becomes a process of it.

It is sent as text and run by any ``python3`` that is there, so it uses the standard library alone and what Python 3.7
parses; annotations are not evaluated. Standard input and output are the connection: lines of JSON, then the package's
bytes.

Folders that no process has used of late are removed when a new one is installed. A process holds a lock on the file
``lease`` of each folder that it uses, to its end; locks are taken and folders set aside under the one lock of all, so a
folder is never removed between its choice and its use.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import select
import shutil
import subprocess
import sys
import time
import zipfile
from typing import Any, NoReturn

MARK = b"kernelforge-host 1\n"
"""Precedes the first answer: what a login script prints comes before it."""

OWN = "-"
"""As the Python of a request: the one that runs this, whose environment holds what is needed."""

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from importlib import import_module; "
    "from kernelforge.devices.remote.relay import frames_socket; import_module(sys.argv[2]).main(frames_socket())"
)
_PYTHONS = ("python3.13", "python3.12", "python3.11")

_DAY_S = 86400.0
UNUSED_S = {"package-": _DAY_S, "environment-": 30 * _DAY_S}
"""Time without a use after which a folder is removed. An environment takes minutes to install, a package seconds."""


def _say(**answer: Any) -> None:
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _fail(why: str) -> NoReturn:
    _say(failed=why)
    sys.exit(1)


def _read(count: int) -> bytes:
    """Exactly so many bytes: what follows belongs to the process that this one becomes."""
    data = b""
    while len(data) < count:
        part = os.read(0, min(count - len(data), 1 << 20))
        if not part:
            sys.exit(1)
        data += part
    return data


def _line() -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        data += _read(1)
    request: dict[str, Any] = json.loads(data)
    return request


def main() -> None:
    """Answer one request, and become the process that it names."""
    os.write(1, b"\n" + MARK)
    request = _line()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(cache, "kernelforge", "hosts")
    python = sys.executable if request["python"] == OWN else request["python"]
    if python and not os.access(python, os.X_OK):
        _fail(f"there is no program {python} there: give python= the path of a Python that exists")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(os.path.join(folder, "lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = os.listdir(folder)
            package = _package(folder, request["package"])
            _lease(package)
            if not python:
                python, environment = _environment(folder, request)
                _lease(environment)
            if set(os.listdir(folder)) - set(before) - {"lock"}:
                _set_aside_unused(folder)
        _remove_set_aside(folder)
    except OSError as error:
        _fail(f"its folder {folder} cannot be written: {error}")
    _say(start=python)
    os.execv(python, [python, "-I", "-c", _START, package, request["entry"]])


def _package(folder: str, digest: str) -> str:
    path = os.path.join(folder, "package-" + digest)
    if os.path.isdir(path):
        return path
    _say(need="package")
    data = _read(_line()["bytes"])
    partial = os.path.join(folder, "package.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(partial)
    os.rename(partial, path)
    return path


def _lease(path: str) -> None:
    """Use a folder until the end of this process, which includes that of the program that it becomes."""
    lease = os.open(os.path.join(path, "lease"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lease, fcntl.LOCK_SH)
    os.utime(lease)
    os.set_inheritable(lease, True)


def _set_aside_unused(folder: str) -> None:
    """Rename the folders that no process uses or has used of late. The lock of all is held.

    One without a lease is of a version that took none, or was not installed to its end: its own age counts, against
    the longest time.
    """
    for name in os.listdir(folder):
        kind = next((kind for kind in UNUSED_S if name.startswith(kind)), None)
        if kind is None:
            continue
        path = os.path.join(folder, name)
        lease, unused_s = os.path.join(path, "lease"), UNUSED_S[kind]
        if not os.path.exists(lease):
            lease, unused_s = path, max(UNUSED_S.values())
        try:
            if time.time() - os.stat(lease).st_mtime > unused_s and not _is_used(lease):
                os.rename(path, os.path.join(folder, "unused-" + name))
        except OSError:
            continue  # not ours to remove


def _is_used(lease: str) -> bool:
    """Whether a process holds a lock on a lease."""
    descriptor = os.open(lease, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _remove_set_aside(folder: str) -> None:
    for name in os.listdir(folder):
        if name.startswith("unused-"):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _environment(folder: str, request: dict[str, Any]) -> tuple[str, str]:
    """The Python of an environment, and its folder."""
    own = _own_python()
    if own is None:
        _fail(
            "there is no Python of version 3.11 to 3.13 there, python3 is {}.{}: install one, or name one with "
            "?python=PATH".format(*sys.version_info)
        )
    path = os.path.join(folder, "environment-" + request["environment"])
    python, ready = os.path.join(path, "bin", "python"), os.path.join(path, "ready")
    if os.path.exists(ready):
        return python, path
    _say(note=f"installing {len(request['requirements'])} packages into {path}, once")
    shutil.rmtree(path, ignore_errors=True)
    _run([own, "-m", "venv", path], "no environment can be made there (on Debian, install python3-venv)")
    for name in ("requirements", "constraints"):
        with open(os.path.join(path, name + ".txt"), "w") as file:
            file.write("\n".join(request[name]) + "\n")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    files = ["-r", os.path.join(path, "requirements.txt"), "-c", os.path.join(path, "constraints.txt")]
    _run(pip + files, "its packages cannot be installed there (or name an environment with ?python=PATH)")
    with open(ready, "w"):
        pass
    return python, path


def _own_python() -> str | None:
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return sys.executable
    return next(filter(None, map(shutil.which, _PYTHONS)), None)


def _run(command: list[str], failure: str) -> None:
    """Run a program to its end; end it where the connection ends first."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert child.stdout is not None
    output, pipe = b"", child.stdout.fileno()
    while True:
        readable, _, _ = select.select([0, pipe], [], [])
        if 0 in readable:  # nothing is sent now, so this is the end of the connection
            child.kill()
            child.wait()
            sys.exit(1)
        part = os.read(pipe, 65536)
        if not part:
            break
        output = (output + part)[-8192:]
    if child.wait() != 0:
        lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        _fail(f"{failure}: {' '.join(errors[-1:])[:500]}")


if __name__ == "__main__":
    main()
