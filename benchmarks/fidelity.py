"""The emulated device against what GPUs measured and others published: counters and times.

    PYTHONPATH=. python benchmarks/fidelity.py emulate OUT [--cases FOLDER] [--only TEXT] [--jobs N]
    PYTHONPATH=. python benchmarks/fidelity.py compare OUT [--cases FOLDER] [--every] [--picture FILE.svg]

FOLDER, by default ``benchmarks/fidelity``, has ``cases.json`` and the sources. A case has the ``source``'s
name; ``entry``, the kernel as an expression of C++; ``grid``, ``block`` and ``dynamic_shared_bytes``; ``args``,
``{"ptr": dtype, "shape": [...], "out": true, "fill": 0}`` or ``{"scalar": dtype, "value": ...}``; the ``gpu`` as its
driver names it; what was measured: ``time_us``, or ``time_us_by_gpu``, and ``expected``, counters by Nsight Compute's
names; its ``provenance``, and the ``group`` or ladder whose times are compared with each other. ``clock_mhz`` is the
clock of the measurement where it is not the boost clock: Nsight Compute locks it at the base. ``warm`` launches find
their data in the L2. ``beside_us_by_gpu`` is what else the measured time holds. Of a ``debug_build`` only memory is
compared.

``emulate`` compiles every source for the GPUs of its cases, profiles each launch as a candidate is, on sampled blocks,
and keeps the counts in OUT, with the builds; it goes on where it was stopped. ``compare`` models the times of those:
per counter the share that is exact and the errors, per ladder and in all how times are ordered (pairs over 10 % apart)
and the mean error without a scale factor, with one per GPU, and with one from the other ladders of that GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fidelity_parts.picture import scatter
from fidelity_parts.scores import Agreement, Order, Times, agreement_of, falls_of, mean_error, order_of, scale_of

from kernelforge.agents.acceptance import APART, TUNED_APART
from kernelforge.hardware.specs import SPECS, DeviceSpec, find_spec

FOLDER = Path(__file__).parent / "fidelity"
OTHER_NAMES = {
    "NVIDIA H100 SXM5 80GB": "h100",
    "NVIDIA H100 (SXM by its bandwidth)": "h100",
}
"""Names in publications that no driver reports."""
COUNTED = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": "",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "",
    "memory_l2_theoretical_sectors_global": "",
    "memory_l1_wavefronts_shared": "sass__shared_wavefronts.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum": "",
    "lts__t_sectors_srcunit_tex_op_write.sum": "",
    "dram__bytes_read.sum": "",
    "dram__bytes_write.sum": "",
    "smsp__inst_executed.sum": "ptx__warp_inst_executed.sum",
}
"""Nsight Compute's counters, and the emulated device's name where that is another."""
EQUAL, OF_SECTORS, OF_L2, OF_DRAM = 1e-6, 1e-4, 0.01, 0.1
TARGETS = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": EQUAL,
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": EQUAL,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": OF_SECTORS,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": OF_SECTORS,
    "memory_l2_theoretical_sectors_global": EQUAL,
    "memory_l1_wavefronts_shared": EQUAL,
    "lts__t_sectors_srcunit_tex_op_read.sum": OF_L2,
    "lts__t_sectors_srcunit_tex_op_write.sum": OF_L2,
    "dram__bytes_read.sum": OF_DRAM,
    "dram__bytes_write.sum": OF_DRAM,
}
"""Errors that these counters should not exceed."""
LEAST_BYTES = 1 << 20
"""Fewer bytes of DRAM than this are not compared: Nsight Compute's own are among them."""


class Launch(NamedTuple):
    """A case on one GPU."""

    case: Mapping[str, Any]
    gpu: str

    @property
    def key(self) -> str:
        return f"{self.case['id']} on {self.gpu}"

    @property
    def ladder(self) -> str:
        return f"{self.case['group']} on {self.gpu}"

    @property
    def spec(self) -> DeviceSpec:
        """The GPU at the clock of the measurement."""
        spec = spec_of(self.gpu)
        clock = self.case.get("clock_mhz")
        return at_clock(spec, clock) if clock else spec

    @property
    def measured_us(self) -> float | None:
        by_gpu = self.case.get("time_us_by_gpu")
        time_us: float | None = by_gpu.get(self.gpu) if by_gpu else self.case.get("time_us")
        return None if self.case.get("debug_build") else time_us


