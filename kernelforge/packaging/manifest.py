"""``package.json``: what a package holds, where it was found correct and how fast, and who wrote it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from kernelforge.errors import UsageError
from kernelforge.records import Candidate, Language, TaskPolicy, TensorSpec, WeightSpec, content_hash
from kernelforge.records.base import Record, restore_non_finite

FORMAT: Final = "kernelforge-package/1"
MANIFEST: Final = "package.json"
BUILDS: Final = "build/torch-universal"
"""Folder of a project that holds the module: where Hugging Face's ``kernels`` looks for one of any torch version."""
PLAN: Final = "plan.txt"
REFERENCE: Final = "reference.py"
EVALUATION: Final = "evaluation.json"
KERNELS: Final[dict[str, str]] = {"cuda": "kernel.cu", "triton": "kernel.triton"}
"""File of the device source by language. Triton's has no ``.py``: a package's process never imports it."""

_MOST_BYTES = 16 << 20


class PackagedTask(Record):
    """The task that the kernel was written for."""

    name: str
    suite: str
    title: str
    level: int
    digest: str
    license: str = ""
    """Licence of the reference, an SPDX expression where there is one; empty where none is stated."""
    policy: TaskPolicy
    """Rules of comparison, and the torch operators that the plan may call."""


class PackagedSize(Record):
    """Shapes, dtypes and strides at which the kernel was correct."""

    name: str
    """``full``, ``small``, or ``hidden_...``."""
    parameters: dict[str, int | float | bool] = {}
    """Module constants of the reference at this size; those not named are as in the file."""
    inputs: tuple[TensorSpec | int | float | bool | None, ...]
    """Arguments of the reference's ``forward``, in order."""
    weights: tuple[WeightSpec, ...] = ()
    """What the reference holds, in order: parameters, buffers, plain tensors; always contiguous."""
    outputs: tuple[TensorSpec, ...]
    """What the operator returns, always contiguous."""
    attrs: Annotated[dict[str, int | float | bool | str], BeforeValidator(restore_non_finite)] = {}
    """Scalar attributes of the reference by dotted name."""


