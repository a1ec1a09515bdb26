"""Keys and values from a cache of quantised layer inputs.

A. Tomar et al., "XQuant: Breaking the Memory Wall for LLM Inference with KV Cache Rematerialization", 2025,
arXiv:2508.10395: the cache holds the inputs of a layer in few bits, and keys and values are computed from them when
attention needs them. With HIDDEN = GROUPS * GROUP: packed is (TOKENS, HIDDEN / 2) in uint8 and holds two codes of 4
bits each, the even channel in the low four bits; scale and least (TOKENS, GROUPS) in float16 belong to GROUP
neighbouring channels of a token. The projections key and value (WIDTH, HIDDEN) are parameters in float16.

    x = code * scale + least,    keys = x key^T,    values = x value^T

The outputs are keys and values, (TOKENS, WIDTH) each, in float16, accumulated in float32.
"""

import torch
import torch.nn as nn

TOKENS = 8192
GROUPS = 32
GROUP = 128
WIDTH = 1024


class Model(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.key = nn.Parameter(torch.randn(width, hidden, dtype=torch.float16) * 0.02)
        self.value = nn.Parameter(torch.randn(width, hidden, dtype=torch.float16) * 0.02)

    def forward(
        self, packed: torch.Tensor, scale: torch.Tensor, least: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).to(scale.dtype)
        x = codes.unflatten(1, (scale.shape[1], -1)) * scale.unsqueeze(-1) + least.unsqueeze(-1)
        x = x.flatten(1)
        return torch.matmul(x, self.key.t()), torch.matmul(x, self.value.t())


def get_inputs():
    packed = torch.randint(0, 256, (TOKENS, GROUPS * GROUP // 2), dtype=torch.uint8)
    scale = torch.rand(TOKENS, GROUPS) * 0.3 + 0.05
    least = -7.5 * scale + torch.randn(TOKENS, GROUPS) * 0.2
    return [packed, scale.to(torch.float16), least.to(torch.float16)]


def get_init_inputs():
    return [GROUPS * GROUP, WIDTH]
