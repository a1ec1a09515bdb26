"""A diagnosis names the fault that was planted, from counters of the real compiler and the emulated device."""

from __future__ import annotations

import pytest
from faulty_kernels import FAULTY, SOUND, Faulty, profiled

from kernelforge.agents.diagnosis import Diagnosis, diagnose
from kernelforge.compile import Compiler


def diagnosed(case: Faulty, compiler: Compiler) -> tuple[Diagnosis, ...]:
    profile, build, facts = profiled(case, compiler)
    return diagnose(profile, build, facts)


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name)
def test_the_planted_fault_is_named_first(case: Faulty, compiler: Compiler) -> None:
    found = diagnosed(case, compiler)
    assert found[0].bottleneck is case.expected, [(one.bottleneck.value, round(one.share, 3)) for one in found]
    assert found[0].curable
    assert any(character.isdigit() for character in found[0].evidence)


def test_a_kernel_at_the_floor_has_no_fault(compiler: Compiler) -> None:
    found = diagnosed(SOUND, compiler)
    assert not any(one.curable for one in found)
    assert found[0].bottleneck is SOUND.expected
    assert "1.00x the compulsory bytes" in found[0].evidence
