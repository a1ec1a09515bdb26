"""Every note is short, sourced, about a known bottleneck, and reaches the Judge whose profile shows that bottleneck."""

from __future__ import annotations

import pytest

from kernelforge.agents.diagnosis.diagnose import NOTES_SHOWN, Note, all_notes, notes_for
from kernelforge.agents.diagnosis.rules import Bottleneck
from kernelforge.hardware.specs import SPECS
from kernelforge.records.task import FAMILIES, OTHER_FAMILY
from tests.agents.prompt_samples import BRIEF, SLOW, judge

SOURCES = (
    "Best Practices", "Hopper Tuning", "CUDA Programming Guide", "PTX ISA", "CUTLASS", "NVIDIA Technical Blog",
    "Nsight Compute", "arXiv", "NVIDIA", "edition, ", "GTC", "ICML", "CACM", "1979",
)  # fmt: skip


def test_there_are_at_least_thirty_and_each_is_there_once() -> None:
    notes = all_notes()
    assert len(notes) >= 30
    assert len({note.id for note in notes}) == len({note.text for note in notes}) == len(notes)


@pytest.mark.parametrize("note", all_notes(), ids=lambda note: note.id)
def test_a_note_is_short_sourced_and_about_known_operators(note: Note) -> None:
    assert len(note.text.split()) <= 60
    assert note.text.endswith(".")
    assert not note.title.endswith(".")
    assert any(source in note.source for source in SOURCES), note.source
    assert len(set(note.bottlenecks)) == len(note.bottlenecks)
    assert set(note.families) <= {*FAMILIES, OTHER_FAMILY}


@pytest.mark.parametrize("bottleneck", Bottleneck)
def test_every_bottleneck_has_a_note(bottleneck: Bottleneck) -> None:
    assert notes_for([bottleneck], [*FAMILIES, OTHER_FAMILY], BRIEF.spec)


def test_the_first_bottleneck_has_its_own_notes_first_and_no_more_than_two() -> None:
    result = notes_for([Bottleneck.BANK_CONFLICT, Bottleneck.SPILLS], ["softmax"], BRIEF.spec)
    assert result[0].bottlenecks[0] is Bottleneck.BANK_CONFLICT
    assert [Bottleneck.BANK_CONFLICT in note.bottlenecks for note in result] == [True, True, False, False]


def test_notes_are_bounded_and_none_comes_twice() -> None:
    result = notes_for(list(Bottleneck), [*FAMILIES], BRIEF.spec)
    assert len(result) == len({note.id for note in result}) == NOTES_SHOWN
    assert notes_for([], [*FAMILIES], BRIEF.spec) == ()


def test_notes_about_other_operators_are_left_out() -> None:
    tensor = notes_for([Bottleneck.TENSOR_CORES_UNUSED], ["matmul"], BRIEF.spec)
    assert "tensor-cores-half" in {note.id for note in tensor}
    assert notes_for([Bottleneck.TENSOR_CORES_UNUSED], ["softmax"], BRIEF.spec) == ()


def test_a_judge_is_given_the_notes_on_what_the_profile_shows() -> None:
    text = judge(SLOW).text.partition("## Notes")[2].partition("##")[0]
    assert text
    assert sum(note.text in text for note in all_notes()) == text.count("\n- ")


def test_notes_about_what_the_gpu_lacks_are_left_out() -> None:
    bound = [Bottleneck.TENSOR_BOUND] * 9
    of_newer = {"wgmma", "tma", "async-copy"}
    assert of_newer & {note.id for note in notes_for(bound, ["matmul"], SPECS["h100"], 99)} == of_newer
    assert of_newer.isdisjoint(note.id for note in notes_for(bound, ["matmul"], SPECS["t4"], 99))