def spec_of(gpu: str) -> DeviceSpec:
    """Figures of a GPU by its name.

    Raises:
        ValueError: there are none.
    """
    spec = SPECS.get(OTHER_NAMES.get(gpu, "")) or find_spec(gpu)
    if spec is None:
        raise ValueError(f"no figures of {gpu}: kernelforge/hardware/gpus.toml has none")
    return spec


def at_clock(spec: DeviceSpec, clock_mhz: float) -> DeviceSpec:
    """A GPU at another clock of its SMs and its L2; its DRAM keeps its own."""
    slower = clock_mhz * 1e6 / spec.clock_hz
    return dataclasses.replace(
        spec,
        max_clock_mhz=round(clock_mhz),
        sustained_clock_share=1.0,
        l2_bandwidth_gbps=spec.l2_bandwidth_gbps * slower,
        fp16_tensor_tflops=spec.fp16_tensor_tflops * slower,
        tf32_tensor_tflops=spec.tf32_tensor_tflops * slower,
        **{name: getattr(spec, name) / slower for name in ATOMIC_TIMES},
    )


ATOMIC_TIMES = ("atomic_ns", "atomic_float_ns", "atomic_sector_ns", "atomic_line_ns")


def launches_of(folder: Path) -> list[Launch]:
    """The cases of a folder, each on every GPU that measured it."""
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))["cases"]
    return [Launch(case, gpu) for case in cases for gpu in case.get("time_us_by_gpu") or [case["gpu"]]]


def contents(argument: Mapping[str, Any], number: int) -> bytes:
    """Bytes of an array argument: one value, or a million drawn ones again and again."""
    dtype = np.dtype(argument["ptr"])
    count = int(np.prod(argument["shape"]))
    if "fill" in argument:
        return np.full(count, argument["fill"], dtype).tobytes()
    rng = np.random.default_rng(number)
    part = min(count, 1 << 20)
    drawn = rng.random(part, np.float32) if dtype.kind == "f" else rng.integers(0, 100, part)
    return np.resize(drawn.astype(dtype), count).tobytes()


def emulate_part(work: tuple[Path, Path, str, str, tuple[str, ...]]) -> int:
    """Profile the launches of one source on one GPU; how many could not be."""
    from fidelity_parts.launches import Array, Scalar, build, metrics_of, profile_launch

    folder, out, source, gpu, keys = work
    launches = [launch for launch in launches_of(folder) if launch.key in keys]
    spec = spec_of(gpu)
    expressions = tuple(dict.fromkeys(launch.case["entry"] for launch in launches))
    built = build(folder / source, spec.arch, expressions)
    (out / f"{build_name(source, gpu)}.cubin").write_bytes(built.cubin)
    (out / f"{build_name(source, gpu)}.ptx").write_text(built.ptx, encoding="utf-8")
    runner, failed = built.runner(spec), 0
    for launch in launches:
        case, begun = launch.case, time.monotonic()
        name = built.names[case["entry"]]
        arguments: list[Array | Scalar] = []
        for number, argument in enumerate(case["args"]):
            if "scalar" in argument:
                arguments.append(Scalar(argument["scalar"], argument["value"]))
            else:
                nbytes = int(np.prod(argument["shape"])) * np.dtype(argument["ptr"]).itemsize
                arguments.append(Array(nbytes, None if argument.get("out") else contents(argument, number)))
        result: dict[str, Any]
        try:
            counts = profile_launch(runner, name, case["grid"], case["block"], case["dynamic_shared_bytes"], arguments)
        except Exception as error:  # of one launch: the others are still wanted
            result, failed = {"error": f"{type(error).__name__}: {error}"}, failed + 1
        else:
            result = {
                "counts": counts.to_wire(),
                "kernel": name,
                "registers": built.registers[name],
                "metrics": metrics_of(spec, counts, built.registers),
                "profile_s": round(time.monotonic() - begun, 2),
            }
        print(f"{launch.key}: {result.get('error') or result['profile_s']}", flush=True)
        (out / f"{launch.key.replace(' ', '_')}.json").write_text(json.dumps(result), encoding="utf-8")
    return failed


