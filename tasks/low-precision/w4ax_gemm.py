"""Product of activations in blocks of 4 and of 8 bits with 4-bit weights.

L. Liu et al., "COMET: Towards Practical W4A4KV4 LLMs Serving", 2024, arXiv:2410.12168: most blocks of 128 channels are
quantised to 4 bits, those with outliers to 8, and one kernel multiplies both by weights of 4 bits. There are NARROW
blocks of 4 bits and WIDE ones of 8, of BLOCK channels each. narrow (NARROW, TOKENS, BLOCK / 2) is uint8 and holds two
numbers from -8 to 7 in two's complement, the even channel in the low four bits; wide (WIDE, TOKENS, BLOCK) is int8.
slots (NARROW + WIDE) in int32 says for each block of channels where it lies: slot s < NARROW is narrow[s], any other is
wide[s - NARROW]. x_scale (TOKENS, NARROW + WIDE) and weight_scale (OUT, NARROW + WIDE) in float16 belong to the blocks
of channels; weight (OUT, (NARROW + WIDE) * BLOCK / 2) in uint8 holds its numbers as narrow does, in the order of the
channels.

    out[t, n] = sum over blocks b of x_scale[t, b] weight_scale[n, b] * sum over c of x[slots[b]][t, c] weight[n, b, c]

The output is (TOKENS, OUT) in float16; the sums of a block are integers, those over blocks accumulated in float32.
"""

import torch
import torch.nn as nn

TOKENS = 2048
OUT = 8192
NARROW = 28
WIDE = 4
BLOCK = 128


def numbers(packed: torch.Tensor) -> torch.Tensor:
    """Two numbers in two's complement of each byte along the last axis, in int8."""
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).to(torch.int8)
    # 8 to 15 stand for -8 to -1.
    return (nibbles ^ 8) - 8


class Model(nn.Module):
    def forward(
        self,
        narrow: torch.Tensor,
        wide: torch.Tensor,
        slots: torch.Tensor,
        x_scale: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
    ) -> torch.Tensor:
        blocks = torch.cat((numbers(narrow), wide))[slots]
        kind = torch.promote_types(x_scale.dtype, torch.float32)
        x = blocks.transpose(0, 1) * x_scale.to(kind).unsqueeze(-1)
        columns = numbers(weight).unflatten(1, (slots.shape[0], -1)) * weight_scale.to(kind).unsqueeze(-1)
        return torch.matmul(x.flatten(1), columns.flatten(1).t()).to(x_scale.dtype)


def get_inputs():
    blocks = NARROW + WIDE
    narrow = torch.randint(0, 256, (NARROW, TOKENS, BLOCK // 2), dtype=torch.uint8)
    wide = torch.randint(-128, 128, (WIDE, TOKENS, BLOCK), dtype=torch.int8)
    slots = torch.randperm(blocks).to(torch.int32)
    x_scale = torch.rand(TOKENS, blocks, dtype=torch.float16) * 0.1 + 0.01
    weight = torch.randint(0, 256, (OUT, blocks * BLOCK // 2), dtype=torch.uint8)
    weight_scale = torch.rand(OUT, blocks, dtype=torch.float16) * 0.02 + 0.001
    return [narrow, wide, slots, x_scale, weight, weight_scale]


def get_init_inputs():
    return []
