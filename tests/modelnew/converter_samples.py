# ruff: noqa: E501 - CUDA text as its authors would write it
"""KernelBench-style candidates written for these tests; each does what one task of suite ``core`` asks."""

from __future__ import annotations

_FILE = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/extension.h>
#include <cuda_runtime.h>
@CUDA@
"""

cpp_source = "@CPP@"

module = load_inline(
    name="module", cpp_sources=cpp_source, cuda_sources=cuda_source, functions=["@NAME@"], verbose=False,
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self@PARAMS@):
        super().__init__()
        self.module = module
@INIT@
    def forward(self, @INPUTS@):
        return self.module.@NAME@(@CALL@)
'''


def inline(
    cuda: str, name: str, inputs: str = "x", call: str = "x", cpp: str = "", params: str = "", init: str = ""
) -> str:
    """A candidate's file around its CUDA source."""
    changes = {"CUDA": cuda, "CPP": cpp or f"torch::Tensor {name}(torch::Tensor x);", "NAME": name, "PARAMS": params,
               "INIT": "".join(f"        {line}\n" for line in init.splitlines()), "INPUTS": inputs, "CALL": call}  # fmt: skip
    text = _FILE
    for key, value in changes.items():
        text = text.replace(f"@{key}@", value)
    return text


GELU = inline(
    r"""
template <typename scalar_t>
__device__ __forceinline__ scalar_t gelu(scalar_t v) {
    const scalar_t inner = scalar_t(0.7978845608028654) * (v + scalar_t(0.044715) * v * v * v);
    return scalar_t(0.5) * v * (scalar_t(1) + tanh(inner));
}

template <typename scalar_t>
__global__ void gelu_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ out, const int64_t n) {
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) out[i] = gelu<scalar_t>(x[i]);
}

torch::Tensor gelu_forward(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "x must be on the GPU");
    auto out = torch::empty_like(x);
    const int64_t n = x.numel();
    const int threads = 256;
    const int blocks = (n + threads - 1) / threads;
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "gelu_forward", ([&] {
        gelu_kernel<scalar_t><<<blocks, threads>>>(
            x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), n);
    }));
    return out;
}
""",
    "gelu_forward",
    call="x.contiguous()",
)

SWISH = inline(
    r"""
#define THREADS 128
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
#define CHECK_INPUT(x) CHECK_CUDA(x)

__global__ void __launch_bounds__(THREADS) swish_kernel(const float* x, float* out, int size) {
    // Each thread: one element; a < b in a comment <<<1, 2>>> changes nothing.
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < size) {
        float v = x[idx];
        out[idx] = v / (1.0f + expf(-v));
    }
}

torch::Tensor swish_forward(torch::Tensor x) {
    CHECK_INPUT(x);
    x = x.contiguous();
    auto size = x.numel();
    auto out = torch::zeros_like(x);
    swish_kernel<<<CEIL_DIV(size, THREADS), THREADS>>>(x.data_ptr<float>(), out.data_ptr<float>(), size);
    cudaError_t err = cudaGetLastError();
    return out;
}
""",
    "swish_forward",
)

SOFTMAX = inline(
    r"""
#include <cfloat>

static inline int next_power(int n) { return n > 512 ? 256 : 128; }

__global__ void softmax_kernel(const float* __restrict__ input, float* __restrict__ output, int rows, int cols) {
    extern __shared__ float shared[];
    const float* x = input + (size_t)blockIdx.x * cols;
    float* y = output + (size_t)blockIdx.x * cols;
    float best = -FLT_MAX;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) best = fmaxf(best, x[c]);
    shared[threadIdx.x] = best;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + s]);
        __syncthreads();
    }
    best = shared[0];
    __syncthreads();
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += expf(x[c] - best);
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] += shared[threadIdx.x + s];
        __syncthreads();
    }
    const float scale = 1.0f / shared[0];
    for (int c = threadIdx.x; c < cols; c += blockDim.x) y[c] = expf(x[c] - best) * scale;
}

torch::Tensor softmax_forward(torch::Tensor input) {
    const int rows = input.size(0);
    const int cols = input.size(1);
    auto output = torch::empty({rows, cols}, input.options());
    int threads = next_power(cols);
    size_t smem = threads * sizeof(float);
    softmax_kernel<<<dim3(rows), dim3(threads), smem, at::cuda::getCurrentCUDAStream()>>>(
        input.data_ptr<float>(), output.data_ptr<float>(), rows, cols);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return output;
}
""",
    "softmax_forward",
)

