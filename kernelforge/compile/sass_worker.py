"""The disassembler's child: ``nvdisasm`` prints the machine code of one cubin, confined and disposable."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from kernelforge.compile.worker import MAX_CODE_BYTES
from kernelforge.sandbox.channel import Channel

_WAIT_S = 30.0
_MESSAGE_CHARACTERS = 500
_state: dict[str, str] = {}


def warm_up(options: dict[str, Any]) -> None:
    """Remember where the program is. ``program``: path of ``nvdisasm``."""
    _state["program"] = options["program"]


def serve(channel: Channel) -> None:
    """Disassemble one cubin, the blob of the request. Reply: the blob of the text, or ``error``."""
    frame = channel.receive()
    try:
        text = _disassembled(bytes(frame.blobs[0]))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        channel.send({"error": str(error)[:_MESSAGE_CHARACTERS]})
        return
    channel.send({}, [text])


def _disassembled(cubin: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        command = [_state["program"], "-c", "-gp", "-hex", str(file)]
        done = subprocess.run(command, capture_output=True, timeout=_WAIT_S, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(lines[-1] if lines else f"nvdisasm ended with {done.returncode}")
    if len(done.stdout) > MAX_CODE_BYTES:
        raise ValueError(f"nvdisasm printed more than {MAX_CODE_BYTES >> 20} MiB")
    return done.stdout
