"""One candidate's module and its ``ModelNew``: constructed, given weights, run. Child process; hostile Python."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kernelforge.modelnew.values import Slot, dtype_of, host_tensor, raw
from kernelforge.modelnew.weights import Match, give_weights, match_weights
from kernelforge.sandbox.shared_memory import Blob

_no_grad = torch.no_grad
_synchronize: Callable[[], None] = getattr(torch._C, "_cuda_synchronize", lambda: None)
_Tensor = torch.Tensor

MODULE = "modelnew_candidate"


class Refused(Exception):
    """The candidate is not what the lane takes: no ``ModelNew``, a result that is no tensor."""


class CandidateHost:
    """A candidate at one size."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.filename = ""
        self._models: list[nn.Module] = []
        self._matches: list[Match] = []
        self._module: types.ModuleType | None = None
        self._weights: list[Mapping[str, Any]] = []
        self._slots: list[dict[int, Slot]] = [{}]
        self._arguments: list[list[Any]] = [[]]
        self._left: dict[int, list[torch.Tensor]] = {}

    def load(self, source: str) -> None:
        """Run the candidate's file, which has to be a file: Triton and torch.compile read the text of functions.

        Raises:
            Refused: it has no ``ModelNew``.
        """
        self._models = []
        handle, self.filename = tempfile.mkstemp(prefix="modelnew_", suffix=".py")
        with os.fdopen(handle, "w") as file:
            file.write(source)
        linecache.checkcache(self.filename)
        self._module = types.ModuleType(MODULE)
        self._module.__file__ = self.filename
        sys.modules[MODULE] = self._module
        exec(compile(source, self.filename, "exec"), self._module.__dict__)
        made = self._module.__dict__.get("ModelNew")
        if not isinstance(made, type) or not issubclass(made, nn.Module):
            raise Refused("there is no class ModelNew that is a torch.nn.Module")

    def construct(self, init: Any, weights: Sequence[Mapping[str, Any]], copies: int = 1) -> list[str]:
        """Make one ModelNew per set and find a place for every weight; returns what is to be said of that."""
        assert self._module is not None
        make = self._module.__dict__["ModelNew"]
        self._models, self._matches = [], []
        for _ in range(copies):
            torch.manual_seed(0)
            model = make(**init) if isinstance(init, dict) else make(*init)
            self._models.append(nn.Module.to(model, self.device))
            self._matches.append(match_weights(self._models[-1], weights))
        self._weights = list(weights)
        self._slots, self._arguments, self._left = [{}], [[]], {}
        return self._matches[0].notes

    def give(self, number: int, blobs: Sequence[Blob]) -> None:
        """Give the weights of one draw to the ModelNew of a set."""
        pairs = zip(blobs, self._weights, strict=True)
        values = [host_tensor(blob, dtype_of(spec["dtype"])).reshape(spec["shape"]) for blob, spec in pairs]
        give_weights(self._matches[number], values)

    def bind(self, sets: Sequence[Mapping[str, Any]], blobs: Sequence[Blob]) -> None:
        """Put the inputs of one or more sets into memory: into the same memory as before, where they fit."""
        blobs, self._left = list(blobs), {}
        for number, inputs in enumerate(sets):
            if number == len(self._slots):
                self._slots.append({})
            self._place_set(number, inputs, blobs)
        self._slots, self._arguments = self._slots[: len(sets)], self._arguments[: len(sets)]
        self._finish()

    def _place_set(self, number: int, inputs: Mapping[str, Any], blobs: list[Blob]) -> None:
        slots = self._slots[number]
        arguments: list[Any] = [None] * inputs["count"]
        for position, spec in inputs["tensors"]:
            blob = blobs.pop(0)
            if position in slots and slots[position].fits(spec, blob):
                slots[position].fill(blob)
            else:
                slots[position] = Slot(spec, blob, self.device)
            arguments[position] = slots[position].tensor()
        for position, value in inputs["scalars"]:
            arguments[position] = value
        self._arguments[number : number + 1] = [arguments]

    def run(self, number: int = 0) -> None:
        """Call ``forward`` on one set and keep what it returns; values put off until they are read are computed now."""
        with _no_grad():
            outputs = flatten(self._models[number](*self._arguments[number]))
            self._left[number] = [output if type(output) is _Tensor else settled(output) for output in outputs]

    def window(self, calls: int) -> None:
        """Call ``forward`` ``calls`` times, on one set after the other, and wait for the device."""
        for call in range(calls):
            self.run(call % len(self._arguments))
        self._finish()

    def outputs(self, number: int) -> tuple[list[dict[str, Any]], list[memoryview]]:
        """Shape, dtype, type and bytes of what the last call on a set returned."""
        self._finish()
        specs, blobs = [], []
        for tensor in self._left[number]:
            dtype = str(tensor.dtype).removeprefix("torch.")
            specs.append({"shape": list(tensor.shape), "dtype": dtype})
            blobs.append(raw(tensor))
        return specs, blobs

    def inputs(self, number: int, elements: Sequence[int]) -> tuple[list[int], list[memoryview]]:
        """Contents of a set's inputs, by position: those of ``elements`` in C order, others with their gaps."""
        slots = sorted(self._slots[number].items())
        return [at for at, _ in slots], [slot.elements() if at in elements else slot.span() for at, slot in slots]

    def _finish(self) -> None:
        if self.device.type == "cuda":
            _synchronize()


