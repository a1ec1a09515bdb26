"""Product of 4-bit activations and 4-bit weights.

The part in 4 bits of L. Liu et al., "COMET: Towards Practical W4A4KV4 LLMs Serving", 2024, arXiv:2410.12168, which
quantises activations by blocks of 128 channels. With K = BLOCKS * BLOCK: x (TOKENS, K / 2) and weight (OUT, K / 2) are
uint8 and hold two numbers from -8 to 7 in two's complement, the even column in the low four bits; x_scale
(TOKENS, BLOCKS) and weight_scale (OUT, BLOCKS) in bfloat16 belong to BLOCK neighbouring columns.

    out[t, n] = sum over blocks b of x_scale[t, b] weight_scale[n, b] * sum over k in b of x[t, k] weight[n, k]

The output is (TOKENS, OUT) in bfloat16; the sums of a block are integers, those over blocks accumulated in float32.
"""

import torch
import torch.nn as nn

TOKENS = 2048
OUT = 8192
BLOCKS = 32
BLOCK = 128


class Model(nn.Module):
    def forward(
        self, x: torch.Tensor, x_scale: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor
    ) -> torch.Tensor:
        return torch.matmul(self.values(x, x_scale), self.values(weight, weight_scale).t()).to(x_scale.dtype)

    def values(self, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).to(torch.int8)
        # 8 to 15 stand for -8 to -1.
        numbers = (nibbles ^ 8) - 8
        wide = scale.to(torch.promote_types(scale.dtype, torch.float32))
        return (numbers.unflatten(1, (scale.shape[1], -1)) * wide.unsqueeze(-1)).flatten(1)


def get_inputs():
    columns = BLOCKS * BLOCK
    x = torch.randint(0, 256, (TOKENS, columns // 2), dtype=torch.uint8)
    weight = torch.randint(0, 256, (OUT, columns // 2), dtype=torch.uint8)
    x_scale = torch.rand(TOKENS, BLOCKS, dtype=torch.bfloat16) * 0.5 + 0.05
    return [x, x_scale, weight, torch.rand(OUT, BLOCKS, dtype=torch.bfloat16) * 0.02 + 0.001]


def get_init_inputs():
    return []
