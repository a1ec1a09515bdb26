"""``emulate``: run a CUDA kernel of your own on the emulated device: results, faults, counters, counts per line.

There is no task and no reference: nothing is compared. The kernel still runs in the jailed runner of the device.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from platformdirs import user_cache_path

from kernelforge.candidate import parse_plan, signatures
from kernelforge.compile import Artifact, Compiler
from kernelforge.compile.ptx_text import without_comments
from kernelforge.devices import check_device, make_device
from kernelforge.devices.base import RunFailed, RunFailure, RunRequest
from kernelforge.devices.emulated.device import EmulatedDevice
from kernelforge.errors import CandidateError, UsageError
from kernelforge.hardware.specs import EMULATED
from kernelforge.profiling.metrics import build_profile
from kernelforge.profiling.sass import NO_WORK, PlanWork
from kernelforge.records import (
    Build,
    DType,
    KernelFacts,
    Performance,
    Profile,
    SizeFacts,
    TensorSpec,
    content_hash,
    language_of,
)
from kernelforge.utils.closing import Closing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kernelforge.candidate import ResolvedPlan
    from kernelforge.profiling.counts import PlanCounts

LIMIT_S = 600.0
"""Default deadline of a run."""
EFFORT = 32.0
"""Thread instructions that are counted before blocks are left out, over those of an evaluation's profile: 256 million,
about a second."""
PTX_REGISTERS = 32
"""Registers per thread that are assumed of a PTX file, of which no compiler has said how many it needs."""

_SHORT_NAMES = {
    "f64": DType.FLOAT64, "f32": DType.FLOAT32, "f16": DType.FLOAT16, "bf16": DType.BFLOAT16, "i64": DType.INT64,
    "i32": DType.INT32, "i16": DType.INT16, "i8": DType.INT8, "u8": DType.UINT8,
}  # fmt: skip
_DESCRIPTION = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d\s,]*)\](?::(?P<fill>\S+))?")
_FILLS = ("normal", "uniform", "zeros", "ones", "arange")
_PTX = re.compile(r"\s*\.version\s")


@dataclass(frozen=True)
class LineCount:
    """Work of one line of the source, or of the PTX where that was given."""

    line: int
    text: str
    warp_instructions: float
    """PTX instructions of the line, by warp."""
    thread_instructions: float
    """The same by active thread."""
    sectors: float
    """32-byte sectors that the line's accesses to global memory requested."""
    excess_sectors: float
    """Sectors beyond those that adjacent bytes would have needed."""
    wavefronts: float
    """Passes of its accesses to shared memory."""
    excess_wavefronts: float
    """Passes beyond those without bank conflicts."""
    machine_instructions: float | None = None
    """Estimated machine instructions of the line, by warp; None without an estimate."""


class EmulationFailed(CandidateError):
    """The kernel did not compile, or a run of it faulted; the message has every finding."""


@dataclass(frozen=True)
class Emulation:
    """Results of one run on the emulated device."""

    device: str
    build: Build
    faults: tuple[RunFailure, ...]
    """Findings of the checks: accesses, races, barriers; empty for a clean run."""
    tensors: Mapping[str, npt.NDArray[Any]]
    """Every tensor after the run by name: those given, then those that the plan returned. bfloat16 as float32. Empty
    after a fault."""
    profile: Profile | None
    """Counters, if the run was clean and a profile was asked for."""
    performance: Performance | None
    """Modelled time and its bound."""
    lines: tuple[LineCount, ...]
    """Lines with work, ascending, if they were asked for."""

    @property
    def ok(self) -> bool:
        """Whether the kernel compiled and ran without findings."""
        return self.build.ok and not self.faults

    @property
    def problem(self) -> str:
        """The findings, one per line; empty if there are none."""
        if not self.build.ok:
            errors = [str(diagnostic) for diagnostic in self.build.errors]
            return "\n".join(filter(None, (self.build.refused, *errors)))
        return "\n".join(fault.message for fault in self.faults)

    def check(self) -> Emulation:
        """These results, if the run was clean.

        Raises:
            EmulationFailed: it was not.
        """
        if not self.ok:
            raise EmulationFailed(self.problem)
        return self


