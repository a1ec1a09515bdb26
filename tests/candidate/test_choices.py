"""A chosen combination can be read off a candidate, and off a plan that takes it by itself."""

from __future__ import annotations

from kernelforge.candidate import chosen_values, format_reply, parse_plan, parse_reply, plan_as_chosen
from kernelforge.records import Candidate

PLAN = """# tune: BLOCK = 128 | 256 | 512
#tune:WIDTH=-1|2
TILE = BLOCK * 2  # tune: DEPTH = 1 | 3
LABEL = "# tune: BLOCK = 128 | 256 | 512"

def forward(x):
    out = empty_like(x)
    k[1, BLOCK](x, out)
    return out
"""


def candidate(plan: str = PLAN, **choices: int) -> Candidate:
    return Candidate(source="__global__ void k(const float* x, float* out) {}", plan=plan, choices=choices)


def test_names_left_out_take_their_first_values() -> None:
    assert chosen_values(candidate()) == {"BLOCK": 128, "WIDTH": -1, "DEPTH": 1}
    assert chosen_values(candidate(DEPTH=3)) == {"BLOCK": 128, "WIDTH": -1, "DEPTH": 3}
    assert chosen_values(candidate("no plan at all", BLOCK=7)) == {"BLOCK": 7}


def test_the_chosen_value_goes_first_and_nothing_else_changes() -> None:
    plan = plan_as_chosen(candidate(BLOCK=256, WIDTH=2, DEPTH=3))
    assert plan.split("\n")[:4] == [
        "# tune: BLOCK = 256 | 128 | 512",
        "# tune: WIDTH = 2 | -1",
        "TILE = BLOCK * 2  # tune: DEPTH = 3 | 1",
        'LABEL = "# tune: BLOCK = 128 | 256 | 512"',
    ]
    assert plan.split("\n")[4:] == PLAN.split("\n")[4:]
    assert parse_plan(plan).constants == parse_plan(PLAN).constants_at({"BLOCK": 256, "WIDTH": 2, "DEPTH": 3})


def test_a_plan_that_already_takes_its_choices_or_cannot_be_read_stays() -> None:
    assert plan_as_chosen(candidate()) == PLAN
    assert plan_as_chosen(candidate(BLOCK=128, WIDTH=-1)) == PLAN
    assert plan_as_chosen(candidate("# tune: BLOCK = 1 | x\n§", BLOCK=2)) == "# tune: BLOCK = 1 | x\n§"
    assert plan_as_chosen(candidate(BLOCK=999)) == PLAN


def test_a_reply_gives_the_choice_back() -> None:
    tuned = candidate(BLOCK=512, DEPTH=3)
    read = parse_reply(format_reply(tuned))
    assert read.choices == {}
    assert chosen_values(read) == chosen_values(tuned)
    assert read.hash != tuned.hash
    assert sorted(map(sorted, map(dict.items, parse_plan(read.plan).combinations))) == sorted(
        map(sorted, map(dict.items, parse_plan(PLAN).combinations))
    )
