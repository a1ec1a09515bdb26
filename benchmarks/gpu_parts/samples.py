"""Kernels that parts time: device code behind a plan and behind ``load_inline``; ways to write a ``ModelNew``."""

from __future__ import annotations

from dataclasses import dataclass

_ELEMENTWISE = """__global__ void apply(const float* __restrict__ x, float* __restrict__ out, int n) {{
    int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (n % 4 == 0 && i < n) {{
        float4 v = *reinterpret_cast<const float4*>(x + i);
        *reinterpret_cast<float4*>(out + i) = make_float4(one(v.x), one(v.y), one(v.z), one(v.w));
    }} else {{
        for (int k = i; k < n && k < i + 4; k++) out[k] = one(x[k]);
    }}
}}
"""
_SUM = """__device__ __forceinline__ float block_sum(float v) {
    __shared__ float parts[32];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0.0f;
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    return v;
}
"""
_ROWS_PLAN = """def forward(x):
    rows, cols = x.shape
    out = empty_like(x)
    apply[rows, 256](x, {weights}out, i32(cols){tail})
    return out
"""


@dataclass(frozen=True)
class Sample:
    """One kernel for one task of suite ``core``; its kernel is called ``apply``."""

    task: str
    device: str
    """CUDA C++ of the kernel, without a host part."""
    plan: str
    weights: tuple[tuple[str, str], ...] = ()
    """Weights by name in the reference and in KernelBench's candidate, in the order of the kernel's parameters."""
    by_rows: bool = True
    model: str = ""
    """Body of the constructor of the ``ModelNew``."""
    parameters: str = ""
    tail: str = ""
    """Further arguments of the launch, in C++."""

    @property
    def reply(self) -> str:
        """As a Coder would send it."""
        return f"```cuda\n{self.device}```\n\n```python\n{self.plan}```\n"

    @property
    def load_inline(self) -> str:
        """The same kernel as a KernelBench candidate."""
        names = ["x", *(name for name, _ in self.weights)]
        arguments = ", ".join(f"torch::Tensor {name}" for name in names)
        pointers = ", ".join(f"{name}.data_ptr<float>()" for name in names)
        if self.by_rows:
            shape, last = "x.size(0), 256", "(int)x.size(1)"
        else:
            shape, last = "(x.numel() / 4 + 256) / 256, 256", "(int)x.numel()"
        host = (
            f"torch::Tensor run({arguments}) {{\n    auto out = torch::empty_like(x);\n"
            f"    apply<<<{shape}>>>({pointers}, out.data_ptr<float>(), {last}{self.tail});\n    return out;\n}}\n"
        )
        parameters = ", ".join(["x", *(f"self.{path}" for _, path in self.weights)])
        return _LOAD_INLINE.format(
            cuda=f"#include <torch/extension.h>\n{self.device}{host}",
            cpp=f"torch::Tensor run({arguments});",
            parameters=self.parameters,
            model=self.model or "pass",
            given=parameters,
        )


_LOAD_INLINE = '''import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
{cuda}"""

module = load_inline(
    name="kernelforge_sample", cpp_sources="{cpp}", cuda_sources=CUDA, functions=["run"], verbose=False
)


class ModelNew(nn.Module):
    def __init__(self{parameters}):
        super().__init__()
        {model}

    def forward(self, x):
        return module.run({given})
'''

_ELEMENTWISE_PLAN = """def forward(x):
    out = empty_like(x)
    apply[x.numel() // 1024 + 1, 256](x, out, i32(x.numel()))
    return out
"""


def _elementwise(task: str, body: str) -> Sample:
    function = f"__device__ __forceinline__ float one(float v) {{ {body} }}\n"
    return Sample(task, function + _ELEMENTWISE.format(), _ELEMENTWISE_PLAN, by_rows=False)


SWISH = _elementwise("swish", "return v / (1.0f + expf(-v));")
GELU = _elementwise("gelu", "return 0.5f * v * (1.0f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));")
SOFTMAX = Sample(
    "softmax",
    _SUM
    + """__device__ __forceinline__ float block_max(float v) {
    __shared__ float parts[32];
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : -3.0e38f;
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    __syncthreads();
    return v;
}
__global__ void apply(const float* __restrict__ x, float* __restrict__ out, int cols) {
    const float* row = x + (long long)blockIdx.x * cols;
    float* to = out + (long long)blockIdx.x * cols;
    float most = -3.0e38f, sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) most = fmaxf(most, row[i]);
    most = block_max(most);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += expf(row[i] - most);
    float scale = 1.0f / block_sum(sum);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) to[i] = expf(row[i] - most) * scale;
}
""",
    _ROWS_PLAN.format(weights="", tail=""),
)
LAYERNORM = Sample(
    "layernorm",
    _SUM
    + """__global__ void apply(const float* __restrict__ x, const float* __restrict__ weight,
                      const float* __restrict__ bias, float* __restrict__ out, int cols) {
    const float* row = x + (long long)blockIdx.x * cols;
    float* to = out + (long long)blockIdx.x * cols;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += row[i];
    float mean = block_sum(sum) / cols;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
    float scale = rsqrtf(block_sum(squares) / cols + 1e-5f);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) to[i] = (row[i] - mean) * scale * weight[i] + bias[i];
}
""",
    _ROWS_PLAN.format(weights='w["norm.weight"], w["norm.bias"], ', tail=""),
    weights=(("weight", "norm.weight"), ("bias", "norm.bias")),
    model="self.norm = nn.LayerNorm(features)",
    parameters=", features",
)
SAMPLES = (SWISH, GELU, SOFTMAX, LAYERNORM)

_MODEL = """import torch
import torch.nn as nn
{imports}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
{init}
    def forward(self, x):
{forward}
"""
TRITON = _MODEL.format(
    imports="""import triton
import triton.language as tl


@triton.jit
def swish(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(out + at, v * tl.sigmoid(v), mask=at < n)

""",
    init="",
    forward="""        out = torch.empty_like(x)
        swish[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
        return out""",
)
CUPY = _MODEL.format(
    imports='''import cupy

KERNEL = cupy.RawKernel(r"""
extern "C" __global__ void swish(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] / (1.0f + expf(-x[i]));
}
""", "swish")

''',
    init="",
    forward="""        out, n = torch.empty_like(x), x.numel()
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            KERNEL(((n + 255) // 256,), (256,), (cupy.from_dlpack(x.detach()), cupy.from_dlpack(out), cupy.int32(n)))
        return out""",
)
COMPILED = _MODEL.format(
    imports="",
    init="        self.compiled = torch.compile(lambda v: v * torch.sigmoid(v))\n",
    forward="        return self.compiled(x)",
)
PLAIN = _MODEL.format(imports="", init="", forward="        return x * torch.sigmoid(x)")
MODELNEW = {
    "plain torch": PLAIN,
    "load_inline": SWISH.load_inline,
    "triton": TRITON,
    "cupy RawKernel": CUPY,
    "torch.compile": COMPILED,
}
"""Ways to write a ``ModelNew`` for task ``swish``."""
