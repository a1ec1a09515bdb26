"""Evaluate a kernel that you wrote against one task: build, correctness at every size, profile."""

import kernelforge

REPLY = """
```cuda
__global__ void swish(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] / (1.0f + expf(-x[i]));
}
```
```python
def forward(x):
    out = empty_like(x)
    n = x.numel()
    swish[ceil_div(n, 256), 256](x, out, i32(n))
    return out
```
"""

result = kernelforge.evaluate("core/swish", REPLY, device="emulated:h100", seed=1)
print("verdict:", result.evaluation.verdict)
assert result.profile is not None
for metric in result.profile.metrics:
    if metric.name in ("dram__bytes.sum", "kernelforge__launches"):
        print(f"{metric.name}: {metric.value:,.0f} {metric.unit} ({metric.origin})")

wrong = kernelforge.evaluate("core/swish", REPLY.replace("1.0f +", "2.0f +"), device="emulated:h100", seed=1)
print("verdict:", wrong.evaluation.verdict)
print("reason:", wrong.evaluation.reason)
