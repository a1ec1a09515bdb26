"""Tests of ``kernelforge notes find``."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_words_bottleneck_operator_and_gpu_narrow_the_notes(cli) -> None:
    every = cli("notes", "find", "--json", "--limit", "999").json()
    assert every["total"] == len(every["notes"]) >= 120
    some = cli(
        "notes", "find", "swizzle", "--bottleneck", "bank-conflict", "--operator", "matmul", "--arch", "8.6", "--json"
    ).json()
    assert {note["id"] for note in some["notes"]} >= {"swizzle-for-ldmatrix", "pad-shared"}
    for note in some["notes"]:
        assert "bank-conflict" in note["bottlenecks"]
        assert "matmul" in note["families"] or not note["families"]
        assert note["capabilities"][0] <= [8, 6] <= note["capabilities"][1]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--arch", "9.0"], ["--arch", "sm_90a"], ["--device", "emulated:h100"]])
def test_a_gpu_is_named_by_version_or_name(cli, arguments: list[str]) -> None:
    done = cli("notes", "find", "wgmma", *arguments)
    assert done.code == 0
    assert "compute capability 9.0\n" in done.out
    assert cli("notes", "find", "wgmma", "--device", "NVIDIA A100-SXM4-80GB", "--json").code == 1


@pytest.mark.slow
def test_each_note_has_its_text_and_source_and_the_rest_is_counted(cli) -> None:
    done = cli("notes", "find", "bank", "--limit", "1")
    total = cli("notes", "find", "bank", "--json").json()["total"]
    assert done.out.startswith("Turn tiles in shared memory\n  When input and output are contiguous")
    assert "  uncoalesced, bank-conflict\n  Best Practices 10.2.3.3, " in done.out
    assert done.out.endswith(f"{total - 1} more; --limit {total} prints all\n")


@pytest.mark.slow
def test_no_note_is_exit_code_1_and_one_sentence(cli) -> None:
    done = cli("notes", "find", "weather")
    assert (done.code, done.out, done.err) == (1, "", "no note has all of that; leave out a word or an option\n")
    assert cli("notes", "find", "weather", "--json").json() == {"total": 0, "notes": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bottleneck", "bank_conflicts"], "there is no bottleneck 'bank_conflicts'; did you mean bank-conflict?"),
        (["--bottleneck", "weather"], "there is no bottleneck 'weather'; they are: uncoalesced, unvectorised, "),
        (["--operator", "soft-max"], "there is no operator 'soft-max'; did you mean softmax?"),
        (["--operator", "weather"], "there is no operator 'weather'; they are: attention, convolution, matmul"),
        (["--device", "emulated:h10"], "did you mean emulated:h100"),
        (["--device", "cuda:0"], "take a name such as emulated:h100, or --arch 9.0"),
        (["--arch", "nine"], "--arch takes a compute capability such as 9.0 or sm_90, not 'nine'"),
        (["--arch", "9.0", "--device", "emulated:h100"], "--device and --arch both name a GPU"),
    ],
)
def test_what_does_not_exist_is_one_sentence(cli, arguments: list[str], message: str) -> None:
    done = cli("notes", "find", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
