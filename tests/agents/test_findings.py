"""A finding that a Judge writes is the finding that is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.agents.reply_forms import last_object, parse_finding, write_finding
from kernelforge.errors import CandidateError
from kernelforge.records import Finding

words = st.text(min_size=1, max_size=600).map(str.strip).filter(bool)
name = st.from_regex(r"\+?[A-Za-z][A-Za-z0-9_]{0,20}(\.[a-z_]{1,10})?", fullmatch=True)
names = st.lists(name, max_size=8).map(tuple)


@pytest.mark.slow
@given(words, words, words, names)
def test_an_optimisation_survives_writing(headline: str, why: str, action: str, metrics: tuple[str, ...]) -> None:
    finding = Finding(kind="optimise", headline=headline, why=why, action=action, metrics=metrics)
    assert parse_finding(f"Some prose {{ before. {write_finding(finding)}", optimise=True) == finding


@pytest.mark.slow
@given(words, words, words)
def test_a_repair_survives_writing(headline: str, why: str, action: str) -> None:
    finding = Finding(kind="repair", headline=headline, why=why, action=action)
    assert parse_finding(write_finding(finding), optimise=False) == finding


def test_a_stop_is_read_as_one() -> None:
    finding = Finding(kind="stop", headline="at the floor", why="w", action="a")
    assert parse_finding(write_finding(finding), optimise=True).headline == "at the floor"


@pytest.mark.parametrize("field", ["move", "bottleneck"])
def test_what_the_form_has_no_place_for_is_not_written(field: str) -> None:
    finding = Finding(kind="optimise", headline="h", why="w", action="a", **{field: "tile"})
    assert "tile" not in write_finding(finding)


@pytest.mark.parametrize("optimise", [True, False])
@pytest.mark.parametrize("depth", [40, 900, 1900])
def test_an_object_that_is_nested_without_measure_is_none(optimise: bool, depth: int) -> None:
    text = '{"bottleneck": ' * depth + "1" + "}" * depth
    with pytest.raises(CandidateError, match="JSON object"):
        parse_finding(text, optimise=optimise)
    assert last_object(text) is None
    assert last_object('{"a": {"b": [1]}}' + text) == {"a": {"b": [1]}}


def test_a_key_without_measure_is_not_repeated() -> None:
    with pytest.raises(CandidateError) as caught:
        parse_finding('{"' + "k" * 20_000 + '": 1}', optimise=True)
    assert len(str(caught.value)) < 300
