"""The protocol on a simulated GPU: whom it times, in which order, when it stops, and how true its ratio is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kernelforge.devices.base import RunFailed
from kernelforge.errors import TimingError
from kernelforge.evaluation.timing import SamplePlan, measure
from kernelforge.evaluation.timing.protocol import EAGER_ROUNDS, MIN_ROUNDS
from kernelforge.evaluation.timing.sampler import KEPT_SAMPLES
from kernelforge.records import MeasureSettings, Timing
from tests.evaluation.timing.simulated_gpu import FaultySide, SimulatedSide, World

TRUTH = 1.25
UNFLUSHED, FLUSHED = SamplePlan(4, 0), SamplePlan(4, 1 << 20, flush_each=True)
Step = tuple[str, str, int]


def timed(
    world: World,
    *,
    baselines: dict[str, float] | None = None,
    seed: int = 0,
    settings: MeasureSettings | None = None,
    flush_us: float = 0.0,
    flush_each: bool = True,
    sets: int = 4,
    execution_us: float = 800.0,
    **noise: Any,
) -> Timing:
    """A candidate of ``execution_us`` against baselines that take so many times as long."""

    def side(name: str, factor: float) -> SimulatedSide:
        flush = {"flush_us": flush_us, "flush_each": flush_each}
        return SimulatedSide(world, name, execution_us * factor, sets=sets, **flush, **noise)

    slower = {"eager": 2.0, "eager-graph": TRUTH} if baselines is None else baselines
    return run_with(
        world,
        side("candidate", 1.0),
        [side(name, factor) for name, factor in slower.items()],
        SamplePlan(sets, 1 << 20 if flush_us else 0, flush_each=flush_each),
        settings=settings or MeasureSettings(),
        rng=random.Random(seed),
    )


def run_with(
    world: World,
    candidate: SimulatedSide,
    baselines: Sequence[SimulatedSide],
    shape: SamplePlan = UNFLUSHED,
    **changes: Any,
) -> Timing:
    """A candidate against baselines, with the arguments of ``measure`` that are given in place of the usual ones."""
    usual: dict[str, Any] = {
        "settings": MeasureSettings(),
        "set_bytes": 4096,
        "clocks": world.clocks,
        "host_clock": world.clock,
        "between": world.between,
        "rng": random.Random(0),
    }
    return measure(candidate, baselines, shape, **{**usual, **changes})


def coverage(repeats: int, drift: Callable[[float], float] = lambda seconds: 1.0, **options: Any) -> float:
    covered = 0
    for seed in range(repeats):
        ratio = timed(World(seed, drift), seed=seed, baselines={"eager": TRUTH}, **options).ratio("eager")
        assert ratio is not None
        covered += ratio.interval[0] <= TRUTH <= ratio.interval[1]
    return covered / repeats


def rounds_of(log: list[Step]) -> list[list[Step]]:
    """Events after each call of ``between``."""
    rounds: list[list[Step]] = []
    for step in log:
        if step[1] == "between":
            rounds.append([])
        elif rounds:
            rounds[-1].append(step)
    return rounds


def blocks(steps: list[Step]) -> list[str]:
    return [who for who, what, samples in steps if what in ("block", "gaps") and samples > 1]


@pytest.mark.slow
def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    assert coverage(200) >= 0.9


@pytest.mark.slow
def test_a_drift_that_both_sides_share_cancels() -> None:
    assert coverage(24, lambda seconds: 1 + 0.2 * seconds) >= 0.9


@pytest.mark.slow
def test_throttling_in_steps_cancels() -> None:
    assert coverage(12, lambda seconds: 1.12 if seconds % 0.37 > 0.2 else 1.0) >= 0.9


def test_a_flush_is_subtracted_even_when_it_drifts_and_is_most_of_a_sample() -> None:
    steady = timed(World(3, lambda seconds: 1 + 0.02 * seconds), flush_us=250.0, execution_us=30.0, sets=8)
    assert steady.candidate.median_us == pytest.approx(30, rel=0.25)
    ratio = steady.ratio("eager-graph")
    assert ratio is not None
    assert ratio.speedup == pytest.approx(TRUTH, rel=0.06)
    assert ratio.interval[0] <= TRUTH <= ratio.interval[1]


def test_one_flush_and_the_resets_of_all_sets_are_subtracted_as_well() -> None:
    steady = timed(World(3), flush_us=30.0, flush_each=False, reset_us=4.0, execution_us=12.0, sets=5)
    assert steady.candidate.median_us == pytest.approx(12, rel=0.05)
    ratio = steady.ratio("eager-graph")
    assert ratio is not None
    assert ratio.speedup == pytest.approx(TRUTH, rel=0.05)


def test_resets_that_hide_the_work_are_an_error() -> None:
    with pytest.raises(TimingError, match="cannot be distinguished from none"):
        timed(World(2), flush_us=30.0, reset_us=20_000.0, execution_us=0.001)


def test_the_fastest_baseline_is_compared_with_and_eager_beside_it() -> None:
    timing = timed(World(1), baselines={"eager": 2.0, "compile": 1.5, "eager-graph": TRUTH})
    assert timing.fastest == "eager-graph"
    assert [side.name for side in timing.baselines] == ["eager", "compile", "eager-graph"]
    assert {ratio.baseline for ratio in timing.ratios} == {"eager", "eager-graph"}
    eager = timing.ratio("eager")
    assert eager is not None
    assert eager.blocks == 2 * EAGER_ROUNDS
    assert eager.interval[0] <= 2.0 <= eager.interval[1]


def test_eager_as_the_fastest_is_compared_with_once() -> None:
    timing = timed(World(1), baselines={"eager": 1.1, "compile": 1.5})
    assert timing.fastest == "eager"
    assert [ratio.baseline for ratio in timing.ratios] == ["eager"]


def test_blocks_come_in_the_order_abba_and_who_begins_is_left_to_chance() -> None:
    world = World(2)
    timed(world, baselines={"eager": TRUTH}, seed=4)
    orders = [blocks(steps)[:4] for steps in rounds_of(world.log)]
    assert len(orders) >= MIN_ROUNDS
    for first, second, third, fourth in orders:
        assert first == fourth != second == third
    assert {order[0] for order in orders} == {"candidate", "eager"}


def test_flushes_lie_symmetrically_in_a_round() -> None:
    world = World(2)
    timed(world, baselines={"eager": TRUTH}, flush_us=50.0)
    steps = [(who, what) for who, what, _ in rounds_of(world.log)[0]][1:9]
    a, b = steps[0][0], steps[2][0]
    assert steps == [
        *[(a, "block"), (a, "flush"), (b, "block"), (b, "flush")],
        *[(b, "flush"), (b, "block"), (a, "flush"), (a, "block")],
    ]


def test_a_block_is_at_least_20_ms_long() -> None:
    world = World(2, lambda seconds: 1 / (1 + 0.02 * seconds))
    timed(world, execution_us=70.0)
    lengths = {"candidate": 4 * 70.0, "eager": 8 * 70.0, "eager-graph": 4 * TRUTH * 70.0}
    for who, _, samples in itertools.chain(*rounds_of(world.log)):
        assert samples == 1 or samples * lengths[who] >= 20_000


def test_between_and_clocks_are_never_called_within_a_block() -> None:
    """The simulation asserts it; here, that they are called at all, and that two rounds never follow without."""
    world = World(2)
    timing = timed(world, baselines={"eager": TRUTH})
    rounds = [steps for steps in rounds_of(world.log) if steps]
    assert len(rounds) == sum(what == "between" for _, what, _ in world.log)
    assert timing.ratios[0].blocks == 2 * len(rounds)
    assert timing.clocks is not None


def test_the_same_seed_gives_the_same_timing_and_another_gives_another() -> None:
    first, second, other = timed(World(5), seed=9), timed(World(5), seed=9), timed(World(5), seed=10)
    assert first == second
    assert first != other


def test_it_ends_when_the_ratio_is_known_and_not_before() -> None:
    calm = timed(World(2), noise=0.001, slow_noise=0.001)
    wild = timed(World(2), noise=0.05, slow_noise=0.015)
    assert calm.settled
    assert wild.settled
    assert wild.ratios[0].blocks > calm.ratios[0].blocks >= 2 * MIN_ROUNDS
    for timing in (calm, wild):
        ratio = timing.ratios[0]
        assert (ratio.interval[1] - ratio.interval[0]) / 2 <= 0.01 * ratio.speedup


def test_the_budget_ends_it_unsettled() -> None:
    world = World(1)
    timing = timed(world, settings=MeasureSettings(precision=1e-4, seconds=2.0))
    assert not timing.settled
    assert timing.budget_s == 2.0
    # What is under way is finished: at most a round, and the comparison of the clocks.
    assert world.seconds < 2.0 + 0.5


def test_a_budget_that_is_too_small_for_anything_still_gives_intervals() -> None:
    timing = timed(World(1), settings=MeasureSettings(seconds=1e-3), execution_us=50_000.0)
    assert not timing.settled
    assert [ratio.blocks for ratio in timing.ratios] == [4, 4]
    assert timing.ratios[0].interval[0] <= TRUTH <= timing.ratios[0].interval[1]


def test_a_candidate_without_baselines_has_a_time_and_no_ratio() -> None:
    timing = timed(World(1), baselines={})
    assert (timing.fastest, timing.ratios, timing.settled) == (None, (), True)
    assert timing.candidate.interval_us[0] <= 802 <= timing.candidate.interval_us[1] * 1.01


def test_the_record_holds_a_bounded_number_of_samples_of_a_side() -> None:
    timing = timed(World(1), execution_us=15.0)
    assert len(timing.candidate.samples_us) == KEPT_SAMPLES
    assert timing.candidate.median_us == pytest.approx(15, rel=0.02)


def test_what_was_armed_is_recorded() -> None:
    timing = timed(World(1), captured=False, flush_us=20.0)
    assert timing.protocol == "launch/1"
    assert (timing.sets, timing.flush_bytes, timing.flush_each, timing.set_bytes) == (4, 1 << 20, True, 4096)
    assert not timed(World(1), flush_us=20.0, flush_each=False).flush_each
    assert timed(World(1)).protocol == "graph/1"


def test_server_mode_leaves_random_gaps_that_do_not_count() -> None:
    world = World(6)
    settings = MeasureSettings(qps=200.0, seconds=20.0)
    timing = timed(world, settings=settings, sets=1)
    assert (timing.protocol, timing.mode) == ("graph/1+server", "server")
    assert timing.candidate.median_us == pytest.approx(800, rel=0.02)
    assert timing.host is not None
    assert timing.host.agrees
    assert any(what == "gaps" for _, what, _ in world.log)
    means = world.gaps_us
    assert sum(means) / len(means) == pytest.approx(5000, rel=0.2)
    assert len(set(means)) == len(means)


def test_server_mode_times_single_requests_only() -> None:
    with pytest.raises(ValueError, match="limit=1"):
        timed(World(1), settings=MeasureSettings(qps=10.0), sets=2)


def test_two_sides_of_one_name_are_refused() -> None:
    world = World(1)
    with pytest.raises(ValueError, match="names of their own"):
        timed(world, baselines={"candidate": 2.0})


@pytest.mark.parametrize("wrong", [0.0, -3.0, float("nan"), float("inf")])
def test_times_that_cannot_be_are_an_error_and_no_score(wrong: float) -> None:
    with pytest.raises(TimingError, match="is no time"):
        timed(World(1), claims=wrong)


def test_a_flush_that_hides_the_work_is_an_error() -> None:
    with pytest.raises(TimingError, match="cannot be distinguished from none"):
        timed(World(1), flush_us=20.0, flush_claims=50.0)


def test_a_side_that_answers_with_too_few_samples_is_an_error() -> None:
    world = World(1)
    with pytest.raises(TimingError, match="came back"):
        run_with(world, FaultySide(world, "candidate", 100.0, short_after=1), [SimulatedSide(world, "eager", 200.0)])


@pytest.mark.parametrize("after", [0, 3])
def test_a_baseline_that_faults_at_first_is_left_out_with_a_note(after: int) -> None:
    world = World(1)
    sides = [FaultySide(world, "compile", 50.0, faults_after=after), SimulatedSide(world, "eager", 200.0)]
    timing = run_with(world, SimulatedSide(world, "candidate", 100.0), sides, clocks=lambda: None)
    assert timing.fastest == "eager"
    assert [side.name for side in timing.baselines] == ["eager"]
    assert timing.absent == {"compile": "illegal address"}
    assert timing.notes == ()
    assert timing.clocks is None


@pytest.mark.parametrize("after", [7, 9, 14])
def test_a_baseline_that_faults_while_it_is_compared_with_costs_the_candidate_nothing(after: int) -> None:
    """The next fastest takes its place; without any the candidate has its time alone."""
    world = World(1)
    sides = [FaultySide(world, "compile", 150.0, faults_after=after), SimulatedSide(world, "eager", 200.0)]
    timing = run_with(world, SimulatedSide(world, "candidate", 100.0), sides)
    assert timing.fastest == "eager"
    assert [ratio.baseline for ratio in timing.ratios] == ["eager"]
    assert timing.absent == {"compile": "illegal address"}
    world = World(1)
    alone = run_with(
        world, SimulatedSide(world, "candidate", 100.0), [FaultySide(world, "eager", 200.0, faults_after=after)]
    )
    assert (alone.fastest, alone.ratios, alone.baselines) == (None, (), ())
    assert alone.candidate.median_us == pytest.approx(100, rel=0.02)
    assert alone.absent == {"eager": "illegal address"}


def test_eager_that_faults_beside_the_fastest_loses_its_ratio_alone() -> None:
    world = World(1)
    sides = [SimulatedSide(world, "compile", 150.0), FaultySide(world, "eager", 400.0, faults_after=8)]
    timing = run_with(world, SimulatedSide(world, "candidate", 100.0), sides)
    assert [ratio.baseline for ratio in timing.ratios] == ["compile"]
    assert timing.absent == {"eager": "illegal address"}


def test_a_baseline_that_cannot_be_had_is_told_with_its_reason() -> None:
    world = World(1)
    sides = [SimulatedSide(world, "compile", 150.0, unbuildable="no C compiler"), SimulatedSide(world, "eager", 200.0)]
    timing = run_with(world, SimulatedSide(world, "candidate", 100.0), sides)
    assert timing.absent == {"compile": "no C compiler"}
    assert timing.fastest == "eager"


@pytest.mark.parametrize("wrong", [{"claims": 0.0}, {"claims": float("nan")}, {"short_after": 0}, {"short_after": 3}])
def test_times_of_a_baseline_that_cannot_be_cost_the_candidate_nothing(wrong: dict[str, Any]) -> None:
    world = World(1)
    sides = [FaultySide(world, "compile", 150.0, **wrong), SimulatedSide(world, "eager", 200.0)]
    timing = run_with(world, SimulatedSide(world, "candidate", 100.0), sides)
    assert list(timing.absent) == ["compile"]
    assert timing.fastest == "eager"


def test_a_baseline_that_its_overhead_hides_costs_the_candidate_nothing() -> None:
    world = World(1)
    hidden = SimulatedSide(world, "compile", 0.001, flush_us=30.0, flush_claims=50.0)
    timing = run_with(
        world,
        SimulatedSide(world, "candidate", 100.0, flush_us=30.0),
        [hidden, SimulatedSide(world, "eager", 200.0, flush_us=30.0)],
        FLUSHED,
    )
    assert "cannot be distinguished from none" in timing.absent["compile"]
    assert timing.fastest == "eager"


def test_a_baseline_that_its_overhead_hides_later_costs_the_candidate_nothing() -> None:
    """eager is hidden once it takes turns with compile, and is the next to compare with when compile faults."""
    world = World(1)
    flushed = {"flush_us": 30.0}
    compiled = FaultySide(world, "compile", 195.0, faults_after=9, **flushed)
    eager = FaultySide(world, "eager", 200.0, hidden_after=7, **flushed)
    timing = run_with(
        world,
        SimulatedSide(world, "candidate", 100.0, **flushed),
        [compiled, eager],
        FLUSHED,
    )
    assert list(timing.absent) == ["compile", "eager"]
    assert timing.absent["compile"] == "illegal address"
    assert "cannot be distinguished from none" in timing.absent["eager"]
    assert (timing.fastest, timing.ratios, timing.baselines) == (None, (), ())
    assert timing.candidate.median_us == pytest.approx(100, rel=0.05)


def test_baselines_are_in_memory_one_after_the_other() -> None:
    """In the quick pass one at a time; then those that take turns, and eager next to the fastest."""
    world = World(1)
    timed(world, baselines={"eager": 4.0, "a": 3.0, "b": 2.6, "c": 2.0, "d": 1.5, "e": 1.45})
    snapshots = world.in_memory
    assert max(map(len, snapshots)) == 2
    quick = snapshots[: 2 * 6]
    assert [names for names in quick if names] == [{"eager"}, {"a"}, {"b"}, {"c"}, {"d"}, {"e"}]
    assert {"d", "e"} in snapshots[12:], "these were near each other"
    assert {"e", "eager"} in snapshots[12:]
    assert snapshots[-1] == set()


def test_building_a_baseline_takes_nothing_of_the_time_for_measuring() -> None:
    world = World(1)
    sides = [SimulatedSide(world, name, 200.0, build_s=60.0) for name in ("eager", "compile")]
    timing = run_with(world, SimulatedSide(world, "candidate", 100.0), sides)
    assert timing.settled
    assert timing.ratios[0].blocks >= 2 * MIN_ROUNDS


def test_two_baselines_that_are_near_take_turns_whatever_the_clock_did_before() -> None:
    """The clock falls by a tenth while baselines are timed one after the other, so that the first looks the fastest."""
    for seed in range(5):
        world = World(seed, lambda seconds: 1 + 0.08 * min(seconds / 0.3, 1.0))
        timing = timed(world, baselines={"slower": 1.30, "other": 2.0, "faster": TRUTH}, noise=0.001, slow_noise=0.001)
        assert timing.fastest == "faster"


def test_the_figure_for_the_reader_is_never_what_the_speedup_is_against() -> None:
    timing = timed(World(1), baselines={"eager": 2.0, "eager-synchronised": 1.1})
    assert timing.fastest == "eager"
    assert [side.name for side in timing.baselines] == ["eager", "eager-synchronised"]
    assert [ratio.baseline for ratio in timing.ratios] == ["eager"]


@pytest.mark.parametrize("gap_us", [0.6, 1.3])
def test_what_a_place_in_the_graph_costs_is_found_and_not_subtracted(gap_us: float) -> None:
    """A kernel of 2 us reads as 2 and the gap; one of five kernels pays for five."""
    world = World(4)
    shape = {"sets": 8, "flush_us": 30.0, "noise": 1e-4, "slow_noise": 1e-5, "outliers": 0.0, "node_gap_us": gap_us}
    timing = run_with(
        world,
        SimulatedSide(world, "candidate", 2.0, **shape),  # type: ignore[arg-type]
        [SimulatedSide(world, "eager-graph", 4.0, nodes=5, **shape)],  # type: ignore[arg-type]
        replace(FLUSHED, sets=8),
    )
    for side, truth, kernels in ((timing.candidate, 2.0, 1), (timing.baselines[0], 4.0, 5)):
        assert side.node_gap_us == pytest.approx(gap_us, abs=0.05)
        assert side.median_us == pytest.approx(truth + kernels * gap_us, abs=0.1)


def test_without_a_flush_there_is_no_figure_of_what_a_place_costs() -> None:
    assert timed(World(1)).candidate.node_gap_us is None


def test_a_candidate_that_faults_while_it_is_compared_is_told_so() -> None:
    world = World(1)
    with pytest.raises(RunFailed, match="illegal address"):
        run_with(world, FaultySide(world, "candidate", 100.0, faults_after=5), [SimulatedSide(world, "eager", 200.0)])


def test_energy_is_above_idle_power_and_without_flushes() -> None:
    world = World()
    candidate = SimulatedSide(world, "candidate", 100.0, flush_us=40.0, watts=300.0, overhead_watts=150.0)
    eager = SimulatedSide(world, "eager", 200.0, flush_us=40.0, watts=250.0, overhead_watts=150.0)
    settings = MeasureSettings(energy=True)
    timing = run_with(
        world, candidate, [eager], FLUSHED, settings=settings, energy=world.energy_j, wait=world.wait
    )  # fmt: skip
    assert [side.name for side in timing.energy] == ["candidate", "eager"]
    for side, joules in zip(timing.energy, (300.0 * 100e-6, 250.0 * 200e-6), strict=True):
        assert side.joules == pytest.approx(joules, rel=1e-3)
        assert side.interval[0] <= joules * 1.001
        assert side.interval[1] >= joules * 0.999
        assert side.idle_w == pytest.approx(70.0)
    assert timing.energy_ratio == pytest.approx(50 / 30, rel=1e-3)
    assert world.in_memory[-1] == set()


def test_energy_that_cannot_be_measured_is_left_out_with_the_reason() -> None:
    def energy_of(counter: Callable[[], float | None], watts: float, on: bool = True) -> Timing:
        sides = [SimulatedSide(world, name, 100.0, watts=watts) for name in ("candidate", "eager")]
        settings = MeasureSettings(energy=on)
        return run_with(world, sides[0], sides[1:], settings=settings, energy=counter, wait=world.wait)

    world = World()
    assert energy_of(world.energy_j, 300.0, on=False).energy == ()
    for counter, watts, why in (
        (lambda: None, 300.0, "this GPU does not report its energy"),
        (world.energy_j, 0.0, "is within that of idling"),
        (lambda: -world.seconds, 300.0, "ran backwards"),
    ):
        timing = energy_of(counter, watts)
        assert timing.energy == ()
        assert timing.energy_ratio is None
        assert any(note.startswith("energy: ") and why in note for note in timing.notes)
        assert timing.ratio("eager") is not None


def test_energy_is_not_measured_by_the_published_protocol() -> None:
    with pytest.raises(ValueError, match="energy is measured by the protocol kernelforge alone"):
        MeasureSettings(energy=True, protocol="kernelbench")
