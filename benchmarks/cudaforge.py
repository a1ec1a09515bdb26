"""CudaForge's study over GPUs and pairs of models (arXiv 2511.01884, tables 4 and 5), with its loop and its metrics.

    python benchmarks/cudaforge.py SUITE --dry-run
    python benchmarks/cudaforge.py SUITE --device cuda:0 --device ssh://me@box/cuda:0 --pair openai:o3 openai:gpt-5

SUITE is KernelBench as ``kernelforge tasks import`` writes it; ``--select`` defaults to its D*, the paper's 25 tasks.
Of every device and pair of Coder and Judge there is one run: the latest kernel is always the parent, agents see 24
metrics and no time, ten rounds to the end. It has a folder of its own below ``--output``: a study that was stopped goes
on where it ended, and one that is complete prints its table again. ``--dry-run`` prints what each run costs at most,
and calls no model.

Printed of each run, as in the paper: correct tasks; median, 75th percentile and mean of the speedup over eager PyTorch,
where a task that is not correct counts as 0; the share of tasks that are faster; dollars and minutes per task. Below it
is the paper's row for the same GPU and the same models, where it has one. Without a GPU speedups are predicted ones,
which the column says: they are no result of the study. Keys are read from the environment, as by ``kernelforge run``.

The device is by default that of ``kernelforge run``: the first GPU that works, else an emulated one. A run that fails
has a row that says so, and the others go on; the study then exits with 1.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import NamedTuple

from kernelforge.devices import best_device, default_device
from kernelforge.errors import KernelForgeError
from kernelforge.records import Budget, RunState
from kernelforge.report import RunRecords, run_view
from kernelforge.run import configure
from kernelforge.run.budget import estimate
from kernelforge.run.runner import task_contexts
from kernelforge.store import DATABASE_NAME, Store

PAIRS = (
    ("openai:o3", "openai:o3"),
    ("openai:o3", "openai:gpt-5"),
    ("openai:o3", "anthropic:claude-sonnet-4-20250514"),
    ("openai:gpt-5", "openai:o3"),
    ("anthropic:claude-sonnet-4-20250514", "openai:o3"),
)
"""Coder and Judge: the paper's pairs of hosted models. Its gpt-oss-120B and QwQ-32B need a server: ``--pair``."""
OPTIONS = {"rollback": "false", "latency": "false", "metrics": "subset"}
"""Of ``refine``, with which it is CudaForge's loop."""
ROUNDS = 10


class Row(NamedTuple):
    """Figures of a run, or of a row of the paper; percentages from 0 to 100."""

    correct: float
    median: float
    upper: float
    """75th percentile."""
    mean: float
    faster: float


PUBLISHED = {
    ("RTX 6000", "o3", "o3"): Row(100, 1.322, 1.736, 1.767, 84),
    ("RTX 6000", "o3", "gpt-5"): Row(100, 1.131, 1.561, 2.114, 96),
    ("RTX 6000", "o3", "claude-sonnet-4"): Row(100, 1.265, 1.456, 1.829, 84),
    ("RTX 6000", "o3", "gpt-oss-120b"): Row(100, 1.226, 1.490, 1.364, 76),
    ("RTX 6000", "gpt-5", "o3"): Row(100, 1.125, 1.388, 1.896, 72),
    ("RTX 6000", "claude-sonnet-4", "o3"): Row(88, 1.052, 1.207, 1.398, 56),
    ("RTX 6000", "gpt-oss-120b", "o3"): Row(96, 1.080, 1.477, 1.653, 68),
    ("RTX 6000", "qwq-32b", "o3"): Row(84, 0.965, 1.153, 0.790, 44),
    ("RTX 4090", "o3", "o3"): Row(100, 1.188, 1.589, 1.327, 80),
    ("A100", "o3", "o3"): Row(100, 1.371, 1.762, 1.841, 84),
    ("RTX 3090", "o3", "o3"): Row(100, 1.155, 1.706, 1.320, 72),
}
"""By GPU, Coder and Judge: the pairs of the paper's table 5, on an RTX 6000, and the GPUs of its table 4."""
GPU_NAMES = {
    "RTX 6000": re.compile(r"(?:(?:NVIDIA )?Quadro |NVIDIA )?RTX 6000"),
    "RTX 4090": re.compile(r"(?:NVIDIA )?GeForce RTX 4090"),
    "A100": re.compile(r"(?:NVIDIA )?A100(?:-(?:SXM4|PCIE)-\d+GB| \d+GB PCIe)"),
    "RTX 3090": re.compile(r"(?:NVIDIA )?GeForce RTX 3090"),
}
"""The whole name of each of these GPUs by its driver. The paper names no generation of its RTX 6000."""


def figures(speedups: Sequence[float | None]) -> Row:
    """Figures of tasks by the speedup of each; None for one that is not correct."""
    values = [value or 0.0 for value in speedups]
    upper = quantiles(values, n=4, method="inclusive")[2] if len(values) > 1 else values[0]
    correct = sum(value is not None for value in speedups) / len(values)
    return Row(100 * correct, median(values), upper, fmean(values), 100 * fmean(value > 1 for value in values))


def published(gpu: str, coder: str, judge: str) -> tuple[str, Row] | None:
    """The paper's name of a GPU and its row for that GPU and a pair of models; None where it has none."""
    name = next((name for name, pattern in GPU_NAMES.items() if pattern.fullmatch(gpu)), "")
    row = PUBLISHED.get((name, model_name(coder), model_name(judge)))
    return None if row is None else (name, row)


