"""Results and counters do not depend on the vector extensions of the processor."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import processor_probe
import pytest
from nvrtc import compile_ptx


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86-64 processors")
@pytest.mark.parametrize("processor", ["x86-64-v2", "x86-64-v3"])
def test_code_for_older_processors_gives_the_same_bits(processor: str, tmp_path: Path) -> None:
    ptx = tmp_path / "probe.ptx"
    ptx.write_text(compile_ptx(processor_probe.SOURCE))
    root = str(Path(__file__).parents[3])
    command = [sys.executable, processor_probe.__file__, str(ptx), processor]
    other = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": root})
    assert other.returncode == 0, other.stderr
    assert other.stdout.splitlines() == processor_probe.digests(ptx.read_text())
