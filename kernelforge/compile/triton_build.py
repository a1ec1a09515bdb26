"""Builds of Triton source, seen from the parent: what the jailed child is asked, and what its answer means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata, util
from typing import Any

from kernelforge.candidate.plan import LaunchSignature
from kernelforge.candidate.resolved import Specialisation
from kernelforge.compile.triton_source import TRITON_FILE, mismatch, read_source
from kernelforge.errors import CandidateError
from kernelforge.records import CompiledLaunch, Diagnostic, DType

INSTALL = "pip install 'judged-kernels[triton]'"
MAX_DYNAMIC_SHARED_BYTES = 232_448
"""Most that a block of any emulated or supported GPU may use; a device refuses a launch that exceeds its own limit."""


@cache
def installed_triton() -> str | None:
    """Name and version of the installed Triton, which is not imported; None without one."""
    if util.find_spec("triton") is None:
        return None
    return f"triton {metadata.version('triton')}"


def triton_request(
    source: str, signatures: Sequence[LaunchSignature], constants: Mapping[str, int], arch: str
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """The request to the child, and mistakes of the launches, with which it is not sent.

    Raises:
        CandidateError: the source is refused.
    """
    checked = read_source(source)
    launches = [signature.specialisation for signature in signatures]
    mistakes: list[Diagnostic] = []
    for launch in launches:
        if launch is None:
            raise CandidateError("a Triton kernel is launched by a plan that was read for Triton")
        if message := mismatch(checked, launch):
            mistakes.append(error_in_source(message))
    if installed_triton() is None:
        mistakes.append(error_in_source(f"Triton is not installed here: {INSTALL}, or write the kernel in CUDA C++"))
    request = {
        "source": source,
        # The others would only give each size a build of its own.
        "constants": {name: value for name, value in constants.items() if name in checked.free_names},
        "kernels": [_kernel(launch) for launch in launches if launch is not None],
        "arch": arch,
    }
    return request, mistakes


def _kernel(launch: Specialisation) -> dict[str, Any]:
    return {
        "kernel": launch.kernel,
        "arguments": list(launch.arguments),
        "constants": [
            [name, {"dtype": "int1" if value is DType.BOOL else value.value} if isinstance(value, DType) else value]
            for name, value in launch.constants
        ],
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
    }


def error_in_source(message: str, line: int | None = None) -> Diagnostic:
    """An error of the candidate's Triton source."""
    return Diagnostic(file=TRITON_FILE, line=line, severity="error", message=message)


def compiled_launch(reply: Mapping[str, Any], expression: str) -> tuple[CompiledLaunch, Diagnostic | None]:
    """The launch facts in a reply, which is not trusted, and an error where no device can launch the kernel.

    Raises:
        ValueError: the facts are no such numbers.
    """
    launch = CompiledLaunch.model_validate(reply)
    shared = launch.dynamic_shared_bytes
    if shared <= MAX_DYNAMIC_SHARED_BYTES:
        return launch, None
    message = (
        f"{expression} needs {shared:,} bytes of shared memory; the limit is {MAX_DYNAMIC_SHARED_BYTES:,}. "
        "Use smaller blocks or fewer num_stages"
    )
    return launch, error_in_source(message)
