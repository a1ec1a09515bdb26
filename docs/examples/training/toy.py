"""A model of a few thousand weights that writes kernels in ready pieces, and a reward server without a GPU for it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kernelforge.client import Client

SUITE = Path(__file__).parent / "small"
TASK = "small/rmsnorm"
PROMPT = "Write a CUDA kernel for small/rmsnorm.\n"

SLOW = """```cuda
__global__ void rmsnorm(const float* x, const float* w, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* from = x + (long long)row * cols;
    float sum = 0.0f;
    for (int i = 0; i < cols; ++i) sum += from[i] * from[i];
    float scale = rsqrtf(sum / cols + 1e-5f);
    for (int i = 0; i < cols; ++i) out[(long long)row * cols + i] = from[i] * scale * w[i];
}
```
"""
"""A thread for each row: right, and far from what the memory could do."""
FAST = """```cuda
__global__ void rmsnorm(const float* x, const float* w, float* out, int rows, int cols) {
    __shared__ float partial[256];
    const float* from = x + (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 256) sum += from[i] * from[i];
    partial[threadIdx.x] = sum;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    __syncthreads();
    float scale = rsqrtf(partial[0] / cols + 1e-5f);
    for (int i = threadIdx.x; i < cols; i += 256) out[(long long)blockIdx.x * cols + i] = from[i] * scale * w[i];
}
```
"""
"""A block for each row."""
WITHOUT_WEIGHT = FAST.replace(" * w[i]", "")
RACE = FAST.replace("        __syncthreads();\n", "")
PLAN = """```python
def forward(x):
    out = empty_like(x)
    rows, cols = x.shape
    rmsnorm[{grid}](x, w["weight"], out, i32(rows), i32(cols))
    return out
```
"""
PLAN_OF_THREADS = PLAN.format(grid="ceil_div(rows, 128), 128")
PLAN_OF_BLOCKS = PLAN.format(grid="rows, 256")
LIBRARY_CALL = "```python\ndef forward(x):\n    return torch.nn.functional.rms_norm(x, x.shape[-1:])\n```\n"
PROSE = "Here is the kernel.\n"

VERDICTS = ("OK", "WRONG", "POLICY", "BUILD", "CRASH", "TIMEOUT", "LIMIT")
PIECES = (SLOW, FAST, WITHOUT_WEIGHT, RACE, PLAN_OF_THREADS, PLAN_OF_BLOCKS, LIBRARY_CALL, PROSE)
LONGEST = 3
"""Tokens of a completion: two pieces and the end."""


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each piece, each verdict and the prompt; other text is unknown to it."""
    words = ["<pad>", "<eos>", "<unk>", PROMPT, *VERDICTS, *PIECES]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(map(re.escape, words))), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template="{% for message in messages %}{{ message.content }}{% endfor %}"
        "{% if messages[-1].role == 'assistant' %}<eos>{% endif %}",
    )


def model(seed: int) -> LlamaForCausalLM:
    """Random weights."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4 + len(VERDICTS) + len(PIECES),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )


@contextlib.contextmanager
def reward_server(results: Path) -> Iterator[Client]:
    """``kernelforge serve`` on the emulated device, whose address adapters find in the environment."""
    command = [sys.executable, "-m", "kernelforge", "serve", "--device", "emulated:h100", "--port", "0"]
    command += ["--suite", str(SUITE), "--results", str(results)]
    log = results / "server.log"
    with log.open("w") as stderr:
        server = subprocess.Popen(command, stderr=stderr)
    try:
        while not (address := re.search(r"http://[\d.:]+", log.read_text())):
            if server.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.1)
        os.environ["KERNELFORGE_SERVER"] = address[0]
        with Client() as client:
            yield client
    finally:
        server.terminate()
        server.wait()


class Shares(NamedTuple):
    """Of one step's completions."""

    correct: float
    fast: float
    """Of the correct ones."""


def shares(client: Client, steps: Sequence[Sequence[str]]) -> list[Shares]:
    """Shares of every step by the server's evaluations, which are cached. Fast is faster than eager PyTorch beyond the
    model's error: the lower end of the predicted speedup is above 1.
    """
    texts = sorted({text for step in steps for text in step})
    results = client.score_many([{"task": TASK, "completion": text, "profile": True} for text in texts])
    result_of = dict(zip(texts, results, strict=True))
    counted = []
    for step in steps:
        correct = [result_of[text] for text in step if result_of[text].components.correct]
        fast = [result for result in correct if (result.components.predicted_lower or 0.0) > 1]
        counted.append(Shares(len(correct) / len(step), len(fast) / len(correct) if correct else 0.0))
    return counted
