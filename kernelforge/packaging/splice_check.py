"""Put packaged operators into a third-party model and check it: outputs, and the time of a call before and after.

The model runs in the jail in which it is captured; an operator runs in the jail of candidates, on the emulated device.
This process has neither: it hands the tensors of each call from one to the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from kernelforge.candidate import ResolvedPlan, parse_plan
from kernelforge.capture.client import (
    Source,
    capture_graph,
    capture_record,
    first_line,
    model_children,
    source_request,
)
from kernelforge.capture.records import Capture, CapturedFile, CapturedGraph
from kernelforge.devices import make_device
from kernelforge.devices.base import EMULATED_RUN_LIMIT_S, RunFailure, RunRequest, Session
from kernelforge.errors import ChildDied, ChildTimeout, DeviceError, SandboxError, UsageError
from kernelforge.evaluation.stages.candidate_runs import FULL_SIZE_INSTRUCTIONS
from kernelforge.hardware.specs import DeviceSpec, find_spec
from kernelforge.packaging.end_to_end import (
    Exchange,
    Gain,
    Interval,
    copies_us,
    kernels_of,
    packaged_time,
    predicted_gain,
)
from kernelforge.packaging.execution import build
from kernelforge.packaging.manifest import PackagedSpeedup, module_folder, read_candidate, read_manifest
from kernelforge.packaging.matching import Match, match_packages
from kernelforge.records import Comparison
from kernelforge.records.base import Record
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.utils.closing import Closing
from kernelforge.version import __version__

_MODULE: Final = "kernelforge.packaging.splice_worker"
MOST_INSTRUCTIONS: Final = 4 * FULL_SIZE_INSTRUCTIONS
"""Thread instructions of all calls of operators in the model together, on the emulated device: as many as an evaluation
allows a kernel at the full size of a task."""


class PredictedNumber(Record):
    """A predicted number with its 90 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, interval: Interval) -> PredictedNumber:
        return cls(value=interval.value, low=interval.low, high=interval.high)


class ModelTime(Record):
    """Predicted time of one call of the model."""

    before_us: PredictedNumber
    after_us: PredictedNumber
    gain: PredictedNumber
    """Ratio of the two."""

    @classmethod
    def of(cls, gain: Gain) -> ModelTime:
        return cls(**{name: PredictedNumber.of(value) for name, value in gain._asdict().items()})


class SplicedPackage(Record):
    """One package in the model."""

    folder: str
    name: str
    group: str
    """Name of its group in the captured model."""
    calls: int
    """Occurrences of the group."""
    replaced: int
    """Those that the operator computes: all of them, or none."""
    reason: str = ""
    """Why it computes none."""
    speedup: PackagedSpeedup | None
    """Of the kernel over eager PyTorch on its task, as the package says."""
    group_us: float
    """Kernels of one call in eager PyTorch."""
    operator_us: float | None
    """One call of the operator, by its evaluation; None where it has no time."""
    share: float
    """Of the time of the model's kernels, all calls together."""
    eager: ModelTime
    """With this package alone, launched operator by operator."""
    graph: ModelTime
    """The same in a CUDA graph."""


class ModelCheck(Record):
    """Comparison of the model's outputs with and without the operators."""

    verdict: Literal["equal", "wrong", "not compared"]
    message: str = ""
    """What is wrong, or why nothing was compared."""
    error: float | None = None
    """Largest error as a multiple of the tolerance: above 1 is wrong."""
    elements: int = 0
    """Compared numbers of all outputs."""
    operator_calls: int = 0
    """Calls that ran."""
    thread_instructions: int = 0
    """Their work on the emulated device."""


class Splice(Record):
    """Answer of ``kernelforge splice``: a model with packages."""

    format: Literal["kernelforge-splice/1"] = "kernelforge-splice/1"
    kernelforge: str
    model: CapturedFile
    inputs: CapturedFile
    module: str = ""
    device: str
    gpu: str
    time_origin: Literal["predicted"] = "predicted"
    time_source: str
    kernels_us: float = Field(ge=0)
    """Of the model's kernels: shares are of this."""
    packages: tuple[SplicedPackage, ...]
    eager: ModelTime
    """With all packages, launched operator by operator."""
    graph: ModelTime
    check: ModelCheck


def splice_model(
    model: Source,
    inputs: Source,
    folders: Sequence[Path],
    device: str,
    *,
    module: str = "",
    allow_unconfined: bool = False,
    timeout_s: float = 900.0,
) -> Splice:
    """Put packages into a model, compare its outputs, and predict its time.

    Args:
        model: The function that makes it.
        inputs: The function that makes its arguments.
        folders: Packages.
        device: Full name of the emulated device.
        module: Dotted name of a part; empty for all of it.
        allow_unconfined: Run it without a jail where none works.
        timeout_s: Longest wait for the model, apart from the operators' calls.

    Raises:
        TaskError: The model cannot be captured; the message says why and what to do.
        UsageError: A package does not fit the model or the device, or is none.
    """
    spec = find_spec(device)
    if spec is None:
        raise UsageError(
            f"{device} is no emulated device, on which packages are compared and times are predicted: leave out "
            "--device, or name the one that they were evaluated on, such as emulated:h100"
        )
    for folder in folders:
        manifest = read_manifest(folder)
        if manifest.emulated != device:
            raise UsageError(
                f"{folder} was evaluated for {manifest.emulated} ({manifest.gpu}), not for {device}; add --device "
                f"{manifest.emulated}, or package an attempt of {device}"
            )
    graph = capture_graph(model, inputs, module, allow_unconfined=allow_unconfined, timeout_s=timeout_s)
    capture = capture_record(graph, model, inputs, module, spec)
    matches = match_packages(capture.groups, folders)
    with Operators(matches, device, allow_unconfined=allow_unconfined) as operators:
        check = _check(model, inputs, module, graph, matches, operators, allow_unconfined, timeout_s)
    return _described(capture, graph, matches, spec, device, check)


