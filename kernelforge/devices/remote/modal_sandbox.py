"""A sandbox of Modal as another machine: a program that stands where ``ssh`` does, with the same standard streams.

Written from Modal's documentation (https://modal.com/docs/guide/sandbox) against its package 1.6. It never ran there:
tests see that the package takes what is given, and that the streams are carried, without the network.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from kernelforge.devices.remote import bootstrap
from kernelforge.devices.remote.shipment import needed_environment
from kernelforge.errors import UsageError
from kernelforge.utils.shell_hints import install_hint

APP: Final = "kernelforge"
"""Name of the app in the user's workspace, made when it is missing."""

LIFETIME_S: Final = 24 * 3600
"""Longest life of a sandbox, the most that Modal allows."""

IDLE_S: Final = 120
"""Time without a process after which Modal ends a sandbox whose client was killed. The process there ends by itself a
minute after the last sign of this side."""

_CHUNK = 1 << 16


class StandardInput(Protocol):
    """Standard input of a process, as Modal has it."""

    def write(self, data: bytes) -> None: ...

    def write_eof(self) -> None: ...

    def drain(self) -> None: ...


class SandboxProcess(Protocol):
    """A process in a sandbox, as Modal has it."""

    @property
    def stdin(self) -> StandardInput: ...

    @property
    def stdout(self) -> Iterable[bytes]: ...

    @property
    def stderr(self) -> Iterable[bytes]: ...

    def wait(self) -> int: ...


def main(gpu: str) -> NoReturn:
    """Carry this process's standard streams to the first program in a new sandbox, and end the sandbox with it.

    Args:
        gpu: as Modal takes it: ``H100``, or ``H100:2`` for two.
    """
    try:
        import modal
    except ImportError:
        sys.exit(f"the package modal is not installed: {install_hint('modal')}")
    try:
        app = modal.App.lookup(APP, create_if_missing=True)
        sandbox = modal.Sandbox.create(**sandbox_options(modal, app, gpu))
        try:
            program = Path(bootstrap.__file__).read_text()
            code = carry(sandbox.exec("python3", "-I", "-c", program, text=False), 0, 1, 2)
        finally:
            sandbox.terminate()
    except (modal.exception.Error, UsageError) as error:
        sys.exit(" ".join(str(error).split()))
    sys.exit(code)


def sandbox_options(modal: Any, app: Any, gpu: str) -> dict[str, Any]:
    """Arguments of ``modal.Sandbox.create``: the versions of this machine, and no variable of its environment.

    Raises:
        UsageError: what KernelForge needs is unknown, since it is not installed.
    """
    environment = needed_environment(gpu=True)
    version = ".".join(map(str, sys.version_info[:2]))
    image = modal.Image.debian_slim(python_version=version).apt_install("gcc")
    return {
        "app": app,
        "image": image.pip_install(*environment.requirements, *environment.constraints),
        "gpu": gpu,
        "timeout": LIFETIME_S,
        "idle_timeout": IDLE_S,
    }


def carry(process: SandboxProcess, source: int, target: int, messages: int) -> int:
    """Carry bytes between descriptors and a process, until it ends; its exit code.

    Args:
        process: in the sandbox.
        source, target, messages: descriptors for its standard input, output and error.
    """

    def arrive() -> None:
        while data := os.read(source, _CHUNK):
            process.stdin.write(data)
            process.stdin.drain()
        process.stdin.write_eof()
        process.stdin.drain()

    def leave(stream: Iterable[bytes], to: int) -> None:
        for data in stream:
            while data:
                data = data[os.write(to, data) :]

    reporting = threading.Thread(target=leave, args=(process.stderr, messages), daemon=True)
    for work in (threading.Thread(target=arrive, daemon=True), reporting):
        work.start()
    leave(process.stdout, target)
    reporting.join()
    return process.wait()
