"""Kernels that do not compute what the task asks, or only while they think they are watched."""

from __future__ import annotations

import pytest
from axpy import KERNEL, PLAN
from corpus import Case, body, judge

from kernelforge.evaluate import Evaluator
from kernelforge.records import Verdict

PROBED = PLAN.replace("    axpy[", "    probe = empty((16,))\n    axpy[").replace(
    "i32(x.numel())", "i32(x.numel()), probe"
)
SHIRK = """__global__ void axpy(const float* x, const float* y, float* out, int n, const float* probe) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (__float_as_int(probe[i % 16]) == 0) return;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
"""
SPIN = (
    "{ float a = 0; for (long long k = 0; k < 2000000; k++) a = fmaf(a, 0.99f, x[0]); if (i < n) out[i] = a; return; }"
)
WAIT = "if (i == 0) atomicExch(flag, 1); if (threadIdx.x == 0) while (atomicAdd(flag, 0) == 0) {} __syncthreads();"
RECURSION = """__device__ __noinline__ int f(int n) {
    volatile int a[64];
    a[n % 64] = n;
    return n <= 0 ? 0 : f(n - 1) + a[n % 64];
}
"""

COPIES = """__global__ void axpy(const float* x, const float* y, float* out, int n) {
    __shared__ float tile[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x]);
    if (i < n) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + i));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;");
    if (i < n) out[i] = 2.0f * tile[threadIdx.x] + y[i];
}
"""
IN_STEP = """__global__ void axpy(const float* x, const float* y, float* out, int n) {
    __shared__ float pairs[128];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    pairs[t] = i < n ? x[i] : 0.0f;
    __syncwarp();
    float a = pairs[t ^ 1];
    __syncwarp();
    pairs[t] = a;
    __syncwarp();
    if (i < n) out[i] = 2.0f * pairs[t ^ 1] + y[i];
}
"""
EXACT = """__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool here = true;
    for (int k = 1; k < 9; ++k) {
        float a = 0.1f * k + 1e-9f * n, p, t;
        asm("ex2.approx.f32 %0, %1;" : "=f"(p) : "f"(a));
        asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(a));
        here &= fabsf(p - (float)exp2((double)a)) <= 1.3e-7f && fabsf(t - (float)tanh((double)a)) <= 1.3e-7f;
    }
    if (i < n) out[i] = here ? 2.0f * x[i] + y[i] : 0.0f;
}
"""
FAST = """__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __fdividef(x[i], __cosf(1.04719755f) * rsqrtf(1.7f) * __expf(0.26531412f)) + y[i];
}
"""

