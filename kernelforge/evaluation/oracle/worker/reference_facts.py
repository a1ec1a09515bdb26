"""Facts from one run of the reference: specs, compulsory bytes, operations, eager launches."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.reference import Reference, Value, remembered, tensor_spec
from kernelforge.evaluation.oracle.worker.tracing import trace_at
from kernelforge.records import Graph, Node, SizeFacts, TensorSpec

VIEWS = frozenset({
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "select", "slice", "squeeze", "unsqueeze",
    "expand", "detach", "alias", "unfold", "diagonal", "split", "split_with_sizes", "chunk", "unbind",
    "as_strided", "view_as", "movedim", "swapaxes", "flatten", "unflatten", "narrow", "numpy_T", "mT",
    "lift_fresh", "lift_fresh_copy", "getitem", "expand_as", "contiguous",
})  # fmt: skip
"""Operators that move no data of their own. (``contiguous`` appears in graphs only; when it copies, ``clone`` runs.)"""

ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})

_PARTIAL_READS = frozenset({
    "select", "slice", "narrow", "diagonal", "index_select", "embedding", "gather", "index", "unfold",
    "as_strided", "split", "split_with_sizes", "chunk", "unbind",
})  # fmt: skip
"""Operators that may read only a part of their first operand."""

_INDEXED = frozenset({"index_select", "embedding", "gather", "index"})
"""Those of them that read what indices name."""

_SAME_VALUES = frozenset(
    {"to", "_to_copy", "clone", "contiguous", "view", "reshape", "flatten", "squeeze", "unsqueeze"}
)
"""Operators whose result has all elements of their operand, and no others."""

_OPERATIONS_PER_ELEMENT = {
    "_softmax": 5, "_log_softmax": 5, "native_layer_norm": 8, "native_group_norm": 8, "native_batch_norm": 8,
    "gelu": 5, "silu": 4, "mish": 6, "logsumexp": 4, "var": 4, "std": 4, "var_mean": 4, "std_mean": 4,
    "linalg_vector_norm": 2, "mse_loss": 3, "smooth_l1_loss": 4, "huber_loss": 4, "nll_loss_forward": 0,
}  # fmt: skip
"""Operations of fused operators by element of their largest operand, each of + - * / max exp log tanh as one."""


class CallCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operator calls that do work, and estimates the operations of those that FlopCounterMode leaves out.

    One operation per output element of a pointwise operator, one per input element of a reduction, a fixed number
    for fused ones. Matrix products and convolutions are FlopCounterMode's, which does not know attention on the CPU.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in VIEWS or name in ALLOCATIONS or func.is_view or func.namespace == "prim":
            return result
        self.calls += 1
        if name.startswith("_scaled_dot_product") and len(args) > 2:
            query, _, value = args[:3]
            self.operations += 4 * query.numel() * value.shape[-2]
            return result
        first = result[0] if isinstance(result, tuple | list) and result else result
        if not isinstance(first, torch.Tensor):
            return result
        largest = max([first.numel(), *(arg.numel() for arg in args if isinstance(arg, torch.Tensor))])
        if name in _OPERATIONS_PER_ELEMENT:
            self.operations += _OPERATIONS_PER_ELEMENT[name] * largest
        elif torch.Tag.pointwise in func.tags and name not in _MOVES:
            self.operations += first.numel()
        elif name in _REDUCTIONS:
            self.operations += largest
        return result


_MOVES = frozenset({
    "clone", "copy", "copy_", "_to_copy", "fill", "fill_", "zero_", "where", "masked_fill", "constant_pad_nd",
})  # fmt: skip
"""Pointwise operators that compute nothing."""

_REDUCTIONS = frozenset({
    "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "any", "all", "cumsum", "cumprod",
    "logcumsumexp", "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", "topk", "sort",
    "norm", "nll_loss_forward",
    "l1_loss", "aminmax", "median",
})  # fmt: skip


INDEXED_BYTES = 768 << 20
"""Inputs that are drawn for the rows of host memory that their indices name; of larger ones one element counts."""


@remembered
def facts_at(
    reference: Reference, size: str, mutates: tuple[int, ...], host_inputs: tuple[int, ...], *, fake: bool
) -> SizeFacts:
    """Facts at one size; kept, for a recurrent network's take half a minute, and the stages ask again. ``fake`` works
    on shapes alone where the reference lets it, and takes no memory.

    Raises:
        TaskError: the reference does not run.
    """
    if fake:
        with contextlib.suppress(TaskError):
            return size_facts(reference, reference.fake_inputs(), size, mutates, host_inputs)
    return size_facts(reference, reference.inputs(0), size, mutates, host_inputs)


def size_facts(
    reference: Reference,
    inputs: Sequence[Value],
    size: str,
    mutates: Sequence[int],
    host_inputs: Sequence[int],
) -> SizeFacts:
    """Run the reference once on ``inputs`` and say what it takes and gives.

    Raises:
        TaskError: the reference does not run.
    """
    counter, flops = CallCounter(), FlopCounterMode(display=False)
    with operators_one_by_one():
        outputs = reference.run(inputs, mutates, within=(flops, counter))
    try:
        graph: Graph | None = trace_at(reference, size)
    except TaskError:
        graph = None
    facts = _specs(reference, inputs, outputs, size)
    values = inputs
    if any(isinstance(value, FakeTensor) for value in inputs):
        nbytes = sum(spec.nbytes for spec in facts.inputs if isinstance(spec, TensorSpec))
        values = reference.inputs(0) if host_inputs and nbytes <= INDEXED_BYTES else ()
    device, host = _read_bytes(graph, inputs, facts.weights, host_inputs, values)
    counts = {
        "compulsory_bytes": device + sum(spec.nbytes for spec in facts.outputs),
        "host_bytes": host,
        "flops": int(flops.get_total_flops()) + counter.operations,
        "eager_launches": counter.calls,
    }
    return facts.model_copy(update=counts)


def shape_facts(reference: Reference, size: str, mutates: Sequence[int], host_inputs: Sequence[int] = ()) -> SizeFacts:
    """Inputs and outputs of a plan at one size, with what limits of work need; the rest takes most of the time of
    :func:`facts_at`. All inputs and weights count as read, and no launch of eager PyTorch is counted.

    Raises:
        TaskError: the reference does not run.
    """
    inputs = reference.inputs(0)
    counter, flops = CallCounter(), FlopCounterMode(display=False)
    recurrent = any(isinstance(module, torch.nn.RNNBase) for module in reference.model.modules())
    with operators_one_by_one() if recurrent else contextlib.nullcontext():
        outputs = reference.run(inputs, mutates, within=(flops, counter))
    facts = _specs(reference, inputs, outputs, size)
    device, host = _read_bytes(None, inputs, facts.weights, host_inputs)
    nbytes = device + sum(spec.nbytes for spec in facts.outputs)
    operations = int(flops.get_total_flops()) + counter.operations
    return facts.model_copy(update={"compulsory_bytes": nbytes, "host_bytes": host, "flops": operations})


def _specs(reference: Reference, inputs: Sequence[Value], outputs: Sequence[torch.Tensor], size: str) -> SizeFacts:
    return SizeFacts(
        size=size,
        inputs=tuple(tensor_spec(value) if isinstance(value, torch.Tensor) else value for value in inputs),
        outputs=tuple(tensor_spec(output.contiguous()) for output in outputs),
        weights=reference.weight_specs(),
        attrs=reference.attributes(),
        compulsory_bytes=0,
        flops=0,
        eager_launches=0,
    )


@contextlib.contextmanager
def operators_one_by_one() -> Iterator[None]:
    """Without oneDNN, which runs a whole LSTM as one operator in which nothing can be counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of Intel GPUs when these flags are set
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=False):
            yield


