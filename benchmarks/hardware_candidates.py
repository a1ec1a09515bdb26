"""The emulated device against an H100 on candidates of suite ``core``: counters of their launches, and times.

    PYTHONPATH=. python benchmarks/hardware_candidates.py prepare FOLDER
    PYTHONPATH=. python benchmarks/hardware_candidates.py run FOLDER --output OUT
    ncu --csv --page raw --print-units base --clock-control none --profile-from-start off --target-processes all \
        --metrics METRICS python benchmarks/hardware_candidates.py run FOLDER --output OUT --once > OUT/ncu.csv
    PYTHONPATH=. python benchmarks/hardware_candidates.py record FOLDER OUT
    PYTHONPATH=. python benchmarks/hardware_candidates.py compare

The candidates are those of ``results/reference/h100/candidates.jsonl``, attempts of the built-in agents and of a
language model. ``prepare`` needs no GPU: it evaluates each on ``emulated:h100`` and keeps the cubin, the plan, and the
beginning of each tensor, which ``run`` repeats to its length. ``run`` needs a GPU and the extra ``gpu``. METRICS are
the contents of ``FOLDER/metrics.txt``. ``record`` writes what the GPU did into the file of candidates; ``compare``
needs neither folder nor GPU, and takes two minutes.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kernelforge.candidate.resolved import Launch
from kernelforge.devices.cuda.tools.replay import Replay
from kernelforge.devices.cuda.tools.tool_process import kernel_limits
from kernelforge.devices.cuda.worker.main import open_driver, warm_up
from kernelforge.devices.emulated.device import EmulatedSession
from kernelforge.evaluation import EvaluationResult
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import Candidate
from kernelforge.tasks import load_suite

CANDIDATES = Path(__file__).resolve().parents[1] / "results" / "reference" / "h100" / "candidates.jsonl"
DRIVER = {"driver": "kernelforge.devices.cuda.worker.cupy_driver:make", "ordinal": 0}
HEAD_BYTES, FLUSH_BYTES = 8192, 256 << 20
WARM, COLD = 15, 8
"""Timed runs of a plan."""
APART = 1.1
"""Two times are a pair whose order counts when one is longer by this factor."""
EXACT = {
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": "",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "kernelforge__shared_wavefronts_excess.sum",
    "lts__t_sectors.sum": "",
    "dram__bytes_read.sum": "",
    "dram__bytes_write.sum": "",
    "smsp__inst_executed.sum": "ptx__warp_inst_executed.sum",
    "smsp__thread_inst_executed.sum": "ptx__thread_inst_executed.sum",
}
"""Metrics that both have → the emulated device's name, where it has another."""
METRICS = (
    *EXACT,
    "gpu__time_duration.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "sm__cycles_active.avg",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
)


def read_candidates() -> list[dict[str, Any]]:
    """Records of the file: task, source, plan, and what the GPU did in each launch."""
    return [json.loads(line) for line in CANDIDATES.read_text(encoding="utf-8").splitlines()]


def emulated(records: list[dict[str, Any]]) -> Iterator[EvaluationResult]:
    """Each candidate's evaluation on the emulated device, in order."""
    suite = load_suite("core")
    with EvaluatorPool("emulated:h100", threads=2) as pool:
        for name, group in itertools.groupby(records, key=lambda record: record["task"]):
            task = suite.task(name)
            evaluator = pool.evaluator(task)
            try:
                for record in group:
                    candidate = Candidate(source=record["source"], plan=record["plan"])
                    yield evaluator.evaluate(candidate, seed=1)
            finally:
                evaluator.oracle.close()
                pool.done(task)


