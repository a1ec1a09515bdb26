"""Bandwidth of a copy on a torch device, as part ``core`` holds kernels against it; a process of its own times it.

python -m benchmarks.gpu_parts.copying DEVICE
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
COPIES = 50


def measure_copy(device: str, timeout_s: float = 120.0) -> float:
    """GB/s, measured in a process of its own.

    Raises:
        RuntimeError: the process failed; the message has its last lines.
    """
    command = [sys.executable, "-m", "benchmarks.gpu_parts.copying", device]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    if ended.returncode:
        raise RuntimeError(f"the copy could not be timed: {ended.stderr[-500:]}")
    return float(json.loads(ended.stdout)["gbps"])


def copy_gbps(device: str) -> float:
    """GB/s in this process."""
    import torch

    torch_device = torch.device(device)
    on_gpu = torch_device.type == "cuda"
    source = torch.ones((1 << 30 if on_gpu else 1 << 20) // 4, dtype=torch.float32, device=torch_device)
    target = torch.empty_like(source)
    times_s = []
    for _ in range(COPIES):
        if on_gpu:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            target.copy_(source)
            end.record()
            torch.cuda.synchronize()
            times_s.append(start.elapsed_time(end) / 1e3)
        else:
            began = time.perf_counter()
            target.copy_(source)
            times_s.append(time.perf_counter() - began)
    return float(2 * source.nbytes / median(times_s) / 1e9)


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"gbps": copy_gbps(sys.argv[1])}) + "\n")
