"""A measured profile and the emulator's of the same run: what is taken from which, and under which origin."""

from __future__ import annotations

from typing import Any

from kernelforge.profiling.counts import has_ptx_counts, with_counts
from kernelforge.records import KernelProfile, MemoryHotSpot, Metric, Origin, Profile, Roofline

DRAM, PTX, LIMIT, TIME = "dram__bytes.sum", "ptx__warp_inst_executed.sum", "kernelforge__limit_dram_us", "gpu__time"


def metric(name: str, value: float, origin: Origin) -> Metric:
    return Metric(name=name, value=value, unit="1", origin=origin)


def kernel(name: str, *metrics: Metric, **changes: Any) -> KernelProfile:
    fields: dict[str, Any] = {"launches": 1, "grid": (4, 1, 1), "block": (32, 1, 1), "sampled": 1.0}
    return KernelProfile(kernel=name, metrics=metrics, **(fields | changes))


def profile(device: str, kernels: tuple[KernelProfile, ...], metrics: tuple[Metric, ...], **roof: Any) -> Profile:
    measured = device.startswith("cuda")
    fields: dict[str, Any] = {
        "flops": 100.0, "dram_bytes": 50.0, "compulsory_bytes": 40.0, "arithmetic_intensity": 2.0, "ridge": 10.0,
        "bound": "dram", "time_us": 7.0 if measured else 3.0,
        "time_origin": Origin.MEASURED if measured else Origin.MODELLED,
    }  # fmt: skip
    notes = ("ncu said so.",) if measured else ()
    roofline = Roofline(**(fields | roof))
    return Profile(size="full", device=device, kernels=kernels, metrics=metrics, roofline=roofline, notes=notes)


MEASURED = (metric(DRAM, 64.0, Origin.MEASURED), metric(TIME, 7e3, Origin.MEASURED))
EMULATED = (
    metric(DRAM, 60.0, Origin.MODELLED),
    metric(PTX, 9.0, Origin.COUNTED),
    metric(LIMIT, 1.5, Origin.MODELLED),
)
SPOT = MemoryHotSpot(
    source_line=3, opcode="ld", space="global", access="load", requests=1, transactions=4, ideal_transactions=4
)


def gpu(*kernels: KernelProfile, **roof: Any) -> Profile:
    return profile("cuda:0", kernels or (kernel("f", *MEASURED, sampled=0.5),), MEASURED, **roof)


def emulated(*kernels: KernelProfile, **roof: Any) -> Profile:
    return profile("emulated:h100", kernels or (kernel("f", *EMULATED, hot_spots=(SPOT,)),), EMULATED, **roof)


def test_measured_numbers_win_and_every_number_keeps_its_origin() -> None:
    merged = with_counts(gpu(), emulated(), "and the emulator that.")
    for metrics in (merged.metrics, merged.kernels[0].metrics):
        assert {(metric.name, metric.value, metric.origin) for metric in metrics} == {
            (DRAM, 64.0, Origin.MEASURED),
            (TIME, 7e3, Origin.MEASURED),
            (PTX, 9.0, Origin.COUNTED),
            (LIMIT, 1.5, Origin.MODELLED),
        }
        assert len({metric.name for metric in metrics}) == len(metrics)
    assert merged.device == "cuda:0"
    assert merged.notes == ("ncu said so.", "and the emulator that.")


def test_nothing_of_the_emulator_becomes_measured() -> None:
    measured = {metric.name for metric in MEASURED}
    merged = with_counts(gpu(), emulated(kernel("f", *EMULATED), kernel("g", *EMULATED)))
    everything = [*merged.metrics, *(metric for kernel in merged.kernels for metric in kernel.metrics)]
    assert {metric.name for metric in everything if metric.origin is Origin.MEASURED} == measured
    assert [metric.kernel for metric in merged.kernels] == ["f", "g"]


def test_the_rooflines_time_and_traffic_are_the_measured_ones() -> None:
    roofline = with_counts(gpu(), emulated(dram_bytes=999.0, bound="latency")).roofline
    assert (roofline.time_us, roofline.time_origin) == (7.0, Origin.MEASURED)
    assert (roofline.dram_bytes, roofline.bound) == (50.0, "dram")


def test_without_counters_traffic_and_bound_are_the_emulators_and_the_time_is_not() -> None:
    timed = gpu(dram_bytes=0.0, arithmetic_intensity=0.0, bound="unprofiled")
    roofline = with_counts(timed, emulated(dram_bytes=50.0, bound="l2")).roofline
    assert (roofline.dram_bytes, roofline.arithmetic_intensity, roofline.bound) == (50.0, 2.0, "l2")
    assert (roofline.time_us, roofline.time_origin) == (7.0, Origin.MEASURED)


def test_a_kernel_is_sampled_as_little_as_on_the_side_that_ran_less() -> None:
    assert with_counts(gpu(), emulated()).kernels[0].sampled == 0.5
    assert with_counts(gpu(), emulated(kernel("f", *EMULATED, sampled=0.1))).kernels[0].sampled == 0.1


def test_hot_spots_are_the_measured_ones_where_there_are_any() -> None:
    own = SPOT.model_copy(update={"source_line": 8})
    assert with_counts(gpu(), emulated()).kernels[0].hot_spots == (SPOT,)
    assert with_counts(gpu(kernel("f", hot_spots=(own,))), emulated()).kernels[0].hot_spots == (own,)


def test_a_merged_profile_is_known_by_its_counts() -> None:
    assert not has_ptx_counts(gpu())
    assert has_ptx_counts(with_counts(gpu(), emulated()))