def settled(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor with the values of a subclass of ``torch.Tensor``, on the same device."""
    home = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=tensor.device)
    home.view(-1).view(torch.uint8).fill_(0xA5)
    torch.Tensor.copy_(home, tensor)
    return home


def flatten(result: Any) -> list[torch.Tensor]:
    """Tensors of a result in order: tuples, lists and dicts opened, None left out, as the oracle does.

    Raises:
        Refused: it holds anything else.
    """
    if result is None:
        return []
    if isinstance(result, _Tensor):
        return [result]
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, tuple | list):
        return [tensor for part in result for tensor in flatten(part)]
    raise Refused(f"forward returned a {type(result).__name__}; tensors in tuples, lists and dicts are supported")


MAX_TEXT = 6000

_BUILD_TEXT = ("error building extension", "ninja: build stopped", "failed to compile", "nvrtc compilation error")
_BUILD_TYPES = ("CompileException", "CompilationError", "NVRTCError", "InductorError")
_GPU_TEXT = (
    "torch not compiled with cuda enabled",
    "found no nvidia driver",
    "no cuda gpus are available",
    "cuda_home environment variable is not set",
    "cannot access accelerator device when none is available",
    "active drivers ([]). there should only be one",
    "cpu tensor?",
    "cudaerrorinsufficientdriver",
    "cudaerrornodevice",
    "cuda driver version is insufficient",
    "failed to dlopen libcuda",
    "libcuda.so.1: cannot open",
)


def describe_exception(error: BaseException, filename: str, on_gpu: bool) -> dict[str, Any]:
    """A failure as data: ``kind`` (``crash build memory missing gpu``), type, text, line of the candidate's file."""
    text = str(error)
    shortened = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 3]}\n[...]\n{text[-2 * MAX_TEXT // 3 :]}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    return {
        "kind": _kind(error, text.lower(), on_gpu),
        "type": type(error).__name__,
        "text": shortened,
        "line": lines[-1] if lines else None,
    }


def _kind(error: BaseException, text: str, on_gpu: bool) -> str:
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        return "memory"
    if not on_gpu and any(words in text for words in _GPU_TEXT):
        return "gpu"
    if isinstance(error, ModuleNotFoundError):
        return "missing"
    built = isinstance(error, subprocess.CalledProcessError) or type(error).__name__ in _BUILD_TYPES
    return "build" if built or any(words in text for words in _BUILD_TEXT) else "crash"
