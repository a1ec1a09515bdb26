"""Build a resolved plan from an interpreter's log: storages become buffers, pending steps become steps."""

from __future__ import annotations

from kernelforge.candidate.plan_language.interpreter import (
    LibraryArgument,
    Machine,
    PendingFill,
    PendingLaunch,
    PendingLibrary,
    PendingStep,
)
from kernelforge.candidate.plan_language.values import Storage, Tensor, TensorMap
from kernelforge.candidate.resolved import (
    Buffer,
    Fill,
    Launch,
    Library,
    LibraryValue,
    Output,
    ResolvedPlan,
    ScalarArg,
    Step,
    TensorArg,
    TensorMapArg,
    TensorView,
)
from kernelforge.candidate.workspace import share


def assemble(machine: Machine, outputs: tuple[Tensor, ...], constants: dict[str, int]) -> ResolvedPlan:
    """The plan that a machine recorded, with every storage in a buffer.

    Raises:
        Fault: the buffers do not fit the limit.
    """
    groups = (machine.setup.workspaces, machine.forward.workspaces)
    prepared = {storage for storage in machine.setup.workspaces if storage.kind == "prepared"}
    slots = share(groups, prepared | {output.storage for output in outputs}, machine.limits.workspace_bytes)
    given = [*machine.inputs, *(tensor.storage for tensor in machine.weights.values())]
    ids = {storage: position for position, storage in enumerate(given)}
    ids |= {storage: position for position, slot in enumerate(slots, len(given)) for storage in slot.storages}
    buffers = [
        Buffer(position, storage.kind, storage.nbytes, storage.label or "", storage.source)
        for position, storage in enumerate(given)
    ]
    buffers += [Buffer(position, slot.kind, slot.nbytes, slot.label) for position, slot in enumerate(slots, len(given))]
    return ResolvedPlan(
        buffers=tuple(buffers),
        steps=tuple(_step(pending, ids) for pending in machine.forward.steps),
        outputs=tuple(Output(ids[out.storage], out.offset_bytes, out.shape, out.dtype) for out in outputs),
        constants=constants,
        setup=tuple(_step(pending, ids) for pending in machine.setup.steps),
    )


def _step(pending: PendingStep, ids: dict[Storage, int]) -> Step:
    if isinstance(pending, PendingFill):
        return Fill(ids[pending.storage], 0, pending.storage.nbytes, pending.line)
    if isinstance(pending, PendingLibrary):
        return Library(
            pending.operator,
            tuple(_value(value, ids) for value in pending.args),
            {name: _value(value, ids) for name, value in pending.kwargs.items()},
            tuple(_view(tensor, ids) for tensor in pending.out),
            pending.line,
        )
    return _launch(pending, ids)


def _launch(pending: PendingLaunch, ids: dict[Storage, int]) -> Launch:
    return Launch(**{**pending._asdict(), "args": tuple(_argument(arg, ids) for arg in pending.args)})


def _argument(arg: Tensor | TensorMap | ScalarArg, ids: dict[Storage, int]) -> TensorArg | TensorMapArg | ScalarArg:
    if isinstance(arg, Tensor):
        return TensorArg(ids[arg.storage], arg.offset_bytes, arg.dtype)
    if isinstance(arg, TensorMap):
        tensor = arg.tensor
        return TensorMapArg(
            ids[tensor.storage], tensor.offset_bytes, tensor.dtype, tensor.shape, arg.box, arg.swizzle_bytes
        )
    return arg


def _value(value: LibraryArgument, ids: dict[Storage, int]) -> LibraryValue:
    return _view(value, ids) if isinstance(value, Tensor) else value


def _view(tensor: Tensor, ids: dict[Storage, int]) -> TensorView:
    return TensorView(ids[tensor.storage], tensor.offset_bytes, tensor.shape, tensor.stride, tensor.dtype)
