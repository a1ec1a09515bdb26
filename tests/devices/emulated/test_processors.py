"""Results and counters do not depend on the vector extensions of the processor."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices.emulated import processor_probe
from tests.devices.emulated.nvrtc import compile_ptx

PROCESSORS = ("x86-64-v2", "x86-64-v3")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the probe prints of all processors."""
    ptx = tmp_path_factory.mktemp("probe") / "probe.ptx"
    ptx.write_text(compile_ptx(processor_probe.SOURCE))
    root = str(Path(__file__).parents[3])
    command = [sys.executable, processor_probe.__file__, str(ptx), *PROCESSORS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": root})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86-64 processors")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_code_for_older_processors_gives_the_same_bits(processor: str, said: str) -> None:
    found = [line.removeprefix(f"{processor} ") for line in said.splitlines() if line.startswith(f"{processor} ")]
    assert found == processor_probe.digests(compile_ptx(processor_probe.SOURCE))
