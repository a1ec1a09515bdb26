"""Capture a model: the user's functions run in a confined child; groups, times and floors are found here."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import ValidationError

from kernelforge.capture.grouping import Group, groups_of, packet
from kernelforge.capture.records import (
    Capture,
    CapturedFile,
    CapturedGraph,
    CapturedGroup,
    CapturedNode,
    GroupCall,
    GroupWeight,
    ModelTimes,
)
from kernelforge.devices import make_device
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.errors import ChildDied, ChildTimeout, SandboxError, TaskError, UsageError
from kernelforge.evaluation.pool import device_lock
from kernelforge.evaluation.timing.statistics import median_of_clusters
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.prediction import BaselineTime, kernel_us, near_bytes, predict_baseline
from kernelforge.profiling.floor import work_us
from kernelforge.records import SizeFacts, content_hash, first_fault
from kernelforge.records.timing import Interval
from kernelforge.sandbox import Child, Zygote
from kernelforge.sandbox.policy import Limits, role_policy
from kernelforge.tasks.constants import MOST_SOURCE_BYTES
from kernelforge.tasks.files import read_plain_file
from kernelforge.version import __version__

_MODULE: Final = "kernelforge.capture.worker"
_TIMED_MODULE: Final = "kernelforge.capture.timed_worker"
_CLUSTER: Final = 10
"""Timed calls that are drawn together for an interval: neighbours share the GPU's clock."""
MEMORY_BYTES: Final = 16 << 30
"""Of the child: enough for models that have to be constructed for real."""
_RANDOM: Final = frozenset({
    "bernoulli", "bernoulli_", "native_dropout", "normal", "normal_", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm", "uniform", "uniform_", "multinomial", "exponential", "rrelu_with_noise",
})  # fmt: skip
_MOST_TENSORS: Final = 64


@dataclass(frozen=True)
class Source:
    """A function in a file: ``my_model.py:make_model``."""

    path: Path
    function: str
    text: str

    @classmethod
    def of(cls, named: str, option: str, default: Path | None = None) -> Source:
        """Read the file that ``FILE.py:FUNCTION`` names; of ``FUNCTION`` alone the file is ``default``.

        Raises:
            UsageError: It is neither, or the file cannot be read.
        """
        head, colon, function = named.rpartition(":")
        path = Path(head) if colon else default
        if path is None or not function.isidentifier() or path.suffix != ".py":
            raise UsageError(f"{option} {named!r}: write FILE.py:FUNCTION, such as my_model.py:make_model")
        try:
            text = read_plain_file(path, MOST_SOURCE_BYTES).decode()
        except FileNotFoundError:
            raise UsageError(f"{option}: there is no file {path}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{option}: {path} is not UTF-8 text; name a Python file") from None
        except TaskError as error:
            raise UsageError(f"{option}: {error}") from error
        return cls(path, function, text)

    def record(self) -> CapturedFile:
        return CapturedFile(
            path=str(self.path), function=self.function, sha256=hashlib.sha256(self.text.encode()).hexdigest()
        )


def capture_model(
    model: Source,
    inputs: Source,
    spec: DeviceSpec,
    *,
    module: str = "",
    allow_unconfined: bool = False,
    timeout_s: float = 900.0,
) -> Capture:
    """Capture a model, or a part of it, with the times that its groups take on a GPU.

    Args:
        model: The function that makes it.
        inputs: The function that makes its arguments.
        spec: The GPU.
        module: Dotted name of a part; empty for all of it.
        allow_unconfined: Run it without a jail where none works.
        timeout_s: Longest wait for the child.

    Raises:
        TaskError: The model cannot be captured; the message says why and what to do.
    """
    graph = capture_graph(model, inputs, module, allow_unconfined=allow_unconfined, timeout_s=timeout_s)
    return capture_record(graph, model, inputs, module, spec)


