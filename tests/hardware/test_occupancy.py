"""Occupancy against cases worked by hand from the CUDA rules, and against NVIDIA's own header."""

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from kernelforge.hardware.occupancy import l1_bytes, occupancy
from kernelforge.hardware.specs import A100, H100, KIB, SPECS, DeviceSpec

NO_LIMIT = 2**31 - 1


def limits(spec: DeviceSpec, threads: int, registers: int, shared: int) -> tuple[int, int, int, int]:
    result = occupancy(spec, threads_per_block=threads, registers_per_thread=registers, shared_bytes=shared)
    return result.limit_blocks, result.limit_warps, result.limit_registers, result.limit_shared_mem


@pytest.mark.parametrize(
    ("spec", "threads", "registers", "shared", "expected"),
    [
        # 8 warps a block: 64 / 8. 32 registers: 1024 a warp, 16 warps a partition. 1 KiB reserved: 228 blocks.
        (H100, 256, 32, 0, (32, 8, 8, 228)),
        (H100, 32, 16, 0, (32, 64, 128, 228)),
        # 33 registers: 1056, rounded to 1280 a warp; 16384 / 1280 = 12 warps a partition, 48 an SM.
        (H100, 256, 33, 0, (32, 8, 6, 228)),
        (H100, 256, 40, 0, (32, 8, 6, 228)),
        (H100, 256, 41, 0, (32, 8, 5, 228)),
        # 255 registers: 8160 rounds to 8192 a warp: 2 warps a partition.
        (H100, 256, 255, 0, (32, 8, 1, 228)),
        (H100, 32, 255, 0, (32, 64, 8, 228)),
        # The registers of the second do not fit.
        (H100, 1024, 64, 0, (32, 2, 1, 228)),
        (H100, 1024, 65, 0, (32, 2, 0, 228)),
        # 32 KiB + 1 KiB = 33 KiB: 228 / 33 = 6 on the H100, 164 / 33 = 4 on the A100.
        (H100, 128, 32, 32 * KIB, (32, 16, 16, 6)),
        (A100, 128, 32, 32 * KIB, (32, 16, 16, 4)),
        (H100, 128, 32, 227 * KIB, (32, 16, 16, 1)),
        (H100, 128, 32, 227 * KIB + 1, (32, 16, 16, 0)),
        # Partial warps count whole, and a block holds 1024 threads.
        (H100, 33, 32, 0, (32, 32, 32, 228)),
        (H100, 1025, 16, 0, (32, 0, 3, 228)),
    ],
)
def test_limits_are_those_that_were_worked_by_hand(
    spec: DeviceSpec, threads: int, registers: int, shared: int, expected: tuple[int, int, int, int]
) -> None:
    assert limits(spec, threads, registers, shared) == expected


def test_blocks_of_one_warp_are_limited_by_blocks_and_their_shared_memory_is_rounded() -> None:
    result = occupancy(H100, threads_per_block=32, registers_per_thread=16, shared_bytes=1)
    assert (result.percent, result.limiters, result.shared_bytes_per_block) == (50.0, ("blocks",), 1152)


def test_l1_is_what_the_smallest_fitting_carveout_leaves() -> None:
    # 8 resident blocks of 1 KiB: carve-out 8 KiB. 7 of 17 KiB by shared memory... by warps 8: 136 -> 164 KiB.
    bare = occupancy(H100, threads_per_block=256, registers_per_thread=32, shared_bytes=0)
    assert l1_bytes(H100, bare) == 248 * KIB
    tiled = occupancy(H100, threads_per_block=256, registers_per_thread=32, shared_bytes=16 * KIB)
    assert l1_bytes(H100, tiled) == (256 - 164) * KIB


