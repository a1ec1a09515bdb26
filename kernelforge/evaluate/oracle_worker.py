"""The oracle's confined child: runs the task file, makes inputs, keeps expected outputs, compares.

Requests are frames ``{"op": ...}``; a reply is ``{"ok": true, ...}`` or ``{"ok": false, "error", "message"}`` for
a mistake in the task or the request. Anything else that goes wrong ends the child.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import ValidationError

from kernelforge.errors import TaskError, UsageError
from kernelforge.evaluate.admission_checks import admission_findings, generator_findings
from kernelforge.evaluate.comparison import Got
from kernelforge.evaluate.expected import Drawn, Reckoner
from kernelforge.evaluate.facts import facts_at
from kernelforge.evaluate.recipe import Recipe
from kernelforge.evaluate.reference import tensor_bytes, tensor_spec
from kernelforge.evaluate.tracing import trace_at, trace_source
from kernelforge.records import DType, Task
from kernelforge.sandbox.channel import Channel, Frame

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Names of ``mallopt`` in glibc's malloc.h."""

_WARM_UP_TASK = """
import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(2, 2, 3, padding=1), nn.LayerNorm(4), nn.Linear(4, 4)
    def forward(self, x):
        x = self.fc(self.norm(self.conv(x)))
        return torch.softmax(x, -1), torch.argmax(x, 1), x.cumsum(1).sum(2), torch.max_pool2d(x, 2)
def get_inputs():
    return [torch.randn(1, 2, 4, 4)]
def get_init_inputs():
    return []
"""

_Reply = tuple[dict[str, Any], list[bytes]]


def warm_up(options: Mapping[str, Any]) -> None:
    """Import torch and walk once through everything that imports lazily, so that a child reads no file later.

    ``options`` may hold ``threads``, for torch; 1 otherwise.
    """
    _keep_freed_memory()
    torch.set_num_threads(int(options.get("threads", 1)))
    torch.set_num_interop_threads(1)
    trace_source(_WARM_UP_TASK, {})
    task = Task.model_validate(
        {"name": "warm", "suite": "warm", "title": "", "level": 0, "source": _WARM_UP_TASK}
        | {"sizes": [{"name": "full"}, {"name": "small"}], "policy": {"ties": [1]}}
    )
    reckoner = Reckoner(task)
    reckoner.draw("small", "task", 1)
    facts_at(reckoner.reference("small"), "small", (), fake=True)


