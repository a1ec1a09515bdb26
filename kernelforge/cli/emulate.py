"""``kernelforge emulate``: run a kernel of one's own on the emulated device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import (
    Approximations,
    ApproxOption,
    JsonOption,
    UnconfinedOption,
    console,
    print_json,
    write_text,
)
from kernelforge.errors import UsageError
from kernelforge.utils.text_files import read_text

if TYPE_CHECKING:
    from kernelforge.emulation import Emulation

MAX_FILE_BYTES = 16 << 20


def emulate(
    kernel: Annotated[Path, typer.Argument(metavar="KERNEL", help="A file with CUDA C++ device code, or PTX.")],
    launch: Annotated[
        list[str] | None,
        typer.Option(
            "--launch",
            metavar="LAUNCH",
            help="One launch, such as 'saxpy[4096, 256](x, y, f32(2.0))'; repeat for more, in order.",
        ),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="A launch plan in place of --launch.")
    ] = None,
    tensor: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor",
            metavar="NAME=TENSOR",
            help="f32[1024,768], i32[64]:arange (or normal, uniform, zeros, ones, a number), or @FILE.npy; repeat.",
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="An emulated device.")] = "emulated:h100",
    source: Annotated[bool, typer.Option("--source", help="Show counts per line too.")] = False,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Write a web page, with counts per line.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FOLDER", help="Write every tensor after the run as NAME.npy.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile/--no-profile", help="Count events and model the time.")] = True,
    sanitize: Annotated[
        bool,
        typer.Option("--sanitize/--no-sanitize", help="Report reads before a write, and races on global memory, too."),
    ] = True,
    approx: ApproxOption = Approximations.VARIED,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the tensors' values.")] = 0,
    limit_s: Annotated[float, typer.Option("--limit", min=1, metavar="SECONDS", help="Deadline of a run.")] = 600.0,
    registers: Annotated[
        int, typer.Option("--registers", min=1, max=255, help="Registers per thread of PTX, for its occupancy.")
    ] = 32,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a kernel without a GPU: results, findings, counters. Leaves with 0 if the checks found nothing, else 1."""
    from kernelforge.emulation import emulate as run_emulated
    from kernelforge.report.views.emulation import emulation_view

    if (plan is None) == (not launch):
        raise UsageError("give either --launch 'saxpy[4096, 256](x, y, f32(2.0))' or --plan FILE")
    result = run_emulated(
        read_text(kernel, MAX_FILE_BYTES, what="the kernel", hint="name a file with CUDA C++ or PTX"),
        "\n".join(launch) if launch else None,
        _tensors(tensor or ()),
        plan=None if plan is None else read_text(plan, MAX_FILE_BYTES, what="the plan", hint="name a launch plan"),
        device=device,
        profile=profile,
        lines=source or page is not None,
        sanitize=sanitize,
        approx="worst" if approx is Approximations.WORST else "varied",
        seed=seed,
        limit_s=limit_s,
        registers=registers,
        allow_unconfined=allow_unconfined,
    )
    view = emulation_view(result)
    if as_json:
        print_json(view)
    else:
        from kernelforge.report.terminal.emulation import emulation_lines

        console().print(emulation_lines(view))
    if page is not None:
        from kernelforge.report.html.emulation import emulation_page

        write_text(emulation_page(view, title=kernel.name), page)
    if output is not None:
        _save(result, output)
    raise typer.Exit(0 if result.ok else 1)


def _tensors(options: Sequence[str]) -> dict[str, str]:
    """Descriptions of ``--tensor`` options by name."""
    tensors: dict[str, str] = {}
    for option in options:
        name, equals, description = (part.strip() for part in option.partition("="))
        if not equals:
            raise UsageError(f"--tensor takes NAME=TENSOR, such as x=f32[1024], not {option!r}")
        if name in tensors:
            raise UsageError(f"--tensor names {name} twice")
        tensors[name] = description
    return tensors


def _save(result: Emulation, folder: Path) -> None:
    """Write every tensor as a file."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    for name, values in result.tensors.items():
        np.save(folder / f"{name}.npy", values)