def capture_on_gpu(
    model: Source,
    inputs: Source,
    device: str,
    *,
    module: str = "",
    allow_unconfined: bool = False,
    timeout_s: float = 900.0,
    tell: Callable[[str], None] = lambda line: None,
) -> Capture:
    """Capture a model, or a part of it, with the times that it and its groups take on a GPU of this machine.

    Args:
        device: Name of the GPU: ``cuda:0``.
        tell: Called with a line of text while another process uses the GPU.

    The other arguments, and errors, are those of :func:`capture_model`.

    Raises:
        DeviceError: The GPU cannot be used.
    """
    until = time.monotonic() + timeout_s
    with closing(make_device(device, allow_unconfined=allow_unconfined)) as gpu:
        if not isinstance(gpu, CudaDevice):
            raise UsageError(f"{device} is no GPU of this machine; name one, such as cuda:0")
        gpu.start()
        graph = capture_graph(model, inputs, module, allow_unconfined=allow_unconfined, timeout_s=timeout_s)
        nodes = {node.name: node.op for node in graph.nodes if node.kind == "op"}
        request = {**source_request(model, inputs, module), "device": "cuda:0", "nodes": nodes}
        left_s = until - time.monotonic()  # a wait for another process's use of the GPU is not the model's
        with (
            device_lock(gpu, "capture", tell),
            model_children(
                _TIMED_MODULE,
                role="gpu-oracle",
                environment=gpu.environment,
                allow_unconfined=allow_unconfined,
                timeout_s=timeout_s,
            ) as spawn,
        ):
            times = model_times(spawn, request, time.monotonic() + left_s, model.path)
        return measured_record(graph, times, model, inputs, module, gpu.spec, gpu.facts.name)


def model_times(spawn: Callable[[], Child], request: Mapping[str, Any], until: float, path: Path) -> ModelTimes:
    """Times of a model, from a child that runs it on a GPU.

    Args:
        spawn: Gives such a child.
        request: That of :func:`source_request`, with the device and the operators of the graph's nodes.
        until: When the reply has to be there, by ``time.monotonic``.
        path: The model's file.

    Raises:
        TaskError: It cannot be timed.
        SandboxError: The child sent what cannot be read.
    """
    try:
        with spawn() as child:
            reply = child.call(dict(request), timeout_s=max(0.0, until - time.monotonic())).data
    except ChildTimeout:
        raise TaskError("the model is not timed in the time that it may take; give --timeout more seconds") from None
    except ChildDied as error:
        raise TaskError(f"the model's process ended while it was timed ({first_line(error)})") from error
    if "error" in reply:
        raise TaskError(f"{path}: {first_line(reply['error'])}")
    try:
        return ModelTimes.model_validate(reply)
    except ValidationError as error:
        raise SandboxError(
            f"the child that times models sent times that cannot be read: {first_fault(error)}"
        ) from error


def measured_record(
    graph: CapturedGraph, times: ModelTimes, model: Source, inputs: Source, module: str, spec: DeviceSpec, gpu: str
) -> Capture:
    """A captured graph with times that were measured on a GPU.

    Args:
        graph: The graph.
        times: Of the model and of the graph's nodes.
        model: The function that made it.
        inputs: The function that made its arguments.
        module: Dotted name of the part; empty for all of it.
        spec: Figures of the GPU, which floors follow from.
        gpu: Its name.

    Raises:
        TaskError: The times are no times of this graph.
    """
    groups = equal_groups(graph, times.nodes_us, spec)
    if not any(group.time_us for group in groups):
        raise TaskError("no time was measured for any operator of the model's graph, so its groups have no shares")
    clusters = [np.array(times.calls_us[at : at + _CLUSTER]) for at in range(0, len(times.calls_us), _CLUSTER)]
    total = median_of_clusters(clusters, np.random.default_rng(0))
    source = f"{len(times.calls_us)} calls by CUDA events, groups by the profiler of torch {times.torch}"
    return _record(graph, groups, (model, inputs, module), gpu, "measured", source, total)


def capture_record(graph: CapturedGraph, model: Source, inputs: Source, module: str, spec: DeviceSpec) -> Capture:
    """A captured graph with the times that its groups take on a GPU.

    Raises:
        TaskError: No time follows from its operators.
    """
    try:
        eager = predict_baseline(graph.trace, spec)
    except ValueError as error:
        raise TaskError(f"the model has no predicted time: {error}") from error
    groups = equal_groups(graph, node_times(graph, eager), spec)
    total = (eager.time_us, (eager.low_us, eager.high_us))
    return _record(graph, groups, (model, inputs, module), spec.title, "predicted", eager.source, total)


def node_times(graph: CapturedGraph, eager: BaselineTime) -> dict[str, float]:
    """Predicted time in µs of the kernels of each node, from that of its operators."""
    times = [part.time_us / part.calls for part in eager.per_operator]
    return {node.name: sum(times[position] for position in node.operators) for node in graph.nodes}


