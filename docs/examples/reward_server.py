"""Start a reward server, score a group of completions, and turn the rewards into advantages, as GRPO does."""

import subprocess
import sys
import tempfile

from kernelforge.client import Client
from kernelforge.rewards.advantages import leave_one_out

KERNEL = """
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
COMPLETIONS = [KERNEL, KERNEL.replace("256", "128"), KERNEL.replace("expf(-x[i])", "x[i]"), "I cannot do that."]

with tempfile.TemporaryDirectory() as results:
    command = [sys.executable, "-m", "kernelforge", "serve", "--device", "emulated:h100", "--port", "0"]
    server = subprocess.Popen([*command, "--results", results], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = next(word for line in server.stderr for word in line.split() if word.startswith("http://")).strip(",")
        with Client(address) as client:
            requests = [{"task": "core/swish", "completion": text, "run_id": "example"} for text in COMPLETIONS]
            scored = client.score_many(requests)
    finally:
        server.terminate()
        server.communicate()

for result in scored:
    print(result.outcome, result.verdict, result.reward)
advantages = leave_one_out([result.reward for result in scored])
print("advantages:", [None if value is None else round(value, 3) for value in advantages])