def _keep_freed_memory() -> None:
    """Let the C library reuse large blocks: mapping and clearing each temporary anew doubles the oracle's time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(parameter, 1 << 30)


def serve(channel: Channel) -> None:
    """Answer requests until the parent closes the channel."""
    from kernelforge.errors import ChildDied

    server = _Server()
    while True:
        try:
            frame = channel.receive()
        except ChildDied:
            return
        try:
            data, blobs = server.answer(frame)
        except (TaskError, UsageError) as error:
            data, blobs = {"ok": False, "error": type(error).__name__, "message": str(error)}, []
        channel.send(data, blobs)


class _Server:
    """One task; draws by handle."""

    def __init__(self) -> None:
        self._reckoner: Reckoner | None = None
        self._draws: dict[int, Drawn] = {}
        self._operations: dict[str, Callable[[dict[str, Any], tuple[bytes, ...]], _Reply]] = {
            "load": self._load,
            "facts": self._facts,
            "trace": self._trace,
            "families": self._families,
            "draw": self._draw,
            "check": self._check,
            "release": self._release,
            "admit": self._admit,
            "tests": self._tests,
            "try": self._try,
        }

    def answer(self, frame: Frame) -> _Reply:
        data, blobs = self._operations[frame.data["op"]](frame.data, frame.blobs)
        return {"ok": True, **data}, blobs

    @property
    def _task(self) -> Reckoner:
        if self._reckoner is None:
            raise UsageError("no task is loaded")
        return self._reckoner

    def _load(self, data: dict[str, Any], blobs: tuple[bytes, ...]) -> _Reply:
        torch.set_num_threads(int(data["threads"]))
        self._reckoner = Reckoner(Task.model_validate(data["task"]))
        self._reckoner.reference("small")
        return {}, []

    def _facts(self, data: dict[str, Any], blobs: tuple[bytes, ...]) -> _Reply:
        reckoner = self._task
        found = []
        for size in data["sizes"]:
            # The full size is not run only to be described.
            facts = facts_at(reckoner.reference(size), size, reckoner.task.policy.mutates, fake=size == "full")
            found.append(facts.model_dump(mode="json"))
        return {"sizes": found}, []

    def _trace(self, data: dict[str, Any], blobs: tuple[bytes, ...]) -> _Reply:
        reference = self._task.reference(data["size"])
        graph = trace_at(reference, data["size"])
        return {"graph": graph.model_dump(mode="json")}, []

    def _families(self, data: dict[str, Any], blobs: tuple[bytes, ...]) -> _Reply:
        return {"families": list(self._task.scales(data["size"]))}, []

    def _draw(self, data: dict[str, Any], blobs: tuple[bytes, ...]) -> _Reply:
        reckoner = self._task
        size = data["size"]
        drawn = reckoner.draw(size, data["family"], int(data["seed"]), expected=bool(data["expected"]))
        self._draws[data["handle"]] = drawn
        out: list[bytes] = []
        positions, scalars = [], {}
        for position, value in enumerate(drawn.inputs):
            if isinstance(value, torch.Tensor):
                tensor_spec(value)
                positions.append(position)
                out.append(tensor_bytes(value))
            else:
                scalars[str(position)] = value
        weights = reckoner.reference(size).weights()
        out += [tensor_bytes(tensor) for tensor in weights.values()]
        aliases = {spec.name: list(spec.aliases) for spec in reckoner.reference(size).weight_specs() if spec.aliases}
        return {"positions": positions, "scalars": scalars, "weights": list(weights), "aliases": aliases}, out

    def _check(self, data: dict[str, Any], blobs: tuple[bytes, ...]) -> _Reply:
        drawn = self._draws.get(data["handle"])
        if drawn is None:
            raise UsageError(f"there is no draw {data['handle']}: it was released, or its child died")
        if not len(blobs) == len(data["shapes"]) == len(data["dtypes"]):
            raise UsageError("check needs a shape and a dtype for each output")
        got = [
            Got(blob, tuple(shape), DType(dtype))
            for blob, shape, dtype in zip(blobs, data["shapes"], data["dtypes"], strict=True)
        ]
        return {"comparison": self._task.compare(drawn, got).model_dump(mode="json")}, []

    def _release(self, data: dict[str, Any], blobs: tuple[bytes, ...]) -> _Reply:
        self._draws.pop(data["handle"], None)
        return {}, []

    def _admit(self, data: dict[str, Any], blobs: tuple[bytes, ...]) -> _Reply:
        return {"findings": admission_findings(self._task, data["sizes"])}, []

    def _tests(self, data: dict[str, Any], blobs: tuple[bytes, ...]) -> _Reply:
        self._task.tests = {name: _recipe(recipe) for name, recipe in data["recipes"].items()}
        return {}, []

    def _try(self, data: dict[str, Any], blobs: tuple[bytes, ...]) -> _Reply:
        reckoner, name = self._task, data["name"]
        before = dict(reckoner.tests)
        reckoner.tests[name] = _recipe(data["recipe"])
        try:
            return {"findings": generator_findings(reckoner, name, data["sizes"])}, []
        finally:
            reckoner.tests = before


def _recipe(data: dict[str, Any]) -> Recipe:
    """A recipe as the parent sent it, checked again: what is not one is refused before any step of it is taken."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"this is no recipe of an input generator: {error.errors()[0]['msg']}") from None
