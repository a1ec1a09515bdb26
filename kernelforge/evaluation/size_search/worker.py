"""Tries many choices of a task file's module constants. Runs in a confined child.

Runs third-party code; for confined children. The first request is ``{"op": "probe", "source"}``, then come any number
of ``{"constants", "how"}``. ``how`` is ``abstract``, on shapes alone, which costs no memory for any extents; ``real``;
or ``weights``, which constructs the model on shapes alone and counts its weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker import main
from kernelforge.evaluation.oracle.worker.reference import Reference, Value, flatten_outputs
from kernelforge.evaluation.oracle.worker.reference_facts import operators_one_by_one
from kernelforge.evaluation.oracle.worker.torch_device import open_device, warming_up
from kernelforge.sandbox.channel import Channel
from kernelforge.tasks.constants import Scalar

_ABSTRACT_FAILURES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    NotImplementedError,
)
"""What shapes alone cannot answer, though real tensors may."""


def warm_up(options: Mapping[str, Any]) -> None:
    """Import torch and walk once through what a try does, so that a child reads no file later."""
    main.warm_up(options)
    with warming_up():
        for how in ("abstract", "real"):
            _try(main._WARM_UP_TASK, {}, how)


def serve(channel: Channel) -> None:
    """Answer requests until the parent closes the channel; as an oracle if the first is one of the oracle's."""
    requests = channel.requests()
    first = next(requests, None)
    if first is None:
        return
    if first.data["op"] != "probe":
        main.answer(channel, itertools.chain([first], requests))
        return
    open_device("cpu")
    source = first.data["source"]
    channel.send({})
    for frame in requests:
        request = frame.data
        try:
            reply = _try(source, request["constants"], request["how"])
        except TaskError as error:
            reply = {"error": str(error)}
        channel.send(reply)


class _Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators and the elements of all their results: measures of time and of memory gone through."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self.elements += value.numel()
        return result


def _try(source: str, constants: Mapping[str, Scalar], how: str) -> dict[str, Any]:
    """Cost of the reference at these constants, or its number of weights; ``ran`` says whether it was run for real.

    Raises:
        TaskError: it does not run, on shapes or for real.
    """
    if how == "real":
        return _real_cost(source, constants)
    if how == "weights":
        return {"weights": _weight_count(source, constants)}
    try:
        return _abstract_cost(source, constants)
    except _Unknown as error:
        return {"unknown": str(error)}


class _Unknown(Exception):
    """Shapes alone do not tell."""


def _abstract_cost(source: str, constants: Mapping[str, Scalar]) -> dict[str, Any]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            reference = Reference(source, constants)
            return _cost(reference, reference.inputs(0))
    except TaskError as error:
        if (
            isinstance(error.__cause__, _ABSTRACT_FAILURES)
            or "FakeTensor" in str(error)
            or "fake" in str(error).lower()
        ):
            raise _Unknown(str(error)) from error
        raise


def _weight_count(source: str, constants: Mapping[str, Scalar]) -> int:
    """Number of parameters and buffers of the model at these constants."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return len(Reference(source, constants).model.state_dict(keep_vars=True))


def _real_cost(source: str, constants: Mapping[str, Scalar]) -> dict[str, Any]:
    reference = Reference(source, constants)
    return _cost(reference, reference.inputs(0)) | {"ran": True}


def _cost(reference: Reference, inputs: Sequence[Value]) -> dict[str, Any]:
    work, flops = _Work(), FlopCounterMode(display=False)
    # The same operators on every CPU: oneDNN would take some of them together.
    with operators_one_by_one():
        outputs = flatten_outputs(reference.run(inputs, within=(flops, work)))
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    weights = [*reference.model.parameters(), *reference.model.buffers()]
    allocated = [*tensors, *weights, *outputs]
    return {
        "elements": sum(tensor.numel() for tensor in allocated),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in allocated),
        "outputs": sum(tensor.numel() for tensor in outputs),
        "work": work.elements,
        "calls": work.calls,
        "flops": int(flops.get_total_flops()),
    }
