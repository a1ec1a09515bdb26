"""Kernel definitions with workloads, the JSON format that FlashInfer-Bench and SOL-ExecBench share.

A *definition* names axes (constant, variable or an expression), typed inputs and outputs over them, and the text of a
reference ``run``. A *workload* binds the variable axes and names the source of each input. Formats: FlashInfer Trace
schema (docs of flashinfer-ai/flashinfer-bench, "Definition" and "Workload"); SOL-ExecBench adds expression axes and
inputs made by a function of the reference (docs/definition.md of NVIDIA/SOL-ExecBench). Random
values are drawn as by both: normal for floating types, normal within +-2 for 8-bit ones, all of int8, wider integers in
[-1024, 1024).

Everything here is read as data and text. A definition with its workloads becomes one task: its largest workload is the
size ``full``, small ones become hidden sizes.
"""

from __future__ import annotations

import ast
import json
import keyword
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelforge.errors import TaskError
from kernelforge.records import first_fault
from kernelforge.tasks.constants import Scalar, evaluate_expression, parse_python
from kernelforge.tasks.files import is_within, parse_task_file, read_plain_file
from kernelforge.tasks.loaders.base import ExternalTask
from kernelforge.tasks.loaders.reference_text import Reference, read_reference
from kernelforge.tasks.loaders.rows import Taken, distinct
from kernelforge.utils.shell_hints import install_hint

_MAX_JSON_BYTES = 4 << 20
_MAX_WORKLOADS = 1024
_MOST_AXES, _MOST_TENSORS = 256, 256
_LARGEST_AXIS = 2**40
_LARGEST_SCALAR = 1e300
_MAX_EMBEDDED = 512
"""Most elements of an integer tensor from a file that are written into the task; more would fill a prompt."""
_SMALL_ELEMENTS = 1 << 18
"""Most elements of a workload that becomes a hidden size."""
_FIXED_ELEMENTS = 1 << 20
"""Most elements of all tensors, with every variable axis at 4, for which constant axes stay fixed."""
_HIDDEN_WORKLOADS = 2


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


_Model = TypeVar("_Model", bound=_Part)


class ConstAxis(_Part):
    type: Literal["const"]
    value: int = Field(ge=0, le=_LARGEST_AXIS)


class VarAxis(_Part):
    type: Literal["var"]


class ExprAxis(_Part):
    type: Literal["expr"]
    expression: str


class Tensor(_Part):
    """Shape by axis names, None for a Python number; dtype by torch's name."""

    shape: list[str] | None = Field(max_length=_MOST_AXES)
    dtype: str


class Definition(_Part):
    name: str
    axes: dict[str, Annotated[ConstAxis | VarAxis | ExprAxis, Field(discriminator="type")]] = Field(
        max_length=_MOST_AXES
    )
    inputs: dict[str, Tensor] = Field(min_length=1, max_length=_MOST_TENSORS)
    outputs: dict[str, Tensor] = Field(min_length=1, max_length=_MOST_TENSORS)
    reference: str
    op_type: str | None = None
    description: str | None = None
    tags: list[str] | None = None
    custom_inputs_entrypoint: str | None = None


class Source(_Part):
    """Source of one input of a workload."""

    type: Literal["random", "scalar", "safetensors", "custom"]
    value: int | float | bool | None = None
    path: str | None = None
    tensor_key: str | None = None


class Workload(_Part):
    uuid: str
    axes: dict[str, Annotated[int, Field(ge=0, le=_LARGEST_AXIS)]] = Field(max_length=_MOST_AXES)
    inputs: dict[str, Source] = Field(max_length=_MOST_TENSORS)


_FLOATS = {"float64", "float32", "float16", "bfloat16"}
_BYTES = {"float8_e4m3fn", "float8_e5m2"}
"""Passed as uint8; the reference gets a view of it."""
_RANGES = {"int8": (-128, 128), "int16": (-1024, 1024), "int32": (-1024, 1024), "int64": (-1024, 1024)}
_SUPPORTED = _FLOATS | _BYTES | set(_RANGES) | {"uint8", "bool"}


def read_definition(text: str) -> Definition:
    """A definition from JSON.

    Raises:
        TaskError: it is not JSON, or not a definition; the message has the first error.
    """
    return _validated(Definition, _json(text))


