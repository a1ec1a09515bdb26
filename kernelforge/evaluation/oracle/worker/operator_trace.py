"""Record the operators that a reference runs in eager PyTorch, with shapes, bytes and operations, from shapes alone.

Runs third-party code (the task file); only ever import this in a confined child. What CUDA computes by one library call
and the CPU by many (recurrent networks, attention) is one operator here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.reference import Reference, Value
from kernelforge.evaluation.oracle.worker.reference_facts import ALLOCATIONS, VIEWS, operators_one_by_one
from kernelforge.prediction.operators import MAX_OPERANDS, MAX_OPERATORS, Operand, Operator, OperatorKind, OperatorTrace

_MATMULS = frozenset({"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "vdot", "addbmm"})
_REDUCTIONS = frozenset({
    "sum", "mean", "amax", "amin", "prod", "any", "all", "var", "std", "var_mean", "std_mean", "norm",
    "linalg_vector_norm", "logsumexp", "aminmax", "count_nonzero", "nansum", "cumulative_trapezoid",
})  # fmt: skip
_ARGUMENT_REDUCTIONS = frozenset({"argmax", "argmin", "max", "min", "mode", "median", "nanmedian", "kthvalue"})
_SCANS = frozenset({"cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "_cummax_helper", "_cummin_helper"})
_GATHERS = frozenset({
    "embedding", "index", "index_select", "gather", "take", "index_put", "index_put_", "_index_put_impl_", "scatter",
    "scatter_", "scatter_add", "scatter_add_", "index_add", "index_add_", "scatter_reduce", "scatter_reduce_",
    "_embedding_bag", "_embedding_bag_forward_only", "grid_sampler_2d", "roll", "flip", "index_fill", "index_copy",
    "masked_select", "nonzero",
})  # fmt: skip
_SUMS = frozenset({
    "scatter_add", "scatter_add_", "index_add", "index_add_", "scatter_reduce", "scatter_reduce_", "_index_put_impl_",
})  # fmt: skip
"""Those that add to places of their result, by atomics."""
_COPIES = frozenset({
    "clone", "copy", "copy_", "_to_copy", "cat", "stack", "constant_pad_nd", "repeat", "reflection_pad1d",
    "reflection_pad2d", "replication_pad1d", "replication_pad2d", "tril", "triu", "tril_", "triu_",
    "slice_scatter", "select_scatter", "pixel_shuffle", "pixel_unshuffle", "repeat_interleave", "channel_shuffle",
})  # fmt: skip
_FILLS = frozenset({
    "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "arange",
    "eye", "linspace", "fill_", "zero_", "fill", "scalar_tensor", "tril_indices", "triu_indices", "rand", "randn",
    "rand_like", "randn_like", "bernoulli_", "uniform_", "normal_",
})  # fmt: skip
_POINTWISE = frozenset({"glu", "hardswish", "log_sigmoid_forward", "hardswish_"})
"""Pointwise operators that torch does not tag as such."""
_SOFTMAXES = frozenset({"_softmax", "_log_softmax", "_safe_softmax"})
_LOSSES = frozenset({
    "mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "nll_loss_forward", "nll_loss2d_forward",
    "binary_cross_entropy", "soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss_forward",
})  # fmt: skip
_SORTS = frozenset({"sort", "topk", "unique2", "_unique2", "unique_dim", "histc", "bincount", "searchsorted"})
_RECURRENT = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Gates of each recurrent network."""


def operators_at(reference: Reference, size: str, mutates: Sequence[int], *, run: bool = True) -> OperatorTrace:
    """Operators at one size, from shapes alone where the reference lets it, else from a run if it may be ``run``.

    Raises:
        TaskError: the reference does not run, or has more different operators than a trace may hold.
    """
    with contextlib.suppress(*((TaskError,) if run else ())):
        return _trace(reference, reference.fake_inputs(), size, mutates)
    return _trace(reference, reference.inputs(0), size, mutates)