RMSNORM = inline(
    r"""
constexpr int WARP = 32;

__global__ void rmsnorm_kernel(const float* x, const float* weight, float* out, int cols, float eps) {
    const float* row = x + (long long)blockIdx.x * cols;
    float sum = 0.f;
    for (int c = threadIdx.x; c < cols; c += WARP) sum += row[c] * row[c];
    for (int offset = WARP / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    const float scale = rsqrtf(sum / cols + eps);
    for (int c = threadIdx.x; c < cols; c += WARP) out[(long long)blockIdx.x * cols + c] = row[c] * scale * weight[c];
}

torch::Tensor rmsnorm(torch::Tensor x, torch::Tensor weight, double eps) {
    auto sizes = x.sizes();
    int cols = sizes[sizes.size() - 1];
    int rows = x.numel() / cols;
    torch::Tensor out = torch::empty_like(x);
    float* result = out.data_ptr<float>();
    rmsnorm_kernel<<<rows, WARP>>>(x.data_ptr<float>(), weight.data_ptr<float>(), result, cols, (float)eps);
    return out;
}
""",
    "rmsnorm",
    call="x, self.weight, self.eps",
    params=", features, eps",
    init="self.weight = nn.Parameter(torch.ones(features))\nself.eps = eps",
    cpp="torch::Tensor rmsnorm(torch::Tensor x, torch::Tensor weight, double eps);",
)

LAYERNORM = inline(
    r"""
template <int THREADS>
__global__ void layernorm_kernel(const float* x, const float* w, const float* b, float* y, int d, float eps) {
    __shared__ float total[THREADS];
    const float* row = x + blockIdx.x * (long long)d;
    float sum = 0;
    for (int i = threadIdx.x; i < d; i += THREADS) sum += row[i];
    total[threadIdx.x] = sum;
    __syncthreads();
    for (int s = THREADS / 2; s; s /= 2) {
        if (threadIdx.x < s) total[threadIdx.x] += total[threadIdx.x + s];
        __syncthreads();
    }
    const float mean = total[0] / d;
    __syncthreads();
    sum = 0;
    for (int i = threadIdx.x; i < d; i += THREADS) sum += (row[i] - mean) * (row[i] - mean);
    total[threadIdx.x] = sum;
    __syncthreads();
    for (int s = THREADS / 2; s; s /= 2) {
        if (threadIdx.x < s) total[threadIdx.x] += total[threadIdx.x + s];
        __syncthreads();
    }
    const float scale = rsqrtf(total[0] / d + eps);
    for (int i = threadIdx.x; i < d; i += THREADS) y[blockIdx.x * (long long)d + i] = (row[i] - mean) * scale * w[i] + b[i];
}

torch::Tensor layernorm(torch::Tensor x, torch::Tensor w, torch::Tensor b, float eps) {
    const int d = x.size(-1);
    const int n = x.numel() / d;
    auto y = torch::empty_like(x);
    constexpr int threads = 128;
    layernorm_kernel<threads><<<n, threads>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), d, eps);
    return y;
}
""",
    "layernorm",
    call="x, self.norm.weight, self.norm.bias, 1e-5",
    params=", features",
    init="self.norm = nn.LayerNorm(features)",
    cpp="torch::Tensor layernorm(torch::Tensor x, torch::Tensor w, torch::Tensor b, float eps);",
)

MATMUL = inline(
    r"""
#define TILE 16

__global__ void matmul_kernel(const float* A, const float* B, float* C, int M, int N, int K) {
    __shared__ float a[TILE][TILE];
    __shared__ float b[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int t = 0; t < (K + TILE - 1) / TILE; ++t) {
        a[threadIdx.y][threadIdx.x] = row < M && t * TILE + threadIdx.x < K ? A[row * K + t * TILE + threadIdx.x] : 0.0f;
        b[threadIdx.y][threadIdx.x] = col < N && t * TILE + threadIdx.y < K ? B[(t * TILE + threadIdx.y) * N + col] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += a[threadIdx.y][k] * b[k][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N) C[row * N + col] = sum;
}

torch::Tensor matmul_forward(torch::Tensor A, torch::Tensor B) {
    int M = A.size(0), K = A.size(1), N = B.size(1);
    auto C = torch::zeros({M, N}, torch::TensorOptions().dtype(torch::kFloat32).device(A.device()));
    dim3 block(TILE, TILE);
    dim3 grid((N + block.x - 1) / block.x, (M + block.y - 1) / block.y);
    matmul_kernel<<<grid, block>>>(A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(), M, N, K);
    return C;
}
""",
    "matmul_forward",
    inputs="a, b",
    call="a.contiguous(), b.contiguous()",
    cpp="torch::Tensor matmul_forward(torch::Tensor A, torch::Tensor B);",
)

