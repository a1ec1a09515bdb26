"""``kernelforge diff``: which attempts it compares, and what it refuses."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("journal")


@pytest.mark.slow
def test_an_attempt_is_compared_with_its_parent(cli):
    done = cli("diff", "softmax/1")
    assert done.code == 0
    assert "-  // version 0" in done.out
    assert "+  // version 1" in done.out
    assert "+    k[2, BLOCK](x, out, i32(1))" in done.out
    view = cli("diff", "older/softmax/1", "--json").json()
    assert (view["before"], view["after"]) == ("older/softmax/00", "older/softmax/01")
    assert [diff["name"] for diff in view["diffs"]] == ["source", "plan"]
    assert [line["text"] for line in view["diffs"][0]["lines"] if line["kind"] == "added"] == ["  // version 1"]


@pytest.mark.slow
def test_another_attempt_of_any_run_may_be_named(cli):
    view = cli("diff", "older/softmax/3", "newer/softmax/0", "--source", "--json").json()
    assert (view["before"], view["after"]) == ("newer/softmax/00", "older/softmax/03")
    assert [diff["name"] for diff in view["diffs"]] == ["source"]
    assert "// version 3" in cli("diff", "softmax/3", "--against", "best").out
    best = cli("diff", "softmax/3", "--against", "best", "--plan", "--json").json()
    assert best["before"] == "newer/softmax/01"
    assert [diff["name"] for diff in best["diffs"]] == ["plan"]


def test_equal_texts_are_said_to_be_equal(cli):
    done = cli("diff", "older/softmax/1", "newer/softmax/1")
    assert done.code == 0
    assert "source: as the other's" in done.out
    assert "plan: as the other's" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diff", "softmax"], "needs attempts"),
        (["diff", "softmax/0"], "has no parent"),
        (["diff", "softmax/9"], "0 to 3"),
        (["diff", "softmax/1", "softmax/0", "--against", "best"], "not both"),
        (["diff", "softmax/1", "--against", "worst"], "worst"),
        (["diff", "argmax/2"], "held no candidate"),
        (["diff", "argmax/1", "--against", "best"], "nothing is correct"),
    ],
)
def test_bad_input_is_one_clear_message(cli, arguments, words):
    done = cli(*arguments)
    assert done.code == 2
    assert words in done.err
    assert done.out == ""
