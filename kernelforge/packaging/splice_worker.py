"""Compare a model with itself with packaged operators in it. Runs third-party code, in a confined child.

The operators run elsewhere: this process sends the tensors of each call and gets its outputs. Expected values and
tolerances are those of an evaluation, for the model in place of a task's reference: in float64, at the model's own
precision, and with every sum taken in order (:mod:`kernelforge.evaluation.oracle.worker.tolerance`). The three runs are
of the same graph, so that a cast to float32 in the model is one to float64 in the exact run.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import fx, nn
from torch.export.graph_signature import OutputKind
from torch.utils._pytree import tree_flatten, tree_map

from kernelforge.capture.records import GroupCall
from kernelforge.capture.worker import Made, RealRun, Tensors, exported_again, made_of, placeholder_values, warm_up
from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.comparison import Got, compare_outputs
from kernelforge.evaluation.oracle.worker.reference import clone_strided, seeded, tensor_view
from kernelforge.evaluation.oracle.worker.reference_runner import movement, nudged
from kernelforge.evaluation.oracle.worker.sequential_sums import SequentialSums
from kernelforge.evaluation.oracle.worker.tolerance import Expected, expected_output
from kernelforge.evaluation.oracle.worker.torch_device import HOST, generator, open_device
from kernelforge.packaging.graph_rewrite import Replacement, replaced_graph
from kernelforge.records import TensorSpec
from kernelforge.sandbox.channel import Channel

__all__ = ["serve", "warm_up"]

_FLOATING: Final = frozenset({torch.float16, torch.bfloat16, torch.float32})
_SEED: Final = 0


def serve(channel: Channel) -> None:
    """Answer requests until the parent closes the channel."""
    open_device("cpu")
    for frame in channel.requests():
        try:
            reply = _checked(frame.data, channel)
        except _Stopped as stopped:
            reply = {"stopped": str(stopped)}
        except TaskError as error:
            reply = {"error": str(error)}
        channel.send(reply)


class _Stopped(Exception):
    """The parent ended the run; the message is its own."""


class _Remote(nn.Module):
    """An operator that the parent runs."""

    def __init__(self, channel: Channel, call: int, package: int, takes: list[TensorSpec], gives: list[Any]) -> None:
        super().__init__()
        self._channel, self._call, self._package = channel, call, package
        self._takes, self._gives = takes, gives

    def forward(self, *values: torch.Tensor) -> list[torch.Tensor]:
        tensors = [_laid_out(value, spec) for value, spec in zip(values, self._takes, strict=True)]
        self._channel.send({"package": self._package, "call": self._call}, [tensor_view(each) for each in tensors])
        frame = self._channel.receive()
        if "stop" in frame.data:
            raise _Stopped(frame.data["stop"])
        return [
            torch.frombuffer(bytearray(blob), dtype=getattr(torch, spec.dtype.value)).reshape(spec.shape)
            for blob, spec in zip(frame.blobs, self._gives, strict=True)
        ]


def _laid_out(value: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The values with the strides that the captured model has: a library on this machine may leave others."""
    if tuple(value.stride()) == spec.stride:
        return value
    return torch.empty_strided(spec.shape, spec.stride, dtype=value.dtype).copy_(value)


