"""Predicted speedups of public kernels against the published ones.

    python benchmarks/predicted_speedups.py measure FOLDER --output TABLE.csv
    python benchmarks/predicted_speedups.py compare [TABLE.csv ...]

``measure`` needs kernels of others, which this project does not ship. FOLDER has KernelBench's files of the problems,
in the version that was timed (``level1/19_ReLU.py``), and a table ``published.csv`` with these columns:

    kernel      file with a class ModelNew that ``kernelforge convert`` can read, below FOLDER
    task        file of the problem, below FOLDER
    gpu         key of the GPU: l40s
    eager_us    published time of eager PyTorch, in microseconds; empty if unknown
    kernel_us   published time of the kernel
    provenance  where these numbers stand

Each kernel is converted, compiled, and profiled at the full size on ``emulated:GPU``; what cannot be is listed with its
reason. The table that comes out has numbers alone. ``compare`` needs neither kernels nor a GPU; without tables it takes
the shipped one, ``results/reference/speedups.csv``. It exits with 1 where a target is missed. Its last table has the
kernels of each source in intervals whose spreads are those of the other sources.

A published time is one of a call from Python. Where the GPU waits for the host, that is what was timed, and no kernel;
:func:`called_us` and :func:`eager_called_us` add it to the times that the package predicts.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from kernelforge.compile import Compiler
from kernelforge.devices import make_device
from kernelforge.devices.base import Device, RunFailed
from kernelforge.errors import KernelForgeError
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle, OracleFacts
from kernelforge.evaluation.stages.candidate_runs import run_request
from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed, compile_plans, resolve_plans
from kernelforge.hardware.specs import SPECS
from kernelforge.modelnew.convert import Conversion, convert
from kernelforge.prediction import idle_share, predict_baseline, predict_speedup
from kernelforge.prediction.baseline import NORMAL_90, BaselineTime, fitted, total_us
from kernelforge.prediction.operator_time import at_once
from kernelforge.records import Size, Task, TaskFacts, Verdict
from kernelforge.sandbox import Zygote
from kernelforge.tasks.loaders import loader_named

TABLE = Path(__file__).resolve().parents[1] / "results" / "reference" / "speedups.csv"
PUBLISHED = ("task", "gpu", "eager_us", "kernel_us", "provenance")
MODELLED = ("modelled_us", "protocol", "bound", "steps", "idle")
EAGER = ("predicted_eager_us", "eager_low_us", "eager_gpu_us", "operators")

HOST_US, CALL_US, STEP_US = 10.9, 15.5, 3.5
"""What the host of the L40S takes for an operator of PyTorch, for a call of an extension with one launch, and for each
further launch: its shortest published times, of which the kernels are a tenth."""
HOST_BOUND_US = 40.0
"""Published times below this are the host's."""
APART = 1.1
"""Two times are a pair whose order counts when one is longer by this factor."""
TARGET = 0.85
"""Least share of published speedups inside of the 90 % interval."""
_ORACLE_BYTES, _RUN_S = 10 << 30, 300.0


def tasks_of(folder: Path) -> Iterator[tuple[Task, str, list[dict[str, str]]]]:
    """Tasks of a folder with their GPU and the rows of their kernels."""
    external = {task.origin: task for task in loader_named("kernelbench").load(folder).tasks}
    with (folder / "published.csv").open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (row["gpu"], row["task"]))
    for (gpu, path), group in itertools.groupby(rows, key=lambda row: (row["gpu"], row["task"])):
        problem = external.get(path)
        if problem is None:
            print(f"{path}: not loaded", flush=True)
            continue
        sizes = (Size(name="full"), Size(name="small"))
        task = Task(
            name=problem.name, suite="kernelbench", title=problem.title, level=problem.level, tags=problem.tags,
            source=problem.source, sizes=sizes, policy=problem.policy,
        )  # fmt: skip
        yield task, gpu, list(group)