def emulate(folder: Path, out: Path, only: str, jobs: int) -> int:
    """Profile every launch that has not been; each in a file of its own."""
    out.mkdir(parents=True, exist_ok=True)
    parts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for launch in launches_of(folder):
        if only in launch.key and not (out / f"{launch.key.replace(' ', '_')}.json").exists():
            parts[launch.case["source"], launch.gpu].append(launch.key)
    work = [(folder, out, source, gpu, tuple(keys)) for (source, gpu), keys in parts.items()]
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        failed = sum(pool.imap_unordered(emulate_part, work))
    print(f"{sum(map(len, parts.values())) - failed} launches profiled, {failed} failed")
    return 1 if failed else 0


class Compared(NamedTuple):
    """A launch with what was modelled of it."""

    launch: Launch
    metrics: Mapping[str, float]
    modelled_us: float
    bound: str
    limits_us: Mapping[str, float]

    @property
    def times(self) -> tuple[float, float]:
        return self.launch.measured_us or 0.0, self.modelled_us


def build_name(source: str, gpu: str) -> str:
    """Name of the files of one source's build for one GPU."""
    return f"{Path(source).stem}_on_{gpu.replace(' ', '_')}"


def modelled(launch: Launch, result: Mapping[str, Any], out: Path) -> Compared:
    """A launch with the time that the model makes of its counts and its machine code."""
    from fidelity_parts.launches import work_of

    from kernelforge.profiling.counts import PlanCounts
    from kernelforge.profiling.demand import shared_wavefronts
    from kernelforge.profiling.metrics import MACHINE_WAVEFRONTS
    from kernelforge.profiling.model import kernel_occupancy, launch_time

    (group,) = PlanCounts.from_wire(result["counts"]).kernels
    if launch.case.get("warm"):
        group.dram_read_bytes = group.dram_write_bytes = 0.0
        group.l2_read_hits = group.l2_read_sectors
    spec = launch.spec
    work = work_of(out / build_name(launch.case["source"], launch.gpu), result["kernel"], group)
    time = launch_time(spec, group, kernel_occupancy(spec, group, result["registers"]), work)
    beside_us = launch.case.get("beside_us_by_gpu", {}).get(launch.gpu, 0.0)
    metrics = dict(result["metrics"])
    if work is not None:
        metrics[MACHINE_WAVEFRONTS] = float(round(shared_wavefronts(group, work)))
    return Compared(launch, metrics, time.time_us + beside_us, time.bound, time.limits_us)


def read(folder: Path, out: Path) -> list[Compared]:
    """The launches of a folder that were profiled."""
    compared = []
    for launch in launches_of(folder):
        file = out / f"{launch.key.replace(' ', '_')}.json"
        result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if "counts" in result:
            compared.append(modelled(launch, result, out))
        else:
            print(f"{launch.key}: {result.get('error', 'was not profiled')}")
    return compared


def counter_agreements(launches: Iterable[Compared]) -> dict[str, Agreement]:
    """Agreement of each counter over the launches that have it."""
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in COUNTED}
    for compared in launches:
        expected = compared.launch.case.get("expected", {})
        for name, counted in COUNTED.items():
            real, soft = expected.get(name), compared.metrics.get(counted or name, 0.0)
            small = name.startswith("dram") and max(real or 0.0, soft) < LEAST_BYTES
            if real is not None and not small:
                pairs[name].append((real, soft))
    return {name: agreement_of(values) for name, values in pairs.items() if values}


class Summary(NamedTuple):
    """Order and errors of the times of some launches."""

    launches: int
    order: Order
    """Of pairs within ladders."""
    plain: float
    """Mean error without a scale factor."""
    per_gpu: float
    """With one factor per GPU."""
    other_ladders: float
    """With a factor per GPU from its other ladders; without one where it has no other."""
    other_gpus: float
    """With one factor from all other GPUs."""

    @property
    def text(self) -> str:
        share = self.order.right / self.order.pairs if self.order.pairs else 1.0
        inverted = self.order.inverted / self.order.pairs if self.order.pairs else 0.0
        return (
            f"{self.launches:>4} launches, {self.order.pairs:>5} pairs: tau {self.order.tau:.2f}, "
            f"in order {share:.1%}, inverted twofold {inverted:.1%}; "
            f"MAPE {self.plain:.0%}, a scale per GPU {self.per_gpu:.0%}, "
            f"from its other ladders {self.other_ladders:.0%}, from other GPUs {self.other_gpus:.0%}"
        )