def _checked(data: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    logging.getLogger("torch").setLevel(logging.ERROR)
    with torch.no_grad():
        made = made_of(data["source"], data["model"], data["inputs_source"], data["inputs"], data["module"])
        wrapped = Tensors(made.model)
        program = exported_again(made, wrapped, data["nodes"])
        replacements = [_replacement(number, call, channel) for number, call in enumerate(data["calls"])]
        run = _Runs(program, wrapped, made)
        expected = run.expected()
        spliced = replaced_graph(program, wrapped, replacements)
        outputs = run.of_graph(spliced)
    comparison = compare_outputs(expected, [Got.of(output) for output in outputs], [None] * len(expected))
    if comparison.ok and all(each.vanishing for each in expected):
        return {"stopped": "every output of the model is zero, or as good as, so that zeros would pass as well"}
    return {"comparison": comparison.model_dump(mode="json")}


def _replacement(number: int, call: Mapping[str, Any], channel: Channel) -> Replacement:
    takes = [TensorSpec.model_validate(spec) for spec in call["takes"]]
    gives = [TensorSpec.model_validate(spec) for spec in call["gives"]]
    remote = _Remote(channel, number, call["package"], takes, gives)
    restored = tuple(None if axes is None else tuple(axes) for axes in call["restored"])
    return Replacement(GroupCall.model_validate(call["call"]), remote, tuple(call["order"]), restored)


class _Runs:
    """A model on its own inputs, run in several ways."""

    def __init__(self, program: torch.export.ExportedProgram, wrapped: Tensors, made: Made) -> None:
        self._program, self._wrapped, self._made = program, wrapped, made
        self._leaves = tree_flatten((made.args, made.keywords))[0]
        self._buffers = {name: buffer.detach().clone() for name, buffer in wrapped.named_buffers()}

    def expected(self) -> tuple[Expected, ...]:
        """Values and tolerances of each output.

        Raises:
            TaskError: The model draws random numbers, fails on real values, or errs more itself than any tolerance.
        """
        values, other = self._by_model(_SEED), self._by_model(_SEED + 1)
        if any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(values, other, strict=True)):
            raise TaskError(
                "two runs of the model on the same inputs differ: it draws random numbers, so nothing can be compared; "
                "return it from the function after .eval()"
            )
        ordered = SequentialSums(torch.float32)
        with ordered:
            sequential = self._by_graph(lambda value: value, double=False)
        exact = self._by_graph(_doubled, double=True)
        conditions = self._conditions(exact)
        outputs = tuple(
            expected_output(value, truth, in_order, float(ordered.unordered_terms), condition)
            for value, truth, in_order, condition in zip(values, exact, sequential, conditions, strict=True)
        )
        if not all(output.sound for output in outputs):
            raise TaskError("the model itself errs more than any tolerance on these inputs; give it others")
        return outputs

    def _conditions(self, exact: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Per output, how far each element moves when inputs and weights move by a relative amount of one."""
        nudge = partial(nudged, generator(HOST, _SEED))
        moved = self._by_graph(lambda value: _nudged_double(value, nudge), double=True)
        return [
            movement(other, base, tuple(moved)) if base.is_floating_point() else None
            for base, other in zip(exact, moved, strict=True)
        ]

    def _by_model(self, seed: int) -> list[torch.Tensor]:
        with self._buffers_restored(), seeded(seed), _fails_as("the model's forward"):
            args, keywords = tree_map(_copied, (self._made.args, self._made.keywords))
            return [output.detach().clone() for output in self._wrapped(*args, **keywords)]

    def of_graph(self, graph: fx.GraphModule) -> list[torch.Tensor]:
        """Outputs of a graph that takes the model's flat inputs."""
        with self._buffers_restored(), seeded(_SEED), _fails_as("the model with operators"):
            return [output.detach() for output in graph(*map(_copied, self._leaves))]

    def _by_graph(self, change: Any, *, double: bool) -> list[torch.Tensor]:
        """Outputs of the functional graph on changed inputs and weights."""
        values = [
            change(value) if isinstance(value, torch.Tensor) else value
            for value in placeholder_values(self._program, self._wrapped, self._leaves)
        ]
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if double else default)
        try:
            with seeded(_SEED), _fails_as("the model's graph" + " in float64" * double):
                results = _Graph(self._program.graph_module, double).run(*values)
        finally:
            torch.set_default_dtype(default)
        kinds = (spec.kind for spec in self._program.graph_signature.output_specs)
        return [result for kind, result in zip(kinds, results, strict=True) if kind == OutputKind.USER_OUTPUT]

    @contextlib.contextmanager
    def _buffers_restored(self) -> Iterator[None]:
        try:
            yield
        finally:
            with torch.no_grad():
                for name, buffer in self._wrapped.named_buffers():
                    buffer.copy_(self._buffers[name])


class _Graph(RealRun):
    """Runs a functional graph, in float64 if asked to."""

    def __init__(self, module: fx.GraphModule, double: bool) -> None:
        super().__init__(module)
        self._double = double

    def changed(self, value: Any) -> Any:
        return _double_dtype(value) if self._double else value


def _double_dtype(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _FLOATING else value


def _doubled(value: torch.Tensor) -> torch.Tensor:
    return value.detach().double() if value.is_floating_point() else value


def _nudged_double(value: torch.Tensor, nudge: Any) -> torch.Tensor:
    moved: torch.Tensor = nudge(value.detach().double()) if value.is_floating_point() else value
    return moved


def _copied(value: Any) -> Any:
    return clone_strided(value.detach()) if isinstance(value, torch.Tensor) else value


@contextlib.contextmanager
def _fails_as(what: str) -> Iterator[None]:
    try:
        yield
    except (TaskError, _Stopped):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise TaskError(f"{what} fails: {type(error).__name__}: {(lines or ['no message'])[0][:300]}") from error
