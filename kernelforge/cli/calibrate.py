"""``kernelforge calibrate``: measure the figures of a GPU, for an emulated device of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.support.options import JsonOption, UnconfinedOption, print_view, write_text
from kernelforge.errors import UsageError


def calibrate(
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="cuda:0; or an emulated device, to test the measurements.")
    ] = "cuda",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE.toml", help="Write the figures for --device emulated:FILE.toml."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    runs: Annotated[
        int | None, typer.Option("--runs", metavar="N", min=1, help="Runs of every measurement; 5 on a GPU.")
    ] = None,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure latencies, bandwidths and rates of a GPU, and write them as figures of an emulated device."""
    _check_output(output, force)
    from kernelforge.calibration import calibrate as measure
    from kernelforge.calibration import parameter_file
    from kernelforge.report.terminal.calibration import calibration_lines

    def tell(line: str) -> None:
        typer.echo(line, err=True)

    calibration, facts, spec = measure(device, runs=runs, allow_unconfined=allow_unconfined, tell=tell)
    print_view(calibration, calibration_lines, as_json=as_json)
    if output is not None:
        write_text(parameter_file(calibration, facts, spec), output)
        tell(f"written: {output}; try kernelforge run --device emulated:{output}")


def _check_output(output: Path | None, force: bool) -> None:
    """Refuse an output that could not be written, before minutes are spent.

    Raises:
        UsageError: its name does not end with .toml, it exists, or its folder does not exist.
    """
    from kernelforge.hardware.specs import PARAMETER_FILE

    if output is None:
        return
    if output.suffix != PARAMETER_FILE:
        raise UsageError(f"--output {output}: the name of the file ends with {PARAMETER_FILE}, such as my_gpu.toml")
    if output.is_dir():
        raise UsageError(f"--output {output} is a folder: name a file in it")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"--output {output}: there is no folder {output.absolute().parent}; make it first")
    if output.exists() and not force:
        raise UsageError(f"{output} exists; --force replaces it")
