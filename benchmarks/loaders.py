"""Time to load a folder of 250 files in KernelBench's format and choose their sizes.

Writes the files into a temporary folder, as variants of 25 templates at sizes that fill a GPU, imports them twice (the
second time from the cache of sizes, which starts empty and is this benchmark's own), and prints seconds and counts.
Exits with 1 when the target is missed.

    python benchmarks/loaders.py [--files 250] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

SECONDS = 600.0
ADMITTED = 0.95


class Template(NamedTuple):
    """One kind of problem: constants with their values, body of ``__init__``, expression of ``forward``, inputs."""

    name: str
    constants: dict[str, int]
    init: str
    forward: str
    inputs: str
    arguments: str = "x"
    takes: str = ""
    """Constants that ``Model`` takes."""


TEMPLATES = (
    Template("matmul", {"M": 4096, "K": 2048, "N": 8192}, "pass", "x @ y",
             "torch.rand(M, K), torch.rand(K, N)", "x, y"),
    Template("square_matmul", {"N": 4096}, "pass", "x @ y", "torch.rand(N, N), torch.rand(N, N)", "x, y"),
    Template("bmm", {"B": 128, "M": 512, "K": 1024, "N": 2048}, "pass", "torch.bmm(x, y)",
             "torch.rand(B, M, K), torch.rand(B, K, N)", "x, y"),
    Template("relu", {"batch_size": 4096, "dim": 393216}, "pass", "torch.relu(x)", "torch.rand(batch_size, dim)"),
    Template("gelu", {"batch_size": 4096, "dim": 393216}, "pass", "F.gelu(x)", "torch.rand(batch_size, dim)"),
    Template("softmax", {"batch_size": 4096, "dim": 393216}, "pass", "torch.softmax(x, 1)",
             "torch.rand(batch_size, dim)"),
    Template("layer_norm", {"batch_size": 16, "features": 64, "dim1": 256, "dim2": 256},
             "self.norm = nn.LayerNorm((features, dim1, dim2))", "self.norm(x)",
             "torch.rand(batch_size, features, dim1, dim2)", takes="features, dim1, dim2"),
    Template("group_norm", {"batch_size": 112, "features": 64, "num_groups": 8, "dim1": 512, "dim2": 512},
             "self.norm = nn.GroupNorm(num_groups, features)", "self.norm(x)",
             "torch.rand(batch_size, features, dim1, dim2)", takes="features, num_groups"),
    Template("batch_norm", {"batch_size": 64, "features": 64, "dim1": 512, "dim2": 512},
             "self.norm = nn.BatchNorm2d(features)", "self.norm(x)",
             "torch.rand(batch_size, features, dim1, dim2)", takes="features"),
    Template("rms_norm", {"batch_size": 112, "features": 64, "dim1": 512, "dim2": 512}, "pass",
             "x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)",
             "torch.rand(batch_size, features, dim1, dim2)"),
    Template("conv2d", {"batch_size": 16, "in_channels": 64, "out_channels": 128, "height": 512, "width": 1024},
             "self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)", "self.conv(x)",
             "torch.rand(batch_size, in_channels, height, width)", takes="in_channels, out_channels"),
    Template("depthwise", {"batch_size": 64, "channels": 128, "height": 256, "width": 512},
             "self.conv = nn.Conv2d(channels, channels, 3, groups=channels)", "self.conv(x)",
             "torch.rand(batch_size, channels, height, width)", takes="channels"),
    Template("conv_transpose", {"batch_size": 16, "in_channels": 32, "out_channels": 64, "height": 128, "width": 256},
             "self.conv = nn.ConvTranspose2d(in_channels, out_channels, (3, 5), stride=2, groups=4)", "self.conv(x)",
             "torch.rand(batch_size, in_channels, height, width)", takes="in_channels, out_channels"),
    Template("conv3d", {"batch_size": 8, "in_channels": 16, "out_channels": 64, "depth": 64, "size": 128},
             "self.conv = nn.Conv3d(in_channels, out_channels, 3)", "self.conv(x)",
             "torch.rand(batch_size, in_channels, depth, size, size)", takes="in_channels, out_channels"),
    Template("max_pool", {"batch_size": 32, "channels": 64, "height": 512, "width": 512},
             "self.pool = nn.MaxPool2d(4, stride=1, padding=1)", "self.pool(x)",
             "torch.rand(batch_size, channels, height, width)"),
    Template("avg_pool", {"batch_size": 64, "channels": 128, "length": 65536},
             "self.pool = nn.AvgPool1d(8, stride=1, padding=4)", "self.pool(x)",
             "torch.rand(batch_size, channels, length)"),
    Template("sum", {"batch_size": 128, "dim1": 4096, "dim2": 4095}, "pass", "x.sum(1, keepdim=True)",
             "torch.rand(batch_size, dim1, dim2)"),
    Template("argmax", {"batch_size": 128, "dim1": 4096, "dim2": 4095}, "pass", "torch.argmax(x, dim=1)",
             "torch.rand(batch_size, dim1, dim2)"),
    Template("cumsum", {"batch_size": 32768, "dim": 32768}, "pass", "torch.cumsum(x, 1)",
             "torch.rand(batch_size, dim)"),
    Template("cross_entropy", {"batch_size": 32768, "num_classes": 4096}, "pass", "F.cross_entropy(x, t)",
             "torch.rand(batch_size, num_classes), torch.randint(0, num_classes, (batch_size,))", "x, t"),
    Template("attention", {"batch_size": 32, "num_heads": 32, "sequence": 512, "head_dim": 128}, "pass",
             "F.scaled_dot_product_attention(q, k, v)",
             ", ".join(["torch.rand(batch_size, num_heads, sequence, head_dim)"] * 3), "q, k, v"),
    Template("linear_fusion", {"batch_size": 1024, "in_features": 8192, "out_features": 8192},
             "self.linear, self.scale = nn.Linear(in_features, out_features), 0.5",
             "torch.clamp(torch.sigmoid(self.linear(x)) * self.scale, -1, 1)",
             "torch.rand(batch_size, in_features)", takes="in_features, out_features"),
    Template("conv_fusion", {"batch_size": 128, "in_channels": 64, "out_channels": 128, "size": 128},
             "self.conv, self.norm = nn.Conv2d(in_channels, out_channels, 3), nn.GroupNorm(8, out_channels)",
             "F.hardswish(self.norm(self.conv(x)) / 2).amax((2, 3))",
             "torch.rand(batch_size, in_channels, size, size)", takes="in_channels, out_channels"),
    Template("mlp", {"batch_size": 128, "width": 16384, "hidden": 32768, "out": 8192},
             "self.net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))", "self.net(x)",
             "torch.rand(batch_size, width)", takes="width, hidden, out"),
    Template("gru", {"batch_size": 10, "sequence": 128, "inputs": 128, "hidden": 256},
             "self.gru = nn.GRU(inputs, hidden, 2, batch_first=True)", "self.gru(x)[0]",
             "torch.rand(batch_size, sequence, inputs)", takes="inputs, hidden"),
)  # fmt: skip


def text_of(template: Template, variant: int) -> str:
    """The file: variants differ in their first extent and in a factor on the result, so that none is another."""
    constants = dict(template.constants)
    first = next(iter(constants))
    constants[first] += variant * 8
    lines = [f"{name} = {value}" for name, value in constants.items()]
    result = (
        template.forward if variant == 0 or "argmax" in template.forward else f"({template.forward}) * {1 + variant}.0"
    )
    parameters = f", {template.takes}" if template.takes else ""
    return "\n".join([
        "import torch", "import torch.nn as nn", "import torch.nn.functional as F", "", "",
        "class Model(nn.Module):",
        f"    def __init__(self{parameters}):",
        "        super().__init__()",
        f"        {template.init}",
        "",
        f"    def forward(self, {template.arguments}):",
        f"        return {result}",
        "", "", *lines, "", "",
        "def get_inputs():",
        f"    return [{template.inputs}]",
        "", "",
        "def get_init_inputs():",
        f"    return [{template.takes}]",
        "",
    ])  # fmt: skip


def write(folder: Path, files: int) -> None:
    for number in range(files):
        template = TEMPLATES[number % len(TEMPLATES)]
        level = folder / "KernelBench" / f"level{1 + number * 3 // files}"
        level.mkdir(parents=True, exist_ok=True)
        variant = number // len(TEMPLATES)
        (level / f"{number + 1}_{template.name}_{variant}.py").write_text(text_of(template, variant))


def imported(folder: Path, output: Path, jobs: int) -> tuple[float, dict[str, Any]]:
    command = [sys.executable, "-m", "kernelforge", "tasks", "import", str(folder), "--format", "kernelbench"]
    start = time.monotonic()
    variables = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [*command, "--output", str(output), "--jobs", str(jobs), "--json"],
        check=True, stdout=subprocess.PIPE, text=True, env=variables,
    )  # fmt: skip
    return time.monotonic() - start, json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=250)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(folder, options.files)
        first_s, report = imported(folder, folder / "suite", options.jobs)
        again_s, _ = imported(folder, folder / "suite", options.jobs)
    tasks = report["tasks"]
    admitted = sum(1 for task in tasks if task["admitted"])
    hidden = sum(len(task["sizes"]) - 1 for task in tasks)
    target_s = SECONDS * options.files / 250
    table = Table("what", "found", "target")
    table.add_row("files", str(options.files), "")
    table.add_row("loaded", str(len(tasks)), "")
    table.add_row("admitted at all their sizes", str(admitted), f"at least {ADMITTED * options.files:.0f}")
    table.add_row("hidden sizes", str(hidden), "")
    table.add_row(f"seconds, {options.jobs} jobs", f"{first_s:.0f}", f"under {target_s:.0f}")
    table.add_row("seconds again, from the cache", f"{again_s:.1f}", "")
    console = Console()
    console.print(table)
    for refused in report["not_loaded"]:
        console.print(f"not loaded: {refused['origin']}: {refused['reason']}", markup=False)
    for task in tasks:
        if len(task["sizes"]) < 4 or not task["admitted"]:
            console.print(f"{task['name']}: {'; '.join(task['notes'])} {task['unchecked']}", markup=False)
    return 0 if first_s < target_s and admitted >= ADMITTED * options.files else 1


if __name__ == "__main__":
    sys.exit(main())