class PackagedTime(Record):
    """A time of one call at the full size, in microseconds."""

    us: float = Field(gt=0, allow_inf_nan=False)
    low_us: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    high_us: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Ends of the interval; None where the evaluation has none, as of a modelled time."""
    origin: Literal["measured", "modelled", "predicted", "published"]
    source: str
    """Timing protocol, model, or where the time was published."""

    @model_validator(mode="after")
    def _inside(self) -> PackagedTime:
        if (self.low_us is None) != (self.high_us is None):
            raise ValueError("an interval has two ends")
        if self.low_us is not None and self.high_us is not None and not self.low_us <= self.us <= self.high_us:
            raise ValueError(f"{self.us} us lies outside of its interval")
        return self


class PackagedSpeedup(Record):
    """Ratio of the reference's time in eager PyTorch to the kernel's, at the full size."""

    value: float = Field(gt=0, allow_inf_nan=False)
    low: float = Field(gt=0, allow_inf_nan=False)
    high: float = Field(gt=0, allow_inf_nan=False)
    origin: Literal["measured", "predicted"]
    """``predicted`` where one of the two times was not measured."""


class Provenance(Record):
    """Origin of the kernel."""

    run: str
    attempt: str
    author: str
    """Specification of the Coder or model that wrote the kernel, such as ``builtin``."""
    written: str
    """UTC, ISO 8601."""
    kernelforge: str
    """Version that wrote the package."""


class Manifest(Record):
    """Content of ``package.json``."""

    format: Literal["kernelforge-package/1"] = FORMAT
    name: str = Field(pattern=r"^kernelforge-op-[a-z0-9]+(-[a-z0-9]+)*$")
    """Name of the project for pip, and of the kernel for Hugging Face's ``kernels``."""
    module: str = Field(pattern=r"^kernelforge_op_[a-z0-9_]+$")
    """Python package to import."""
    task: PackagedTask
    language: Language
    device: str
    """Device of the evaluation: ``emulated:h100`` or ``cuda:0``."""
    gpu: str
    """Name of the GPU that it is, or that it emulates."""
    emulated: str = Field(pattern=r"^emulated:[a-z0-9-]+$")
    """Device that CPU tensors are computed on."""
    arch: str = Field(pattern=r"^sm_\d{2,3}[a-z]?$")
    """Architecture that is compiled for; GPUs of another compute capability get the reference."""
    evaluator_version: str
    candidate: str
    """Hash of source, plan and choices."""
    choices: dict[str, int] = {}
    """Values of the plan's ``# tune:`` names."""
    sizes: tuple[PackagedSize, ...] = Field(min_length=1)
    """The full size first."""
    time: PackagedTime | None = None
    reference_us: PackagedTime | None = None
    """Time of eager PyTorch at the full size."""
    speedup: PackagedSpeedup | None = None
    group: str = ""
    """Digest of the group of ``capture.json`` that the task stands for; empty for a task of another origin."""
    licence: str
    """Licence of the kernel and of the package's own files, an SPDX expression."""
    provenance: Provenance
    files: dict[Annotated[str, Field(pattern=r"^[a-z]+\.[a-z]+$")], str]
    """SHA-256 of the other files of the module that the evaluation vouches for."""

    @model_validator(mode="after")
    def _one_signature(self) -> Manifest:
        kinds = {tuple(map(_kind, size.inputs)) for size in self.sizes}
        names = {tuple(weight.name for weight in size.weights) for size in self.sizes}
        if len(kinds) > 1 or len(names) > 1 or len({len(size.outputs) for size in self.sizes}) > 1:
            raise ValueError("the sizes differ in the number or kinds of inputs, weights or outputs")
        if any(not weight.spec.is_contiguous for size in self.sizes for weight in size.weights):
            raise ValueError("weights are contiguous")
        return self

    @property
    def digest(self) -> str:
        """Hash of the content."""
        return content_hash(self.model_dump(mode="json"))

    @property
    def operator(self) -> str:
        """Qualified name of the torch operator. Two versions of a package have two, and live in one process."""
        return f"{self.module.replace('_op_', '_', 1)}_{self.digest[:8]}::forward"


def _kind(value: TensorSpec | int | float | bool | None) -> str:
    return "tensor" if isinstance(value, TensorSpec) else type(value).__name__


def module_folder(folder: Path) -> Path:
    """The folder with ``package.json``: a module's own, or the one in the project that ``kernelforge package`` wrote.

    Raises:
        UsageError: there is none.
    """
    places = [folder, *sorted((folder / BUILDS).glob("*"))]
    for root in places:
        if (root / MANIFEST).is_file():
            return root
    raise UsageError(f"{folder} is no package: it has no {MANIFEST}; `kernelforge package` writes one")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a package, given its project's folder or its module's.

    Raises:
        UsageError: there is none, it cannot be read, or a file that the evaluation vouches for was changed.
    """
    root = module_folder(folder)
    path = root / MANIFEST
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is larger than any {MANIFEST}")
        manifest = Manifest.model_validate_json(path.read_bytes())
        digests = {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in manifest.files}
    except (OSError, ValidationError) as error:
        raise UsageError(f"{path} is not of format {FORMAT}, or incomplete: {error}") from error
    changed = [name for name, digest in digests.items() if digest != manifest.files[name]]
    if changed:
        raise UsageError(f"{root / changed[0]} was changed after its evaluation; package the attempt again")
    return manifest


def read_candidate(folder: Path, manifest: Manifest) -> Candidate:
    """The kernel and its plan, of a module's folder.

    Raises:
        UsageError: they are not those that were evaluated.
    """
    candidate = Candidate(
        source=(folder / KERNELS[manifest.language]).read_bytes().decode(),
        plan=(folder / PLAN).read_bytes().decode(),
        choices=manifest.choices,
    )
    if candidate.hash != manifest.candidate:
        raise UsageError(f"{folder} holds another kernel than the one that was evaluated; package the attempt again")
    return candidate