TRANSPOSE = inline(
    r"""
namespace {
__global__ void transpose_kernel(const float* in, float* out, unsigned int rows, unsigned int cols) {
    unsigned int c = blockIdx.x * 32 + threadIdx.x;
    for (unsigned int r = blockIdx.y * 32 + threadIdx.y; r < rows && r < blockIdx.y * 32 + 32; r += blockDim.y)
        if (c < cols) out[(size_t)c * rows + r] = in[(size_t)r * cols + c];
}
}  // namespace

torch::Tensor transpose_cuda(torch::Tensor in) {
    const auto rows = in.size(0);
    const auto cols = in.size(1);
    at::Tensor out = at::empty({cols, rows}, in.options());
    const dim3 threads(32, 8, 1);
    const dim3 blocks(static_cast<int>(std::ceil(static_cast<float>(cols) / 32)), (unsigned int)ceil(rows / 32.0), 1);
    transpose_kernel<<<blocks, threads, 0>>>(
        static_cast<const float*>(in.data_ptr<float>()), out.data_ptr<float>(), rows, cols);
    return out;
}

torch::Tensor transpose_forward(torch::Tensor in) { return transpose_cuda(in); }
""",
    "transpose_forward",
)

SUM_AXES = inline(
    r"""
__global__ void partial_kernel(const float* x, float* partial, int channels, int length) {
    int c = blockIdx.x, n = blockIdx.y;
    float sum = 0;
    for (int i = threadIdx.x; i < length; i += 32) sum += x[((long long)n * channels + c) * length + i];
    for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(0xffffffff, sum, o);
    if (threadIdx.x == 0) partial[n * channels + c] = sum;
}

__global__ void finish_kernel(const float* partial, float* out, int batch, int channels) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    float sum = 0;
    for (int n = 0; n < batch; ++n) sum += partial[n * channels + c];
    out[c] = sum;
}

int64_t volume(torch::Tensor x) {
    int64_t v = 1;
    for (int i = 0; i < x.dim(); i++) { v *= x.size(i); }
    return v;
}

torch::Tensor sum_axes(torch::Tensor x) {
    int batch = x.size(0), channels = x.size(1), length = x.size(2);
    auto partial = torch::empty({batch, channels}, x.options());
    auto out = torch::empty({channels}, x.options().dtype(at::kFloat));
    if (volume(x) > 0) {
        partial_kernel<<<dim3(channels, batch), 32>>>(x.data_ptr<float>(), partial.data_ptr<float>(), channels, length);
        finish_kernel<<<std::max(1, (channels + 63) / 64), std::min<int>(64, channels)>>>(
            partial.data_ptr<float>(), out.data_ptr<float>(), batch, channels);
    } else {
        return torch::zeros({channels}, x.options());
    }
    return out;
}
""",
    "sum_axes",
)

