"""The process of a ModelNew candidate as its parent sees it: calls, faults and outcomes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Literal

from pydantic import ValidationError

from kernelforge.errors import ChildDied, ChildTimeout, SandboxError
from kernelforge.evaluation.oracle.client import DrawHandle
from kernelforge.records import DType, SizeFacts, TensorSpec, Verdict
from kernelforge.sandbox import Zygote
from kernelforge.sandbox.channel import Frame
from kernelforge.sandbox.policy import Limits
from kernelforge.sandbox.shared_memory import Blob, same_bytes
from kernelforge.utils.closing import Closing


def unchanged(draw: DrawHandle, got: ModelNewOutput, mutates: Sequence[int]) -> str:
    """The input that a candidate changed, as a reason; empty if all that the task does not mutate came back equal."""
    for position, sent in draw.tensors.items():
        if position in mutates:
            continue
        back = got.inputs.get(position)
        if back is None or not same_bytes(back, sent):
            return (
                f"input {position} was changed: the reference leaves its inputs as they are, "
                "and so must a candidate (write to a new tensor)"
            )
    return ""


def with_mutated(
    got: ModelNewOutput, facts: SizeFacts, mutates: Sequence[int]
) -> tuple[list[Blob], list[tuple[int, ...]], list[DType]]:
    """Outputs, shapes and dtypes as the oracle compares them: then the inputs that the task changes in place."""
    outputs, shapes, dtypes = list(got.outputs), list(got.shapes), list(got.dtypes)
    for position in mutates:
        spec = facts.inputs[position]
        if isinstance(spec, TensorSpec):
            outputs.append(got.inputs.get(position, b""))
            shapes.append(spec.shape)
            dtypes.append(spec.dtype)
    return outputs, shapes, dtypes


_THREADS = 2
"""Torch threads of a candidate: its work on the CPU is bookkeeping, or small."""

_MAX_RANK = 64
"""Of an output: as many extents as torch allows."""
_SPARE_BYTES = 16 << 20
_WIDEST_BYTES = 16
"""Of an element of an output: complex128."""

FaultKind = Literal["policy", "build", "crash", "timeout", "memory", "missing", "gpu", "forged"]
VERDICTS: Final[dict[FaultKind, Verdict]] = {
    "policy": Verdict.POLICY,
    "build": Verdict.BUILD,
    "crash": Verdict.CRASH,
    "timeout": Verdict.TIMEOUT,
    "memory": Verdict.LIMIT,
    "missing": Verdict.INFRA,
    "gpu": Verdict.INFRA,
    "forged": Verdict.POLICY,
}
"""Verdict of each."""


class ModelNewFault(Exception):
    """A candidate failed in its child. ``kind`` decides the verdict."""

    def __init__(self, kind: FaultKind, text: str, *, type: str = "", line: int | None = None) -> None:
        super().__init__(text)
        self.kind: FaultKind = kind
        self.type = type
        """Type of the exception, where the candidate raised one."""
        self.line = line
        """Line of the candidate's file, where one is known."""

    @property
    def description(self) -> str:
        """The type, the text and the line of the candidate's file."""
        where = f" (line {self.line} of the candidate)" if self.line else ""
        return f"{self.type}: {self}{where}" if self.type else f"{self}{where}"


@dataclass(frozen=True)
class Init:
    """Arguments of the constructor at one size, as frames carry them."""

    value: Any
    blobs: tuple[Blob, ...]


@dataclass(frozen=True)
class ModelNewOutput:
    """Results of one call of ``forward``."""

    outputs: tuple[Blob, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]
    inputs: dict[int, Blob]
    """What is in the input tensors now, by position."""


