"""A real reward server in a process of its own, on suites of the benchmark, and the replies that are sent to it."""

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

LEVEL1_SUITE = """title = "An elementwise task of the size that KernelBench 0.1 has at level 1"
level = 1

[[task]]
name = "relu"
title = "ReLU"
tags = ["elementwise"]
small = { ROWS = 64, COLS = 768 }
hidden.odd = { ROWS = 35, COLS = 1027 }
hidden.quad = { ROWS = 260, COLS = 132 }
hidden.tiny = { ROWS = 5, COLS = 7 }
"""
LEVEL1_TASK = '''"""ReLU."""

import torch
import torch.nn as nn

ROWS = 4096
COLS = 393216


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return []
'''
RELU, SOFTMAX = "level1/relu", "core/softmax"
"""Tasks of real sizes."""
_KERNELS = {
    RELU: (
        """__global__ void relu(const float* x, float* out, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f) + (x[i] == 1e30f ? VARIANT : 0.0f);
}""",
        "relu[ceil_div(x.numel(), 256), 256](x, out, i64(x.numel()))",
    ),
    SOFTMAX: (
        """__device__ float reduced(float value, bool largest) {
    __shared__ float parts[8];
    for (int o = 16; o; o >>= 1) {
        float other = __shfl_xor_sync(~0u, value, o);
        value = largest ? fmaxf(value, other) : value + other;
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = parts[0];
    for (int w = 1; w < 8; ++w) value = largest ? fmaxf(value, parts[w]) : value + parts[w];
    __syncthreads();
    return value;
}
__global__ void softmax(const float* x, float* out, int n) {
    const float* row = x + (long long)blockIdx.x * n;
    float most = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 256) most = fmaxf(most, row[i]);
    most = reduced(most, true);
    for (int i = threadIdx.x; i < n; i += 256) sum += expf(row[i] - most);
    sum = reduced(sum, false) + (most == 1e30f ? VARIANT : 0.0f);
    for (int i = threadIdx.x; i < n; i += 256) out[(long long)blockIdx.x * n + i] = expf(row[i] - most) / sum;
}""",
        "softmax[x.shape[0], 256](x, out, i32(x.shape[1]))",
    ),
}
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


def real_size_reply(task: str, number: int) -> str:
    """A right reply for a task of a real size, with machine code of its own for every number."""
    source, launch = _KERNELS[task]
    source = source.replace("VARIANT", f"{number}.0f")
    plan = f"def forward(x):\n    out = empty_like(x)\n    {launch}\n    return out\n"
    return f"```cuda\n{source}\n```\n```python\n{plan}```\n"


def renamed_reply(task: str, number: int) -> str:
    """The same for every number, but for a comment and a variable's name."""
    text = re.sub(r"\bn\b", f"n_{number}", real_size_reply(task, 0))
    return text.replace("```cuda\n", f"```cuda\n// Version {number}.\n", 1)


class Server:
    """``kernelforge serve`` as a user starts it. It may be killed and started again on the same port and folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.suite, self.results = folder / "small", folder / "results"
        self.suite.mkdir()
        (self.suite / "suite.toml").write_text(SUITE)
        (self.suite / "axpy.py").write_text(TASK)
        self.level1 = folder / "level1"
        self.level1.mkdir()
        (self.level1 / "suite.toml").write_text(LEVEL1_SUITE)
        (self.level1 / "relu.py").write_text(LEVEL1_TASK)
        self.log = folder / "serve.log"
        self._options = options
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it says where it listens."""
        suites = ["--suite", str(self.suite), "--suite", str(self.level1), "--suite", "core"]
        arguments = [*suites, "--results", str(self.results), "--port", str(self.port)]
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

    def workers_bytes(self) -> int:
        """Memory of all workers, the oracle host and their children now; what processes share is counted once."""
        total = 0
        for pid in self._worker_pids():
            with contextlib.suppress(OSError):
                fields = re.findall(r"^Pss: *([0-9]+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
                total += 1024 * sum(map(int, fields))
        return total

    def workers_cpu_s(self) -> float:
        """Processor seconds of the same processes so far, and of their children that have ended."""
        ticks = 0
        for pid in self._worker_pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _worker_pids(self) -> list[int]:
        """Process ids of all workers, the oracle host and their children; on a Ray cluster, of its actors on this
        machine and their children."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(entry.name))
        on_ray = "ray" in self._options
        pids = actors() if on_ray else self._children(b"kernelforge.workers", b"kernelforge.evaluation.oracle.host")
        for pid in pids:  # which grows
            pids += children.get(pid, [])
        return pids

    def workers(self) -> list[int]:
        """Process ids of the workers that are children of the gateway."""
        return self._children(b"kernelforge.workers")

    def _children(self, *modules: bytes) -> list[int]:
        """Process ids of children of the gateway whose command line names one of these modules."""
        assert self.process is not None
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError, IndexError):
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                    command = (entry / "cmdline").read_bytes()
                    if int(stat[1]) == self.process.pid and any(module in command for module in modules):
                        pids.append(int(entry.name))
        return pids


def actors() -> list[int]:
    """Process ids of the Ray actors of nodes on this machine."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if re.match(rb"ray::(Worker|OracleHost)Actor", (entry / "cmdline").read_bytes()):
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