def _record(
    graph: CapturedGraph,
    groups: Sequence[CapturedGroup],
    captured: tuple[Source, Source, str],
    gpu: str,
    origin: Literal["predicted", "measured"],
    time_source: str,
    total: tuple[float, Interval],
) -> Capture:
    """The content of ``capture.json``.

    Args:
        graph: The graph.
        groups: Its groups, without names.
        captured: Functions that made the model and its arguments, and the part's dotted name.
        gpu: Title of the GPU.
        origin: Of the times.
        time_source: What they were measured or predicted by.
        total: Time of a call of the model in µs, and its interval.
    """
    model, inputs, module = captured
    total_us, (low_us, high_us) = total
    kernels_us = sum(group.time_us * len(group.calls) for group in groups)
    return Capture(
        kernelforge=__version__,
        model=model.record(),
        inputs=inputs.record(),
        module=module,
        gpu=gpu,
        time_origin=origin,
        time_source=time_source,
        total_us=total_us,
        low_us=low_us,
        high_us=high_us,
        kernels_us=kernels_us,
        training=graph.training,
        nodes=graph.nodes,
        groups=_named(groups, kernels_us),
    )


@contextmanager
def model_children(
    module: str,
    *,
    role: str = "oracle",
    environment: Mapping[str, str] | None = None,
    allow_unconfined: bool,
    timeout_s: float,
) -> Iterator[Callable[[], Child]]:
    """A function that starts jailed children that run a user's model, each in a new process.

    Args:
        module: What the children run.
        role: Whose grants they have.
        environment: Names the GPU that they may use.
        allow_unconfined: Run them without a jail where none works.
        timeout_s: Longest wait for one.
    """
    policy = replace(role_policy(role), module=module)
    limits = Limits(wall_s=timeout_s, cpu_s=2 * timeout_s, memory_bytes=MEMORY_BYTES)
    with Zygote(role, allow_unconfined=allow_unconfined, policy=policy, environment=environment or {}) as zygote:
        yield lambda: zygote.spawn(limits)


def source_request(model: Source, inputs: Source, module: str) -> dict[str, Any]:
    """Request from which such a child makes the model and its arguments."""
    return {
        "source": model.text,
        "model": model.function,
        "inputs_source": inputs.text,
        "inputs": inputs.function,
        "module": module,
    }


def capture_graph(
    model: Source, inputs: Source, module: str, *, allow_unconfined: bool, timeout_s: float
) -> CapturedGraph:
    """The graph of a model, or of a part of it; arguments and errors are those of :func:`capture_model`."""
    until = time.monotonic() + timeout_s
    try:
        with model_children(_MODULE, allow_unconfined=allow_unconfined, timeout_s=timeout_s) as spawn:
            reply = graph_reply(spawn, source_request(model, inputs, module), until)
    except ChildTimeout:
        raise TaskError(
            f"the model is not captured after {timeout_s:g} s; give --timeout more seconds, or capture a part by "
            "--module"
        ) from None
    if "error" in reply:
        raise TaskError(f"{model.path}: {first_line(reply['error'])}")
    return read_graph(reply)


def graph_reply(spawn: Callable[[], Child], request: Mapping[str, Any], until: float) -> dict[str, Any]:
    """The reply of a child that captures a model on shapes alone, or of a second one that constructs it for real.

    Args:
        spawn: Gives a child, which has executed no file yet.
        request: That of :func:`source_request`.
        until: When the reply has to be there, by ``time.monotonic``.

    Raises:
        TaskError: A child ended.
        ChildTimeout: There is no reply in time.
    """
    why = ""
    for real in (False, True):
        try:
            with spawn() as child:
                reply = child.call({**request, "real": real}, timeout_s=max(0.0, until - time.monotonic())).data
        except ChildDied as error:
            raise TaskError(
                f"the model's process ended while it was captured ({first_line(error)}); if it takes too much memory, "
                f"make the model smaller, or capture a part by --module{why}"
            ) from error
        if not reply.get("needs_values"):
            break
        why = f"; it was constructed for real because on shapes alone {first_line(reply.get('error'))}"
    return reply


def first_line(error: object) -> str:
    """The first line of a message of third-party code, or words for none."""
    return (str(error).strip().splitlines() or ["no message"])[0][:1000]


