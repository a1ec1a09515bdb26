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
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The probe's output on all processors."""
    ptx = tmp_path_factory.mktemp("probe") / "probe.ptx"
    ptx.write_text(compile_ptx(processor_probe.SOURCE))
    root = str(Path(__file__).parents[3])
    command = [sys.executable, processor_probe.__file__, str(ptx), *PROCESSORS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": root})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86-64 processors")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_code_for_older_processors_gives_the_same_bits(processor: str, output: str) -> None:
    digests = [line.removeprefix(f"{processor} ") for line in output.splitlines() if line.startswith(f"{processor} ")]
    assert digests == processor_probe.digests(compile_ptx(processor_probe.SOURCE))
