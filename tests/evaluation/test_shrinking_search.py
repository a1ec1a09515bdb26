"""The search for sizes, against references that are a rule on extents and a cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.errors import TaskError
from kernelforge.evaluation.size_search.extents import Extent
from kernelforge.evaluation.size_search.search import (
    TILES,
    Bounds,
    Ceiling,
    Chosen,
    Cost,
    ExtentSearch,
    TooLarge,
    TrialOutcome,
    scaled_together,
)

Rule = Callable[[Mapping[str, int]], object]


def searched(
    full: Mapping[str, int],
    rule: Rule = lambda v: True,
    elements: Callable[[Mapping[str, int]], int] | None = None,
    *,
    flops: Callable[[Mapping[str, int]], int] = lambda v: 0,
    index_bounds: tuple[str, ...] = (),
    others: tuple[int, ...] = (),
    counts: tuple[str, ...] = (),
    bounds: Bounds | None = None,
) -> Chosen:
    """The choice for a reference that raises unless ``rule`` holds and has ``elements`` elements and ``flops``."""
    extents = [
        Extent((name,), value, is_index_bound=name in index_bounds, is_count=name in counts)
        for name, value in full.items()
    ]

    def run(constants: Mapping[str, float], *, ceiling: Ceiling, near: bool) -> TrialOutcome:
        values = {name: int(value) for name, value in constants.items()}
        if not rule(values):
            return TrialOutcome(None, "sizes do not fit")
        count = elements(values) if elements else math.prod(values.values())
        cost = Cost(elements=count, bytes=4 * count, outputs=count, work=count, calls=1, flops=flops(values))
        cost = cost.model_copy(update={"ran": near or ceiling.holds(cost)})
        return TrialOutcome(cost)

    return ExtentSearch(extents, run, bounds or Bounds(), others).choose()


def test_free_extents_get_odd_quad_and_tiny_sizes_within_the_bounds() -> None:
    sizes = searched({"ROWS": 4096, "COLS": 393216}).sizes
    assert set(sizes) == {"small", "hidden_odd", "hidden_quad", "hidden_tiny"}
    assert all(math.prod(values.values()) <= Bounds().reach.elements for values in sizes.values())
    assert math.prod(sizes["small"].values()) <= Bounds().base.elements
    assert all(value % 2 for value in sizes["hidden_odd"].values())
    assert sizes["hidden_odd"]["COLS"] > 1024
    assert all(value % 4 == 0 and value % 16 for value in sizes["hidden_quad"].values())
    assert all(1 < value < 32 for value in sizes["hidden_tiny"].values())
    assert len({tuple(values.values()) for values in sizes.values()}) == 4


def test_extents_that_could_be_mistaken_for_each_other_are_not_equal() -> None:
    sizes = searched({"M": 4096, "K": 4096, "N": 4096}, elements=lambda v: v["M"] * v["K"] + v["K"] * v["N"]).sizes
    assert all(len(set(values.values())) == 3 for values in sizes.values())


def test_small_tells_equal_extents_apart_where_the_bounds_leave_room_for_two_more_alone() -> None:
    # KernelBench 3/48: X and Y of batch x length x heads x head, A, B and C; 12 instead of 8 is above the bounds.
    full = {"BATCH": 2048, "LENGTH": 128, "HEADS": 8, "HEAD": 64, "STATE": 16, "BLOCK": 64}

    def elements(v: Mapping[str, int]) -> int:
        return v["BATCH"] * v["LENGTH"] * v["HEADS"] * (2 * v["HEAD"] + 2 * v["STATE"] + 1)

    small = searched(full, lambda v: v["LENGTH"] % v["BLOCK"] == 0, elements).sizes["small"]
    assert small == {"BATCH": 64, "LENGTH": 16, "HEADS": 4, "HEAD": 10, "STATE": 4, "BLOCK": 8}


@pytest.mark.parametrize(("divisor", "small"), [(1, {6, 4, 2}), (4, {4})])
def test_small_moves_extents_apart_by_what_divides_them_alone(divisor: int, small: set[int]) -> None:
    full = {"A": 64, "B": 64, "C": 64}
    bounds = replace(Bounds(), base=replace(Bounds().base, elements=64))
    sizes = searched(full, lambda v: all(value % divisor == 0 for value in v.values()), bounds=bounds).sizes
    assert set(sizes["small"].values()) == small


def test_equal_extents_that_must_stay_equal_do() -> None:
    sizes = searched({"A": 1024, "B": 1024, "C": 512}, lambda v: v["A"] == v["B"]).sizes
    assert len(sizes) >= 4
    assert all(values["A"] == values["B"] for values in sizes.values())


def test_what_divides_still_divides_and_groups_become_odd_too() -> None:
    sizes = searched({"CHANNELS": 64, "GROUPS": 8, "LENGTH": 4096}, lambda v: v["CHANNELS"] % v["GROUPS"] == 0).sizes
    assert all(values["CHANNELS"] % values["GROUPS"] == 0 for values in sizes.values())
    assert sizes["hidden_odd"]["CHANNELS"] % 2
    assert sizes["hidden_odd"]["GROUPS"] > 1


def test_a_fixed_divisor_is_found_among_the_other_constants() -> None:
    sizes = searched({"EMBED": 384, "LENGTH": 512}, lambda v: v["EMBED"] % 6 == 0, others=(6,)).sizes
    assert all(values["EMBED"] % 6 == 0 for values in sizes.values())
    assert len({values["EMBED"] for values in sizes.values()}) > 2


def test_an_upper_bound_of_another_extent_is_kept() -> None:
    sizes = searched({"LONGEST": 1024, "LENGTH": 512, "WIDTH": 768}, lambda v: v["LENGTH"] <= v["LONGEST"]).sizes
    assert len(sizes) >= 4
    assert all(values["LENGTH"] <= values["LONGEST"] for values in sizes.values())


def test_an_extent_that_must_stay_large_lets_the_others_shrink() -> None:
    sizes = searched({"BATCH": 128, "WIDTH": 224}, lambda v: v["WIDTH"] >= 200, lambda v: v["BATCH"] * v["WIDTH"] ** 2)
    assert all(values["BATCH"] * values["WIDTH"] ** 2 <= Bounds().base.elements for values in sizes.sizes.values())


def test_an_extent_that_allows_no_other_value_is_said_to_stay() -> None:
    result = searched({"BATCH": 4096, "WIDTH": 224}, lambda v: v["WIDTH"] == 224)
    assert all(values["WIDTH"] == 224 for values in result.sizes.values())
    assert any(note.startswith("WIDTH cannot vary") for note in result.notes)


def test_below_an_index_bound_equal_extents_stay_equal_though_a_lucky_draw_would_let_them_differ() -> None:
    full = {"CLASSES": 1000, "WIDTH": 1000, "BATCH": 512}
    sizes = searched(full, lambda v: v["CLASSES"] <= v["WIDTH"], index_bounds=("CLASSES",)).sizes
    assert all(values["CLASSES"] == values["WIDTH"] for values in sizes.values())


def test_a_reference_without_extents_has_small_and_nothing_hidden() -> None:
    result = searched({}, elements=lambda v: 100)
    assert result.sizes == {"small": {}}
    assert "no hidden sizes" in result.notes[0]


def test_a_count_of_weights_stays_as_it_is() -> None:
    result = searched({"LAYERS": 23, "BATCH": 512, "WIDTH": 256}, counts=("LAYERS",))
    assert len(result.sizes) >= 4
    assert all(values["LAYERS"] == 23 for values in result.sizes.values())
    assert not result.notes
    assert searched({"LAYERS": 23}, counts=("LAYERS",)).sizes == {"small": {"LAYERS": 23}}


def test_beside_weights_above_the_bounds_an_axis_is_as_long_as_the_other_bounds_allow() -> None:
    def small(factor: int) -> int:
        sizes = searched(
            {"WIDTH": 224},
            elements=lambda v: (1 << 24) + v["WIDTH"] ** 2,
            flops=lambda v: 100_000 * v["WIDTH"] ** 2,
            bounds=Bounds().times(factor),
        ).sizes
        return sizes["small"]["WIDTH"]

    # 10 million and 640 million operations.
    assert small(1) <= 10
    assert 40 <= small(64) <= 80


def test_filled_bounds_take_an_extent_between_its_powers_of_two_and_its_full_value() -> None:
    def small(bounds: Bounds) -> int:
        return searched({"WIDTH": 224}, flops=lambda v: 100_000 * v["WIDTH"] ** 2, bounds=bounds).sizes["small"][
            "WIDTH"
        ]

    assert small(Bounds().times(128)) == 32
    assert small(Bounds().times(128, filled=True)) == 112
    assert small(Bounds().times(1 << 20, filled=True)) == 224


def test_what_stays_above_the_bounds_has_sizes_and_what_stays_out_of_reach_is_refused() -> None:
    heavy = searched({"BATCH": 64}, elements=lambda v: (1 << 25) + v["BATCH"])
    assert heavy.heavy
    assert "hidden_odd" in heavy.sizes
    with pytest.raises(TooLarge, match="too much to be checked"):
        searched({"BATCH": 64}, elements=lambda v: 1 << 40)


def test_what_is_far_above_the_bounds_has_as_many_hidden_sizes_as_can_be_judged() -> None:
    network = searched(
        {"BATCH": 10}, elements=lambda v: (1 << 25) + v["BATCH"], flops=lambda v: 30 * 10**9 * v["BATCH"]
    )
    assert network.heavy
    assert network.sizes == {"small": {"BATCH": 2}, "hidden_odd": {"BATCH": 3}}
    assert "no hidden_quad: it takes too many operations to be judged" in network.notes


def test_a_reference_that_always_raises_is_refused_with_its_own_words() -> None:
    with pytest.raises(TaskError, match="sizes do not fit"):
        searched({"ROWS": 64}, lambda v: False)


def crossed(sizes: Mapping[str, Mapping[str, int]], name: str, tile: int) -> bool:
    """Whether some hidden size has a whole tile and a part of the next along an axis."""
    return any(v[name] > tile and v[name] % tile for size, v in sizes.items() if size.startswith("hidden"))


def test_every_axis_crosses_each_tile_that_it_has_at_the_full_size() -> None:
    full = {"M": 2048, "K": 8192, "N": 96}
    sizes = searched(
        full,
        elements=lambda v: v["M"] * v["K"] + v["K"] * v["N"] + v["M"] * v["N"],
        flops=lambda v: 2 * v["M"] * v["K"] * v["N"],
    ).sizes
    assert {(name, tile) for name in full for tile in TILES if not crossed(sizes, name, tile)} == {
        ("N", 128),
        ("N", 256),
    }


def test_axes_that_cannot_all_be_long_at_once_are_long_at_several_sizes() -> None:
    full = {"BATCH": 512, "CHANNELS": 512, "HEIGHT": 512, "WIDTH": 512}
    sizes = searched(full).sizes
    assert set(sizes) - {"small", "hidden_odd", "hidden_quad", "hidden_tiny"} <= {"hidden_wide1", "hidden_wide2"}
    assert "hidden_wide1" in sizes
    assert all(crossed(sizes, name, 256) for name in full)


def test_groups_keep_several_channels() -> None:
    full = {"BATCH": 1024, "IN": 8192, "OUT": 8192, "GROUPS": 512}
    sizes = searched(full, lambda v: v["OUT"] % v["GROUPS"] == 0, lambda v: (v["BATCH"] + v["OUT"]) * v["IN"]).sizes
    assert sizes["small"]["OUT"] >= 4 * sizes["small"]["GROUPS"]


def test_a_base_above_the_bounds_is_searched_on_shapes_alone_and_what_is_taken_is_run() -> None:
    runs = []

    def run(constants: Mapping[str, float], *, ceiling: Ceiling, near: bool) -> TrialOutcome:
        cost = Cost(elements=1 << 25, bytes=1 << 27, outputs=1, work=1 << 20, calls=1, flops=0)
        if ceiling.holds(cost):
            runs.append(dict(constants))
            cost = cost.model_copy(update={"ran": True})
        return TrialOutcome(cost)

    result = ExtentSearch([Extent(("CLASSES",), 1000)], run).choose()
    assert all(values in runs for values in result.sizes.values())
    assert len(runs) <= 1 + len(result.sizes)


@pytest.mark.slow
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=4), st.integers(1, 40), st.sampled_from([4, 16, 64, 512]))
def test_scaling_keeps_equality_and_divisibility_and_never_enlarges(values: list[int], times: int, cap: int) -> None:
    full = (*values, values[0] * times, values[0])
    scaled = scaled_together(full, cap)
    assert all(1 <= small <= large for small, large in zip(scaled, full, strict=True))
    assert scaled[0] == scaled[-1]
    assert scaled[-2] % scaled[0] == 0 or values[0] < 16


def test_a_divisor_stays_smaller_than_what_it_divides() -> None:
    assert scaled_together((8192, 512), 64) == (64, 16)
    assert scaled_together((8192, 512), 4) == (4, 4)
    assert scaled_together((64, 8, 8), 16) == (16, 4, 4)
