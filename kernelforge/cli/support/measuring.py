"""Options for timing on a GPU, and the default device, shared by commands."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelforge.cli.support.settings import pairs
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.records import MeasureSettings


class Runtime(StrEnum):
    """What ``--runtime`` may be."""

    CUPY = "cupy"
    PYCUDA = "pycuda"


class Protocol(StrEnum):
    """What ``--protocol`` may be."""

    KERNELFORGE = "kernelforge"
    KERNELBENCH = "kernelbench"


RuntimeOption = Annotated[Runtime | None, typer.Option("--runtime", help="What talks to the GPU's driver.")]
ProtocolOption = Annotated[
    Protocol | None,
    typer.Option("--protocol", help="How a GPU is timed; kernelbench is for comparison with published numbers only."),
]
SanitizerOption = Annotated[
    bool, typer.Option("--sanitizer", help="On a GPU: also run the small size under compute-sanitizer.")
]
MeasureOption = Annotated[
    list[str] | None,
    typer.Option("--measure", metavar="NAME=VALUE", help="How a GPU measures, such as qps=100 or seconds=20."),
]


def measure_settings(
    runtime: Runtime | None,
    protocol: Protocol | None,
    sanitizer: bool,
    given: Sequence[str] | None,
    *,
    full_counters: bool = False,
) -> MeasureSettings:
    """The settings that the options describe.

    Raises:
        UsageError: an unknown name, or a value that makes no sense.
    """
    from pydantic import ValidationError

    from kernelforge.records import MeasureSettings, first_fault

    values: dict[str, Any] = pairs("--measure", given)
    known = ("counters", "precision", "qps", "seconds")
    for name in values:
        if name not in known:
            raise UsageError(f"--measure has no {name!r}; choose of {', '.join(known)}")
    if full_counters:
        values.setdefault("counters", "full")
    for name, value in (("runtime", runtime), ("protocol", protocol)):
        if value is not None:
            values[name] = value.value
    try:
        return MeasureSettings.model_validate(values | {"sanitizer": sanitizer}, strict=False)
    except ValidationError as error:
        raise UsageError(f"--measure {first_fault(error)}") from error


def default_device(*, opens: bool, measure: MeasureSettings, allow_unconfined: bool) -> str:
    """The device to use when none was named; says on stderr why a GPU is passed over.

    Args:
        opens: Open a GPU to see that it works, and take the emulated device where it does not.
        measure: How the GPU will be used.
        allow_unconfined: Open it without a jail where none works.
    """
    from kernelforge.devices import best_device, unused_gpu, usable_device

    name, why = usable_device(measure, allow_unconfined=allow_unconfined) if opens else (best_device(), unused_gpu())
    if why is not None:
        typer.echo(f"note: {why}", err=True)
    return name