def by(launches: Sequence[Compared], attribute: str) -> dict[str, list[Compared]]:
    """Launches by an attribute, in order."""
    groups: dict[str, list[Compared]] = {}
    for compared in launches:
        groups.setdefault(getattr(compared.launch, attribute), []).append(compared)
    return groups


def times_of(launches: Iterable[Compared]) -> Times:
    """Measured and modelled times."""
    return [compared.times for compared in launches]


def summary_of(launches: Sequence[Compared]) -> Summary:
    """Order within ladders and errors of launches with a measured time."""
    order = Order(0, 0, 0)
    for ladder in by(launches, "ladder").values():
        order += order_of(times_of(ladder))
    per_gpu = ladders = gpus = 0.0
    for gpu, own in by(launches, "gpu").items():
        scale = scale_of(times_of(own))
        elsewhere = scale_of(times_of(c for c in launches if c.launch.gpu != gpu))
        per_gpu += len(own) * mean_error(times_of(own), scale)
        gpus += len(own) * mean_error(times_of(own), elsewhere)
        for name, ladder in by(own, "ladder").items():
            others = scale_of(times_of(c for c in own if c.launch.ladder != name))
            ladders += len(ladder) * mean_error(times_of(ladder), others)
    count = len(launches)
    return Summary(count, order, mean_error(times_of(launches)), per_gpu / count, ladders / count, gpus / count)


def versions(launches: Iterable[Compared]) -> list[tuple[str, float, list[Times]]]:
    """Times of launches that answer to the same arguments on one GPU, which a search would have to choose between, and
    of those of one kernel; with the fall that tells them apart."""
    problems: dict[str, list[tuple[float, float]]] = {}
    kernels: dict[str, list[tuple[float, float]]] = {}
    for compared in launches:
        case = compared.launch.case
        problem = json.dumps([compared.launch.ladder, case["args"]])
        problems.setdefault(problem, []).append(compared.times)
        kernels.setdefault(f"{problem} {case['entry']}", []).append(compared.times)
    return [
        ("versions of a kernel", APART, list(problems.values())),
        ("one kernel, launched otherwise,", TUNED_APART, list(kernels.values())),
    ]


def compare(folder: Path, out: Path, every: bool, picture: Path | None) -> int:
    """Print how counts and times agree."""
    launches = read(folder, out)
    for name, agreement in counter_agreements(launches).items():
        met = f", {agreement.at_most(TARGETS[name])} within their target" if name in TARGETS else ""
        print(f"{name}: {agreement.text}{met}")
    timed = [compared for compared in launches if compared.launch.measured_us]
    for ladder, own in by(timed, "ladder").items():
        print(f"\n{ladder}: {order_of(times_of(own)).text}, MAPE {mean_error(times_of(own)):.0%}, with its own scale "
              f"{mean_error(times_of(own), scale_of(times_of(own))):.0%}")  # fmt: skip
        for compared in own if every else ():
            measured_us, modelled_us = compared.times
            limits = sorted(compared.limits_us.items(), key=lambda item: -item[1])[:4]
            largest = ", ".join(f"{name} {limit:.1f}" for name, limit in limits)
            print(f"  {compared.launch.case['id']:<52}{measured_us:>11.1f}{modelled_us:>11.1f}"
                  f"{modelled_us / measured_us:>7.2f}  {largest}")  # fmt: skip
    print()
    for gpu, own in by(timed, "gpu").items():
        print(f"{gpu:<36}{summary_of(own).text}")
    print(f"{'all':<36}{summary_of(timed).text}")
    for what, least, problems in versions(timed):
        print(f"modelled times of {what} that fall by {least:.0%} or more: {falls_of(problems, least).text}")
    once = [compared for compared in timed if compared.launch.gpu == compared.launch.case["gpu"]]
    print(f"{'each case on one GPU':<36}{summary_of(once).text}")
    if picture:
        picture.write_text(scatter([(c.launch.gpu, *c.times) for c in timed]), encoding="utf-8")
    return 0


def main() -> int:
    """Run one verb."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("emulate", "compare"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", type=Path, default=FOLDER)
    parser.add_argument("--only", default="", help="emulate launches whose names contain this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", action="store_true", help="print each launch")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if options.verb == "emulate":
        return emulate(options.cases, options.out, options.only, options.jobs)
    return compare(options.cases, options.out, options.every, options.picture)


if __name__ == "__main__":
    sys.exit(main())