def read_workloads(text: str, definition: str) -> list[Workload]:
    """Workloads of one definition from JSON lines: bare, or in a trace's ``workload`` field.

    Raises:
        TaskError: a line is not a workload; the message names it.
    """
    workloads = []
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > _MAX_WORKLOADS:
        raise TaskError(f"{len(lines)} workloads; at most {_MAX_WORKLOADS} are read")
    for number, line in enumerate(lines, 1):
        try:
            data = _json(line)
            if isinstance(data, dict) and "workload" in data:
                if data.get("definition", definition) != definition:
                    continue
                data = data["workload"]
            workloads.append(_validated(Workload, data))
        except TaskError as error:
            raise TaskError(f"workload line {number}: {error}") from None
    return workloads


def read_text(path: Path, within: Path) -> str:
    """Text of a JSON or JSON-lines file, which must lie in the imported folder.

    Raises:
        TaskError: it cannot be read, is no plain file, too large or not UTF-8, or lies elsewhere.
    """
    try:
        return read_plain_file(path, _MAX_JSON_BYTES, within=within).decode()
    except FileNotFoundError:
        raise TaskError(f"there is no {path.name}") from None
    except UnicodeDecodeError:
        raise TaskError(f"{path.name} is not UTF-8 text") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"not JSON: {str(error)[:120]}") from None


def _validated(model: type[_Model], data: Any) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise TaskError(first_fault(error)) from None


_LONGEST = 80
_NO_NAME = re.compile(r"[^a-z0-9_\-.]")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def _printable(text: str) -> str:
    """Text for one line, without control characters and surrogates."""
    return _UNPRINTABLE.sub("?", text)


def _quotable(text: str) -> str:
    """The same for the inside of a docstring."""
    return _printable(text).replace("\\", "/").replace('"', "'")


