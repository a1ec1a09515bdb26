"""A PTX module loaded on the emulated device: launch its kernels, report counters and faults."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kernelforge.devices.emulated.codegen import llvm_jit
from kernelforge.devices.emulated.codegen.emit.emitter import Shape
from kernelforge.devices.emulated.codegen.program import (
    Program,
    build,
    cached_program,
    check,
    consume_jit_seconds,
    level_for,
)
from kernelforge.devices.emulated.errors import UnsupportedInstruction
from kernelforge.devices.emulated.execute.launch import Launch, cta_ids, execute
from kernelforge.devices.emulated.execute.memory import Memory, Sanitizer
from kernelforge.devices.emulated.ptx import parser
from kernelforge.devices.emulated.ptx.inline import FlatKernel, flatten, function_address
from kernelforge.devices.emulated.ptx.kernel_entry import (
    KernelEntry,
    Param,
    check_cluster,
    check_launch,
    cluster_shape,
    reads_special,
    shared_layout,
    uses_global_atomics,
)
from kernelforge.devices.emulated.ptx.store_slice import NotSliceable, WriterKernel, writer_kernel
from kernelforge.devices.emulated.ptx.subroutines import link
from kernelforge.devices.emulated.ptx.wmma import lower_wmma
from kernelforge.devices.emulated.report import LaunchReport, summarise
from kernelforge.devices.emulated.runtime.cache import CacheModel
from kernelforge.sandbox.policy import Deadline

_WORKSPACE = "the workspace of grid.sync()"
_WORKSPACE_BYTES = 64


class LoadedModule:
    """A PTX module loaded on the emulated device.

    Args:
        ptx: PTX text; untrusted. No PTX can reach host memory outside ``memory`` and the launch's own buffers.
        memory: Global memory. Module variables are placed there and mapped read-only.
        threads: Operating-system threads for launches whose result cannot depend on the order of CTAs.

    Raises:
        PtxSyntaxError: The text cannot be parsed.
        OutOfDeviceMemory: Module variables do not fit.
    """

    def __init__(self, ptx: str, memory: Memory, threads: int = 1) -> None:
        self.memory = memory
        self.threads = max(threads, 1)
        self._digest = hashlib.sha256(ptx.encode()).hexdigest()
        self._module = parser.parse(ptx)
        self._symbols: dict[str, int] = {}
        self._addresses: dict[str, int] = {}
        self._relocations: list[tuple[str, int, str, int]] = []
        """Variable, offset in it, and the variable and addend whose address is there."""
        self._place_variables()
        self._kernels: dict[str, FlatKernel] = {}
        self._failures: dict[str, UnsupportedInstruction] = {}
        self._writers: dict[tuple[str, bool], WriterKernel | NotSliceable] = {}
        self.entries: dict[str, KernelEntry] = {}
        for name, function in self._module.functions.items():
            if function.is_entry and function.defined:
                self.entries[name] = self._entry(name)
        if any(entry.meets for entry in self.entries.values()):
            self._addresses[_WORKSPACE] = memory.allocate(_WORKSPACE_BYTES, _WORKSPACE)

    def _place_variables(self) -> None:
        variables = [v for v in self._module.variables.values() if v.space in ("global", "const")]
        for index, variable in enumerate(variables):
            address = self.memory.allocate(variable.size, variable.name, read_only=True, module=True)
            self._symbols[variable.name] = index
            self._addresses[variable.name] = address
            content, relocations = parser.parse_initialiser(variable)
            self.memory.write(address, content)
            self._relocations += [(variable.name, *relocation) for relocation in relocations]
        for _, _, symbol, _ in self._relocations:
            if symbol not in self._addresses and symbol not in self._module.functions:
                raise parser.PtxSyntaxError(f"initialiser names {symbol!r}, which is no variable or function")
        self._relocate()

    def _relocate(self) -> None:
        """Write the addresses that initial values of module variables hold."""
        for name, at, symbol, addend in self._relocations:
            if symbol in self._addresses:
                value = self._addresses[symbol]
            else:
                value = function_address(self._module, symbol)
            self.memory.write(self._addresses[name] + at, (value + addend).to_bytes(8, "little"))

    def arrange(self, variation: int) -> None:
        """Move memory, with the module's variables, to the addresses of a variation; nothing else is allocated yet."""
        distance = self.memory.arrange(variation)
        self._addresses = {name: address + distance for name, address in self._addresses.items()}
        self._relocate()

    def close(self) -> None:
        """Free the module's variables."""
        for address in self._addresses.values():
            self.memory.free(address)
        self._addresses.clear()

    def unsupported(self, name: str) -> UnsupportedInstruction | None:
        """The reason why a kernel cannot run here, where it is known before the launch."""
        return self._failures.get(name)

    def _entry(self, name: str) -> KernelEntry:
        function = self._module.functions[name]
        try:
            kernel = flatten(self._module, name)
            link(kernel)
            lower_wmma(kernel)
        except UnsupportedInstruction as error:
            # Reported when the kernel is used: another entry of the module may be fine.
            self._failures[name] = error
            return KernelEntry(name, (), 0, 0, False, None)
        self._kernels[name] = kernel
        params = tuple(Param(v.name, v.size, v.align, offset, v.type) for v, offset in kernel.params.values())
        bounds = function.directives.get("reqntid") or function.directives.get("maxntid")
        _, static = shared_layout(kernel)
        return KernelEntry(
            name,
            params,
            static,
            kernel.frame_bytes,
            uses_global_atomics(kernel),
            int(np.prod(bounds)) if bounds else None,
            reads_special(kernel, "%envreg1"),
            cluster_shape(function.directives.get("reqnctapercluster")),
        )

    def writers(self, entry: str, *, threads: bool = False) -> WriterKernel:
        """The slice of a kernel whose stores tell which block, or thread, writes; launch ``writer_entry`` of it.

        Raises:
            NotSliceable: its addresses depend on what it computes.
            UnsupportedInstruction: the kernel uses something the emulator does not implement.
        """
        if entry in self._failures:
            raise self._failures[entry]
        if (entry, threads) not in self._writers:
            try:
                first = writer_kernel(self._kernels[entry], threads=threads)
                for plane in range(first.planes):
                    kernel = writer_kernel(self._kernels[entry], plane, threads=threads).kernel
                    self._kernels[kernel.name] = kernel
                    facts = replace(self.entries[entry], name=kernel.name, uses_global_atomics=False)
                    self.entries[kernel.name] = facts
                self._writers[entry, threads] = first
            except NotSliceable as error:
                self._writers[entry, threads] = error
        writers = self._writers[entry, threads]
        if isinstance(writers, NotSliceable):
            raise writers
        return writers

    def program(self, entry: str, block: tuple[int, int, int], ctas: int = 0) -> Program:
        """Native code of a kernel for one CTA shape, compiled on first use and shared by all modules of the process.

        The code is optimised for a launch of many ``ctas``.

        Raises:
            KeyError: No such kernel.
            UnsupportedInstruction: The kernel uses something the emulator does not implement.
        """
        if entry in self._failures:
            raise self._failures[entry]
        kernel = self._kernels[entry]
        warps = ctas * -(-block[0] * block[1] * block[2] // 32)

        def compile_program() -> Program:
            return build(kernel, self._shape(kernel, block), warps)

        def good_enough(program: Program) -> bool:
            return program.level >= level_for(program.flow, warps)

        return cached_program((self._digest, entry, block), compile_program, good_enough)

    def check(self, entry: str, block: tuple[int, int, int]) -> None:
        """Translate a kernel for one CTA shape as far as LLVM's code: a fraction of the time of :meth:`program`.

        Raises:
            KeyError: No such kernel.
            UnsupportedInstruction: The kernel uses something the emulator does not implement.
        """
        if entry in self._failures:
            raise self._failures[entry]
        kernel = self._kernels[entry]
        check(kernel, self._shape(kernel, block))

    def _shape(self, kernel: FlatKernel, block: tuple[int, int, int]) -> Shape:
        offsets, static = shared_layout(kernel)
        return Shape(block, offsets, static, self._symbols)

    def launch(
        self,
        entry: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic_shared_bytes: int,
        params: bytes,
        *,
        ctas: Sequence[int] | None = None,
        lanes: npt.NDArray[np.uint32] | None = None,
        max_warp_work: int | None = None,
        deadline: Deadline | None = None,
        cache: CacheModel | None = None,
        racecheck: bool = False,
        poison: int = 0xFF,
        variation: int = 0,
        worst_errors: bool = False,
        cooperative: bool = False,
        cluster: tuple[int, int, int] | None = None,
        sanitizer: Sanitizer | None = None,
    ) -> LaunchReport:
        """Run a kernel to its end and report counters and faults.

        Args:
            entry: Kernel name, as in ``entries``.
            grid: CTAs per axis.
            block: Threads per axis.
            dynamic_shared_bytes: Size of the extern shared array.
            params: Parameter buffer, laid out as ``entries[entry].params`` says.
            ctas: Linear ids of the CTAs to run, all when None.
            lanes: Of each of them and each of its warps, the lanes to run, a bit each; the others never start.
            max_warp_work: Deterministic budget, in instructions of a warp, of which a matrix product counts what it
                computes; exceeding it is a ``timeout`` fault. It is compared where loops go back, as blocks end, and
                before each product of tensor memory.
            deadline: When the launch ends at the latest; not deterministic.
            cache: Cache model to drive; slower, and CTAs run in order on one thread.
            racecheck: Report shared-memory races between warps; slower.
            poison: Byte that fills shared and local memory when a CTA starts.
            variation: From 0 to 2**32 - 2: selects one of the behaviours that hardware may have, 0 the middle one.
            worst_errors: Approximate instructions are as far off as their documented error surely allows.
            cooperative: All blocks of the grid may wait for one another (``grid.sync()``).
            sanitizer: Report reads of memory that nothing wrote, and races on global memory; slow, on one thread.
            cluster: CTAs of a cluster per axis; by default those of ``__cluster_dims__``, or no clusters.

        Raises:
            KeyError: No such kernel.
            UnsupportedInstruction: The kernel uses something the emulator does not implement.
            EmulatorError: The launch is impossible on the device: too many threads, too much shared memory, a cluster
                that does not divide the grid, a parameter buffer of the wrong size.
        """
        kernel_entry = self.entries[entry]
        program = self.program(entry, block, grid[0] * grid[1] * grid[2] if ctas is None else len(ctas))
        compile_seconds = consume_jit_seconds(program)
        size = check_cluster(kernel_entry, grid, cluster)
        workspace = self._addresses.get(_WORKSPACE, 0) if cooperative else 0
        if workspace:
            self.memory.fill(workspace, _WORKSPACE_BYTES, 0)
        launch = Launch(
            program=program,
            grid=grid,
            block=block,
            shared=check_launch(kernel_entry, self._kernels[entry], grid, block, dynamic_shared_bytes, params),
            dynamic_shared=dynamic_shared_bytes,
            params=params,
            ctas=cta_ids(ctas, grid, size),
            lanes=lanes,
            memory=self.memory,
            symbols=np.array([self._addresses[name] for name in self._symbols] or [0], dtype=np.int64),
            max_work=max_warp_work or 0,
            cache=cache,
            racecheck=racecheck,
            poison=poison,
            variation=variation,
            worst_errors=worst_errors,
            cluster=size,
            explicit_cluster=(cluster or kernel_entry.cluster) is not None,
            cooperative=cooperative,
            workspace=workspace,
            sanitizer=sanitizer,
            races=not (cooperative or kernel_entry.uses_global_atomics or program.flow.spins),
        )
        in_order = kernel_entry.uses_global_atomics or program.flow.spins or cache is not None or sanitizer is not None
        start = time.perf_counter()
        runs = execute(launch, 1 if in_order else self.threads, deadline)
        report = LaunchReport(entry, grid, block, launch.count)
        report.seconds = time.perf_counter() - start
        report.jit_seconds = compile_seconds
        summarise(self.memory, program, runs, report)
        if sanitizer is not None and program.asynchronous:
            sanitizer.undefined[:] = 0  # bulk copies write without the checks of single threads
        return report


def warm_up() -> None:
    """Compile or load everything that launches need, so that a fork of this process needs no files.

    Takes 15 to 20 seconds the first time on a machine, half a second later: see
    :func:`~kernelforge.devices.emulated.codegen.llvm_jit.load_runtime`.
    """
    llvm_jit.load_runtime()
    memory = Memory(1 << 16)
    machine = LoadedModule(_WARM_UP, memory)
    out = memory.allocate(128, "warm-up")
    machine.launch("warm_up", (1, 1, 1), (32, 1, 1), 0, out.to_bytes(8, "little"))


_WARM_UP = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry warm_up(.param .u64 warm_up_param_0)
{
.reg .b32 %r<3>;
.reg .b64 %rd<4>;
ld.param.u64 %rd1, [warm_up_param_0];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
st.global.u32 [%rd3], %r1;
ret;
}
"""
