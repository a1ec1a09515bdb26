"""A real reward server in a process of its own, on a suite of one small task, and the replies that are sent to it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SUITE = """title = "Small elementwise task"
level = 1

[[task]]
name = "axpy"
title = "2x + y"
tags = ["elementwise"]
small = { ROWS = 8, COLS = 32 }
hidden.odd = { ROWS = 7, COLS = 33 }
hidden.quad = { ROWS = 4, COLS = 36 }
hidden.tiny = { ROWS = 1, COLS = 5 }
"""
TASK = '''"""2x + y."""

import torch
import torch.nn as nn

ROWS = 64
COLS = 96


class Model(nn.Module):
    def forward(self, x, y):
        return x * 2 + y


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
'''
TASK_NAME = "small/axpy"
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


def reply(number: int, body: str = "out[i] = 2.0f * x[i] + y[i];", prose: str = "") -> str:
    """A model's reply with a kernel that no other number gives: so it has to be compiled."""
    return f"""{prose}
```cuda
constexpr int variant = {number};
__global__ void axpy(const float* x, const float* y, float* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {body}
}}
```
```python
def forward(x, y):
    out = empty_like(x)
    axpy[ceil_div(x.numel(), 128), 128](x, y, out, i32(x.numel()))
    return out
```
"""


class Server:
    """``kernelforge serve`` as a user starts it. It may be killed and started again on the same port and folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.suite, self.results = folder / "small", folder / "results"
        self.suite.mkdir()
        (self.suite / "suite.toml").write_text(SUITE)
        (self.suite / "axpy.py").write_text(TASK)
        self.log = folder / "serve.log"
        self._options = options
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it says where it listens."""
        arguments = ["--suite", str(self.suite), "--results", str(self.results), "--port", str(self.port)]
        command = [sys.executable, "-m", "kernelforge", "serve", *arguments, *self._options]
        begun = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            output = self.log.read_bytes()[begun:].decode(errors="replace")
            if match := _ADDRESS.search(output):
                self.port = int(match[1])
                return
            time.sleep(0.05)
        raise SystemExit(f"the server did not start:\n{self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL: no time to put anything in order."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, as an operator ends it."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=60)

    def cpu_s(self) -> float:
        """Processor seconds of the gateway's own process so far."""
        assert self.process is not None
        return cpu_s_of(self.process.pid)

    def workers(self) -> list[int]:
        """Process ids of the workers that are children of the gateway."""
        assert self.process is not None
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError, IndexError):
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(stat[1]) == self.process.pid and b"kernelforge.workers" in (entry / "cmdline").read_bytes():
                        pids.append(int(entry.name))
        return pids


def cpu_s_of(pid: int) -> float:
    """Processor seconds of a process so far, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Server]:
    """A server that is gone afterwards, with its folder."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), "--device", "emulated:h100", *options)
        try:
            server.start()
            yield server
        finally:
            server.stop()