class Writer:
    """Writes one definition as a task file.

    Args:
        benchmark: its benchmark, for the task's docstring.
        root: folder with the tensors of workloads.

    Raises:
        TaskError: the definition needs something that a task cannot have; one line.
    """

    def __init__(self, definition: Definition, benchmark: str, root: Path) -> None:
        self.definition = definition
        self._benchmark = benchmark
        self._root = root
        for name in (*definition.axes, *definition.inputs):
            if not name.isidentifier() or keyword.iskeyword(name):
                raise TaskError(f"'{name[:60]}' cannot be a name in Python")
        for kind, tensors in (("input", definition.inputs), ("output", definition.outputs)):
            for name, tensor in tensors.items():
                self._check_tensor(kind, name, tensor)
        self._reference: Reference = read_reference(
            definition.reference, taken={"Model", "get_inputs", "get_init_inputs", "nn", *definition.axes}
        )
        if "run" not in self._reference.names:
            raise TaskError("its reference defines no function `run`")

    def _check_tensor(self, kind: str, name: str, tensor: Tensor) -> None:
        if tensor.dtype not in _SUPPORTED or (kind == "output" and tensor.dtype in _BYTES):
            raise TaskError(f"{kind} '{name}' is {tensor.dtype[:40]}, which does not cross to a candidate")
        if tensor.shape is None and kind == "output":
            raise TaskError(f"output '{name}' is a Python number; tasks give tensors")
        unknown = [axis for axis in tensor.shape or () if axis not in self.definition.axes]
        if unknown:
            raise TaskError(f"{kind} '{name}' has an axis '{unknown[0][:60]}' that is not defined")

    def task(self, workloads: Sequence[Workload], origin: str, taken: Taken) -> ExternalTask:
        """Make one task of all workloads, with an unused name. The largest workload is the size ``full``.

        Raises:
            TaskError: there is no usable workload.
        """
        if not workloads:
            raise TaskError("it has no workloads, so its variable axes have no values")
        by_size = sorted(workloads, key=self._elements)
        full = by_size[-1]
        source = self._source(full)
        fixed = self._fixed_names(full)
        definition = self.definition
        sizes: dict[str, Mapping[str, int | float | bool]] = {}
        if not any(spec.type == "safetensors" for spec in full.inputs.values()):
            for workload in by_size[:-1]:
                axes = {axis: workload.axes[axis] for axis in self._variable()}
                if self._elements(workload) <= _SMALL_ELEMENTS and axes not in sizes.values():
                    sizes[f"hidden_workload_{len(sizes) + 1}"] = axes
                if len(sizes) == _HIDDEN_WORKLOADS:
                    break
        return ExternalTask(
            name=distinct(_NO_NAME.sub("_", definition.name[:_LONGEST].lower()).lstrip("_-.") or "task", taken),
            title=self._title(),
            source=source,
            origin=origin,
            level=2,
            tags=tuple(
                _printable(spec)[:_LONGEST] for spec in (definition.op_type or "", *(definition.tags or ())) if spec
            )[:8],
            fixed=frozenset(fixed),
            sizes=sizes,
        )

    def _title(self) -> str:
        return _printable((self.definition.description or self.definition.name).strip().split("\n")[0])[:100]

    def _variable(self) -> list[str]:
        return [name for name, axis in self.definition.axes.items() if isinstance(axis, VarAxis)]

    def _values(self, axes: Mapping[str, int]) -> dict[str, Scalar]:
        """Values of all axes by name, with expressions evaluated."""
        values: dict[str, Scalar] = {}
        for name, axis in self.definition.axes.items():
            if isinstance(axis, ConstAxis):
                values[name] = axis.value
            elif isinstance(axis, VarAxis):
                if name not in axes:
                    raise TaskError(f"a workload gives no value for the axis '{name}'")
                values[name] = axes[name]
        for name, axis in self.definition.axes.items():
            if isinstance(axis, ExprAxis):
                values[name] = int(evaluate_expression(axis.expression, values))
                if not 0 <= values[name] <= _LARGEST_AXIS:
                    raise TaskError(f"the axis '{name}' is {values[name]}")
        return values

    def _elements(self, workload: Workload) -> int:
        return self._elements_at(self._values(workload.axes))

    def _elements_at(self, values: Mapping[str, Scalar]) -> int:
        total = 0
        for tensor in (*self.definition.inputs.values(), *self.definition.outputs.values()):
            count = 1
            for axis in tensor.shape or ():
                count *= int(values[axis])
            total += count
        return total

    def _fixed_names(self, full: Workload) -> set[str]:
        """Names that no size may change: the reference's own numbers, scalars, and axes fixed by data or cost."""
        names = {self._reference.renamed.get(name, name) for name in self._reference.names}
        names |= {name for name, spec in full.inputs.items() if spec.type == "scalar"}
        for name, spec in full.inputs.items():
            if spec.type == "safetensors" and self.definition.inputs[name].dtype not in _FLOATS:
                names |= set(self.definition.inputs[name].shape or ())
        least = self._values(dict.fromkeys(self._variable(), 4))
        if self._elements_at(least) <= _FIXED_ELEMENTS:
            names |= {name for name, axis in self.definition.axes.items() if isinstance(axis, ConstAxis)}
        return names

    def _source(self, full: Workload) -> str:
        definition, reference = self.definition, self._reference
        missing = [name for name in definition.inputs if name not in full.inputs]
        if missing:
            raise TaskError(f"workload {full.uuid[:40]} has no input '{missing[0]}'")
        lines = [
            f'"""{_quotable(self._title())}',
            "",
            f"{self._benchmark} definition {_quotable(definition.name[:_LONGEST])}, "
            f"workload {_quotable(full.uuid[:60])}.",
            '"""',
            "",
            *reference.future,
            "import torch",
            "import torch.nn as nn",
            "",
            *self._constants(full),
            "",
            "",
            reference.text.strip("\n"),
            "",
            "",
            *self._model(),
            "",
            "",
            *self._inputs(full),
            "",
            "",
            "def get_init_inputs():",
            "    return []",
            "",
        ]
        text = "\n".join(lines)
        parse_task_file(text, "it")
        return text

    def _constants(self, full: Workload) -> Iterable[str]:
        values = self._values(full.axes)
        for name, axis in self.definition.axes.items():
            if not isinstance(axis, ExprAxis):
                yield f"{name} = {values[name]}"
        for name, axis in self.definition.axes.items():
            if isinstance(axis, ExprAxis):
                expression = parse_python(axis.expression.strip(), f"the axis '{name}'")
                yield f"{name} = int({ast.unparse(expression)})"
        for name, spec in full.inputs.items():
            if spec.type == "scalar" and name in self.definition.inputs:
                if spec.value is None:
                    raise TaskError(f"the scalar input '{name}' has no value")
                if not abs(spec.value) <= _LARGEST_SCALAR:
                    raise TaskError(f"the scalar input '{name}' is not finite")
                yield f"{name} = {spec.value!r}"

    def _model(self) -> Iterable[str]:
        names = list(self.definition.inputs)
        views = {
            name: f"{name}.view(torch.{tensor.dtype})" if tensor.dtype in _BYTES else name
            for name, tensor in self.definition.inputs.items()
        }
        run = self._reference.renamed.get("run", "run")
        yield "class Model(nn.Module):"
        yield f"    def forward(self, {', '.join(names)}):"
        yield f"        return {run}({', '.join(views[name] for name in names)})"

    def _inputs(self, full: Workload) -> Iterable[str]:
        yield "def get_inputs():"
        if any(spec.type == "custom" for spec in full.inputs.values()):
            yield from self._custom(full)
            return
        yield "    return ["
        for name, tensor in self.definition.inputs.items():
            yield f"        {self._drawn(name, tensor, full.inputs[name])},"
        yield "    ]"

    def _custom(self, full: Workload) -> Iterable[str]:
        entry = self.definition.custom_inputs_entrypoint
        if entry is None or entry not in self._reference.names:
            raise TaskError("its inputs are made by a function that its reference does not define")
        if any(spec.type not in ("custom", "scalar") for spec in full.inputs.values()):
            raise TaskError("a workload mixes inputs made by a function with others")
        scalars = [name for name, spec in full.inputs.items() if spec.type == "scalar"]
        arguments = ", ".join(f'"{name}": {name}' for name in (*self.definition.axes, *scalars))
        yield f"    made = {self._reference.renamed.get(entry, entry)}({{{arguments}}}, torch.device('cpu'))"
        parts = []
        for name, tensor in self.definition.inputs.items():
            view = ".view(torch.uint8)" if tensor.dtype in _BYTES else ""
            parts.append(name if name in scalars else f'made["{name}"]{view}')
        yield f"    return [{', '.join(parts)}]"

    def _drawn(self, name: str, tensor: Tensor, source: Source) -> str:
        if source.type == "scalar":
            return name
        if tensor.shape is None:
            raise TaskError(f"the scalar input '{name}' has no value of its own")
        if source.type == "safetensors" and tensor.dtype not in _FLOATS:
            return self._embedded(name, tensor, source)
        shape = "(" + ", ".join(tensor.shape) + ("," if len(tensor.shape) == 1 else "") + ")"
        dtype = f"dtype=torch.{tensor.dtype}"
        if tensor.dtype in _FLOATS:
            normal = f"torch.randn({shape}, {dtype})"
            sampling = self.definition.op_type == "sampling" and name == "probs"
            return f"torch.softmax({normal}, dim=-1)" if sampling else normal
        if tensor.dtype in _BYTES:
            return f"torch.randn({shape}).clamp(-2.0, 2.0).to(torch.{tensor.dtype}).view(torch.uint8)"
        if tensor.dtype == "bool":
            return f"torch.randint(0, 2, {shape}, {dtype})"
        if tensor.dtype == "uint8":
            return f"torch.randint(0, 256, {shape}, {dtype})"
        low, high = _RANGES[tensor.dtype]
        return f"torch.randint({low}, {high}, {shape}, {dtype})"

    def _embedded(self, name: str, tensor: Tensor, source: Source) -> str:
        """An integer tensor from a file as a literal: indices and offsets have a meaning, so they cannot be random."""
        path = self._root / (source.path or "")
        if not source.path or not is_within(path, self._root):
            raise TaskError(f"input '{name}' comes from a file outside the folder that is imported")
        if not os.path.isfile(path):
            raise TaskError(f"input '{name}' comes from {source.path[:80]}, which is not there (a pointer of Git LFS?)")
        values = _integers(path, source.tensor_key or "", name)
        return f"torch.tensor({values!r}, dtype=torch.{tensor.dtype})"


def _integers(path: Path, key: str, name: str) -> Any:
    """Nested lists of one tensor of a safetensors file."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise TaskError(
            f"input '{name}' comes from a safetensors file; install what reads it: {install_hint('datasets')}"
        ) from None
    try:
        with safe_open(path, framework="numpy") as file:
            if key not in file.keys():  # noqa: SIM118 - not a mapping
                raise TaskError(f"{path.name} has no tensor '{key[:60]}'")
            part = file.get_slice(key)
            count = 1
            for extent in part.get_shape():
                count *= extent
            if count > _MAX_EMBEDDED:
                raise TaskError(
                    f"input '{name}' is {count} integers from a file; at most {_MAX_EMBEDDED} are written into a task"
                )
            values = file.get_tensor(key)
            if values.dtype.kind not in "iub":
                raise TaskError(f"input '{name}' is {values.dtype} in {path.name}, and should be whole numbers")
            return values.tolist()
    except (SafetensorError, OSError, TypeError, ValueError, LookupError, AttributeError, MemoryError) as error:
        raise TaskError(f"{path.name} cannot be read as safetensors: {str(error)[:120]}") from None