class ModelNewChild(Closing):
    """One candidate's process. Close it when done.

    Args:
        zygote: forks it.
        device: torch's name of the device: ``cpu`` or ``cuda``.
        limits: of the child's whole life.
        build_s: longest wait for loading or constructing, which may run a compiler.
        run_s: longest wait for one call of ``forward``.

    Raises:
        SandboxError: it cannot be started.
    """

    def __init__(
        self, zygote: Zygote, device: str, limits: Limits, *, build_s: float = 60.0, run_s: float = 30.0
    ) -> None:
        self._build_s, self._run_s = build_s, run_s
        self._lines = 0
        self._child = zygote.spawn(limits)
        self._call({"op": "start", "device": device, "threads": _THREADS}, (), build_s)

    def load(self, source: str, most_s: float = inf) -> None:
        """Run the candidate's file.

        Args:
            most_s: wait no longer than this.

        Raises:
            ModelNewFault: as every call here: the candidate is refused, failed, or ended its process.
        """
        self._lines = source.count("\n") + 1
        self._call({"op": "load", "source": source}, (), min(self._build_s, most_s))

    def construct(self, init: Init, facts: SizeFacts, copies: int = 1, most_s: float = inf) -> tuple[str, ...]:
        """Make one ModelNew for each set; returns what is to be said of where weights went."""
        weights = [
            {"name": weight.name, "kind": weight.kind, "aliases": weight.aliases}
            | {"shape": weight.spec.shape, "dtype": str(weight.spec.dtype)}
            for weight in facts.weights
        ]
        request = {"op": "construct", "init": init.value, "weights": weights, "copies": copies}
        frame = self._call(request, init.blobs, min(self._build_s, most_s))
        with _read_as_hostile():
            return tuple(str(note)[:500] for note in frame.data["notes"][:16])

    def give(self, draw: DrawHandle, facts: SizeFacts, number: int = 0) -> None:
        """Give the weights of a draw to the ModelNew of a set."""
        self._call(
            {"op": "weights", "set": number}, [draw.weights[weight.name] for weight in facts.weights], self._run_s
        )

    def bind(self, draws: Sequence[DrawHandle], facts: SizeFacts) -> None:
        """Put inputs into the child's memory, one set per draw; the same addresses as before, new values."""
        sets, blobs = [], []
        for draw in draws:
            specs = [(at, spec) for at, spec in enumerate(facts.inputs) if isinstance(spec, TensorSpec)]
            tensors = [(at, {**spec.model_dump(mode="json"), "stride": spec.stride}) for at, spec in specs]
            sets.append({"count": len(facts.inputs), "tensors": tensors, "scalars": list(draw.scalars.items())})
            blobs += [draw.tensors[at] for at, _ in specs]
        self._call({"op": "place", "sets": sets}, blobs, self._run_s)

    def run(self, elements: Sequence[int] = ()) -> ModelNewOutput:
        """Call ``forward`` on the first set. ``elements`` are inputs to give back in C order: those it may change."""
        return self._read(self._call({"op": "run", "elements": list(elements)}, (), self._run_s))

    def window(self, calls: int, timeout_s: float) -> None:
        """Call ``forward`` ``calls`` times, going through the sets, and wait for the device."""
        self._call({"op": "window", "calls": calls}, (), timeout_s)

    def outputs(self, number: int, elements: Sequence[int] = ()) -> ModelNewOutput:
        """Results of the last call on a set."""
        return self._read(self._call({"op": "outputs", "set": number, "elements": list(elements)}, (), self._run_s))

    def close(self) -> None:
        """End the process and all it started."""
        with contextlib.suppress(SandboxError):
            self._child.close()

    def _read(self, frame: Frame) -> ModelNewOutput:
        with _read_as_hostile():
            specs, positions, blobs = frame.data["outputs"], frame.data["inputs"], frame.blobs
            if len(blobs) != len(specs) + len(positions):
                raise ValueError("blobs that do not add up")
            return ModelNewOutput(
                outputs=blobs[: len(specs)],
                shapes=tuple(_shape(spec["shape"]) for spec in specs),
                dtypes=tuple(_dtype(spec["dtype"]) for spec in specs),
                inputs=dict(zip((int(at) for at in positions), blobs[len(specs) :], strict=True)),
            )

    def _call(self, data: dict[str, Any], blobs: Sequence[Blob], timeout_s: float) -> Frame:
        try:
            frame = self._child.call(data, blobs, timeout_s=timeout_s)
        except ChildTimeout as error:
            raise ModelNewFault("timeout", f"no end of '{data['op']}' within {timeout_s:g} s") from error
        except ChildDied as error:
            raise _death(error) from error
        except SandboxError as error:
            raise ModelNewFault("forged", f"the candidate's process broke the frame format: {error}") from error
        if frame.data.get("ok") is True:
            return frame
        with _read_as_hostile():
            failure = frame.data["failure"]
            kind, line = failure["kind"], failure["line"]
            if kind not in ("policy", "build", "crash", "memory", "missing", "gpu"):
                raise ValueError(f"unknown kind {kind!r:.40}")
            raise ModelNewFault(
                kind,
                str(failure["text"])[:8000],
                type=str(failure["type"])[:80] or "Exception",
                line=line if isinstance(line, int) and 0 < line <= self._lines else None,
            )