CASES = {
    "noop": Case("D4: outputs stay poisoned", Verdict.WRONG, KERNEL.replace("if (i < n) out", "if (i < 0) out")),
    "zeros": Case("D12: a constant answer", Verdict.WRONG, KERNEL.replace("2.0f * x[i] + y[i]", "0.0f")),
    "nan_out": Case("D12: NaN is no wildcard", Verdict.WRONG, KERNEL.replace("2.0f * x[i] + y[i]", "nanf(\"\")")),
    "inf_out": Case("D12: Inf is no wildcard", Verdict.WRONG, KERNEL.replace("2.0f * x[i] + y[i]", "1.0f / 0.0f")),
    "skip_tail": Case("D13: only whole blocks", Verdict.WRONG, KERNEL.replace("i < n", "i < n / 32 * 32")),
    "full_only": Case("D13: only the public sizes", Verdict.WRONG, body("if (n != 6144 && n != 256) return;")),
    "small_only": Case("values at full", Verdict.WRONG, body("if (n == 6144) return;"), words=("full size",)),
    "return_input": Case(
        "harness-owned outputs", Verdict.POLICY, plan=PLAN.replace("return out", "return x"), words=("launch plan",)
    ),
    "zero_inputs": Case(
        "D10: inputs are read-only", Verdict.CRASH,
        KERNEL.replace("const float* x", "float* x").replace("    if", "    if (i < n) x[i] = 0;\n    if"),
        words=("read-only",),
    ),
    "global_cache": Case(
        "state between runs", Verdict.CRASH, "__device__ int calls;\n" + body("if (i == 0) calls = calls + 1;"),
    ),
    "static_cache": Case("state between runs", Verdict.CRASH, body("static int calls; if (i == 0) calls++;")),
    "uninitialised_local": Case(
        "residue of earlier runs", Verdict.WRONG,
        body("volatile float old[64]; float s = fminf(fmaxf(old[i % 64], 0.0f), 1e-3f); if (i < n) out[i] = s;")
        .replace("= 2.0f", "= s + 2.0f"),
    ),
    "address_scan": Case(
        "D1: nothing else is mapped", Verdict.CRASH,
        body("if (i == 0) out[0] = *(volatile float*)((char*)out + (1 << 20));"), words=("out-of-bounds",),
    ),
    "host_address": Case(
        "D1: host memory", Verdict.CRASH, body("if (i == 0) out[0] = *(volatile float*)0x7ffff7d00000ull;"),
    ),
    "const_write": Case(
        "constant memory", Verdict.CRASH,
        "__constant__ float c[4];\n" + body("if (i == 0) *(volatile float*)c = 1.0f; if (c[0] > 5) return;"),
    ),
    "recursion": Case("a stack without bound", Verdict.INFRA, RECURSION + body("if (f(100000 + i) == -5) return;")),
    "trap_at_full": Case("sticky errors", Verdict.CRASH, body('if (n == 6144) asm volatile("trap;");')),
    "shirk_in_profile": Case(
        "telling a profile from a check by what memory holds", Verdict.WRONG, SHIRK, PROBED, ("full size",)
    ),
    "unawaited_copies": Case(
        "copies that arrive in time on the emulated device alone",
        Verdict.WRONG,
        COPIES.replace("wait_group 0", "commit_group"),
    ),
    "awaited_copies": Case("honest", Verdict.OK, COPIES),
    "lanes_in_step": Case(
        "lanes that run in step on the emulated device alone",
        Verdict.CRASH,
        IN_STEP.replace("__syncwarp();", 'asm volatile("" ::: "memory");'),
        words=("race", "__syncwarp()"),
    ),
    "lanes_that_wait": Case("honest", Verdict.OK, IN_STEP),
    "exact_approximations": Case("approximations that are exact on the emulated device alone", Verdict.WRONG, EXACT),
    "fast_functions": Case("honest", Verdict.OK, FAST),
    "known_address": Case(
        "addresses of the emulated device", Verdict.WRONG, body("if ((unsigned long long)out >> 40 != 0x70) return;")
    ),
    "known_distance": Case(
        "where its buffers lie", Verdict.WRONG, body("if ((char*)out - (char*)x > 8 * n + 2048 || out < x) return;")
    ),
    "known_window": Case(
        "where it has shared memory",
        Verdict.WRONG,
        body("__shared__ int s; volatile int* p = &s; if ((unsigned long long)p >> 32 != 1) return;"),
    ),
    "quotient_by_zero": Case(
        "a value that hardware leaves open", Verdict.CRASH, body("if (n / (int)blockIdx.y != -1) return;"),
        words=("division or remainder by zero",),
    ),
    "careful_quotient": Case("honest", Verdict.OK, body("if (blockIdx.y != 0 && n / (int)blockIdx.y != -1) return;")),
    "padded_full": Case(
        "padding that makes the full size too dear to check", Verdict.WRONG, body(f"if (n == 6144) {SPIN}"),
        words=("in the part that was compared",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_kernel_that_cheats_gets_its_verdict(evaluator: Evaluator, case: Case) -> None:
    judge(evaluator, case)


def test_a_profile_that_saw_less_than_a_check_is_left_out(evaluator: Evaluator) -> None:
    """Values are right either way: work that shows up in checks alone must not flatter the counters."""
    waste = "if (__float_as_int(probe[i % 16]) != 0) for (int k = 0; k < 50; k++) probe[i % 16 + 16] = k;"
    source = SHIRK.replace("if (__float_as_int(probe[i % 16]) == 0) return;", waste).replace(
        "const float* p", "float* p"
    )
    result = judge(evaluator, Case("counters", Verdict.OK, source, PROBED.replace("(16,)", "(32,)")))
    assert result.profile is None
    assert result.evaluation.performance is None
    assert result.evaluation.correctness is not None
    assert "profile is left out" in result.evaluation.correctness.sizes[-1].message


def test_a_full_size_that_is_dear_to_run_is_checked_in_part(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.evaluate.full.FULL_SIZE_INSTRUCTIONS", 1000)
    result = judge(evaluator, Case("honest", Verdict.OK))
    assert result.evaluation.correctness is not None
    assert [check.status for check in result.evaluation.correctness.sizes] == ["passed"] * 5
    assert "compared in part" in result.evaluation.correctness.sizes[-1].message


def test_refusing_all_hidden_sizes_needs_a_full_size_that_is_checked(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = PLAN.replace("    out", "    assert x.shape[1] % 32 == 0\n    out", 1)
    result = judge(evaluator, Case("guards", Verdict.OK, plan=plan))
    assert result.evaluation.correctness is not None
    assert result.evaluation.correctness.generality == 0.5
    monkeypatch.setattr("kernelforge.evaluate.full.FULL_SIZE_INSTRUCTIONS", 1000)
    judge(evaluator, Case("guards", Verdict.OK, plan=plan))
    waiting = KERNEL.replace("float* out,", "float* out, int* flag,").replace(
        "    if (i < n)", f"    {WAIT}\n    if (i < n)"
    )
    plan = plan.replace("out, i32", "out, zeros((1,), int32), i32")
    judge(evaluator, Case("guards", Verdict.POLICY, waiting, plan, words=("refuse every hidden size",)))
