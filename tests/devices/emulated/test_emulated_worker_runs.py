"""Running resolved plans without a jail: results, faults, and messages for a Coder."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernelforge.candidate.resolved import ScalarArg
from kernelforge.devices.wire import pack_scalar
from tests.devices.emulated.emulated_plans import ADD, ADD_PLAN, randoms, resolve, run, runner, work


def test_a_plan_computes_what_it_says() -> None:
    a, b = randoms(1000), randoms(1000, seed=1)
    ran = run(ADD, ADD_PLAN, a, b)
    assert ran.faults == ()
    np.testing.assert_array_equal(np.frombuffer(ran.outputs[0], np.float32), a + b)
    assert ran.thread_instructions > 1000
    assert ran.seconds > 0


def test_one_runner_runs_many_sizes() -> None:
    runs = runner(ADD)
    for n in (1, 31, 256, 1000):
        a, b = randoms(n), randoms(n, seed=1)
        ran = runs.run(work(resolve(ADD_PLAN, [a, b]), [a, b]))
        np.testing.assert_array_equal(np.frombuffer(ran.outputs[0], np.float32), a + b)
    assert runs.build.memory.used_bytes == 0


CHAIN = """
extern "C" __global__ void scale(const float* x, float* out, int n, float f) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * f;
}
"""
CHAIN_PLAN = """
def forward(x):
    n = x.numel()
    first = empty_like(x)
    second = zeros(x.shape, x.dtype)
    scale[ceil_div(n, 128), 128](x, first, i32(n), f32(2))
    scale[ceil_div(n // 2, 128), 128](first, second, i32(n // 2), f32(0.5))
    return second, first
"""


def test_steps_run_in_order_and_zeros_are_zeros() -> None:
    x = randoms(512)
    ran = run(CHAIN, CHAIN_PLAN, x)
    second, first = (np.frombuffer(blob, np.float32) for blob in ran.outputs)
    np.testing.assert_array_equal(first, 2 * x)
    np.testing.assert_array_equal(second[:256], x[:256])
    assert not second[256:].any()


@pytest.mark.parametrize("poison", [0xA5, 0x5A, 0])
def test_what_a_kernel_does_not_write_holds_the_poison(poison: int) -> None:
    plan = ADD_PLAN.replace("i32(n)", "i32(n - 1)")
    a, b = randoms(64), randoms(64)
    ran = run(ADD, plan, a, b, poison=poison)
    assert ran.outputs[0][-4:] == bytes([poison]) * 4


def test_an_access_out_of_bounds_is_told_with_place_and_allocation() -> None:
    ran = run(ADD, ADD_PLAN.replace("i32(n)", "i32(n + 3)"), randoms(100), randoms(100))
    assert ran.outputs == ()
    fault = ran.faults[0]
    assert fault.kind == "sanitizer"
    for part in (
        "out-of-bounds",
        ":4 (",
        "block (0, 0, 0)",
        "thread (100, 0, 0)",
        "(400 bytes)",
        "plan line 5",
    ):
        assert part in fault.message, fault.message


def test_an_input_cannot_be_written_unless_it_is_mutable() -> None:
    source = """
extern "C" __global__ void fill(float* x, float* out) {
  x[threadIdx.x] = 1.f;
  out[threadIdx.x] = x[threadIdx.x];
}
"""
    plan = "def forward(x):\n    out = empty_like(x)\n    fill[1, 32](x, out)\n    return out\n"
    x = randoms(32)
    refused = run(source, plan, x)
    assert refused.faults[0].kind == "sanitizer"
    assert "read-only" in refused.faults[0].message
    resolved = resolve(plan, [x])
    allowed = run(source, plan, x, mutable=frozenset({resolved.buffers[0].id}))
    assert allowed.faults == ()
    assert [np.frombuffer(blob, np.float32).sum() for blob in allowed.outputs] == [32, 32]


def test_a_race_on_shared_memory_is_found() -> None:
    source = """
extern "C" __global__ void reverse(const float* x, float* out) {
  __shared__ float s[256];
  s[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  out[blockIdx.x * 256 + threadIdx.x] = s[255 - threadIdx.x];
}
"""
    plan = "def forward(x):\n    out = empty_like(x)\n    reverse[x.numel() // 256, 256](x, out)\n    return out\n"
    for blocks in (1, 100):
        ran = run(source, plan, randoms(256 * blocks))
        assert ran.faults[0].kind == "sanitizer"
        assert "race" in ran.faults[0].message
    fixed = source.replace("  out[", "  __syncthreads();\n  out[")
    assert run(fixed, plan, randoms(256 * 100)).faults == ()


@pytest.mark.slow
def test_an_endless_loop_ends_at_its_deadline() -> None:
    source = (
        'extern "C" __global__ void spin(const volatile float* x, float* out) { while (x[0] == x[0]) {} out[0] = 1; }'
    )
    plan = "def forward(x):\n    out = empty_like(x)\n    spin[1, 32](x, out)\n    return out\n"
    ran = run(source, plan, np.ones(4, np.float32), deadline_s=0.3)
    assert ran.faults[0].kind == "timeout"
    ran = run(source, plan, np.ones(4, np.float32), max_thread_instructions=10**7)
    assert ran.faults[0].kind == "timeout"


@pytest.mark.slow
def test_the_clock_says_nothing_of_a_kernel_that_is_within_its_work() -> None:
    plan = "def forward(x):\n    out = empty_like(x)\n    spin[1, 32](x, out)\n    return out\n"
    source = (
        'extern "C" __global__ void spin(const volatile float* x, float* out) { while (x[0] == x[0]) {} out[0] = 1; }'
    )
    limits = {"deadline_binds": False, "max_thread_instructions": 10**15}
    fault = run(source, plan, np.ones(4, np.float32), deadline_s=0.3, **limits).faults[0]
    assert fault.kind == "late"
    assert fault.message.startswith("0.3 s went by, in which ")
    limits["max_thread_instructions"] = 10**6
    assert run(source, plan, np.ones(4, np.float32), **limits).faults[0].kind == "timeout"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_budget_is_of_all_launches_and_blocks_however_many_threads_run_them(threads: int) -> None:
    """Nothing here goes back, so that the sums are compared after each launch."""
    plan = """
def forward(a, b):
    n = a.numel()
    out, more = empty_like(a), empty_like(a)
    add[ceil_div(n, 256), 256](a, b, more, i32(n))
    add[ceil_div(n, 256), 256](more, b, out, i32(n))
    return out
"""
    arrays = randoms(1000), randoms(1000, seed=1)
    resolved, made = resolve(plan, arrays), runner(ADD, threads=threads)
    counted = 32 * round(made.profile(work(resolved, arrays)).kernels[0].warp_instructions)
    for most, kinds in ((counted, []), (counted - 32, ["timeout"])):
        ran = made.run(work(resolved, arrays, max_thread_instructions=most))
        assert [fault.kind for fault in ran.faults] == kinds
    assert f"the budget is {most:.2g} thread instructions, {counted:.3g} were counted" in ran.faults[0].message


def test_a_matrix_product_counts_what_it_computes() -> None:
    """Fewer instructions than the limit, but more work."""
    product = 'asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, '
    product += '{%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(0));'
    source = f"""extern "C" __global__ void multiply(const float* x, float* out, int times) {{
      float d[4] = {{x[0], 0, 0, 0}};
      for (int i = 0; i < times; i++) {{ {product} }}
      out[threadIdx.x] = d[0];
    }}"""
    plan = "def forward(x):\n    out = empty((32,))\n    multiply[1, 32](x, out, i32(50000))\n    return out\n"
    instructions = run(source, plan, np.ones(4, np.float32)).thread_instructions
    assert instructions is not None
    computed = 50000 * 16 * 8 * 8  # multiply-adds
    assert instructions < computed // 2
    over = run(source, plan, np.ones(4, np.float32), max_thread_instructions=computed // 2).faults
    assert [fault.kind for fault in over] == ["timeout"]
    assert f"the budget is {computed // 2:.2g} thread instructions" in over[0].message
    assert run(source, plan, np.ones(4, np.float32), max_thread_instructions=2 * computed).faults == ()


def test_a_trap_is_a_crash() -> None:
    source = 'extern "C" __global__ void stop(const float* x, float* out) { if (x[0] > 0) __trap(); out[0] = 1; }'
    plan = "def forward(x):\n    out = empty_like(x)\n    stop[1, 32](x, out)\n    return out\n"
    assert run(source, plan, np.ones(4, np.float32)).faults[0].kind == "crash"


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ("add[1, 32](a, b, out)", "takes 4 arguments, plan line 4 gives 3"),
        ("add[1, 32](a, b, out, i64(n))", "argument 4 of 'add' has 4 bytes in the kernel and 8"),
        ("add[1, 32](a, b, i32(n), out)", "argument 3 of 'add' has 8 bytes in the kernel and 4"),
    ],
)
def test_arguments_that_do_not_fit_the_kernel_are_a_crash(launch: str, message: str) -> None:
    plan = f"def forward(a, b):\n    n = a.numel()\n    out = empty_like(a)\n    {launch}\n    return out\n"
    ran = run(ADD, plan, randoms(32), randoms(32))
    assert ran.faults[0].kind == "crash"
    assert message in ran.faults[0].message


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"block": (1025, 1, 1)}, "crash", "block (1025, 1, 1) is outside 1 to (1024, 1024, 64)"),
        ({"block": (32, 33, 1)}, "crash", "a block of 1056 threads, 1024 are allowed"),
        ({"block": (1, 1, 65)}, "crash", "outside 1 to (1024, 1024, 64)"),
        ({"grid": (0, 1, 1)}, "crash", "grid (0, 1, 1) is outside 1 to"),
        ({"grid": (1, 65536, 1)}, "crash", "outside 1 to (2147483647, 65535, 65535)"),
        ({"dynamic_shared_bytes": 232449}, "crash", "232449 bytes of shared memory per block, 232448 are there"),
        ({"expression": "other"}, "crash", "the build has no kernel 'other'"),
        ({"cluster": (2, 1, 1)}, "crash", "grid (1, 1, 1) is not a multiple of cluster (2, 1, 1)"),
        ({"cluster": (16, 1, 1), "grid": (16, 1, 1)}, "crash", "16 blocks; the limit is 8"),
        ({"cooperative": True, "grid": (1057, 1, 1)}, "crash", "1057 blocks, 1056 fit (8 on each of 132 SMs)"),
    ],
)
def test_a_launch_that_the_device_refuses_says_why(changes: dict[str, Any], kind: str, message: str) -> None:
    arrays = [randoms(32), randoms(32)]
    plan = resolve(ADD_PLAN, arrays)
    plan = replace(plan, steps=tuple(replace(step, **changes) for step in plan.steps))
    ran = runner(ADD).run(work(plan, arrays))
    assert ran.faults[0].kind == kind
    assert message in ran.faults[0].message
    assert "plan line 5" in ran.faults[0].message


@pytest.mark.slow
def test_grid_sync_without_a_cooperative_launch_names_the_option() -> None:
    source = """
    #include <cooperative_groups.h>
    extern "C" __global__ void meet(const float* x, float* out) {
      cooperative_groups::this_grid().sync();
      out[threadIdx.x] = x[threadIdx.x];
    }
    """
    plan = "def forward(x):\n    out = empty_like(x)\n    meet[1, 32](x, out)\n    return out\n"
    ran = run(source, plan, randoms(32))
    assert ran.faults[0].kind == "crash"
    assert "trap instruction executed" in ran.faults[0].message
    assert "without cooperative=True, which grid.sync() needs" in ran.faults[0].message
    ran = run(source, plan.replace("(x, out)", "(x, out, cooperative=True)"), randoms(32))
    assert ran.faults == ()


def test_too_many_registers_for_a_block_is_a_crash() -> None:
    runs = runner(ADD, registers=128)
    plan = ADD_PLAN.replace("256", "1024")
    arrays = [randoms(2048), randoms(2048)]
    ran = runs.run(work(resolve(plan, arrays), arrays))
    assert "too many registers: 128 for each of 1024 threads" in ran.faults[0].message


def test_more_memory_than_is_allowed_is_a_fault() -> None:
    ran = run(ADD, ADD_PLAN, randoms(1000), randoms(1000), memory_bytes=8000)
    assert ran.faults[0].kind == "memory"
    assert "12000 bytes" in ran.faults[0].message


def test_after_a_fault_the_next_run_is_sound() -> None:
    runs = runner(ADD)
    a, b = randoms(100), randoms(100)
    assert runs.run(work(resolve(ADD_PLAN.replace("i32(n)", "i32(n + 9)"), [a, b]), [a, b])).faults
    ran = runs.run(work(resolve(ADD_PLAN, [a, b]), [a, b]))
    np.testing.assert_array_equal(np.frombuffer(ran.outputs[0], np.float32), a + b)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("i32", -1, "ffffffff"),
        ("i32", 2**32 - 1, "ffffffff"),
        ("i64", -2, "feffffffffffffff"),
        ("f32", 1.5, "0000c03f"),
        ("f32", 1e300, "0000807f"),
        ("f64", 1.5, "000000000000f83f"),
        ("f16", 1.5, "003e"),
        ("f16", 1e9, "007c"),
        ("bf16", 1.5, "c03f"),
        ("bf16", 1.00390625, "803f"),
        ("bf16", 1.01171875, "823f"),
        ("bf16", float("nan"), "c07f"),
        ("f32", float("inf"), "0000807f"),
    ],
)
def test_scalars_are_packed_as_the_kernel_reads_them(kind: str, value: float, expected: str) -> None:
    assert pack_scalar(ScalarArg(kind, value)).hex() == expected  # type: ignore[arg-type]
