"""Runs resolved plans on tensors of torch: CPU tensors on the emulated device, CUDA tensors on their GPU, uncopied.

A plan is split into ``setup``, which runs once for a set of weights, and ``forward``.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Protocol

from platformdirs import user_cache_path

from kernelforge.candidate import ResolvedPlan, signatures
from kernelforge.candidate.resolved import Fill, Library, Output, Step
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices import make_device, wire
from kernelforge.devices.base import EMULATED_RUN_LIMIT_S, RunRequest
from kernelforge.devices.cuda.worker.driver import Driver, DriverError
from kernelforge.devices.cuda.worker.errors import PlanFailed
from kernelforge.devices.cuda.worker.launch_binding import KernelLimits, StepBinder, Wrap, launch_error
from kernelforge.devices.library_calls import LibraryCallFailed, cuda_tensor
from kernelforge.errors import CandidateError, DeviceError
from kernelforge.records import DType

if TYPE_CHECKING:
    import torch

    from kernelforge.devices.base import Device

ALIGNMENT = 256
"""Bytes: where every tensor begins that a plan is given (``docs/launch-plan.md``)."""


class Part:
    """``setup`` or ``forward`` of a resolved plan with the build of its kernels: what one run executes."""

    def __init__(self, plan: ResolvedPlan, artifact: Artifact) -> None:
        self.plan = plan
        self.artifact = artifact


class Backend(Protocol):
    """Runs plans on tensors of one torch device."""

    arch: str
    """Architecture to compile for."""

    def run(self, part: Part, tensors: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        """Outputs of a plan, in storage of their own.

        Args:
            part: What runs.
            tensors: Tensors of the plan's inputs and weights by buffer, with the strides that it was resolved for.

        Raises:
            DeviceError: a launch faulted, or the device failed.
        """
        ...


def split(plan: ResolvedPlan) -> tuple[ResolvedPlan | None, ResolvedPlan]:
    """``setup`` and ``forward`` as plans of their own; None for a plan without ``setup``.

    What ``setup`` prepares is its output, as bytes, and a weight of ``forward`` with the same buffer.
    """
    if not plan.setup:
        return None, _used(plan)
    prepared = [buffer for buffer in plan.buffers if buffer.kind == "prepared"]
    made = [replace(buffer, kind="workspace") if buffer in prepared else buffer for buffer in plan.buffers]
    provided = [replace(buffer, kind="weight") if buffer in prepared else buffer for buffer in plan.buffers]
    outputs = tuple(Output(buffer.id, 0, (buffer.nbytes,), DType.UINT8) for buffer in prepared)
    setup = replace(plan, buffers=tuple(made), steps=plan.setup, setup=(), outputs=outputs)
    forward = replace(plan, buffers=tuple(provided), setup=())
    return _used(setup), _used(forward)


def _used(plan: ResolvedPlan) -> ResolvedPlan:
    """The plan without the buffers that none of its steps uses."""
    used = {output.buffer for output in plan.outputs}
    for step in plan.steps:
        used |= _buffers(step)
    return replace(plan, buffers=tuple(buffer for buffer in plan.buffers if buffer.id in used))


def _buffers(step: Step) -> set[int]:
    if isinstance(step, Fill):
        return {step.buffer}
    if isinstance(step, Library):
        return {view.buffer for view in (*step.operands, *step.out)}
    return {buffer for arg in step.args if (buffer := getattr(arg, "buffer", None)) is not None}


@cache
def _compiler(allow_unconfined: bool) -> Compiler:
    compiler = Compiler(user_cache_path("kernelforge") / "builds", allow_unconfined=allow_unconfined)
    atexit.register(compiler.close)
    return compiler


def build(source: str, plan: ResolvedPlan, arch: str, *, allow_unconfined: bool) -> Artifact:
    """Compile the kernels that a plan launches, in a jailed child, or take them from the user's build cache.

    Raises:
        CandidateError: they do not compile here, or the policy gate refuses them.
        SandboxError: no jail works, and ``allow_unconfined`` was not given.
    """
    built = _compiler(allow_unconfined).build(
        source, plan.expressions, arch=arch, signatures=signatures(plan), constants=plan.constants
    )
    if isinstance(built, Artifact):
        return built
    reason = built.refused or built.limit or "; ".join(map(str, built.errors))
    raise CandidateError(f"the kernels do not compile for {arch} with {built.toolchain}: {reason}")


@cache
def emulated_backend(name: str, allow_unconfined: bool) -> EmulatedBackend:
    """The backend for CPU tensors; its helper processes are those of all packages of this process."""
    device = make_device(name, allow_unconfined=allow_unconfined)
    atexit.register(device.close)
    return EmulatedBackend(device)


class EmulatedBackend:
    """Runs plans on an emulated device, in a jailed child."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.arch = device.arch

    def run(self, part: Part, tensors: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        import torch

        from kernelforge.evaluation.oracle.worker.reference import tensor_view

        contents = {buffer: tensor_view(tensor) for buffer, tensor in tensors.items()}
        request = RunRequest(part.plan, contents, deadline_s=EMULATED_RUN_LIMIT_S, deadline_binds=False)
        with self._device.open(part.artifact) as session:
            result = session.run(request)
        if result.faults:
            raise DeviceError(f"{self._device.name}: {result.faults[0].message}")
        outputs = []
        for output, blob in zip(part.plan.outputs, result.outputs, strict=True):
            flat = torch.frombuffer(bytearray(blob), dtype=torch.uint8) if output.nbytes else torch.empty(0)
            outputs.append(_shaped(flat, output))
        return outputs


@cache
def cuda_backend(ordinal: int, arch: str) -> CudaBackend:
    """The backend for tensors of one GPU.

    Raises:
        DeviceError: CUDA does not start, or a package is missing.
    """
    from kernelforge.devices.cuda.worker import torch_driver

    try:
        driver = torch_driver.make(ordinal)
    except DriverError as error:
        raise DeviceError(f"cuda:{ordinal}: {error}") from error
    return CudaBackend(driver, arch, follow=driver.use_current_stream)


class CudaBackend:
    """Runs plans on a GPU in this process, by the driver calls of evaluations, on the current stream of torch.

    Args:
        driver: Calls CUDA in the context that torch uses.
        arch: Architecture to compile for.
        wrap: Makes torch tensors of device memory, for ``library`` steps.
        follow: Makes the driver use torch's current stream.
    """

    def __init__(
        self, driver: Driver, arch: str, wrap: Wrap = cuda_tensor, follow: Callable[[], None] = lambda: None
    ) -> None:
        self.arch = arch
        self._driver = driver
        self._follow = follow
        self._wrap = wrap
        self._binders: dict[str, StepBinder] = {}
        self._lock = threading.Lock()

    def empty(self, nbytes: int) -> torch.Tensor:
        """Memory of torch's allocator, which reuses it in the order of the stream."""
        import torch

        return torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def address(self, tensor: torch.Tensor) -> int:
        """Device address of a tensor's first element."""
        return tensor.data_ptr()

    def run(self, part: Part, tensors: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        kernels = {name: KernelLimits(*facts) for name, facts in wire.kernel_limits(part.artifact).items()}
        fault = launch_error(part.plan, kernels, self._driver.facts, self._driver.lacks)
        if fault is not None:
            raise DeviceError(f"{self._driver.facts.name}: {fault.message}")
        memory = {buffer: self._aligned(tensor) for buffer, tensor in tensors.items()}
        for buffer in part.plan.buffers:
            if not buffer.provided:
                memory[buffer.id] = self.empty(buffer.nbytes)
        try:
            with self._lock:
                self._follow()
                for bound in self._binder(part, kernels).bind(part.plan.steps, _Addresses(memory, self.address)):
                    bound.run()
        except (DriverError, PlanFailed, LibraryCallFailed) as error:
            raise DeviceError(f"{self._driver.facts.name}: {error}") from error
        return self._outputs(part.plan, memory)

    def _binder(self, part: Part, kernels: Mapping[str, KernelLimits]) -> StepBinder:
        key = part.artifact.build.key
        if key not in self._binders:
            module = self._driver.load(part.artifact.cubin)
            self._binders[key] = StepBinder(self._driver, module, kernels, self._wrap)
        return self._binders[key]

    def _aligned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or a copy with its strides where it does not begin at a multiple of :data:`ALIGNMENT`."""
        from kernelforge.evaluation.oracle.worker.reference import storage_span

        if self.address(tensor) % ALIGNMENT == 0:
            return tensor
        span = storage_span(tensor)
        copy = self.empty(span.nbytes).view(span.dtype)
        copy.copy_(span)
        return copy.as_strided(tensor.shape, tensor.stride())

    def _outputs(self, plan: ResolvedPlan, memory: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        outputs: list[torch.Tensor] = []
        owners: set[int] = set()
        for output in plan.outputs:
            flat = memory[output.buffer][output.offset_bytes : output.offset_bytes + output.nbytes]
            # An output with memory of its own needs no copy: an operator's results may not share any.
            alone = flat.numel() == memory[output.buffer].numel() and output.buffer not in owners
            owners.add(output.buffer)
            outputs.append(_shaped(flat if alone else flat.clone(), output))
        return outputs


class _Addresses:
    """Device addresses of a plan's buffers, for :class:`StepBinder`."""

    def __init__(self, memory: Mapping[int, torch.Tensor], address: Callable[[torch.Tensor], int]) -> None:
        self._starts = {buffer: address(tensor) for buffer, tensor in memory.items()}

    def address(self, buffer: int, offset_bytes: int = 0) -> int:
        return self._starts[buffer] + offset_bytes


def _shaped(flat: torch.Tensor, output: Output) -> torch.Tensor:
    """Bytes as a contiguous tensor."""
    import torch

    dtype = getattr(torch, output.dtype.value)
    if not output.nbytes:
        return torch.empty(output.shape, dtype=dtype, device=flat.device)
    return flat.view(dtype).view(output.shape)
