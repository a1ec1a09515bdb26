"""``kernelforge capture``: a user's model as groups of operators with their share of time, and as a suite of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import JsonOption, UnconfinedOption, print_view
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.hardware.specs import DeviceSpec


def capture(
    model: Annotated[
        str, typer.Argument(metavar="FILE.py:FUNCTION", help="The function that returns the model, an nn.Module.")
    ],
    inputs: Annotated[
        str | None,
        typer.Option(
            "--inputs",
            metavar="FILE.py:FUNCTION",
            help="The function that returns the model's arguments: a list, or a dict of keyword arguments.",
        ),
    ] = None,
    module: Annotated[
        str, typer.Option("--module", metavar="NAME", help="Only this part of the model, such as layers.0.mlp.")
    ] = "",
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="The emulated device that times are predicted for.")
    ] = "emulated:h100",
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Longest time that the capture may take.")
    ] = 900.0,
    allow_unconfined: UnconfinedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Capture a model: its fusible groups of operators, each with its share of the time and its floor."""
    if inputs is None:
        raise UsageError("the model needs arguments: add --inputs FILE.py:FUNCTION, a function that returns them")
    from kernelforge.capture.client import Source, capture_model
    from kernelforge.report.terminal.capture import capture_lines

    source = Source.of(model, "MODEL")
    captured = capture_model(
        source,
        Source.of(inputs, "--inputs", default=source.path),
        _spec(device),
        module=module,
        allow_unconfined=allow_unconfined,
        timeout_s=timeout,
    )
    print_view(captured, capture_lines, as_json=as_json)


def _spec(device: str) -> DeviceSpec:
    """Figures of an emulated device.

    Raises:
        UsageError: It is none.
    """
    from kernelforge.devices import check_device
    from kernelforge.hardware.specs import find_spec

    spec = find_spec(check_device(device)) if device.startswith("emulated") else None
    if spec is None:
        raise UsageError(f"--device {device!r} is no emulated device; name one, such as emulated:h100")
    return spec
