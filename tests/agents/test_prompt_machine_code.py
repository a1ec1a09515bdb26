"""Machine code in prompts: opcodes and source lines, with their origin."""

from __future__ import annotations

from kernelforge.agents.prompting.profiles import profile_table
from kernelforge.records import SassLine, SassOpcode, SassProfile
from kernelforge.search.base import ProfileVisibility
from tests.agents.prompt_samples import profile as sample


def test_a_full_profile_names_opcodes_and_the_lines_they_come_from() -> None:
    profile = sample(1_000)
    sass = SassProfile(
        warp_instructions=3_000,
        opcodes=(SassOpcode(opcode="FFMA", warp_instructions=2_000), SassOpcode(opcode="LDG", warp_instructions=1_000)),
        lines=(SassLine(source_line=7, warp_instructions=2_500, opcode="FFMA"),),
    )
    kernels = tuple(kernel.model_copy(update={"sass": sass}) for kernel in profile.kernels)
    with_code = profile.model_copy(update={"kernels": kernels})
    table = profile_table(with_code, ProfileVisibility(metrics="full"))
    assert "machine code (estimated): 3,000 warp instructions: FFMA 2,000, LDG 1,000" in table
    assert "line 7 2,500 (most FFMA)" in table
    assert "machine code" not in profile_table(with_code, ProfileVisibility(metrics="subset"))