def _read_bytes(
    graph: Graph | None,
    inputs: Sequence[Value],
    weights: Sequence[Any],
    host_inputs: Sequence[int],
    values: Sequence[Value] = (),
) -> tuple[int, int]:
    """Bytes of inputs and weights that the graph uses, of device and of host memory; all where there is no graph.

    Rows of host memory that indices name count once, however often they do: by ``values``, the inputs of a draw.

    Raises:
        TaskError: an input of ``host_inputs`` is no tensor.
    """
    in_host = {str(position) for position in host_inputs}
    specs: dict[str, TensorSpec] = {weight.name: weight.spec for weight in weights}
    specs |= {str(i): tensor_spec(value) for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
    if missing := sorted(in_host - specs.keys()):
        raise TaskError(f"policy.host_inputs names input {missing[0]}, which is not a tensor input of forward")
    if graph is None:
        host = sum(specs[name].nbytes for name in in_host & specs.keys())
        return sum(spec.nbytes for spec in specs.values()) - host, host
    users = _users(graph)
    total = host = 0
    for node in graph.nodes:
        if node.kind in ("input", "weight") and node.op in specs:
            spec = specs[node.op]
            if node.kind == "input" and node.op in in_host:
                distinct = _Indices(graph, values)
                host += _touched(node, users, spec.numel, distinct) * spec.dtype.itemsize
            else:
                total += _touched(node, users, spec.numel) * spec.dtype.itemsize
    return total, host


class _Indices:
    """Counts the different rows that operators of a graph read by index, in one draw of the inputs."""

    def __init__(self, graph: Graph, values: Sequence[Value]) -> None:
        self._nodes = {node.name: node for node in graph.nodes}
        self._values = values

    def elements(self, packet: str, user: Node, shape: Sequence[int]) -> int:
        """Elements of a value of ``shape`` that an operator reads; one where its indices are unknown."""
        dims: list[Any] = list(user.args[1]) if packet == "index" and isinstance(user.args[1], list | tuple) else []
        if packet == "index_select":
            dims = [None] * (user.args[1] % len(shape)) + [user.args[2]]
        elif packet == "embedding":
            dims = [user.args[1]]
        named = [position for position, index in enumerate(dims) if index is not None]
        index = self._value(dims[named[0]]) if len(named) == 1 else None
        if index is None or index.dtype.is_floating_point or index.dtype is torch.bool:
            return 1
        extent = shape[named[0]]
        return int(torch.unique(index % extent).numel()) * (math.prod(shape) // extent)

    def _value(self, argument: Any) -> torch.Tensor | None:
        """The input that an index is, where nothing but its type, device or shape was changed."""
        node = self._nodes.get(argument["ref"]) if isinstance(argument, dict) and "ref" in argument else None
        while node is not None and node.kind == "op" and node.op.split(".")[1] in _SAME_VALUES:
            first = node.args[0]
            node = self._nodes.get(first["ref"]) if isinstance(first, dict) and "ref" in first else None
        if node is None or node.kind != "input" or int(node.op) >= len(self._values):
            return None
        value = self._values[int(node.op)]
        return value if isinstance(value, torch.Tensor) else None


def _users(graph: Graph) -> dict[str, list[Node]]:
    users: dict[str, list[Node]] = {node.name: [] for node in graph.nodes}

    def visit(argument: Any, node: Node) -> None:
        if isinstance(argument, dict):
            if "ref" in argument and argument["ref"] in users:
                users[argument["ref"]].append(node)
        elif isinstance(argument, list | tuple):
            for item in argument:
                visit(item, node)

    for node in graph.nodes:
        visit([*node.args, *node.kwargs.values()], node)
    return users


def _touched(node: Node, users: dict[str, list[Node]], limit: int, indices: _Indices | None = None) -> int:
    """Elements of a value that its users read: a slice reads its own extent, a view what is read through it.

    Rows that an operator reads by index count as often as they are named, or once with ``indices``.
    """
    if node.spec is None or node.spec.numel == 0:
        return 0 if node.spec is not None else limit
    read = 0
    for user in users[node.name]:
        packet = user.op.split(".")[1] if "." in user.op else user.op
        first = user.args[0] if user.args else None
        is_first = isinstance(first, dict) and first.get("ref") == node.name
        if user.kind == "op" and is_first and packet in _INDEXED and indices is not None:
            read += indices.elements(packet, user, node.spec.shape)
        elif user.kind == "op" and is_first and packet in _PARTIAL_READS:
            # Several results (split, unbind): each getitem is a user of its own.
            parts = users[user.name] if user.spec is None else [user]
            read += sum(part.spec.numel for part in parts if part.spec is not None and users[part.name])
        elif user.kind == "op" and is_first and packet in VIEWS - {"expand", "expand_as"} and user.spec is not None:
            read += _touched(user, users, limit, indices)
        else:
            read += math.prod(node.spec.shape)
        if read >= limit:
            return limit
    return min(read, limit)
