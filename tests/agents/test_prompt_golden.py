"""Every prompt is, to the letter, the one that was last read and agreed to."""

from __future__ import annotations

import pytest

from kernelforge.agents.prompts import PROMPTS
from tests.agents.prompt_samples import GOLDEN, SAMPLES, golden_text


@pytest.mark.parametrize("name", SAMPLES)
def test_a_prompt_is_as_agreed(name: str) -> None:
    agreed = (GOLDEN / f"{name}.md").read_text(encoding="utf-8")
    assert golden_text(SAMPLES[name]()) == agreed, "meant so? then run: python -m tests.agents.write_golden"


def test_every_prompt_has_a_sample_and_every_golden_file_a_prompt() -> None:
    covered = {name for name in PROMPTS for sample in SAMPLES if sample == name or sample.startswith(f"{name}-")}
    assert covered == set(PROMPTS)
    assert {path.stem for path in GOLDEN.iterdir()} == set(SAMPLES)


def test_blank_lines_come_one_at_a_time() -> None:
    for name, render in SAMPLES.items():
        outside = golden_text(render()).replace('"""\n\n', "")
        assert "\n\n\n" not in outside, name
