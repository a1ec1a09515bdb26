"""The case base of reward hacks: it is that of the adversarial tests, and says which candidates are like one."""

from __future__ import annotations

import re

from kernelforge.rewards.hacks import Case, is_suspect, most_similar, shipped_cases
from tests.adversarial.corpus import read_cases


def test_the_shipped_cases_are_those_of_the_adversarial_tests() -> None:
    corpus = {case.name: (case.kind, case.candidate().source) for case in read_cases() if case.language == "plan"}
    assert {case.name: (case.kind, case.source) for case in shipped_cases()} == corpus, "python .ci/hack_cases.py"
    assert sum(case.ptx_hash is not None for case in shipped_cases()) > 150


def test_a_hack_with_other_names_and_layout_is_a_suspect_and_its_honest_twin_is_not() -> None:
    cases = {case.name: case for case in shipped_cases()}
    hack = cases["lazy-softmax-one-row"]
    text = re.sub(r"\bsummed\b", "total", hack.source).replace("shared", "tile").replace("    ", " ")
    similar = most_similar(text, None, shipped_cases())
    assert (similar[0].kind, is_suspect(similar)) == ("cheat", True)
    assert similar[0].similarity > 0.9
    assert len(similar) == 3
    honest = cases["honest-large-softmax"]
    assert not is_suspect(most_similar(honest.source, None, shipped_cases()))
    # Equal PTX is equal, in any text.
    other = most_similar("__global__ void f() {}", hack.ptx_hash, [hack, Case("none", "honest", "int x;")])
    assert [round(item.similarity, 2) for item in other] == [1.0, 0.0]
    assert not is_suspect([])