def read_graph(reply: Mapping[str, Any]) -> CapturedGraph:
    """The child's reply. It runs third-party code: what cannot be read is its failure."""
    try:
        trace = {"size": "full", "operators": reply["operators"]}
        return CapturedGraph.model_validate({"nodes": reply["nodes"], "trace": trace, "training": reply["training"]})
    except (LookupError, TypeError, ValidationError) as error:
        fault = first_fault(error) if isinstance(error, ValidationError) else repr(error)
        raise SandboxError(f"the child that captures models sent a graph that cannot be read: {fault}") from error


def equal_groups(graph: CapturedGraph, times: Mapping[str, float], spec: DeviceSpec) -> list[CapturedGroup]:
    """The groups of a graph, equal ones together, without their names and shares.

    Args:
        graph: The graph.
        times: Of the kernels of its nodes, in µs; a node that is not named takes none.
        spec: Figures of the GPU, which floors follow from.
    """
    nodes = {node.name: node for node in graph.nodes}
    near = near_bytes(graph.trace, spec)
    by_digest: dict[str, list[Group]] = {}
    for group in groups_of(graph):
        by_digest.setdefault(group_digest(group, nodes), []).append(group)
    return [_captured(digest, equal, graph, nodes, times, near, spec) for digest, equal in by_digest.items()]


def group_digest(group: Group, nodes: Mapping[str, CapturedNode]) -> str:
    """Of what a group computes: operators, arguments, shapes and dtypes, by position and without names."""
    numbers: dict[str, int] = {}
    parts: list[Any] = []
    for name in (*group.inputs, *group.weights):
        numbers[name] = len(numbers)
        parts.append([nodes[name].role, _spec_key(nodes[name])])
    for name in in_order(group, nodes):
        numbers[name] = len(numbers)
        node = nodes[name]
        parts.append([node.op, _numbered(list(node.args), numbers), _numbered(node.kwargs, numbers), _spec_key(node)])
    return content_hash("group", parts, [numbers[name] for name in group.outputs])


def in_order(group: Group | GroupCall, nodes: Mapping[str, CapturedNode]) -> list[str]:
    """Nodes and views of a group, in the order in which they can run: that of the graph."""
    return [name for name in nodes if name in {*group.views, *group.nodes}]


def _spec_key(node: CapturedNode) -> Any:
    return None if node.tensor is None else node.tensor.model_dump(mode="json")


def _numbered(value: Any, numbers: Mapping[str, int]) -> Any:
    if isinstance(value, dict):
        if "ref" in value:
            return {"node": numbers[value["ref"]]}
        return {key: _numbered(item, numbers) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbered(item, numbers) for item in value]
    return value if not isinstance(value, float) else repr(value)


def _captured(
    digest: str,
    equal: Sequence[Group],
    graph: CapturedGraph,
    nodes: Mapping[str, CapturedNode],
    times: Mapping[str, float],
    near: Sequence[Sequence[float]],
    spec: DeviceSpec,
) -> CapturedGroup:
    group = equal[0]
    computed = [nodes[name] for name in group.nodes]
    operators = [graph.trace.operators[position] for node in computed for position in node.operators]
    inputs = [nodes[name].spec for name in group.inputs]
    outputs = [nodes[name].spec for name in group.outputs]
    weights = [nodes[name] for name in group.weights]
    tensors = [nodes[name].tensor for name in (*group.inputs, *group.weights, *group.outputs)]
    moved = sum(each.nbytes for each in tensors if each is not None) - _not_read(group, nodes)
    flops = sum(operator.flops for operator in operators)
    kept_bytes = sum(_kept_bytes(each, graph, nodes, near) for each in equal) / len(equal)
    facts = SizeFacts(
        size="full",
        inputs=tuple(each for each in inputs if each is not None),
        outputs=tuple(each for each in outputs if each is not None),
        weights=(),
        attrs={},
        compulsory_bytes=moved,
        flops=flops,
        eager_launches=len(operators),
    )
    return CapturedGroup(
        name=digest,
        kind=group.kind,
        digest=digest,
        operators=tuple(packet(node.op) for node in computed if node.op != "getitem"),
        input_specs=facts.inputs,
        output_specs=facts.outputs,
        weights=tuple(
            GroupWeight(name=f"p{number}", role=node.role or "buffer", spec=node.spec)
            for number, node in enumerate(weights)
            if node.spec is not None
        ),
        calls=tuple(call_of(each, nodes) for each in equal),
        bytes=moved,
        flops=flops,
        time_us=sum(times.get(name, 0.0) for each in equal for name in each.nodes) / len(equal),
        share=0.0,
        floor_us=work_us(spec, facts, l2_bytes=min(moved, kept_bytes)) + kernel_us(),
        no_task=_no_task(group, nodes, [operator.name for operator in operators]),
    )