def model_name(spec: str) -> str:
    """A model's name in :data:`PUBLISHED`'s form, without what serves it, its options and the date of its release."""
    model = spec.partition("?")[0].partition(":")[2].rpartition("/")[2].lower().replace(":", "-")
    return re.sub(r"-(?:\d{8}|\d{4}-\d{2}-\d{2})$", "", model)


def folder_of(output: Path, device: str, coder: str, judge: str) -> Path:
    """Results folder of a run of the study."""
    return output / "__".join(re.sub(r"[^\w.-]+", "-", part).strip("-") for part in (device, coder, judge))


def print_costs(options: argparse.Namespace) -> None:
    """Print what each run costs at most."""
    total: float | None = 0.0
    for device in options.device:
        contexts = None
        for coder, judge in options.pair:
            config = configure(
                suite=options.suite, tasks=options.select, device=device, strategy="refine", options=OPTIONS,
                coder=coder, judge=judge, budget=Budget(rounds=options.rounds), stop_after=options.rounds,
                seed=options.seed, keys=False,
            )  # fmt: skip
            contexts = contexts or list(task_contexts(config))
            cost = estimate(config, contexts, ())
            dollars = "unknown" if cost.dollars is None else f"${cost.dollars:,.2f}"
            print(f"{device}, {coder} with {judge}: at most {cost.tokens:,} tokens, dollars {dollars}, "
                  f"{cost.evaluations:,} evaluations of {len(config.tasks)} tasks", flush=True)  # fmt: skip
            total = None if total is None or cost.dollars is None else total + cost.dollars
    print(f"all {len(options.device) * len(options.pair)} runs: dollars "
          f"{'unknown, for a model has no price' if total is None else f'${total:,.2f}'}")  # fmt: skip


def carry_out(options: argparse.Namespace, device: str, coder: str, judge: str) -> Path:
    """Start a run, or go on with it, in a process of its own; its results folder."""
    results = folder_of(options.output, device, coder, judge)
    command = [sys.executable, "-m", "kernelforge"]
    if (results / DATABASE_NAME).exists():
        with Store.open(results / DATABASE_NAME, read_only=True) as store:
            if store.run("latest").state is RunState.FINISHED:
                return results
        command += ["resume"]
    else:
        command += ["run", "--suite", options.suite, "--device", device, "--coder", coder, "--judge", judge]
        command += [word for name in options.select for word in ("--select", name)]
        command += [word for name, value in OPTIONS.items() for word in ("--set", f"{name}={value}")]
        command += ["--rounds", str(options.rounds), "--stop-after", str(options.rounds), "--seed", str(options.seed)]
    subprocess.run([*command, "--display", "plain", "--results", str(results)], check=True)
    return results


def print_run(results: Path, coder: str, judge: str) -> None:
    """Print the figures of a run, and the paper's."""
    with Store.open(results / DATABASE_NAME, read_only=True) as store:
        records = RunRecords.load(store, store.run("latest"))
    view = run_view(records)
    gpu = next((a.evaluation.fingerprint.gpu for a in records.attempts if a.evaluation.fingerprint.gpu), None)
    speedups = [
        None if not task.correct else task.speedup_eager or (task.predicted.speedup if task.predicted else 0.0)
        for task in view.tasks
    ]
    kind = "measured" if gpu else "predicted"
    count = len(speedups)
    dollars = "unknown" if view.cost.dollars is None else f"${view.cost.dollars / count:.2f}"
    minutes = "–" if view.seconds is None else f"{view.seconds / 60 / count:.1f}"
    print(f"{gpu or view.device}, {coder} with {judge}, {count} tasks")
    print(f"  {kind:10}{row_text(figures(speedups))}, {dollars} and {minutes} minutes a task")
    if paper := published(gpu or "", coder, judge):
        name, row = paper
        print(f"  {'published':10}{row_text(row)}, on the paper's {name}", flush=True)


def row_text(row: Row) -> str:
    return (
        f"{row.correct:3.0f} % correct, median {row.median:.3f}x, 75 % {row.upper:.3f}x, mean {row.mean:.3f}x, "
        f"{row.faster:.0f} % faster"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--device", action="append", help="of 'kernelforge run', whose default it has; repeat for more")
    parser.add_argument("--pair", nargs=2, action="append", metavar=("CODER", "JUDGE"), help="repeat for more")
    parser.add_argument("--select", action="append", metavar="NAME", help="tasks; D* if left out")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("cudaforge-study"))
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    options.device = options.device or [best_device() if options.dry_run else default_device()]
    options.pair = [tuple(pair) for pair in options.pair or PAIRS]
    options.select = options.select or ["D*"]
    if options.dry_run:
        try:
            print_costs(options)
        except KernelForgeError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        return 0
    failed = False
    for device in options.device:
        for coder, judge in options.pair:
            try:
                print_run(carry_out(options, device, coder, judge), coder, judge)
                continue
            except subprocess.CalledProcessError as error:
                why = f"its process ended with {error.returncode} and the message above"
            except KernelForgeError as error:
                why = str(error)
            failed = True
            print(f"{device}, {coder} with {judge}\n  {'failed':10}{why}; the same command tries again", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