def _described(
    capture: Capture, graph: CapturedGraph, matches: Sequence[Match], spec: DeviceSpec, device: str, check: ModelCheck
) -> Splice:
    exchanges = [_exchange(match, graph, spec) for match in matches]
    kernels = kernels_of(graph.trace, spec)

    def times(selected: Sequence[Exchange | None]) -> dict[str, ModelTime]:
        there = [exchange for exchange in selected if exchange is not None]
        return {
            "eager": ModelTime.of(predicted_gain(kernels, there, spec)),
            "graph": ModelTime.of(predicted_gain(kernels, there, spec, graph=True)),
        }

    packages = [
        SplicedPackage(
            folder=str(match.folder),
            name=match.manifest.name,
            group=match.group.name,
            calls=len(match.group.calls),
            replaced=0 if match.reason else len(match.group.calls),
            reason=match.reason,
            speedup=match.manifest.speedup,
            group_us=match.group.time_us,
            operator_us=None if match.manifest.time is None else match.manifest.time.us,
            share=match.group.share,
            **times([exchange]),
        )
        for match, exchange in zip(matches, exchanges, strict=True)
    ]
    return Splice(
        kernelforge=__version__,
        model=capture.model,
        inputs=capture.inputs,
        module=capture.module,
        device=device,
        gpu=spec.title,
        time_source=capture.time_source,
        kernels_us=capture.kernels_us,
        packages=tuple(packages),
        check=check,
        **times(exchanges),
    )


def _exchange(match: Match, graph: CapturedGraph, spec: DeviceSpec) -> Exchange | None:
    """Kernels that a package replaces, and its time; None where it replaces no call."""
    if match.reason:
        return None
    operators = {node.name: node.operators for node in graph.nodes}
    positions = [at for call in match.group.calls for name in call.nodes for at in operators[name]]
    operator_us, spread = packaged_time(match.manifest)
    return Exchange(
        removed=kernels_of(graph.trace, spec, positions),
        calls=len(match.group.calls),
        operator_us=operator_us,
        spread=spread,
        launches=len(resolved_plan(match).steps),
        copies_us=copies_us(match.group.output_specs, match.restored, spec),
    )


def resolved_plan(match: Match) -> ResolvedPlan:
    """The plan of a package at the shapes of its group."""
    manifest, size = match.manifest, match.size
    if size is None:
        raise UsageError(f"{match.folder} replaces nothing: {match.reason}")
    plan = parse_plan(read_candidate(module_folder(match.folder), manifest).plan, manifest.language)
    specs = {name: weight.spec for weight in size.weights for name in (weight.name, *weight.aliases)}
    return plan.resolve(size.inputs, specs, size.attrs, manifest.choices, library=manifest.task.policy.library)


class _Unjudged(Exception):
    """A call that does not judge the operator; the message says why."""


class _Faulty(Exception):
    """A call in which the operator failed."""


