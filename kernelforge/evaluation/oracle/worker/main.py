"""The oracle's process: runs the task file, draws inputs, keeps expected outputs, compares.

Requests are frames ``{"op": ...}``; a reply is ``{"ok": true, ...}`` or ``{"ok": false, "error", "message"}`` for
a mistake in the task or the request. Anything else that goes wrong ends the child.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError

from kernelforge.errors import TaskError, UsageError
from kernelforge.evaluation.audit.runner import MutationAudit
from kernelforge.evaluation.generators.recipe import Recipe
from kernelforge.evaluation.oracle.worker.admission_checks import admission_findings, generator_findings
from kernelforge.evaluation.oracle.worker.baselines import Baselines
from kernelforge.evaluation.oracle.worker.comparison import Got
from kernelforge.evaluation.oracle.worker.operator_trace import operators_at
from kernelforge.evaluation.oracle.worker.reference import tensor_spec, tensor_view
from kernelforge.evaluation.oracle.worker.reference_facts import facts_at, shape_facts
from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw, ReferenceRunner
from kernelforge.evaluation.oracle.worker.slices import Slices, elements_of
from kernelforge.evaluation.oracle.worker.timed_baseline import TimedBaseline
from kernelforge.evaluation.oracle.worker.torch_device import (
    HOST,
    free_bytes,
    lost,
    open_device,
    release_cached_memory,
    set_arithmetic,
    warming_up,
)
from kernelforge.evaluation.oracle.worker.tracing import trace_at
from kernelforge.records import DType, Size, Task
from kernelforge.sandbox.channel import Channel, Frame
from kernelforge.sandbox.shared_memory import Blob

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

_Reply = tuple[dict[str, Any], Sequence[Blob]]


def warm_up(options: Mapping[str, Any]) -> None:
    """Import torch and walk once through everything that imports lazily, so that a child reads no file later.

    ``options`` may hold ``threads``, for torch; 1 otherwise. No GPU is touched: what is forked from a process that
    started CUDA could not use it.

    Raises:
        SandboxError: something here started CUDA nevertheless.
    """
    _keep_freed_memory()
    set_arithmetic()
    torch.set_num_threads(int(options.get("threads", 1)))
    torch.set_num_interop_threads(1)
    task = Task.model_validate(
        {"name": "warm", "suite": "warm", "title": "", "level": 0, "source": _WARM_UP_TASK}
        | {"sizes": [{"name": "full"}, {"name": "small"}], "policy": {"ties": [1]}}
    )
    with warming_up():
        reckoner = ReferenceRunner(task)
        reckoner.draw("small", "task", 1)
        facts_at(reckoner.described("small"), "small", (), (), fake=True)
        operators_at(reckoner.described("small"), "small", ())


def _keep_freed_memory() -> None:
    """Let the C library reuse large blocks: mapping and clearing each temporary again doubles the oracle's time.

    Not the largest, such as weights of VGG16 in float64: among others in one heap they left gaps of several GB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 28)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def serve(channel: Channel) -> None:
    """Answer requests until the parent closes the channel."""
    answer(channel, channel.requests())


def answer(channel: Channel, requests: Iterable[Frame]) -> None:
    """Answer these requests of the channel."""
    server = _OracleServer()
    for frame in requests:
        try:
            data, blobs = server.answer(frame)
        except (TaskError, UsageError) as error:
            data = {"ok": False, "error": type(error).__name__, "message": str(error), "lost": lost(server.device)}
            blobs = []
        channel.send(data, blobs)


