"""The kernels of a CUDA host program: built once, and run on a device whenever the program launches one.

The program runs in the jail of C functions. What it sends is checked here as hostile input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from kernelforge.candidate.resolved import Buffer, Launch, ResolvedPlan, ScalarArg, TensorArg
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices.base import Device, FaultKind, RunFailure, RunRequest, Session
from kernelforge.errors import CandidateError, UnsupportedError
from kernelforge.evaluation.stages.candidate_runs import SMALL_SIZE_INSTRUCTIONS
from kernelforge.evaluation.stages.compile_stage import StageFailed, build_failure
from kernelforge.modelnew.client import FaultKind as ProcessFault
from kernelforge.modelnew.client import ModelNewFault
from kernelforge.records import DType, Fingerprint, Verdict
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.utils.closing import Closing

_ELEMENTS: Final = {"float32": DType.FLOAT32, "float64": DType.FLOAT64, "int32": DType.INT32, "int64": DType.INT64,
                    "uint8": DType.UINT8}  # fmt: skip
_FAULTS: Final[dict[FaultKind, ProcessFault]] = {
    "sanitizer": "crash", "crash": "crash", "timeout": "timeout", "memory": "memory", "late": "missing",
}  # fmt: skip
"""What a fault of a kernel is of the program."""


class KernelLauncher(Closing):
    """Builds and launches the kernels of one host program. Close it when done.

    Args:
        compiler: of the device code.
        device: where kernels run.
        fingerprint: of evaluations there.
        source: device code.
        expressions: kernels as launches name them: ``axpy`` or ``axpy<float>``.
    """

    def __init__(
        self, compiler: Compiler, device: Device, fingerprint: Fingerprint, source: str, expressions: Sequence[str]
    ) -> None:
        self.fingerprint = fingerprint
        self._compiler, self._device = compiler, device
        self._source, self._expressions = source, tuple(expressions)
        self._session: Session | None = None
        self._stack = ExitStack()

    def build(self) -> None:
        """Compile the kernels, if they are not compiled yet.

        Raises:
            StageFailed: they do not compile, or are refused.
        """
        if self._session is not None:
            return
        try:
            built = self._compiler.build(self._source, self._expressions, arch=self._device.arch)
        except CandidateError as error:
            raise StageFailed(Verdict.POLICY, "compile", str(error)) from error
        if not isinstance(built, Artifact):
            raise build_failure(built)
        self._session = self._stack.enter_context(self._device.open(built))

    def launch(self, request: Mapping[str, Any], contents: Sequence[Blob]) -> Sequence[Blob]:
        """Run one kernel.

        Args:
            request: kernel, grid, block, dynamic shared memory and arguments, as the host program's process sent them.
            contents: of the memory that pointers among the arguments lie in.

        Returns:
            The contents after the run.

        Raises:
            ModelNewFault: the kernel faulted, or the request cannot be read.
            UnsupportedError: the device lacks what the kernel needs.
        """
        assert self._session is not None
        try:
            plan = self._plan(request, [len(content) for content in contents])
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise ModelNewFault(
                "forged", f"the host program's process sent a launch that cannot be read: {error}"
            ) from error
        result = self._session.run(
            RunRequest(
                plan,
                dict(enumerate(contents)),
                mutable=frozenset(range(len(contents))),
                max_thread_instructions=SMALL_SIZE_INSTRUCTIONS,
            )
        )
        if result.faults:
            raise self._fault(result.faults[0], str(request["kernel"]))
        return result.outputs

    def close(self) -> None:
        """End the device's session."""
        self._stack.close()

    def _fault(self, fault: RunFailure, kernel: str) -> Exception:
        text = f"kernel `{kernel}`: {fault.message}"
        return UnsupportedError(text) if fault.kind == "unsupported" else ModelNewFault(_FAULTS[fault.kind], text)

    def _plan(self, request: Mapping[str, Any], sizes: Sequence[int]) -> ResolvedPlan:
        """A plan of one launch.

        Raises:
            LookupError, TypeError, ValueError, OverflowError: the request is malformed.
        """
        kernel, shared = request["kernel"], int(request["shared"])
        grid, block = (tuple(int(extent) for extent in request[name]) for name in ("grid", "block"))
        if kernel not in self._expressions:
            raise ValueError("a kernel that the program does not name")
        if len(grid) != 3 or len(block) != 3 or min(*grid, *block) < 1 or not 0 <= shared < 1 << 31:
            raise ValueError("a grid or a block that no kernel has")
        arguments = tuple(_argument(item, sizes) for item in request["arguments"])
        buffers = tuple(Buffer(at, "input", size, f"allocation {at}", at) for at, size in enumerate(sizes))
        launch = Launch(kernel, (grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), shared, arguments, 1)
        return ResolvedPlan(buffers, (launch,), ())


def _argument(item: Sequence[Any], sizes: Sequence[int]) -> TensorArg | ScalarArg:
    match item:
        case ["pointer", int(buffer), int(offset), str(dtype)] if 0 <= buffer < len(sizes):
            if 0 <= offset <= sizes[buffer]:
                return TensorArg(buffer, offset, _ELEMENTS[dtype])
        case ["i32" | "i64" as kind, int(value)]:
            return ScalarArg(kind, value)
        case ["f32" | "f64" as kind, str(value)]:
            return ScalarArg(kind, float.fromhex(value))
    raise ValueError("an argument of no kernel")
