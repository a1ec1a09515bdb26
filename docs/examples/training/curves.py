"""Draw the expected curves of the toy GRPO from the shares of every step, as pictures."""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from kernelforge.report.figures import base
from kernelforge.report.render_image import svg

TITLES = {"correct": "share of correct kernels", "fast": "share of fast kernels among correct ones"}
WINDOW = 5
"""Steps that each point of a mean covers, its own the last of them."""


def drawn(rows: list[dict[str, str]], share: str) -> base.Figure:
    """Means over the seeds of each policy as bold lines, over every seed's own as thin ones."""
    runs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        runs[row["policy"], row["seed"]].append(float(row[share]))
    policies = list(dict.fromkeys(policy for policy, _ in runs))
    thin: list[base.Row] = []
    bold: list[base.Row] = []
    for policy in policies:
        curves = {seed: values for (name, seed), values in runs.items() if name == policy}
        for seed, values in curves.items():
            thin += [{"step": at, "share": _recent(values, at), "run": f"{policy} {seed}", "policy": policy}
                     for at in range(1, len(values) + 1)]  # fmt: skip
        steps = min(map(len, curves.values()))
        bold += [{"step": at, "share": fmean(_recent(values, at) for values in curves.values()), "policy": policy}
                 for at in range(1, steps + 1)]  # fmt: skip
    x, y = base.quantity("step", "step", zero=False), base.quantity("share", TITLES[share], ticks=".0%")
    y["scale"] |= {"domain": [0, 1]}
    look = {"color": base.coloured("policy", policies), "strokeDash": base.dashed("policy", policies)}
    ends = ", ".join(f"{row['policy']} {row['share']:.2f}" for row in bold if row["step"] == steps)
    return base.figure(
        f"training-{share}",
        TITLES[share].capitalize(),
        f"{TITLES[share].capitalize()} at the end, means of the seeds: {ends}.",
        [
            base.layer({"type": "line", "strokeWidth": 0.8, "opacity": 0.4}, thin, x=x, y=y,
                       detail={"field": "run", "type": "nominal"}, **look),
            base.layer({"type": "line", "strokeWidth": 2}, bold, x=x, y=y, **look),
        ],
    )  # fmt: skip


def _recent(values: list[float], at: int) -> float:
    return fmean(values[max(0, at - WINDOW) : at])


def main() -> None:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path, default=here / "curves.csv", help="of grpo_toy.py --csv")
    parser.add_argument("--output", type=Path, default=here.parents[1] / "images", help="folder of the pictures")
    options = parser.parse_args()
    with options.csv.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for share in TITLES:
        path = options.output / f"training-{share}.svg"
        path.write_text(svg(drawn(rows, share), width=560), encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main()