def emulate(
    source: str,
    launch: str | None = None,
    tensors: Mapping[str, Any] | None = None,
    *,
    plan: str | None = None,
    device: str = "emulated:h100",
    profile: bool = True,
    lines: bool = False,
    sanitize: bool = True,
    approx: Literal["varied", "worst"] = "varied",
    seed: int = 0,
    limit_s: float = LIMIT_S,
    registers: int = PTX_REGISTERS,
    allow_unconfined: bool = False,
) -> Emulation:
    """Run a kernel on the emulated device, without a GPU.

    Args:
        source: CUDA C++ device code, or PTX.
        launch: launches in the language of launch plans, one per line, on the given tensors:
            ``saxpy[4096, 256](x, y, f32(2.0))``.
        tensors: tensors by name: NumPy arrays (C order), torch tensors, or descriptions such as ``f32[1024,768]`` and
            ``i32[4096]:arange``. Kernels may write to them.
        plan: a whole launch plan in place of ``launch``; the parameters of its ``forward`` are names of tensors.
        device: an emulated device; ``kernelforge doctor`` lists them.
        profile: count events and model the time, by a second run.
        lines: count the instructions and memory traffic of each line too.
        sanitize: also report reads of memory that nothing wrote, and races on global memory, which makes a run several
            times as long; accesses, races on shared memory and barriers are always checked.
        approx: results of approximate instructions, such as ``ex2.approx``: ``"varied"`` by the seed within their
            documented error, or ``"worst"``: as far off as it surely allows, up or down by a hash of the operands.
        seed: seed of described tensors and of the hardware's freedom (documented errors of approximations).
        limit_s: deadline of each run in seconds.
        registers: registers per thread, for the occupancy of PTX; of CUDA C++ the compiler says it.
        allow_unconfined: continue where no jail works.

    Returns:
        Tensors after the run, findings, counters. A kernel that does not compile or that faults raises nothing:
        ``ok`` is False, and :meth:`Emulation.check` raises.

    Raises:
        UsageError: neither or both of ``launch`` and ``plan``, or a tensor that cannot be read.
        CandidateError: the launches cannot be read.
        DeviceError: there is no such device.

    Example:
        >>> import kernelforge, numpy
        >>> source = '''
        ... __global__ void scale(float* x, float a, int n) {
        ...     int i = blockIdx.x * blockDim.x + threadIdx.x;
        ...     if (i < n) x[i] *= a;
        ... }'''
        >>> x = numpy.arange(1000, dtype=numpy.float32)
        >>> launch = "scale[ceil_div(x.numel(), 256), 256](x, f32(3.0), i32(x.numel()))"
        >>> result = kernelforge.emulate(source, launch, {"x": x})
        >>> result.ok, float(result.tensors["x"][999])
        (True, 2997.0)
    """
    with Emulator(device, allow_unconfined=allow_unconfined) as emulator:
        return emulator.run(
            source, launch, tensors, plan=plan, profile=profile, lines=lines, sanitize=sanitize, approx=approx,
            seed=seed, limit_s=limit_s, registers=registers,
        )  # fmt: skip