def read_init(zygote: Zygote, source: str) -> Init:
    """Arguments of the constructor as a task file gives them, from a child that no candidate ever enters.

    Raises:
        TaskError: the file does not run, or the arguments cannot be carried over.
    """
    from kernelforge.errors import TaskError

    child = zygote.spawn(Limits(processes=8, memory_bytes=4 << 30))
    try:
        frame = child.call({"op": "init", "source": source}, timeout_s=60.0)
    finally:
        child.close()
    if not frame.data.get("ok"):
        failure = frame.data.get("failure", {})
        raise TaskError(f"the task's get_init_inputs() failed: {failure.get('type')}: {failure.get('text')}")
    return Init(frame.data["init"], frame.blobs)


def reply_bytes(facts: Iterable[SizeFacts]) -> int:
    """Bytes of the largest reply that is worth reading: outputs of the widest dtype, and every input.

    A reply costs its sender nothing and is kept in this process.
    """
    return _SPARE_BYTES + max(
        sum(_span_bytes(spec) for spec in size.inputs if isinstance(spec, TensorSpec))
        + sum(spec.numel * _WIDEST_BYTES for spec in size.outputs)
        for size in facts
    )


def _span_bytes(spec: TensorSpec) -> int:
    """Of an input with the gaps between its elements, as it is placed and given back."""
    last = sum((extent - 1) * step for extent, step in zip(spec.shape, spec.stride, strict=True))
    return max(last + 1, spec.numel, 0) * spec.dtype.itemsize


def _shape(raw: Any) -> tuple[int, ...]:
    shape = tuple(int(extent) for extent in raw[:_MAX_RANK])
    if len(raw) > _MAX_RANK or not all(0 <= extent < 1 << 63 for extent in shape):
        raise ValueError("a shape that no tensor has")
    return shape


def _dtype(name: str) -> DType:
    try:
        return DType(name)
    except ValueError:
        raise ModelNewFault("policy", f"an output is {name:.40}; use one of {', '.join(DType)}") from None


def _death(error: ChildDied) -> ModelNewFault:
    text = str(error).replace("the modelnew child", "the candidate's process")
    text = text.replace("the gpu-modelnew child", "the candidate's process")
    _, failed, trace = text.partition(" failed: ")
    if failed:  # this is the process's failure reply: the words are the candidate's
        return ModelNewFault("crash", trace, type="Exception")
    if "out of memory" in text:
        return ModelNewFault("memory", text)
    return ModelNewFault("timeout" if "out of CPU time" in text else "crash", text)


@contextlib.contextmanager
def _read_as_hostile() -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, ValidationError) as error:
        text = str(error).split("\n")[0][:200]
        raise ModelNewFault("forged", f"the candidate's process sent a reply that cannot be read: {text}") from error
