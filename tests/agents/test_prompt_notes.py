"""Every note is short, sourced, about a known bottleneck, and reaches the Judge whose profile shows that bottleneck."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelforge.agents.diagnosis.diagnose import NOTES_SHOWN, Note, all_notes, notes_about, notes_for, search_notes
from kernelforge.agents.diagnosis.rules import Bottleneck
from kernelforge.hardware.specs import SPECS, DeviceSpec
from kernelforge.records.task import FAMILIES, OTHER_FAMILY, DType
from tests.agents.prompt_samples import BRIEF, SLOW, judge

ROOT = Path(__file__).parents[2]
SOURCES = (
    "Best Practices", "Hopper Tuning", "CUDA Programming Guide", "PTX ISA", "CUTLASS", "NVIDIA Technical Blog",
    "Nsight Compute", "arXiv", "NVIDIA", "edition, ", "GTC", "ICML", "CACM", "1979", "PLDI",
)  # fmt: skip
SINCE = {
    r"\bmma\.(sync|sp)": (7, 5), "ldmatrix": (7, 5), r"tanh\.approx": (7, 5), r"__reduce_\w+_sync": (8, 0),
    r"cp\.async": (8, 0), "mbarrier": (8, 0), r"max\.NaN": (8, 0), "createpolicy": (8, 0), "__h(max|min)2": (8, 0),
    r"\be4m3\b": (8, 9), "stmatrix": (9, 0), "wgmma": (9, 0), r"cp\.(reduce\.)?async\.bulk": (9, 0),
    "setmaxnreg": (9, 0), "[Tt]ensor map": (9, 0), "cluster": (9, 0), "[Dd]istributed shared": (9, 0),
    "tcgen05": (10, 0), "f32x2": (10, 0), "clusterlaunchcontrol": (10, 0), r"redux\.sync has": (10, 0),
}  # fmt: skip
"""Instructions and parts of GPUs, and the first compute capability that has them, as ptxas 13.0 assembles them."""
OTHERWISE = {"double-buffer", "mma-before-async-copy", "persistent-steps"}
"""Notes that name one of these as an alternative, or as what a GPU lacks."""
SINGLE = [DType.FLOAT32]


def test_there_are_at_least_120_and_each_is_there_once() -> None:
    notes = all_notes()
    assert len(notes) >= 120
    for texts in ([note.id for note in notes], [note.title for note in notes], [note.text for note in notes]):
        assert len(set(texts)) == len(notes)
    assert f" {len(notes)} short notes " in (ROOT / "docs" / "prompts.md").read_text()


@pytest.mark.parametrize("note", all_notes(), ids=lambda note: note.id)
def test_a_note_is_short_sourced_and_about_known_operators(note: Note) -> None:
    assert len(note.text.split()) <= 60
    assert note.text.endswith(".")
    assert not note.title.endswith(".")
    assert any(source in note.source for source in SOURCES), note.source
    assert len(set(note.bottlenecks)) == len(note.bottlenecks)
    assert set(note.families) <= {*FAMILIES, OTHER_FAMILY}


@pytest.mark.parametrize("note", all_notes(), ids=lambda note: note.id)
def test_a_note_speaks_of_nothing_that_its_gpus_lack(note: Note) -> None:
    first, last = note.capabilities
    assert any(first <= spec.compute_capability <= last for spec in SPECS.values())
    for name, since in SINCE.items():
        if re.search(name, f"{note.title} {note.text}") and note.id not in OTHERWISE:
            assert first >= since, name


@pytest.mark.parametrize("bottleneck", Bottleneck)
def test_every_bottleneck_has_a_note(bottleneck: Bottleneck) -> None:
    assert notes_for([bottleneck], [*FAMILIES, OTHER_FAMILY], BRIEF.spec, SINGLE)


def test_the_first_bottleneck_has_its_own_notes_first_and_no_more_than_two() -> None:
    result = notes_for([Bottleneck.BANK_CONFLICT, Bottleneck.SPILLS], ["softmax"], BRIEF.spec, SINGLE)
    assert result[0].bottlenecks[0] is Bottleneck.BANK_CONFLICT
    assert [Bottleneck.BANK_CONFLICT in note.bottlenecks for note in result] == [True, True, False, False]


def test_notes_are_bounded_and_none_comes_twice() -> None:
    result = notes_for(list(Bottleneck), [*FAMILIES], BRIEF.spec, SINGLE)
    assert len(result) == len({note.id for note in result}) == NOTES_SHOWN
    assert notes_for([], [*FAMILIES], BRIEF.spec, SINGLE) == ()


def test_notes_about_other_operators_are_left_out() -> None:
    tensor = notes_for([Bottleneck.TENSOR_CORES_UNUSED], ["matmul"], BRIEF.spec, [DType.FLOAT16])
    assert "tensor-cores-half" in {note.id for note in tensor}
    assert notes_for([Bottleneck.TENSOR_CORES_UNUSED], ["softmax"], BRIEF.spec, SINGLE) == ()


@pytest.mark.parametrize("family", [*FAMILIES, OTHER_FAMILY])
def test_the_first_note_of_a_bottleneck_names_the_operator_and_the_second_is_the_most_telling_left(family: str) -> None:
    for bottleneck in Bottleneck:
        about = [
            note
            for note in notes_about(bottleneck, [family], BRIEF.spec.compute_capability)
            if not note.dtypes or DType.FLOAT32 in note.dtypes
        ]
        first, *others = notes_for([bottleneck], [family], BRIEF.spec, SINGLE) or (None,)
        assert (first is not None and bool(first.families)) == any(family in note.families for note in about)
        assert others == [note for note in about if note is not first][:1]


def test_notes_about_element_types_that_a_task_lacks_are_left_out() -> None:
    def first(*dtypes: DType) -> str:
        return notes_for([Bottleneck.TENSOR_CORES_UNUSED], ["matmul"], BRIEF.spec, dtypes)[0].id

    assert first(DType.FLOAT32) == "tensor-cores-single"
    assert first(DType.BFLOAT16, DType.INT64) == "tensor-cores-half"
    unbound = notes_for(list(Bottleneck), [*FAMILIES], BRIEF.spec, SINGLE, 999)
    assert all(DType.FLOAT32 in note.dtypes for note in unbound if note.dtypes)


def test_a_search_ranks_titles_before_names_before_texts() -> None:
    result = search_notes(["bank"], Bottleneck.BANK_CONFLICT)
    assert [note.bottlenecks[0] for note in result[:2]] == [Bottleneck.BANK_CONFLICT] * 2
    ranks = [3 * bool(re.search(r"\bsoftmax", note.title.lower())) for note in search_notes(["softmax"])]
    assert ranks == sorted(ranks, reverse=True)
    assert max(ranks) == 3


def test_a_search_needs_every_word_and_takes_beginnings_and_both_spellings() -> None:
    both = search_notes(["tensor", "swizzle"])
    assert both
    assert {note.id for note in both} < {note.id for note in search_notes(["tensor"])}
    assert search_notes(["NORMALIZ"]) == search_notes(["normalis"]) != []
    assert search_notes(["wizzle"]) == []
    assert search_notes(["bank conflicts"]) == search_notes(["bank", "conflicts"])
    assert {note.id for note in search_notes(["conflicts"])} >= {note.id for note in search_notes(["bank", "conflict"])}
    assert search_notes(["wgmmas"]) != []


def test_a_search_by_operator_has_its_own_notes_first_and_none_of_others() -> None:
    families = [note.families for note in search_notes([], operator="scan")]
    assert sorted(families, key=lambda names: "scan" not in names) == families
    assert all("scan" in names or not names for names in families)
    assert any("scan" in names for names in families)
    assert any(not names for names in families)


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.key)
def test_a_search_for_a_gpu_has_what_prompts_for_it_may_say(spec: DeviceSpec) -> None:
    result = {note.id for note in search_notes([], capability=spec.compute_capability)}
    assert {note.id for note in notes_for(list(Bottleneck), [*FAMILIES], spec, [*DType], 999)} <= result
    assert ("wgmma" in result) == (spec.compute_capability == (9, 0))


def test_a_judge_is_given_the_notes_on_what_the_profile_shows() -> None:
    text = judge(SLOW).text.partition("## Notes")[2].partition("##")[0]
    assert text
    assert sum(note.text in text for note in all_notes()) == text.count("\n- ")


def test_notes_about_what_the_gpu_lacks_are_left_out() -> None:
    bound = [Bottleneck.TENSOR_BOUND] * 9
    of_newer = {"wgmma", "tma", "async-copy"}
    assert of_newer & {note.id for note in notes_for(bound, ["matmul"], SPECS["h100"], SINGLE, 99)} == of_newer
    assert of_newer.isdisjoint(note.id for note in notes_for(bound, ["matmul"], SPECS["t4"], SINGLE, 99))