class Emulator(Closing):
    """A warm compiler and emulated device, for many runs.

    Args:
        device: an emulated device.
        cache: folder of the build cache; None for the user's cache folder.
        allow_unconfined: continue where no jail works.

    Raises:
        UsageError: the device is not an emulated one.
        DeviceError: there is no such device.
    """

    def __init__(
        self, device: str = "emulated:h100", *, cache: Path | None = None, allow_unconfined: bool = False
    ) -> None:
        full = check_device(device)
        if not full.startswith(EMULATED):
            raise UsageError(f"{device!r} is no emulated device; name one such as emulated:h100")
        opened = make_device(full, threads=os.cpu_count() or 1, allow_unconfined=allow_unconfined)
        assert isinstance(opened, EmulatedDevice)
        self._device = opened
        self._compiler = Compiler(cache or user_cache_path("kernelforge") / "builds", allow_unconfined=allow_unconfined)

    def close(self) -> None:
        """End the helper processes."""
        self._device.close()
        self._compiler.close()

    def run(
        self,
        source: str,
        launch: str | None = None,
        tensors: Mapping[str, Any] | None = None,
        *,
        plan: str | None = None,
        profile: bool = True,
        lines: bool = False,
        sanitize: bool = True,
        approx: Literal["varied", "worst"] = "varied",
        seed: int = 0,
        limit_s: float = LIMIT_S,
        registers: int = PTX_REGISTERS,
    ) -> Emulation:
        """Run a kernel; arguments, results and errors are those of :func:`emulate`."""
        if (launch is None) == (plan is None):
            raise UsageError("give either launches, such as 'saxpy[4096, 256](x, y, f32(2.0))', or a launch plan")
        if approx not in ("varied", "worst"):
            raise UsageError(f"approx is 'varied' or 'worst', not {approx!r}")
        inputs = {name: _tensor(name, value, seed + k) for k, (name, value) in enumerate((tensors or {}).items())}
        parsed = parse_plan(plan if plan is not None else _plan_of(launch or "", inputs), language_of(source))
        missing = [name for name in parsed.parameters if name not in inputs]
        if missing:
            raise UsageError(f"forward takes {', '.join(missing)}: give a tensor of each of these names")
        ordered = {name: inputs[name] for name in parsed.parameters}
        resolved = parsed.resolve([spec for spec, _ in ordered.values()], {}, {}, in_place=True)
        is_ptx = _is_ptx(source)
        artifact = self._assembled(source, resolved, registers) if is_ptx else self._compiled(source, resolved)
        if isinstance(artifact, Build):
            return Emulation(self._device.name, artifact, (), {}, None, None, ())
        resolved = resolved.bound_to(artifact.build)
        buffers = [buffer.id for buffer in resolved.buffers if buffer.kind == "input"]
        request = RunRequest(
            resolved,
            dict(zip(buffers, (data for _, data in ordered.values()), strict=True)),
            mutable=frozenset(buffers),
            deadline_s=limit_s,
            variation=seed % (2**32 - 1),
            sanitize=sanitize,
            worst_errors=approx == "worst",
        )
        with self._device.open(artifact) as session:
            result = session.run(request)
            if result.faults:
                return Emulation(self._device.name, artifact.build, result.faults, {}, None, None, ())
            after = _named_results(resolved, {name: spec for name, (spec, _) in ordered.items()}, result.outputs)
            if not profile and not lines:
                return Emulation(self._device.name, artifact.build, (), after, None, None, ())
            try:
                counted = replace(request, sanitize=False)
                counts = session.count(counted, EFFORT, lines=("ptx" if is_ptx else "source") if lines else None)
            except RunFailed as error:
                return Emulation(self._device.name, artifact.build, (error.fault,), after, None, None, ())
            work = session.machine_work(counts)
            counters, performance = build_profile(
                self._device.spec, self._device.name, counts, session.registers, _NO_TASK, work
            )
        by_line = line_counts(counts, source, ptx=is_ptx, work=work) if lines else ()
        return Emulation(self._device.name, artifact.build, (), after, counters, performance, by_line)

    def _compiled(self, source: str, plan: ResolvedPlan) -> Artifact | Build:
        return self._compiler.build(
            source,
            plan.expressions,
            arch=self._device.arch,
            signatures=signatures(plan),
            constants=plan.constants,
            scored=False,
        )

    def _assembled(self, ptx: str, plan: ResolvedPlan, registers: int) -> Artifact:
        """A build of PTX, which nothing compiled: its kernels are launched by their names in the PTX."""
        kernels = tuple(
            KernelFacts(
                expression=name, symbol=name, registers_per_thread=registers, static_shared_bytes=0,
                spill_store_bytes=0, spill_load_bytes=0, stack_frame_bytes=0,
            )
            for name in plan.expressions
        )  # fmt: skip
        declared = set(re.findall(r"\.entry\s+([\w$]+)", without_comments(ptx)))
        unknown = [kernel.symbol for kernel in kernels if kernel.symbol not in declared]
        if unknown:
            raise UsageError(
                f"the PTX has no kernel {', '.join(unknown)}; it has {', '.join(sorted(declared)) or 'none'}"
            )
        key = content_hash("ptx", ptx, self._device.arch)
        build = Build(key=key, ok=True, arch=self._device.arch, toolchain="PTX", kernels=kernels, seconds=0.0)
        return Artifact(build, ptx.encode(), b"")