BIAS_SWISH_SCALE = inline(
    r"""
struct Limits { float low, high; };

__device__ float finish(float v, float scale, float residual, float limit) {
    Limits limits = {-limit, limit};
    return fminf(fmaxf(v / (1.f + expf(-v)) * scale + residual, limits.low), limits.high);
}

__global__ void wide_kernel(const float4* x, const float4* residual, const float4* bias, const float4* scale,
                            float4* out, int cols4, float limit, int64_t total) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    float4 v = x[i], a = residual[i], b = bias[i % cols4], s = scale[i % cols4];
    out[i] = make_float4(finish(v.x + b.x, s.x, a.x, limit), finish(v.y + b.y, s.y, a.y, limit),
                         finish(v.z + b.z, s.z, a.z, limit), finish(v.w + b.w, s.w, a.w, limit));
}

__global__ void narrow_kernel(const float* x, const float* residual, const float* bias, const float* scale,
                              float* out, int cols, float limit, int64_t total) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total) out[i] = finish(x[i] + bias[i % cols], scale[i % cols], residual[i], limit);
}

void launch(torch::Tensor x, torch::Tensor residual, torch::Tensor bias, torch::Tensor scale, torch::Tensor out,
            float limit) {
    int cols = x.size(1);
    int64_t total = x.numel();
    if (cols % 4 == 0 && total > 0) {
        total /= 4;
        wide_kernel<<<(total + 255) / 256, 256>>>(
            reinterpret_cast<const float4*>(x.data_ptr<float>()), (const float4*)residual.data_ptr<float>(),
            reinterpret_cast<const float4*>(bias.data_ptr<float>()),
            reinterpret_cast<const float4*>(scale.data_ptr<float>()),
            reinterpret_cast<float4*>(out.data_ptr<float>()), cols >> 2, limit, total);
        return;
    }
    narrow_kernel<<<(total + 255) / 256, 256>>>(
        x.data_ptr<float>(), residual.data_ptr<float>(), bias.data_ptr<float>(), scale.data_ptr<float>(),
        out.data_ptr<float>(), cols, limit, total);
}

torch::Tensor fused(torch::Tensor x, torch::Tensor residual, torch::Tensor bias, torch::Tensor scale, double limit) {
    auto out = torch::empty_like(x);
    launch(x, residual, bias, scale, out, limit);
    return out;
}
""",
    "fused",
    inputs="x, residual",
    call="x, residual, self.bias, self.scale, self.limit",
    params=", features, limit",
    init="self.limit = limit\nself.bias = nn.Parameter(torch.zeros(features))\nself.scale = nn.Parameter(torch.ones(features))",
)

ARGMAX = inline(
    r"""
__global__ void argmax_kernel(const float* x, long* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int best = 0;
    for (int c = 1; c < cols; ++c) if (x[(long)row * cols + c] > x[(long)row * cols + best]) best = c;
    out[row] = best;
}

torch::Tensor argmax_forward(const torch::Tensor& x) {
    int rows = x.size(0);
    int cols = x.size(1);
    auto out = torch::empty({rows}, torch::dtype(torch::kInt64).device(torch::kCUDA));
    argmax_kernel<<<(rows + 31) / 32, 32>>>(x.data_ptr<float>(), out.data_ptr<long>(), rows, cols);
    return out;
}
""",
    "argmax_forward",
    cpp="torch::Tensor argmax_forward(const torch::Tensor& x);",
)

RAW_KERNEL = """
import cupy as cp
import numpy as np
import torch
import torch.nn as nn

swish = cp.RawKernel(r'''
extern "C" __global__ void swish_raw(const float* x, float* out, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n) out[i] = x[i] / (1.0f + expf(-x[i]));
}
''', "swish_raw")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        n = x.numel()
        swish(((n + 255) // 256,), (256,), (x.data_ptr(), out.data_ptr(), np.int32(n)))
        return out
"""

CORE = {
    "gelu": GELU, "swish": SWISH, "softmax": SOFTMAX, "rmsnorm": RMSNORM, "layernorm": LAYERNORM, "matmul": MATMUL,
    "transpose": TRANSPOSE, "sum_axes": SUM_AXES, "bias_swish_scale": BIAS_SWISH_SCALE, "argmax": ARGMAX,
}  # fmt: skip

SEVERAL_OUTPUTS = inline(
    r"""
__global__ void both_kernel(const float* x, float* low, float* high, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { low[i] = fminf(x[i], 0.0f); high[i] = fmaxf(x[i], 0.0f); }
}

std::vector<torch::Tensor> split_sign(torch::Tensor x) {
    auto low = torch::empty_like(x);
    auto high = torch::empty_like(x);
    int n = x.numel();
    both_kernel<<<(n + 127) / 128, 128>>>(x.data_ptr<float>(), low.data_ptr<float>(), high.data_ptr<float>(), n);
    return {low, high};
}
""",
    "split_sign",
    cpp="std::vector<torch::Tensor> split_sign(torch::Tensor x);",
)

SEVERAL_OUTPUTS_TASK = """
import torch
import torch.nn as nn

ROWS = 12
COLS = 40


class Model(nn.Module):
    def forward(self, x):
        return x.clamp(max=0), x.clamp(min=0)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""