def measure(folder: Path, output: Path) -> int:
    """Model every kernel of a folder that can be converted, and write the table."""
    counted: Counter[str] = Counter()
    with output.open("w", encoding="utf-8", newline="") as file, Zygote("oracle") as zygote, Compiler(None) as compiler:
        writer = csv.DictWriter(file, (*PUBLISHED, *MODELLED, *EAGER))
        writer.writeheader()
        for gpu, tasks in itertools.groupby(tasks_of(folder), key=lambda group: group[1]):
            with make_device(f"emulated:{gpu}") as device:
                for task, _, kernels in tasks:
                    for row, outcome in outcomes(folder, task, kernels, device, compiler, zygote):
                        if isinstance(outcome, str):
                            counted[outcome.partition(":")[0]] += 1
                            print(f"{row['kernel']}: {' '.join(outcome.split())[:160]}", flush=True)
                            continue
                        counted["modelled"] += 1
                        writer.writerow({name: row[name] for name in PUBLISHED} | {"task": task.name} | outcome)
                        file.flush()
                        print(f"{row['kernel']}: {outcome['modelled_us']} us, published {row['kernel_us']}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counted.most_common()))
    return 0


def outcomes(
    folder: Path, task: Task, kernels: Sequence[Mapping[str, str]], device: Device, compiler: Compiler, zygote: Zygote
) -> Iterator[tuple[Mapping[str, str], dict[str, str] | str]]:
    """Each kernel of a task with its columns of the table, or with the reason why it has none."""
    converted = []
    for row in kernels:
        conversion = convert((folder / row["kernel"]).read_text(encoding="utf-8"))
        if conversion.candidate is None:
            yield row, f"not converted: {conversion.problems[0]}"
        else:
            converted.append((row, conversion))
    if not converted:
        return
    try:
        # The kernels were checked where they were timed: the task's own inputs are taken as they are.
        facts_known = OracleFacts(scales={"full": {"task": 1.0}})
        with Oracle(zygote, task, cached=facts_known, memory_bytes=_ORACLE_BYTES) as oracle:
            facts = oracle.facts(["full"])
            eager = eager_columns(predict_baseline(oracle.operators(), device.spec, "eager", tf32=True))
            draw = oracle.draw("full", "task", seed=1, expected=False)
            for row, conversion in converted.copy():
                try:
                    yield row, modelled(task, facts, draw, conversion, device, compiler) | eager
                except StageFailed as failed:
                    yield row, f"{failed.verdict.value}: {failed.reason}"
                except RunFailed as failure:
                    yield row, f"fault: {failure.fault.message}"
                converted.pop(0)
    except (KernelForgeError, ValueError) as error:
        for row, _ in converted:
            yield row, f"the task: {error}"


def modelled(
    task: Task, facts: TaskFacts, draw: DrawHandle, conversion: Conversion, device: Device, compiler: Compiler
) -> dict[str, str]:
    """Columns of a candidate: its modelled time at the full size and what binds it.

    Raises:
        StageFailed: it is refused or does not compile.
        RunFailed: it faults.
    """
    build, sizes = BuildState(), [task.size("full")]
    at_full = facts.at("full")
    named = conversion.fitted(task.source, at_full)
    resolve_plans(named, task, facts, build, sizes)
    compile_plans(named, task, compiler, device.arch, build, sizes)
    plan = build.plans["full"]
    with device.open(build.artifacts["full"]) as session:
        profile, performance = session.profile(run_request(task, plan, draw, 0, limit_s=_RUN_S), at_full)
    if performance is None:
        raise StageFailed(Verdict.INFRA, "full", "it calls torch operators, of which no time is modelled")
    return {
        "modelled_us": f"{performance.time_us:.5g}",
        "protocol": performance.protocol,
        "bound": performance.bound,
        "steps": str(len(plan.steps)),
        "idle": f"{idle_share(device.spec, profile.kernels):.3g}",
    }


def eager_columns(eager: BaselineTime) -> dict[str, str]:
    """Columns of a predicted time of eager PyTorch."""
    return {
        "predicted_eager_us": f"{eager.time_us:.5g}",
        "eager_low_us": f"{eager.low_us:.5g}",
        "eager_gpu_us": f"{sum(part.time_us for part in eager.per_operator):.5g}",
        "operators": str(sum(part.calls for part in eager.per_operator)),
    }


class Prediction(NamedTuple):
    """A kernel with published times, and the prediction of the package."""

    group: str
    """GPU and repository of the published numbers."""
    task: str
    kernel_us: float
    eager_us: float | None
    modelled_us: float
    """As called from Python."""
    kernel_error: float
    """Logarithm of modelled over published time, both as called."""
    speedup_error: float | None
    """The same of the speedup."""
    width: float | None
    """Half of the predicted interval, as a logarithm."""
    idle: float
    """Share of the modelled time in kernels that leave schedulers idle."""
    eager_spread: float
    """Standard deviation of the logarithm of the predicted time of PyTorch."""

    @property
    def inside(self) -> bool:
        """Whether the published speedup lies in the interval."""
        return self.speedup_error is not None and self.width is not None and abs(self.speedup_error) <= self.width

    @property
    def of_gpu(self) -> bool:
        """Whether the published time is one of the GPU, not of the host."""
        return self.kernel_us >= HOST_BOUND_US


class Spreads(NamedTuple):
    """Standard deviations of the logarithms of modelled times around published ones."""

    kernel: float
    """Of kernels that keep the schedulers busy: ``KERNEL_SPREAD`` of the package."""
    idle: float
    """What is added for those that do not: ``IDLE_SPREAD``."""

    def inside(self, error: float, idle: float, eager_spread: float = 0.0) -> bool:
        """Whether an error lies in the 90 % interval of these spreads."""
        return abs(error) <= NORMAL_90 * math.hypot(self.kernel, idle * self.idle, eager_spread)


def spreads(rows: Sequence[Prediction]) -> Spreads:
    """Spreads of some kernels, as those of the package were made: of times that are the GPU's, without the host's."""

    def rms(idle: bool) -> float:
        errors = [row.kernel_error for row in rows if row.of_gpu and (row.idle >= 0.5) == idle]
        return math.sqrt(sum(error**2 for error in errors) / len(errors)) if errors else 0.0

    busy = rms(idle=False)
    return Spreads(busy, math.sqrt(max(rms(idle=True) ** 2 - busy**2, 0.0)))


def called_us(modelled_us: float, steps: int) -> float:
    """Time between two events around a call from Python: the kernels', or the host's where that is longer."""
    return at_once(modelled_us, CALL_US + STEP_US * (steps - 1))


def eager_called_us(gpu_us: float, operators: int) -> float:
    """The same of eager PyTorch."""
    return total_us(gpu_us, operators, "eager", fitted().parameters, HOST_US)


def read(path: Path) -> list[Prediction]:
    """Rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return [prediction(row) for row in csv.DictReader(file)]


def prediction(row: Mapping[str, str]) -> Prediction:
    """Prediction for a row, of a call from Python as its numbers were published."""
    kernel_us, published = float(row["kernel_us"]), float(row["eager_us"]) if row["eager_us"] else None
    modelled_us = called_us(float(row["modelled_us"]), int(row["steps"]))
    kernel_error = math.log(modelled_us / kernel_us)
    eager_us = eager_called_us(float(row["eager_gpu_us"]), int(row["operators"]))
    factor = float(row["predicted_eager_us"]) / float(row["eager_low_us"])
    eager = BaselineTime(
        kind="eager", gpu=row["gpu"], time_us=eager_us, low_us=eager_us / factor, high_us=eager_us * factor,
        origin="predicted", source="", tf32=True,
    )  # fmt: skip
    predicted = predict_speedup(SPECS[row["gpu"]], modelled_us, eager, float(row["idle"]))
    return Prediction(
        group=f"{SPECS[row['gpu']].title}, {row['provenance'].partition('@')[0]}",
        task=row["task"],
        kernel_us=kernel_us,
        eager_us=published,
        modelled_us=modelled_us,
        kernel_error=kernel_error,
        speedup_error=None if published is None else math.log(predicted.speedup * kernel_us / published),
        width=None if published is None else math.log(predicted.high / predicted.speedup),
        idle=float(row["idle"]),
        eager_spread=math.log(factor) / NORMAL_90,
    )


def compare(paths: Sequence[Path]) -> int:
    """Print errors, coverage and order; exit status."""
    rows = [row for path in paths for row in read(path)]
    table = Table("kernels", "n", "tasks", "time: ratio", "rms", "speedup: ratio", "rms", "in its interval", "in order")
    for name, selected in parts(rows).items():
        if selected:
            table.add_row(name, *cells(selected))
    Console(width=150).print(table)
    Console(width=150).print(left_out(rows))
    share = coverage(rows)
    met = share is not None and share >= TARGET
    print(f"in the 90 % interval: {0 if share is None else share:.1%} (target {TARGET:.0%})")
    return 0 if met else 1


def parts(rows: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """Rows by what bound them where they were timed, and by where that was."""

    def selected(condition: Callable[[Prediction], bool]) -> list[Prediction]:
        return [row for row in rows if condition(row)]

    named = {
        "all": list(rows),
        f"under {HOST_BOUND_US:g} us: the host": selected(lambda row: not row.of_gpu),
        f"over {HOST_BOUND_US:g} us: the GPU": selected(lambda row: row.of_gpu),
    }
    for group in dict.fromkeys(row.group for row in rows):
        named[group] = [row for row in rows if row.group == group]
    return named


def left_out(rows: Sequence[Prediction]) -> Table:
    """Shares of the speedups and times of each source in intervals that the other sources' spreads make."""
    table = Table("source", "spreads of the others", "speedups inside", "over 40 us", "times inside", "over 40 us")
    for name, own in itertools.islice(parts(rows).items(), 3, None):
        others = [row for row in rows if row.group != name]
        if not others:
            continue
        made = spreads(others)
        speedups, times = [], []
        for row in own:
            times.append((row.of_gpu, made.inside(row.kernel_error, row.idle)))
            if row.speedup_error is not None:
                speedups.append((row.of_gpu, made.inside(row.speedup_error, row.idle, row.eager_spread)))
        shares = [_share(answers, only) for answers in (speedups, times) for only in (False, True)]
        table.add_row(name, f"{made.kernel:.2f}, idle {made.idle:.2f}", *shares)
    return table


def _share(answers: Sequence[tuple[bool, bool]], only_of_gpu: bool) -> str:
    """Share of those inside; of all, or of times that are the GPU's."""
    inside = [answer for of_gpu, answer in answers if of_gpu or not only_of_gpu]
    return f"{sum(inside) / len(inside):.1%} of {len(inside)}" if inside else ""


def cells(rows: Sequence[Prediction]) -> list[str]:
    """Cells of a row of the table."""
    speedups = [row.speedup_error for row in rows if row.speedup_error is not None]
    share = coverage(rows)
    return [
        str(len(rows)),
        str(len({row.task for row in rows})),
        *_errors([row.kernel_error for row in rows]),
        *(_errors(speedups) if speedups else ("", "")),
        "" if share is None else f"{share:.1%} of {len(speedups)}",
        order(rows),
    ]


def _errors(errors: Sequence[float]) -> tuple[str, str]:
    """Median ratio, and root mean square of the logarithms."""
    rms = math.sqrt(sum(error**2 for error in errors) / len(errors))
    return f"{math.exp(median(errors)):.2f}", f"{rms:.2f}"


def coverage(rows: Sequence[Prediction]) -> float | None:
    """Share of the published speedups that lie in their intervals; None without any."""
    published = [row for row in rows if row.speedup_error is not None]
    return sum(row.inside for row in published) / len(published) if published else None


def order(rows: Sequence[Prediction]) -> str:
    """Share of pairs of kernels of one task whose modelled times are in the right order."""
    right = pairs = 0
    by_task: dict[tuple[str, str], list[Prediction]] = {}
    for row in rows:
        by_task.setdefault((row.group, row.task), []).append(row)
    for group in by_task.values():
        for first, second in itertools.combinations(group, 2):
            if max(first.kernel_us, second.kernel_us) > APART * min(first.kernel_us, second.kernel_us):
                pairs += 1
                right += (first.kernel_us > second.kernel_us) == (first.modelled_us > second.modelled_us)
    return f"{right / pairs:.0%} of {pairs}" if pairs else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("measure", "compare"))
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    if options.verb == "compare":
        return compare(options.paths or [TABLE])
    if len(options.paths) != 1 or options.output is None:
        parser.error("measure needs one FOLDER and --output TABLE.csv")
    return measure(options.paths[0], options.output)


if __name__ == "__main__":
    sys.exit(main())