def _trace(reference: Reference, inputs: Sequence[Value], size: str, mutates: Sequence[int]) -> OperatorTrace:
    recorder = OperatorRecorder()
    with operators_one_by_one():
        reference.run(inputs, mutates, within=(recorder, LibraryCalls(recorder)))
    return OperatorTrace(size=size, operators=tuple(recorder.operators))


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operator that does work, and which one wrote what it reads."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []
        self.paused = False
        # A weak reference keeps the address of its storage from being used again.
        self._writers: dict[StorageWeakRef, int] = {}
        self._numbers: dict[StorageWeakRef, int] = {}
        self._equal: dict[tuple[Any, ...], int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        result = func(*args, **keywords)
        name = func.overloadpacket.__name__
        if self.paused or name in VIEWS or name in ALLOCATIONS or func.is_view or func.namespace == "prim":
            return result
        outputs = _tensors(result)
        if not outputs:
            return result
        kind, geometry, flops = _described(func, name, args, keywords, outputs)
        label = name if func._overloadname == "default" else f"{name}.{func._overloadname}"
        self.add(label, kind, geometry, flops, _tensors([args, keywords]), outputs)
        return result

    def add(
        self,
        name: str,
        kind: OperatorKind,
        geometry: dict[str, int],
        flops: int,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> int:
        """Record one operator; gives its position.

        Raises:
            TaskError: there are too many already, and none equals it.
        """
        write_bytes = sum(_distinct_bytes(tensor) for tensor in outputs)
        reads = [
            Operand(
                bytes=_bytes_read(tensor, kind, name, inputs, write_bytes),
                producer=self._writer(tensor),
                storage=self._number(tensor),
            )
            for tensor in inputs[:MAX_OPERANDS]
        ]
        floating = [tensor.dtype for tensor in (*inputs, *outputs) if tensor.is_floating_point()]
        dtype = max(floating or [outputs[0].dtype], key=lambda each: each.itemsize)
        operator = Operator(
            name=name,
            kind=kind,
            dtype=str(dtype).removeprefix("torch."),
            reads=tuple(reads),
            write_bytes=write_bytes,
            flops=flops,
            geometry=geometry,
        )
        signature = (name, tuple(operand.bytes for operand in reads), write_bytes, tuple(sorted(geometry.items())))
        position = len(self.operators)
        if position >= MAX_OPERATORS:
            if signature not in self._equal:
                raise TaskError(f"the reference runs more than {MAX_OPERATORS} different operators")
            position = self._equal[signature]
            equal = self.operators[position]
            self.operators[position] = equal.model_copy(update={"calls": equal.calls + 1})
        else:
            self._equal[signature] = position
            self.operators.append(operator)
        for tensor in outputs:
            self._writers[_storage(tensor)] = position
        return position

    def _number(self, tensor: torch.Tensor) -> int:
        return self._numbers.setdefault(_storage(tensor), len(self._numbers) + 1)

    def _writer(self, tensor: torch.Tensor) -> int | None:
        return self._writers.get(_storage(tensor))


def _storage(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class LibraryCalls(TorchFunctionMode):
    """Records recurrent networks and attention as the one call to a library that they are on a GPU."""

    def __init__(self, recorder: OperatorRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "").removesuffix(".default")
        described = _library_call(name, args, keywords)
        if described is None or self._recorder.paused:
            return func(*args, **keywords)
        self._recorder.paused = True
        try:
            result = func(*args, **keywords)
        finally:
            self._recorder.paused = False
        kind, geometry, flops = described
        self._recorder.add(name, kind, geometry, flops, _tensors([args, keywords]), _tensors(result))
        return result


_Described = tuple[OperatorKind, dict[str, int], int]


def _library_call(name: str, args: Sequence[Any], keywords: dict[str, Any]) -> _Described | None:
    if name == "scaled_dot_product_attention":
        query, key, value, mask, _, causal = (list(args) + 6 * [None])[:6]
        key, value = keywords.get("key", key), keywords.get("value", value)
        if not all(isinstance(tensor, torch.Tensor) and tensor.dim() >= 2 for tensor in (query, key, value)):
            return None
        masked = keywords.get("attn_mask", mask) is not None
        geometry = {
            "batch": math.prod(query.shape[:-2]), "m": query.shape[-2], "n": key.shape[-2], "k": query.shape[-1],
            "causal": int(bool(keywords.get("is_causal", causal))), "masked": int(masked),
        }  # fmt: skip
        flops = 2 * math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
        return "attention", geometry, flops
    gates = _RECURRENT.get(name)
    if gates is None or not args or not isinstance(args[0], torch.Tensor) or args[0].dim() != 3:
        return None
    weights = [tensor for item in args[1:] if isinstance(item, list | tuple) for tensor in _tensors(item)]
    matrices = [tensor for tensor in weights if tensor.dim() == 2]
    recurrent = [tensor for tensor in matrices if tensor.shape[0] == gates * tensor.shape[1]]
    if not recurrent:
        return None
    batch_first = bool(args[-1]) if isinstance(args[-1], bool) else False
    batch, steps = (args[0].shape[:2]) if batch_first else args[0].shape[1::-1]
    layers = next((item for item in args[3:] if type(item) is int), 1)
    directions = max(1, len(matrices) // (2 * max(layers, 1)))
    geometry = {
        "batch": batch, "steps": steps, "hidden": recurrent[-1].shape[1], "layers": layers, "directions": directions,
        "gates": gates,
    }  # fmt: skip
    return "recurrent", geometry, 2 * batch * steps * sum(tensor.numel() for tensor in matrices)


def _described(
    func: Any, name: str, args: Sequence[Any], keywords: dict[str, Any], outputs: Sequence[torch.Tensor]
) -> _Described:
    """Kind, extents and operations of one ATen operator."""
    tensors = _tensors([args, keywords])
    first, output = (tensors[0] if tensors else outputs[0]), outputs[0]
    largest = max(tensor.numel() for tensor in (*tensors, *outputs))
    if name in _MATMULS:
        return _product(name, tensors, output)
    if name in ("convolution", "_convolution"):
        return _convolution(args, output)
    if name == "convolution_backward":  # the gradients of the input and of the weights cost one convolution each
        kind, geometry, flops = _convolution([*args[1:3], None, *args[4:]], args[0])
        return kind, geometry, flops * sum(map(bool, args[10][:2]))
    if "pool" in name:
        return "pooling", _pooling(name, args, first, output), largest
    if name in _SOFTMAXES:
        return "softmax", _axis(first, args[1]), 5 * largest
    if name in _SCANS:
        return "scan", _axis(first, args[1] if len(args) > 1 else None), largest
    if name in _ARGUMENT_REDUCTIONS and torch.Tag.pointwise not in func.tags and len(tensors) == 1:
        return "argreduce", _reduced(first, args, keywords), largest
    if name in _REDUCTIONS:
        return "reduction", _reduced(first, args, keywords), largest
    if name in ("native_layer_norm", "_fused_rms_norm", "rms_norm"):
        length = math.prod(args[1])
        return "layer_norm", {"outer": first.numel() // max(length, 1), "length": length, "inner": 1}, 8 * largest
    if name == "native_group_norm":
        batch, channels, points, groups = (int(number) for number in args[3:7])
        extents = {"outer": batch * groups, "length": channels // max(groups, 1) * points, "inner": 1}
        return "group_norm", extents, 8 * largest
    if "batch_norm" in name:
        points = first.numel() // max(first.shape[0] * first.shape[1], 1)
        training = int(any(flag is True for flag in args[3:]) and "no_training" not in name)
        extents = {"outer": first.shape[1], "length": first.shape[0] * points, "inner": points, "training": training}
        return "batch_norm", extents, 8 * largest
    if name in _LOSSES:
        rows = tensors[1].numel() if name.startswith("nll_loss") and len(tensors) > 1 else largest
        return "loss", {"elements": largest, "outer": output.numel(), "length": rows}, 3 * largest
    if name in _SORTS:
        dim = next((item for item in args[1:] if type(item) is int), -1)
        return "sort", _axis(first, dim), largest
    if name in _GATHERS:
        updates = max(tensor.numel() for tensor in tensors[1:]) if name in _SUMS and len(tensors) > 1 else 0
        return "gather", {"elements": output.numel(), "updates": updates}, 0
    if name in _FILLS:
        return "fill", {"elements": output.numel()}, 0
    if name in _COPIES:
        return "copy", {"elements": output.numel(), "strided": _strided(tensors, output)}, 0
    if torch.Tag.pointwise in func.tags or name in _POINTWISE:
        return "pointwise", {"elements": output.numel(), "strided": _strided(tensors, output)}, output.numel()
    return "other", {"elements": largest}, largest


def _product(name: str, tensors: Sequence[torch.Tensor], output: torch.Tensor) -> _Described:
    a, b = tensors[-2:]
    if name in ("dot", "vdot", "mv", "addmv"):
        m, k = (1, a.numel()) if a.dim() == 1 else a.shape
        return "matvec", {"batch": 1, "m": m, "n": 1, "k": k}, 2 * m * k
    batch, m, k, n = (a.shape[0] if a.dim() == 3 else 1), a.shape[-2], a.shape[-1], b.shape[-1]
    kind: OperatorKind = "matvec" if min(m, n) == 1 else "matmul"
    return kind, {"batch": batch, "m": m, "n": n, "k": k}, 2 * batch * m * n * k


def _convolution(args: Sequence[Any], output: torch.Tensor) -> _Described:
    """Of ``convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)``."""
    image, weight = args[0], args[1]
    transposed, groups = bool(args[6]), int(args[8])
    in_channels, out_channels, dims = image.shape[1], output.shape[1], image.dim() - 2
    window, stride = math.prod(weight.shape[2:]), [*args[3], *args[3] * (dims - len(args[3]))]
    in_points, out_points = math.prod(image.shape[2:]), math.prod(output.shape[2:])
    geometry = {
        "batch": image.shape[0], "in_channels": in_channels, "out_channels": out_channels, "groups": groups,
        "window": window, "window_last": weight.shape[-1], "stride": math.prod(stride),
        "dilation": math.prod(args[5]), "padding": max(args[4], default=0), "in_points": in_points,
        "out_points": out_points, "out_last": output.shape[-1], "dims": dims,
    }  # fmt: skip
    if transposed:
        flops = 2 * image.numel() * (out_channels // groups) * window
    else:
        flops = 2 * output.numel() * (in_channels // groups) * window
    if groups > 1 and groups == in_channels and not transposed:
        return "depthwise", geometry, flops
    if groups > 1 and not transposed:
        return "grouped_conv", geometry, flops
    kinds: dict[tuple[bool, int], OperatorKind] = {
        (False, 1): "conv1d", (False, 2): "conv2d", (False, 3): "conv3d",
        (True, 1): "conv_transpose1d", (True, 2): "conv_transpose2d", (True, 3): "conv_transpose3d",
    }  # fmt: skip
    return kinds.get((transposed, dims), "other"), geometry, flops


def _pooling(name: str, args: Sequence[Any], first: torch.Tensor, output: torch.Tensor) -> dict[str, int]:
    dims = next((number for number in (1, 2, 3) if f"{number}d" in name), 1)
    points = math.prod(first.shape[-dims:]), math.prod(output.shape[-dims:])
    extents = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else []
    window = math.prod([*extents, *extents * (dims - len(extents))]) if extents and "adaptive" not in name else 0
    return {
        "outer": output.numel() // max(points[1], 1), "window": window or -(-points[0] // max(points[1], 1)),
        "in_points": points[0], "out_points": points[1], "out_last": output.shape[-1], "dims": dims,
        "stride": max(1, points[0] // max(points[1], 1)), "mean": int("avg" in name),
    }  # fmt: skip


def _axis(tensor: torch.Tensor, dim: Any) -> dict[str, int]:
    """Rows along one axis."""
    if tensor.dim() == 0 or type(dim) is not int:
        return {"outer": 1, "length": tensor.numel(), "inner": 1}
    dim %= tensor.dim()
    length = tensor.shape[dim]
    inner = tensor.stride(dim) if length > 1 else 1
    return {"outer": tensor.numel() // max(length, 1), "length": length, "inner": max(inner, 1)}


def _reduced(tensor: torch.Tensor, args: Sequence[Any], keywords: dict[str, Any]) -> dict[str, int]:
    """Rows of a reduction: over its ``dim``, or everything."""
    dims: Any = keywords.get("dim")
    for item in args[1:]:
        if isinstance(item, list | tuple) and all(type(number) is int for number in item):
            dims = item
            break
        if type(item) is int and type(dims) is not int:
            dims = item
    listed = [dims] if type(dims) is int else list(dims or [])
    if tensor.dim() == 0 or not listed:
        return {"outer": 1, "length": tensor.numel(), "inner": 1}
    listed = [number % tensor.dim() for number in listed]
    length = math.prod(tensor.shape[number] for number in set(listed))
    inner = min((tensor.stride(number) for number in listed if tensor.shape[number] > 1), default=1)
    return {"outer": tensor.numel() // max(length, 1), "length": length, "inner": max(inner, 1)}


def _strided(tensors: Sequence[torch.Tensor], output: torch.Tensor) -> int:
    """1 where an operand of the result's size does not lie in memory as the result does."""
    for tensor in tensors:
        if tensor.numel() == output.numel() and tensor.shape == output.shape and tensor.numel() > 1:
            order = [dim for dim in range(tensor.dim()) if tensor.shape[dim] > 1]
            if order and (tensor.stride(order[-1]) == 1) != (output.stride(order[-1]) == 1):
                return 1
    return 0


def _bytes_read(
    tensor: torch.Tensor, kind: OperatorKind, name: str, inputs: Sequence[torch.Tensor], written: int
) -> int:
    """Bytes that an operator reads of an operand: of a table what is looked up, of scores one of each row."""
    every = _distinct_bytes(tensor)
    if name.startswith("_embedding_bag") and tensor is inputs[0] and len(inputs) > 1:
        return min(every, inputs[1].numel() * tensor.shape[-1] * tensor.element_size())
    if name.startswith("nll_loss") and tensor is inputs[0] and len(inputs) > 1:
        return min(every, 32 * inputs[1].numel())
    return min(every, max(written, 1)) if kind == "gather" and tensor is inputs[0] else every


def _distinct_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements at different places; an expanded axis has one."""
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(extent for extent, stride in extents if stride or extent == 0) * tensor.element_size()


def _tensors(value: Any) -> list[torch.Tensor]:
    """Tensors in nested lists and dictionaries, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