HARNESS = r"""
#include <stdio.h>
#include "cuda_occupancy.h"
int main(void) {
    /* major, minor, SMs, threads and shared memory of an SM, the latter of a block, reserved; then the launch */
    int major, minor, sms, perSm, sharedSm, sharedBlock, reserved, threads, registers, shared;
    while (scanf("%d %d %d %d %d %d %d %d %d %d", &major, &minor, &sms, &perSm, &sharedSm, &sharedBlock, &reserved,
                 &threads, &registers, &shared) == 10) {
        cudaOccDeviceProp p = {major, minor, 1024, perSm, 65536, 65536, 32, 49152, sharedSm, sms, sharedBlock,
                               reserved};
        cudaOccDeviceState state = {0};
        state.carveoutConfig = SHAREDMEM_CARVEOUT_DEFAULT;
        cudaOccFuncAttributes a = {0};
        a.maxThreadsPerBlock = 1024; a.numRegs = registers; a.sharedSizeBytes = 0;
        a.partitionedGCConfig = PARTITIONED_GC_OFF;
        a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; a.maxDynamicSharedSizeBytes = shared; a.numBlockBarriers = 1;
        cudaOccResult r;
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &state, threads, shared);
        printf("%d %d %d %d %d\n", status, r.blockLimitBlocks, r.blockLimitWarps, r.blockLimitRegs,
               r.blockLimitSharedMem);
    }
    return 0;
}
"""


def header_folder() -> Path | None:
    package = find_spec("nvidia.cu13")
    for root in () if package is None else package.submodule_search_locations or ():
        if (Path(root) / "include" / "cuda_occupancy.h").exists():
            return Path(root) / "include"
    return None


def test_limits_equal_those_of_nvidias_header(tmp_path: Path) -> None:
    compiler, include = shutil.which("cc"), header_folder()
    if compiler is None or include is None:
        pytest.skip("needs a C compiler and the nvidia-cuda-runtime headers")
    (tmp_path / "limits.c").write_text(HARNESS)
    program = tmp_path / "limits"
    subprocess.run([compiler, "-w", "-I", include, tmp_path / "limits.c", "-o", program], check=True)
    one_of_each = {spec.compute_capability: spec for spec in SPECS.values()}
    cases = [
        (spec, threads, registers, shared)
        for spec in one_of_each.values()
        for threads in (32, 33, 96, 128, 160, 256, 384, 512, 640, 768, 1000, 1024)
        for registers in (8, 16, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80, 96, 127, 128, 168, 200, 255)
        for shared in (0, 1, 1000, 8192, 16384, 33000, 49152, 65536, 100000, 166912 - 1024)
        if shared <= spec.shared_bytes_per_block
    ]
    text = "\n".join(
        f"{spec.compute_capability[0]} {spec.compute_capability[1]} {spec.sm_count} {spec.threads_per_sm} "
        f"{spec.shared_bytes_per_sm} {spec.shared_bytes_per_block} {spec.shared_reserved_bytes_per_block} "
        f"{threads} {registers} {shared}"
        for spec, threads, registers, shared in cases
    )
    answer = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(answer) == len(cases)
    for case, line in zip(cases, answer, strict=True):
        status, *theirs = map(int, line.split())
        assert status == 0
        own = limits(*case)
        # With neither shared memory of its own nor a reserve the header names no limit; the SM's blocks bind anyway.
        unlimited = own[3] if theirs[3] == NO_LIMIT else theirs[3]
        assert own == (*theirs[:3], unlimited), case


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.key)
def test_every_gpu_runs_a_plain_kernel_with_sensible_limits(spec: DeviceSpec) -> None:
    result = occupancy(spec, threads_per_block=256, registers_per_thread=32, shared_bytes=0)
    assert result.percent == 100.0
    full = occupancy(spec, threads_per_block=256, registers_per_thread=32, shared_bytes=spec.shared_bytes_per_block)
    assert full.blocks_per_sm == 1
    assert 0 <= l1_bytes(spec, full) < l1_bytes(spec, result) <= spec.unified_l1_bytes_per_sm