class Operators(Closing):
    """Packaged operators on an emulated device, each in a jail of its own.

    Args:
        matches: Packages with their groups.
        device: Full name of the emulated device.
        allow_unconfined: Continue where no jail works.
    """

    def __init__(self, matches: Sequence[Match], device: str, *, allow_unconfined: bool) -> None:
        self._matches = matches
        self._allow_unconfined = allow_unconfined
        self._stack = ExitStack()
        self._device = make_device(device, threads=os.cpu_count() or 1, allow_unconfined=allow_unconfined)
        self._stack.callback(self._device.close)
        self._open: dict[int, tuple[Session, ResolvedPlan]] = {}
        self.calls = 0
        self.thread_instructions = 0

    def close(self) -> None:
        """End the helper processes."""
        self._stack.close()

    def run(self, package: int, values: Sequence[Blob]) -> tuple[Blob, ...]:
        """Outputs of one call, from its inputs and weights."""
        session, plan = self._session(package)
        size = self._matches[package].size
        assert size is not None
        names = {name: at for at, weight in enumerate(size.weights) for name in (weight.name, *weight.aliases)}
        tensors: dict[int, Blob] = {}
        for buffer in plan.buffers:
            if buffer.source is not None:
                at = buffer.source if isinstance(buffer.source, int) else len(size.inputs) + names[buffer.source]
                tensors[buffer.id] = values[at]
                if len(values[at]) != buffer.nbytes:
                    raise SandboxError(f"the model sent {len(values[at])} bytes for {buffer.nbytes} of {buffer.label}")
        remaining = MOST_INSTRUCTIONS - self.thread_instructions
        if remaining <= 0:
            raise _Unjudged(_over_budget(self.calls))
        result = session.run(
            RunRequest(
                plan,
                tensors,
                deadline_s=EMULATED_RUN_LIMIT_S,
                deadline_binds=False,
                max_thread_instructions=remaining,
            )
        )
        if result.faults:
            self._refuse(result.faults[0])
        self.calls += 1
        self.thread_instructions += result.thread_instructions or 0
        return result.outputs

    def _refuse(self, fault: RunFailure) -> None:
        if fault.kind == "timeout":
            raise _Unjudged(_over_budget(self.calls))
        if fault.kind in ("late", "unsupported"):
            raise _Unjudged(fault.message)
        raise _Faulty(fault.message)

    def _session(self, package: int) -> tuple[Session, ResolvedPlan]:
        if package not in self._open:
            match = self._matches[package]
            plan = resolved_plan(match)
            source = read_candidate(module_folder(match.folder), match.manifest).source
            artifact = build(source, plan, self._device.arch, allow_unconfined=self._allow_unconfined)
            session = self._stack.enter_context(self._device.open(artifact))
            self._open[package] = session, plan.bound_to(artifact.build)
        return self._open[package]


def _over_budget(calls: int) -> str:
    return (
        f"after {calls} calls of operators the emulated device would do more than {MOST_INSTRUCTIONS:,} thread "
        "instructions; give smaller inputs, or compare a part by --module"
    )


def _check(
    model: Source,
    inputs: Source,
    module: str,
    graph: CapturedGraph,
    matches: Sequence[Match],
    operators: Operators,
    allow_unconfined: bool,
    timeout_s: float,
) -> ModelCheck:
    """Run the model with its operators, and compare."""
    calls = [_request(at, match) for at, match in enumerate(matches) if not match.reason]
    if not calls:
        return ModelCheck(verdict="not compared", message="no call of the model is replaced")
    request = {
        **source_request(model, inputs, module),
        "nodes": {node.name: node.op for node in graph.nodes if node.kind == "op"},
        "calls": [call for of_package in calls for call in of_package],
    }
    try:
        with (
            model_children(_MODULE, allow_unconfined=allow_unconfined, timeout_s=timeout_s) as spawn,
            spawn() as child,
        ):
            frame = child.call(request, timeout_s=timeout_s)
            while "package" in frame.data:
                try:
                    outputs = operators.run(_package(frame.data, matches), frame.blobs)
                except _Unjudged as reason:
                    frame = child.call({"stop": str(reason)}, timeout_s=timeout_s)
                else:
                    frame = child.call({}, outputs, timeout_s=timeout_s)
    except _Faulty as fault:
        return ModelCheck(verdict="wrong", message=f"an operator fails: {fault}")
    except ChildTimeout:
        return _unjudged(f"the model has not run after {timeout_s:g} s; give --timeout more seconds", operators)
    except ChildDied as error:
        return _unjudged(f"the model's process ended ({first_line(error)})", operators)
    except DeviceError as error:
        return _unjudged(str(error), operators)
    return _verdict(frame.data, operators)


def _request(package: int, match: Match) -> list[dict[str, Any]]:
    """The calls of a package's group, for the child."""
    group = match.group
    specs = [*group.input_specs, *(group.weights[at].spec for at in match.order)]
    takes = [spec.model_dump(mode="json") for spec in specs]
    return [
        {
            "package": package,
            "call": call.model_dump(mode="json"),
            "order": list(match.order),
            "restored": [None if axes is None else list(axes) for axes in match.restored],
            "takes": takes,
            "gives": [spec.model_dump(mode="json") for spec in group.output_specs],
        }
        for call in group.calls
    ]


def _package(data: Mapping[str, Any], matches: Sequence[Match]) -> int:
    package = data["package"]
    if type(package) is not int or not 0 <= package < len(matches) or matches[package].reason:
        raise SandboxError("the child that runs the model named a package that there is none of")
    return package


def _verdict(data: Mapping[str, Any], operators: Operators) -> ModelCheck:
    """The child's answer. It runs third-party code: what cannot be read is its failure."""
    if "stopped" in data or "error" in data:
        return _unjudged(str(data.get("stopped", data.get("error")))[:1000], operators)
    try:
        comparison = Comparison.model_validate(data["comparison"])
    except (LookupError, TypeError, ValidationError) as error:
        raise SandboxError("the child that runs the model sent a comparison that cannot be read") from error
    return ModelCheck(
        verdict="equal" if comparison.ok else "wrong",
        message=comparison.message,
        error=comparison.error,
        elements=comparison.total,
        operator_calls=operators.calls,
        thread_instructions=operators.thread_instructions,
    )


def _unjudged(message: str, operators: Operators) -> ModelCheck:
    return ModelCheck(
        verdict="not compared",
        message=message,
        operator_calls=operators.calls,
        thread_instructions=operators.thread_instructions,
    )
