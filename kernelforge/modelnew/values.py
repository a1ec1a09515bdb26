"""Values that cross to a ModelNew candidate's process: inputs, weights and outputs, and the sizes that it may use."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernelforge.errors import TaskError
from kernelforge.records import Size
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.tasks.constants import Scalar, module_constants, substitute


def at_size(source: str, size: Size) -> tuple[str, tuple[str, ...]]:
    """The file with the size's constants where it has numbers of the same names, and what could not be replaced.

    A ``ModelNew`` gets its extents from its constructor and its inputs; a copy of the task's constants is used only if
    the author meant it. The text must parse.
    """
    constants = module_constants(ast.parse(source))
    replaced: dict[str, Scalar] = {name: value for name, value in size.constants.items() if name in constants}
    try:
        return substitute(source, replaced), ()
    except TaskError:
        pass  # one of them cannot be set: find out which
    remarks: list[str] = []
    for name in list(replaced):
        try:
            substitute(source, {name: replaced[name]})
        except TaskError as error:
            del replaced[name]
            remarks.append(f"the candidate's own {name} stays as it is: {error}")
    return substitute(source, replaced), tuple(remarks)


_copy = torch.Tensor.copy_
_set = torch.Tensor.set_
_as_strided = torch.Tensor.as_strided
_empty = torch.empty
_PLAIN = (bool, int, float, str)


def dtype_of(name: str) -> torch.dtype:
    """The dtype that torch calls ``name``."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is no dtype")
    return dtype


def host_tensor(blob: Blob, dtype: torch.dtype) -> torch.Tensor:
    """The flat elements of a blob, in memory of their own."""
    if not len(blob):
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(blob), dtype=dtype)


class Slot:
    """Memory for one tensor that stays where it is while its values change, as a caller's reused buffer does."""

    def __init__(self, spec: Mapping[str, Any], blob: Blob, device: torch.device) -> None:
        self.spec = {name: spec[name] for name in ("shape", "dtype", "stride")}
        self._flat = host_tensor(blob, dtype_of(spec["dtype"])).to(device, copy=True)

    def fits(self, spec: Mapping[str, Any], blob: Blob) -> bool:
        """Whether other values of the same shape, dtype, strides and size can take this place."""
        same = all(self.spec[name] == spec[name] for name in self.spec)
        return same and self._flat.numel() * self._flat.element_size() == len(blob)

    def fill(self, blob: Blob) -> None:
        """Put new values in. The version counter of tensors given out does not move."""
        if self._flat.numel():
            _copy(self._flat.data, host_tensor(blob, self._flat.dtype))

    def tensor(self) -> torch.Tensor:
        """A tensor over this memory, of no base and no history."""
        made: torch.Tensor = _set(
            _empty(0, dtype=self._flat.dtype, device=self._flat.device),
            self._flat.untyped_storage(),
            0,
            tuple(self.spec["shape"]),
            tuple(self.spec["stride"]),
        )
        return made

    def span(self) -> memoryview:
        """Everything in this memory, gaps between strided elements included."""
        return raw(self._flat)

    def elements(self) -> memoryview:
        """The elements in C order."""
        return raw(_as_strided(self._flat, tuple(self.spec["shape"]), tuple(self.spec["stride"])))


def raw(tensor: torch.Tensor) -> memoryview:
    """Elements of a tensor in C order. The bytes are those of a plain tensor on the host that we made.

    A subclass of ``torch.Tensor`` has to write its values there, including deferred ones.
    """
    home = _empty(tuple(tensor.shape), dtype=tensor.dtype)
    if home.numel():
        home.view(-1).view(torch.uint8).fill_(0xA5)
        _copy(home, tensor)
    return home.view(-1).view(torch.uint8).numpy().data if home.numel() else memoryview(b"")


def encode(value: Any, blobs: list[memoryview], where: str) -> Any:
    """A constructor's argument as JSON; tensors go to ``blobs``.

    Raises:
        TaskError: it is of a type that no frame can carry.
    """
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        blobs.append(raw(value.detach().contiguous()))
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": {"shape": list(value.shape), "dtype": dtype}, "blob": len(blobs) - 1}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        items = [encode(item, blobs, where) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(item, blobs, where) for key, item in value.items()}}
    raise TaskError(
        f"{where} holds a {type(value).__name__}: numbers, strings, tensors, dtypes, and lists and dicts of them "
        "can be given to a ModelNew"
    )


def decode(value: Any, blobs: Sequence[Blob]) -> Any:
    """The value that :func:`encode` turned into a frame."""
    if isinstance(value, list):
        return [decode(item, blobs) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        spec = value["tensor"]
        return host_tensor(blobs[value["blob"]], dtype_of(spec["dtype"])).reshape(spec["shape"])
    if "dtype" in value:
        return dtype_of(value["dtype"])
    if "tuple" in value:
        return tuple(decode(item, blobs) for item in value["tuple"])
    return {key: decode(item, blobs) for key, item in value["dict"].items()}