def prepare(folder: Path) -> None:
    """Keep what ``run`` needs of each candidate, at the full size of its task."""
    profiled = EmulatedSession.profile
    kept: list[tuple[Any, Any]] = []

    def profile(session: EmulatedSession, request: Any, facts: Any) -> Any:
        kept.append((session._artifact, request))
        return profiled(session, request, facts)

    # What an evaluation profiles is in no result of it: the build, and the run at the full size.
    EmulatedSession.profile = profile  # type: ignore[method-assign]
    records = read_candidates()
    for number, result in enumerate(emulated(records)):
        if len(kept) != 1:
            raise RuntimeError(f"candidate {number} was not profiled: {result.evaluation.reason}")
        artifact, request = kept.pop()
        case = folder / f"{number:03}"
        case.mkdir(parents=True, exist_ok=True)
        (case / "cubin").write_bytes(artifact.cubin)
        for buffer, content in request.tensors.items():
            (case / f"{buffer}.head").write_bytes(bytes(memoryview(content)[:HEAD_BYTES]))
        wire = {
            "plan": request.plan.to_wire(),
            "kernels": kernel_limits(artifact),
            "tensors": sorted(request.tensors),
            "mutable": sorted(request.mutable),
        }
        (case / "request.json").write_text(json.dumps(wire), encoding="utf-8")
    (folder / "metrics.txt").write_text(",".join(METRICS) + "\n", encoding="utf-8")
    print(f"{len(records)} candidates in {folder}")