class _OracleServer:
    """One task, which the first request loads; draws by handle, armed baselines by number."""

    _task: ReferenceRunner
    _baselines: Baselines
    _parts: Slices

    def __init__(self) -> None:
        self.device = HOST
        self._draws: dict[int, InputDraw] = {}
        self._armed: dict[int, TimedBaseline] = {}

    def answer(self, frame: Frame) -> _Reply:
        operation: Callable[[dict[str, Any], tuple[Blob, ...]], _Reply] = getattr(self, f"_op_{frame.data['op']}")
        size = frame.data.get("size")
        if size is not None:
            self._task.make_room(size["name"] if isinstance(size, dict) else size)
        try:
            data, blobs = operation(frame.data, frame.blobs)
        except torch.OutOfMemoryError as error:
            release_cached_memory(self.device, all_of_it=True)
            message = f"'{frame.data['op']}' needs more memory than the GPU has left for the reference"
            raise TaskError(f"{message}; make the size smaller, or free the GPU") from error
        return {"ok": True, **data}, blobs

    def _op_load(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        torch.set_num_threads(int(data["threads"]))
        self.device = open_device(data["device"])
        self._task = ReferenceRunner(Task.model_validate(data["task"]), self.device)
        self._task.know(data["scales"])
        self._baselines = Baselines(self._task)
        self._parts = Slices(self._task)
        self._task.reference("small")
        return {}, []

    def _op_facts(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        reckoner = self._task
        sizes = []
        for size in data["sizes"]:
            reckoner.make_room(size)
            # The full size is not run only to be described.
            policy = reckoner.task.policy
            fake = size == "full"
            facts = facts_at(reckoner.described(size), size, policy.mutates, policy.host_inputs, fake=fake)
            sizes.append(facts.model_dump(mode="json"))
        return {"sizes": sizes}, []

    def _op_trace(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        graph = trace_at(self._task.described(data["size"]), data["size"])
        return {"graph": graph.model_dump(mode="json")}, []

    def _op_operators(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        reckoner, size = self._task, data["size"]
        if reckoner.task.policy.host_inputs:
            raise TaskError("no time is predicted of operators on host memory: they run on the CPU, and copy")
        trace = operators_at(reckoner.described(size), size, reckoner.task.policy.mutates, run=bool(data["run"]))
        return {"trace": trace.model_dump(mode="json")}, []

    def _op_size(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        reckoner, size = self._task, Size.model_validate(data["size"])
        try:
            reckoner.take_size(size)
            policy = reckoner.task.policy
            facts = shape_facts(reckoner.described(size.name), size.name, policy.mutates, policy.host_inputs)
        except ValueError as error:
            raise TaskError(f"the size {size.name!r} is none of the task's: {error}") from error
        return {"facts": facts.model_dump(mode="json")}, []

    def _op_families(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        return {"scales": self._task.scales(data["size"])}, []

    def _op_scales(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        self._task.know(data["scales"])
        return {}, []

    def _op_draw(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        reckoner = self._task
        size = data["size"]
        if data["tiled"]:
            drawn, reference = reckoner.draw_tiles(size, int(data["seed"]))
        else:
            drawn = reckoner.draw(size, data["family"], int(data["seed"]), expected=bool(data["expected"]))
            reference = reckoner.reference(size)
        self._draws[data["handle"]] = drawn
        release_cached_memory(self.device)  # that of the float64 twin, while the candidate runs
        # Views: nothing writes to a draw or to its weights before the reply is sent.
        out: list[Blob] = []
        positions, scalars = [], {}
        for position, value in enumerate(drawn.inputs):
            if isinstance(value, torch.Tensor):
                tensor_spec(value)
                positions.append(position)
                out.append(tensor_view(value))
            else:
                scalars[str(position)] = value
        weights = reference.weights()
        tiles = drawn.tiles
        out += [tensor_view(tiles[name].tile if name in tiles else tensor) for name, tensor in weights.items()]
        aliases = {spec.name: list(spec.aliases) for spec in reference.weight_specs() if spec.aliases}
        reply = {"positions": positions, "scalars": scalars, "weights": list(weights), "aliases": aliases}
        return reply | {"tiled": [(key, tile.nbytes) for key, tile in tiles.items()]}, out

    def _op_check(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        drawn = self._drawn(data["handle"])
        if not len(blobs) == len(data["shapes"]) == len(data["dtypes"]):
            raise UsageError("check needs a shape and a dtype for each output")
        got = [
            Got(blob, tuple(shape), DType(dtype))
            for blob, shape, dtype in zip(blobs, data["shapes"], data["dtypes"], strict=True)
        ]
        return {"comparison": self._task.compare(drawn, got).model_dump(mode="json")}, []

    def _op_has_slices(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        own, family = bool(self._parts.slicings), data["family"]
        return {"has_slices": own and (family == "task" or self._parts.stand_on(family))}, []

    def _op_is_mean(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        return {"is_mean": self._parts.mean is not None}, []

    def _op_choose(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        elements = self._parts.choose(data["size"], int(data["seed"]), data["count"])
        return {"elements": {str(output): indices for output, indices in elements.items()}}, []

    def _op_check_part(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        drawn = self._drawn(data["handle"])
        complete, count = bool(data["whole"]), len(data["shapes"])
        indices = [None] * count if complete else blobs[::2]
        outputs = blobs if complete else blobs[1::2]
        if not len(indices) == len(outputs) == count == len(data["dtypes"]):
            raise UsageError("check_part needs elements, a shape and a dtype for each output, and indices of a part")
        shapes = [tuple(shape) for shape in data["shapes"]]
        got = {
            position: elements_of(
                indices[position], outputs[position], shapes[position], DType(data["dtypes"][position])
            )
            for position in range(count)
        }
        if complete:
            comparison = self._parts.compare_whole(drawn, got)
        else:
            required = {int(output): indices for output, indices in data["wanted"].items()}
            comparison = self._parts.compare(drawn, required, got)
        return {"comparison": comparison.model_dump(mode="json")}, []

    def _op_release(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        self._draws.pop(data["handle"], None)
        release_cached_memory(self.device)
        return {}, []

    def _drawn(self, handle: int) -> InputDraw:
        if handle not in self._draws:
            raise UsageError(f"there is no draw {handle}: it was released, or its child died")
        return self._draws[handle]

    def _op_baselines(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        return {"names": list(self._baselines.names(data["size"]))}, []

    def _op_arm(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        draws = [self._drawn(handle) for handle in data["handles"]]
        armed = self._baselines.arm(data["name"], draws, int(data["flush_bytes"]), bool(data["flush_each"]))
        self._armed[data["side"]] = armed
        return {"captured": armed.captured, "note": armed.note}, []

    def _op_block(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        self._side(data["side"]).run(data["samples"], data["work"], data["gaps_us"])
        return {}, []

    def _op_times(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        return {"times_us": self._side(data["side"]).times()}, []

    def _op_launches(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        return {"launches": self._side(data["side"]).launches().model_dump(mode="json")}, []

    def _side(self, number: int) -> TimedBaseline:
        if number not in self._armed:
            raise UsageError("this baseline is not armed: it was closed, or its child died")
        return self._armed[number]

    def _op_disarm(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        self._armed.pop(data["side"], None)
        release_cached_memory(self.device)
        return {}, []

    def _op_memory(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        return {"free_bytes": free_bytes(self.device)}, []

    def _op_admit(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        return {"findings": admission_findings(self._task, data["sizes"])}, []

    def _op_audit(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        audit = MutationAudit(self._task).audit(int(data["most"]), data["also"])
        return {"audit": audit.model_dump(mode="json")}, []

    def _op_tested(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        with self._also_drawn({test["name"]: _recipe(test["recipe"]) for test in data["tests"]}):
            sizes = {test["name"]: test["sizes"] for test in data["tests"]}
            mutants = MutationAudit(self._task).tested(int(data["most"]), sizes)
        return {"mutants": [mutant.model_dump(mode="json") for mutant in mutants]}, []

    def _op_tests(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        self._task.tests = {name: _recipe(recipe) for name, recipe in data["recipes"].items()}
        return {}, []

    def _op_try(self, data: dict[str, Any], blobs: tuple[Blob, ...]) -> _Reply:
        with self._also_drawn({data["name"]: _recipe(data["recipe"])}):
            return {"findings": generator_findings(self._task, data["name"], data["sizes"])}, []

    @contextlib.contextmanager
    def _also_drawn(self, recipes: Mapping[str, Recipe]) -> Iterator[None]:
        """Within the block, draw these recipes as families too."""
        before = self._task.tests
        self._task.tests = {**before, **recipes}
        try:
            yield
        finally:
            self._task.tests = before


def _recipe(data: dict[str, Any]) -> Recipe:
    """A recipe as the parent sent it, checked again: what is not one is refused before any step of it is taken."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"this is no recipe of an input generator: {error.errors()[0]['msg']}") from None