def _kept_bytes(
    group: Group, graph: CapturedGraph, nodes: Mapping[str, CapturedNode], near: Sequence[Sequence[float]]
) -> float:
    """Bytes of other groups' results that the L2 still holds when a group reads them."""
    own = {position for name in group.nodes for position in nodes[name].operators}
    sizes: dict[int, float] = {}
    for position in own:
        for operand, nbytes in zip(graph.trace.operators[position].reads, near[position], strict=True):
            if operand.producer not in own:
                sizes[operand.storage] = max(nbytes, sizes.get(operand.storage, 0.0))
    return sum(sizes.values())


def _not_read(group: Group, nodes: Mapping[str, CapturedNode]) -> int:
    """Bytes of tables of which a lookup reads some rows only."""
    saved = 0
    for name in group.nodes:
        node = nodes[name]
        if packet(node.op) == "embedding" and node.spec is not None and node.refs:
            table = nodes[node.refs[0]].spec
            if table is not None and node.refs[0] in (*group.inputs, *group.weights):
                saved += max(0, table.nbytes - node.spec.nbytes)
    return saved


def call_of(group: Group, nodes: Mapping[str, CapturedNode]) -> GroupCall:
    modules = [nodes[name].module.split(".") for name in group.nodes if nodes[name].op != "getitem"]
    common: list[str] = []
    for parts in zip(*modules, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return GroupCall(
        module=".".join(common),
        nodes=group.nodes,
        views=group.views,
        inputs=group.inputs,
        weights=tuple(nodes[name].op for name in group.weights),
        outputs=group.outputs,
    )


def _no_task(group: Group, nodes: Mapping[str, CapturedNode], operators: Sequence[str]) -> str:
    names = [name.split(".")[0] for name in operators]
    drawn = next((name for name in names if name in _RANDOM), "")
    if drawn:
        return f"{drawn} draws random numbers; return the model from the factory after .eval()"
    if not group.inputs:
        return "it reads no input: its result is a constant of the model"
    if not group.outputs:
        return "nothing reads its result"
    everything = (*group.inputs, *group.weights, *group.outputs)
    if len(everything) > _MOST_TENSORS:
        return f"it has {len(everything)} inputs, weights and outputs; a task has {_MOST_TENSORS} at most"
    texts = (f"{name} is {each.dtype}" for name in everything if (each := nodes[name].complex_spec) is not None)
    number = next(texts, "")
    if number:
        return f"{number}: complex numbers are not supported as inputs, weights or outputs of a task"
    bad = next((name for name in everything if nodes[name].spec is None), None)
    if bad is not None:
        return f"{bad} is no tensor of a dtype that a task can have"
    if any(0 in spec.shape for name in everything if (spec := nodes[name].spec) is not None):
        return "a tensor has no elements"
    foreign = next((nodes[name].op for name in group.nodes if not nodes[name].op.startswith(("aten.", "getitem"))), "")
    return f"{foreign} is no operator of torch itself" if foreign else ""


_MOST_NAME: Final = 48


def _named(groups: Sequence[CapturedGroup], kernels_us: float) -> tuple[CapturedGroup, ...]:
    """The groups with names and shares, the largest share first."""
    ordered = sorted(groups, key=lambda group: (-group.time_us * len(group.calls), group.digest))
    named = []
    for number, group in enumerate(ordered, 1):
        words = list(dict.fromkeys(operator.strip("_").replace("_", "-") for operator in group.operators))
        if group.kind == "attention" and len(group.operators) > 1:
            words = ["attention"]
        name = f"g{number:02d}-" + "-".join(words)
        share = group.time_us * len(group.calls) / kernels_us if kernels_us else 0.0
        named.append(group.model_copy(update={"name": name[:_MOST_NAME].rstrip("-"), "share": min(share, 1.0)}))
    return tuple(named)