_NO_TASK = SizeFacts(
    size="given", inputs=(), outputs=(), weights=(), attrs={}, compulsory_bytes=0, flops=0, eager_launches=0
)


def _is_ptx(source: str) -> bool:
    """Whether a text is PTX: that begins with ``.version``, which no C++ does."""
    try:
        return _PTX.match(without_comments(source)) is not None
    except ValueError:
        return False


def _plan_of(launch: str, tensors: Mapping[str, object]) -> str:
    """A plan that makes the launches on the tensors."""
    body = textwrap.indent(textwrap.dedent(launch).strip(), "    ")
    return f"def forward({', '.join(tensors)}):\n{body}\n"


def line_counts(counts: PlanCounts, text: str, *, ptx: bool, work: PlanWork = NO_WORK) -> tuple[LineCount, ...]:
    """Work per line of a text, summed over all launches.

    Args:
        counts: Counters with lines of that text.
        text: The source, or the PTX.
        ptx: Whether it is PTX.
        work: Estimated work of the machine code, whose lines are those of the source.
    """
    estimated = work.of(counts.kernels)
    machine: dict[int, float] = {}
    for kernel_work in estimated:
        for line, of_line in kernel_work.lines.items():
            machine[line] = machine.get(line, 0.0) + of_line.instructions
    totals: dict[int, list[float]] = {}
    for kernel in counts.kernels:
        for line, (warps, threads) in kernel.lines.items():
            row = totals.setdefault(line, [0.0] * 6)
            row[0] += warps
            row[1] += threads
        for op in kernel.memory:
            at = {"global": 2, "shared": 4}.get(op.space)
            if at is not None:
                row = totals.setdefault(op.ptx_line if ptx else op.source_line, [0.0] * 6)
                row[at] += op.transactions
                row[at + 1] += op.transactions - op.ideal_transactions
    if estimated:
        for line, row in totals.items():
            row.append(float(round(machine.get(line, 0.0))))
    source = text.split("\n")
    return tuple(
        LineCount(line, source[line - 1] if 0 < line <= len(source) else "(headers)", *totals[line])
        for line in sorted(totals)
    )


def _named_results(
    plan: ResolvedPlan, specs: Mapping[str, TensorSpec], outputs: Sequence[Any]
) -> dict[str, npt.NDArray[Any]]:
    """Tensors by name: the given ones, then the plan's outputs by the plan's own names for them."""
    returned, written = outputs[: len(plan.outputs)], outputs[len(plan.outputs) :]
    results = {
        name: from_bytes(bytes(data), spec.shape, spec.dtype)
        for (name, spec), data in zip(specs.items(), written, strict=True)
    }
    labels = {buffer.id: buffer.label for buffer in plan.buffers}
    for position, (output, data) in enumerate(zip(plan.outputs, returned, strict=True)):
        name = labels[output.buffer] or f"output{position}"
        name = name if name not in results else f"output{position}"
        results[name] = from_bytes(bytes(data), output.shape, output.dtype)
    return results


