"""Part ``emulator``: verdicts and counters of the emulated device compared with the GPU's, kernel by kernel."""

from __future__ import annotations

import secrets
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.gpu_parts.machine import PLANTED, ROOT, Machine, evaluator_of
from benchmarks.gpu_parts.report import Report
from kernelforge.candidate import parse_reply
from kernelforge.evaluation import EvaluationResult
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import Candidate, MeasureSettings, Origin, Profile, Task
from kernelforge.report.views.run_records import best_of
from kernelforge.store import DATABASE_NAME, Store
from kernelforge.tasks import load_suite, load_task

LEAST_KERNELS = 20
ROUGH = {"seconds": 0.5, "precision": 0.2}
"""Timing settings; this part uses no times."""
COUNTERS = {
    "instructions": ("smsp__inst_executed.sum", "ptx__warp_inst_executed.sum"),
    "thread_instructions": ("smsp__thread_inst_executed.sum", "ptx__thread_inst_executed.sum"),
    "load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",) * 2,
    "store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",) * 2,
    "load_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",) * 2,
    "shared_wavefronts": ("memory_l1_wavefronts_shared",) * 2,
    "bank_conflicts": ("kernelforge__shared_wavefronts_excess.sum",) * 2,
    "l2_sectors": ("lts__t_sectors.sum",) * 2,
    "dram_bytes": ("dram__bytes.sum",) * 2,
}
"""What is compared: the name on the GPU, by hardware counters, and that on the emulated device."""


@dataclass(frozen=True)
class Kernel:
    """One candidate for one task."""

    name: str
    task: Task
    candidate: Candidate


def planted_kernels() -> list[Kernel]:
    """The kernels with one planted fault each."""
    entries = tomllib.loads((PLANTED / "planted.toml").read_text(encoding="utf-8"))["planted"]
    kernels = []
    for entry in entries:
        task = load_task(str(ROOT / entry["task"]) if entry["task"].endswith(".py") else entry["task"])
        text = (PLANTED / entry["file"]).read_text(encoding="utf-8")
        kernels.append(Kernel(Path(entry["file"]).stem, task, parse_reply(text)))
    return kernels


def best_kernels(results: Path, suite: str | Path) -> list[Kernel]:
    """The best candidate of each task of the latest run in a folder, for the same tasks of ``suite``; none without a
    run."""
    if not (results / DATABASE_NAME).is_file():
        return []
    tasks = {task.name: task for task in load_suite(suite)}
    kernels = []
    with Store.open(results / DATABASE_NAME, create=False) as store:
        run = store.run("latest")
        attempts = store.attempts(run.id)
        for name in run.config.tasks:
            best = best_of([attempt for attempt in attempts if attempt.task == name])
            if best is not None and best.candidate is not None and name in tasks:
                kernels.append(Kernel(f"built-in {name}", tasks[name], best.candidate))
    return kernels


def emulator(machine: Machine, report: Report, kernels: Sequence[Kernel] | None = None) -> None:
    """Each kernel on both, its counters as GPU over emulator."""
    if kernels is None:
        built = [] if report.folder is None else best_kernels(report.folder / "core", machine.emulator_suite)
        if not built:
            report.note("part core has left no kernels here: only the planted ones are compared")
        kernels = [*planted_kernels(), *built]
    rough = MeasureSettings.model_validate(machine.measure.model_dump() | ROUGH)
    equal = done = 0
    ratios: dict[str, list[float]] = {}
    with ExitStack() as stack:
        gpu = stack.enter_context(machine.workshop(rough))
        soft = stack.enter_context(machine.emulator())
        for kernel in kernels:
            here, there = _on(gpu, kernel), _on(soft, kernel)
            same = here.evaluation.verdict is there.evaluation.verdict
            equal += same
            done += 1
            compared = compare(here.profile, there.profile)
            for name, value in compared.items():
                if value["ratio"] is not None:
                    ratios.setdefault(name, []).append(value["ratio"])
            report.row(
                kernel=kernel.name,
                gpu=here.evaluation.verdict.value,
                emulated=there.evaluation.verdict.value,
                equal=same,
                **{name: value["ratio"] for name, value in compared.items()},
                counters=compared,
                notes=[] if here.profile is None else list(here.profile.notes),
                reason=(here.evaluation.reason or there.evaluation.reason)[:300],
            )
            if done < len(kernels) and report.out_of_time(done, len(kernels)):
                break
    enough = done >= min(LEAST_KERNELS, len(kernels))
    report.figure(
        "verdicts equal", f"{equal} of {done}", f"all, of {LEAST_KERNELS} at least", met=enough and equal == done
    )
    for name, values in ratios.items():
        spread = f"{min(values):.3g} to {max(values):.3g}"
        report.figure(f"{name}, GPU / emulator", f"median {median(values):.3g}, {spread}, of {len(values)}")
    if not ratios:
        report.note("no counter could be compared: the GPU's profiles hold no measured ones")


def _on(workshop: EvaluatorPool, kernel: Kernel) -> EvaluationResult:
    with evaluator_of(workshop, kernel.task) as evaluator:
        return evaluator.evaluate(kernel.candidate, seed=secrets.randbits(63))


def compare(here: Profile | None, there: Profile | None) -> dict[str, dict[str, float | None]]:
    """Counters of both, and the GPU's over the emulator's; only what the GPU has measured counts.

    A ratio is None where one of the two is missing, or where either is 0 and the other is not; both 0 is 1.
    """
    differences: dict[str, dict[str, float | None]] = {}
    for name, (hardware, emulated) in COUNTERS.items():
        metric = None if here is None else here.metric(hardware)
        real = None if metric is None or metric.origin is not Origin.MEASURED else metric.value
        counted = None if there is None else there.value(emulated)
        ratio = None
        if real is not None and counted is not None and (real > 0) == (counted > 0):
            ratio = real / counted if counted else 1.0
        differences[name] = {"gpu": real, "emulated": counted, "ratio": ratio}
    return differences
