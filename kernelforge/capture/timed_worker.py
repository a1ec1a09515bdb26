"""Time a model on a GPU: calls of it in eager PyTorch, and the kernels of each node of its captured graph.

Runs third-party code, in a confined child. The graph is the one that a capture makes, on the CPU's tensors; it is then
run node by node on the GPU's, so that the profiler of PyTorch says which node launched which kernel.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import fx
from torch.profiler import record_function
from torch.utils._pytree import tree_flatten, tree_map

from kernelforge.capture.records import FEWEST_CALLS
from kernelforge.capture.worker import (
    Made,
    RealRun,
    Tensors,
    exported_again,
    made_of,
    placeholder_values,
    step,
    warm_up,
)
from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.reference import move_model
from kernelforge.evaluation.oracle.worker.timed_baseline import Timestamp, kernel_trace
from kernelforge.evaluation.oracle.worker.torch_device import default_device, open_device, synchronize
from kernelforge.prediction.launch_queue import LAUNCH_CALLS
from kernelforge.sandbox.channel import Channel

__all__ = ["serve", "timed", "warm_up"]

MOST_CALLS: Final = 100
"""Timed calls of the model: fewer where they take longer than :data:`LONGEST_S` together, and never less than
:data:`~kernelforge.capture.records.FEWEST_CALLS`."""
LONGEST_S: Final = 10.0
WARM_CALLS: Final = 5
PROFILED_CALLS: Final = 5
"""Runs of the graph that a node's time is the mean of."""
_PREFIX: Final = "kernelforge node "
_ON_GPU: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""Categories of the GPU's work in a trace of PyTorch's profiler (kineto)."""
_LEFT_BEHIND: Final = ("on the same device", "on the expected device", "should be the same")
"""In torch's messages on operands of several devices: of most operators, of those on tensors without storage, and of
convolutions, which name types of tensors."""


def serve(channel: Channel) -> None:
    """Answer requests until the parent closes the channel."""
    for frame in channel.requests():
        try:
            reply = timed(frame.data)
        except TaskError as error:
            reply = {"error": str(error)}
        channel.send(reply)


def timed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Times of a model as JSON: ``calls_us``, ``nodes_us`` and the release of torch.

    Args:
        data: The request of :func:`kernelforge.capture.client.source_request`, with ``device`` and, in ``nodes``, the
            operator of each captured node by its name.

    Raises:
        TaskError: The model fails there, or its graph is another one; the message says what to do.
    """
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        device = open_device(data["device"])
    except TaskError as error:
        raise TaskError(f"{error}; to predict times instead, add --device emulated:h100") from error
    with torch.no_grad():
        made = made_of(data["source"], data["model"], data["inputs_source"], data["inputs"], data["module"])
        wrapped = Tensors(made.model)
        program = exported_again(made, wrapped, data["nodes"])
        with _running_on(device):
            made = _moved(made, device)
        leaves = tree_flatten((made.args, made.keywords))[0]
        values = [_on(value, device) for value in placeholder_values(program, wrapped, leaves)]
        graph = _Annotated(program.graph_module, device)
        with default_device(device), _running_on(device):
            calls_us = _calls_us(partial(made.model, *made.args, **made.keywords), device)
            events = kernel_trace(lambda: [graph.run(*values) for _ in range(PROFILED_CALLS)], device)
    return {"calls_us": calls_us, "nodes_us": node_times(events, PROFILED_CALLS), "torch": torch.__version__}


def _on(value: Any, device: torch.device) -> Any:
    return value.detach().to(device) if isinstance(value, torch.Tensor) else value


def _moved(made: Made, device: torch.device) -> Made:
    move_model(made.model, device)
    args, keywords = tree_map(partial(_on, device=device), (made.args, made.keywords))
    return Made(made.model, args, keywords)


@contextlib.contextmanager
def _running_on(device: torch.device) -> Iterator[None]:
    """Turn a failure into one sentence, which says what to do where a tensor of the model was left on the CPU."""
    try:
        with step(f"the model on {device}"):
            yield
    except TaskError as error:
        if not any(words in str(error) for words in _LEFT_BEHIND):
            raise
        raise TaskError(
            f"{error}; to move with the model, each of its tensors has to be a parameter, a buffer or an attribute of "
            "a module, in lists or dicts at most: register it by register_buffer, or predict times with "
            "--device emulated:h100"
        ) from error


class _Annotated(RealRun):
    """Runs a graph of the CPU on another device, with each node's name in the profiler's trace."""

    def __init__(self, graph: fx.GraphModule, device: torch.device) -> None:
        super().__init__(graph)
        self._device = device

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        with record_function(_PREFIX + n.name):
            return super().run_node(n)

    def changed(self, value: Any) -> Any:
        return self._device if isinstance(value, torch.device) else value


def _calls_us(call: Callable[[], Any], device: torch.device) -> list[float]:
    """Times of single calls on an idle GPU, in µs: from the first launch to the end of the last kernel."""
    for _ in range(WARM_CALLS):
        call()
    synchronize(device)
    times: list[float] = []
    end_s = time.monotonic() + LONGEST_S
    while len(times) < MOST_CALLS and (len(times) < FEWEST_CALLS or time.monotonic() < end_s):
        start = Timestamp.now(device)
        call()
        end = Timestamp.now(device)
        synchronize(device)
        times.append(start.until(end))
    return times


def node_times(events: Sequence[Mapping[str, Any]], calls: int) -> dict[str, float]:
    """Time in µs that the GPU works for each node of a graph in one run of it: kernels, copies and fills.

    Args:
        events: ``traceEvents`` of the Chrome trace. Nodes are ranges of category ``user_annotation``; what was launched
            within one is the node's. A launch and the GPU's work have the same ``args.correlation``.
        calls: Runs in the trace.

    Raises:
        TaskError: The GPU did nothing in it that can be seen.
    """
    ranges = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]), str(event["name"]).removeprefix(_PREFIX))
        for event in events
        if event.get("cat") == "user_annotation" and str(event.get("name")).startswith(_PREFIX)
    )
    begins = [begin for begin, _, _ in ranges]
    launched: dict[int, float] = {}
    for event in events:
        if event.get("cat") in LAUNCH_CALLS and "correlation" in event.get("args", {}):
            correlation, at = int(event["args"]["correlation"]), float(event["ts"])
            launched[correlation] = min(at, launched.get(correlation, at))  # the runtime's call holds the driver's
    times = dict.fromkeys((name for _, _, name in ranges), 0.0)
    seen = 0
    for event in events:
        launch = launched.get(int(event.get("args", {}).get("correlation", 0)))
        if event.get("cat") not in _ON_GPU or launch is None:
            continue
        position = bisect.bisect_right(begins, launch) - 1
        if position >= 0 and launch <= ranges[position][1]:
            times[ranges[position][2]] += float(event["dur"]) / calls
            seen += 1
    if not seen:
        raise TaskError(
            "the profiler of PyTorch saw no kernel of the model, so that it has no shares; let users read the GPU's "
            "counters (docs/gpus.md), or take predicted times with --device emulated:h100"
        )
    return times
