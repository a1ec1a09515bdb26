"""``kernelforge splice``: packaged operators in a user's model: are its outputs equal, and what do they gain in all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelforge.cli.support.options import (
    InputsOption,
    JsonOption,
    ModelArgument,
    ModuleOption,
    UnconfinedOption,
    model_sources,
    print_view,
)
from kernelforge.errors import UsageError


def splice(
    model: ModelArgument,
    inputs: InputsOption = None,
    package: Annotated[
        list[Path] | None,
        typer.Option("--package", metavar="FOLDER", help="A folder of `kernelforge package`; repeat for more."),
    ] = None,
    module: ModuleOption = "",
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="The emulated device that the packages were evaluated on.")
    ] = "emulated:h100",
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Longest time that the model may take.")
    ] = 900.0,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put packaged operators into a model: compare its outputs, and predict the time of the model before and after.

    Leaves with 1 unless the outputs were compared and are equal within the tolerance.
    """
    model_source, inputs_source = model_sources(model, inputs)
    if not package:
        raise UsageError("name what to put into the model: add --package FOLDER, as `kernelforge package` writes it")
    from kernelforge.devices import check_device
    from kernelforge.packaging.splice_check import splice_model
    from kernelforge.report.terminal.splice import splice_lines

    checked = splice_model(
        model_source,
        inputs_source,
        package,
        check_device(device),
        module=module,
        allow_unconfined=allow_unconfined,
        timeout_s=timeout,
    )
    print_view(checked, splice_lines, as_json=as_json)
    if checked.check.verdict != "equal":
        raise typer.Exit(1)
