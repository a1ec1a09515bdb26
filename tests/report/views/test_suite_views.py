"""Texts of a suite's tasks before any run."""

from __future__ import annotations

import pytest

from kernelforge.records import LaunchQueue
from kernelforge.report.formatting import ABSENT
from kernelforge.report.views.suite import LaunchRow

QUEUE = LaunchQueue(origin="predicted", kernels=1, tklqt_us=2.37, launch_us=2.37, host_us=14.4, gpu_us=3.0)


@pytest.mark.parametrize(
    ("label", "turning", "largest", "text"),
    [
        ("batch", 8, 4096, "batch 8"),
        ("batch", None, 4096, "> 4096"),
        ("TOKENS", 8, 8192, "TOKENS 8"),
        ("TOKENS", None, 8192, "TOKENS > 8192"),
        ("batch", None, None, ABSENT),
    ],
)
def test_the_end_of_a_sweep_names_what_was_swept(
    label: str, turning: int | None, largest: int | None, text: str
) -> None:
    row = LaunchRow(title="GPU", queue=QUEUE, gpu_bound_batch=turning, largest_batch=largest, batch_label=label)
    assert row.batch_text == text