def _tensor(name: str, value: Any, seed: int) -> tuple[TensorSpec, bytes]:
    """Spec and bytes of a given tensor.

    Raises:
        UsageError: it is neither an array nor a description.
    """
    import numpy as np

    if not name.isidentifier():
        raise UsageError(f"{name!r} cannot name a tensor; use a name such as x")
    if isinstance(value, str):
        return _described(name, value, seed)
    if type(value).__module__.partition(".")[0] == "torch":
        value = value.detach().cpu().contiguous()
        if str(value.dtype) == "torch.bfloat16":
            data = _bfloat16_bits(value.float().numpy())
            return TensorSpec.contiguous(tuple(value.shape), DType.BFLOAT16), data.tobytes()
        value = value.numpy()
    array = np.asarray(value)
    try:
        dtype = DType(str(array.dtype))
    except ValueError:
        names = ", ".join(dtype.value for dtype in DType)
        raise UsageError(f"{name} has dtype {array.dtype}, which no plan knows; use one of {names}") from None
    return TensorSpec.contiguous(array.shape, dtype), np.ascontiguousarray(array).tobytes()


def _described(name: str, text: str, seed: int) -> tuple[TensorSpec, bytes]:
    """A tensor from ``f32[1024,768]:normal`` or ``@FILE.npy``."""
    import numpy as np

    if text.startswith("@"):
        try:
            return _tensor(name, np.load(text[1:], allow_pickle=False), seed)
        except (OSError, ValueError) as error:
            raise UsageError(f"{name}: {text[1:]} is no .npy file that can be read: {error}") from error
    match = _DESCRIPTION.fullmatch(text)
    dtype = None if match is None else _dtype(match["dtype"])
    if match is None or dtype is None:
        names = ", ".join(_SHORT_NAMES)
        raise UsageError(
            f"{name}={text!r} describes no tensor; write DTYPE[SHAPE], such as f32[1024,768] or i32[64]:arange, with "
            f"a dtype of {names}, bool, and a fill of {', '.join(_FILLS)} or a number; or @FILE.npy"
        )
    shape = tuple(int(extent) for extent in match["shape"].replace(" ", "").split(",") if extent)
    values = _filled(name, match["fill"] or ("normal" if dtype.is_floating else "uniform"), shape, dtype, seed)
    return TensorSpec.contiguous(shape, dtype), to_bytes(values, dtype)


def _dtype(name: str) -> DType | None:
    if name in _SHORT_NAMES:
        return _SHORT_NAMES[name]
    return DType(name) if name in {dtype.value for dtype in DType} else None


def _filled(name: str, fill: str, shape: tuple[int, ...], dtype: DType, seed: int) -> npt.NDArray[Any]:
    """Values of a described tensor, in float64 or int64."""
    import numpy as np

    random = np.random.default_rng(seed)
    if fill == "normal" and dtype.is_floating:
        return random.standard_normal(shape)
    if fill == "uniform" and dtype.is_floating:
        return random.random(shape)
    if fill == "uniform":
        return random.integers(0, 2 if dtype is DType.BOOL else 16, shape)
    if fill == "arange":
        return np.arange(int(np.prod(shape))).reshape(shape)
    number = {"zeros": 0.0, "ones": 1.0}.get(fill)
    try:
        return np.full(shape, float(fill) if number is None else number)
    except ValueError:
        choices = ", ".join(choice for choice in _FILLS if dtype.is_floating or choice != "normal")
        raise UsageError(f"{name}: {fill!r} fills no {dtype.value} tensor; use {choices} or a number") from None


def to_bytes(values: npt.NDArray[Any], dtype: DType) -> bytes:
    """Elements in C order, converted to a dtype; bfloat16 to nearest, ties to even."""
    import numpy as np

    if dtype is DType.BFLOAT16:
        return _bfloat16_bits(values.astype(np.float32)).tobytes()
    return np.ascontiguousarray(values).astype(dtype.value).tobytes()


def _bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Bits of the nearest bfloat16 of each value, ties to even; NaN stays NaN."""
    import numpy as np

    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


def from_bytes(data: bytes, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[Any]:
    """An array of elements in C order; bfloat16 becomes float32."""
    import numpy as np

    if dtype is DType.BFLOAT16:
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, dtype.value).reshape(shape).copy()