def run(folder: Path, output: Path, once: bool) -> None:
    """Time every launch, after a flush of the L2 and warm; or launch each once inside the profiler's region."""
    warm_up(DRIVER)
    driver = open_driver(DRIVER)
    flush = driver.allocate(FLUSH_BYTES)
    results: dict[str, Any] = {}
    for case in sorted(path for path in folder.iterdir() if path.is_dir()):
        request = json.loads((case / "request.json").read_text(encoding="utf-8"))
        sizes = {buffer["id"]: buffer["nbytes"] for buffer in request["plan"]["buffers"]}
        contents = {}
        for buffer in request["tensors"]:
            head, nbytes = (case / f"{buffer}.head").read_bytes(), sizes[buffer]
            contents[buffer] = (head * (nbytes // max(len(head), 1) + 1))[:nbytes]
        replay = Replay(driver, request, (case / "cubin").read_bytes(), contents)
        launches = [bound for bound in replay._steps if isinstance(bound.step, Launch)]
        if once:
            for bound in replay._setup:
                bound.run()
            driver.synchronize()
            assert replay.profiled(range(len(launches))) == len(launches)
        else:
            replay.once()
            warm = [median(times) for times in replay.timed(WARM)]
            results[case.name] = {"warm_us": warm, "cold_us": [median(times) for times in cold(replay, driver, flush)]}
        for pointer in replay._tensors._pointers.values():
            driver.free(pointer)
    if not once:
        output.mkdir(parents=True, exist_ok=True)
        (output / "times.json").write_text(json.dumps(results), encoding="utf-8")


def cold(replay: Replay, driver: Any, flush: int) -> list[list[float]]:
    """Times of each launch with the L2 full of other lines: [launch][run] in µs."""
    runs = []
    for _ in range(COLD):
        replay._tensors.renew(replay._mutable)
        events = []
        for bound in replay._steps:
            if not isinstance(bound.step, Launch):
                bound.run()
                continue
            driver.fill(flush, 1, FLUSH_BYTES)
            start = driver.event()
            bound.run()
            events.append((start, driver.event()))
        driver.synchronize()
        runs.append([driver.elapsed_us(start, end) for start, end in events])
    return [list(times) for times in zip(*runs, strict=True)]


def record(folder: Path, output: Path) -> None:
    """Write the GPU's metrics and times into the file of candidates."""
    lines = (output / "ncu.csv").read_text(encoding="utf-8", errors="replace").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith('"ID"'))
    rows = iter([row for row in csv.DictReader(line for line in lines[begin:] if line.startswith('"')) if row["ID"]])
    times = json.loads((output / "times.json").read_text(encoding="utf-8"))
    records = read_candidates()
    for number, candidate in enumerate(records):
        name = f"{number:03}"
        request = json.loads((folder / name / "request.json").read_text(encoding="utf-8"))
        steps = [step for step in request["plan"]["steps"] if step["step"] == "Launch"]
        candidate["launches"] = [
            {"kernel": step["expression"], "grid": step["grid"], "block": step["block"]}
            | {metric: _number(row[metric]) for metric in METRICS}
            | {"cold_us": times[name]["cold_us"][ordinal], "warm_us": times[name]["warm_us"][ordinal]}
            for ordinal, (step, row) in enumerate(zip(steps, rows, strict=False))
        ]
    CANDIDATES.write_text("".join(json.dumps(candidate) + "\n" for candidate in records), encoding="utf-8")


def _number(text: str) -> int | float:
    """A value as Nsight Compute prints it."""
    value = float(text.replace(",", ""))
    return int(value) if value.is_integer() else value


def compare() -> None:
    """Print how the emulated device's counters and modelled times lie to the GPU's."""
    records = read_candidates()
    counters: dict[str, list[tuple[float, float]]] = {metric: [] for metric in EXACT}
    times: list[tuple[float, float]] = []
    for candidate, result in zip(records, emulated(records), strict=True):
        profile, performance = result.profile, result.evaluation.performance
        if profile is None or performance is None:
            print(f"{candidate['task']}: {result.evaluation.verdict.value} {result.evaluation.reason[:120]}")
            continue
        for metric, name in EXACT.items():
            real = sum(launch[metric] for launch in candidate["launches"])
            counters[metric].append((real, profile.value(name or metric) or 0.0))
        times.append((sum(launch["cold_us"] for launch in candidate["launches"]), performance.time_us))
        kernels = ", ".join(dict.fromkeys(launch["kernel"] for launch in candidate["launches"]))
        print(f"{times[-1][0]:9.1f} us, modelled {times[-1][1]:7.1f} ({performance.bound:>7}): {kernels[:70]}")
    for metric, pairs in counters.items():
        same = sum(abs(real - soft) <= 1e-9 * max(real, 1.0) for real, soft in pairs)
        ratios = sorted(real / soft for real, soft in pairs if real and soft)
        print(f"{metric}: equal {same} of {len(pairs)}; GPU over emulated {_spread(ratios)}")
    print_times(times)


def _spread(ratios: list[float]) -> str:
    if not ratios:
        return "none"
    tenth = len(ratios) // 10
    return f"median {median(ratios):.3f}, 80 % within {ratios[tenth]:.3f} to {ratios[-1 - tenth]:.3f}"


def print_times(times: list[tuple[float, float]]) -> Mapping[str, float]:
    """Errors of modelled against measured times, and the share of pairs that are in the right order."""
    scale = median(real / soft for real, soft in times)
    error = sum(abs(1 - soft / real) for real, soft in times) / len(times)
    scaled = sum(abs(1 - scale * soft / real) for real, soft in times) / len(times)
    apart = [
        ((a[0] > b[0]) == (a[1] > b[1]))
        for a, b in itertools.combinations(times, 2)
        if max(a[0], b[0]) > APART * min(a[0], b[0])
    ]
    print(
        f"times of {len(times)}: measured over modelled {scale:.2f} (median); mean error {error:.0%}, {scaled:.0%} "
        f"after that one factor; {sum(apart) / len(apart):.1%} of {len(apart)} pairs in the right order"
    )
    return {"error": error, "scaled": scaled, "order": sum(apart) / len(apart)}


def main() -> int:
    """Run one verb."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("prepare", "run", "record", "compare"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    output = options.output or options.out
    if options.verb == "compare":
        compare()
        return 0
    if options.folder is None or (output is None and options.verb != "prepare"):
        parser.error("a folder is needed, and for run and record one for what the GPU did")
    if options.verb == "prepare":
        prepare(options.folder)
    elif options.verb == "run":
        run(options.folder, output, options.once)
    else:
        record(options.folder, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
