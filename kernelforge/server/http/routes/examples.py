"""Example bodies for the OpenAPI page."""

from __future__ import annotations

from typing import Any

SOURCE = """extern "C" __global__ void swish(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] / (1.0f + expf(-x[i]));
}
"""
PLAN = """def forward(x):
    y = empty_like(x)
    swish[ceil_div(x.numel(), 256), 256](x, y, i32(x.numel()))
    return y
"""
REPLY = f"```cuda\n{SOURCE}```\n\n```python\n{PLAN}```"

JOB = {"task": "core/swish", "completion": REPLY, "run_id": "grpo-7", "policy_version": 12}


def examples(**values: Any) -> dict[str, Any]:
    """Named examples of one body."""
    return {name: {"value": value} for name, value in values.items()}


SUBMIT = examples(
    completion=JOB,
    candidate={
        "task": "core/swish",
        "candidate": {"source": SOURCE, "plan": PLAN},
        "deadline_s": 120,
        "priority": 5,
    },
)
BATCH = examples(group={"jobs": [JOB, {**JOB, "tag": "sample 2"}], "idempotency_keys": ["step7-0", "step7-1"]})
WAIT = examples(any_two={"ids": ["01JADE", "01JOLT", "01JUMP"], "k": 2, "timeout_s": 30})
WATCH = examples(two={"ids": ["01JADE", "01JOLT"]})
CANCEL = examples(jobs={"ids": ["01JADE"]}, stale={"run_id": "grpo-7", "older_than": 11})
RUN = examples(half_share={"weight": 0.5, "min_policy_version": 11})
