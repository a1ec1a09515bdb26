"""Product of 8-bit activations and 4-bit weights with zero points.

The part in 8 bits of L. Liu et al., "COMET: Towards Practical W4A4KV4 LLMs Serving", 2024, arXiv:2410.12168. With K =
GROUPS * GROUP: x (TOKENS, K) is int8 and x_scale (TOKENS) float32; packed is (OUT, K / 8) in int32, bits 4 i to 4 i + 3
of word j holding the weight of column 8 j + i; zeros (OUT, GROUPS) in uint8, 0 to 15, and scales (OUT, GROUPS) in
bfloat16 belong to GROUP neighbouring columns.

    out[t, n] = x_scale[t] * sum over k of x[t, k] (nibble[n, k] - zeros[n, k // GROUP]) scales[n, k // GROUP]

The output is (TOKENS, OUT) in bfloat16; the sums of a group are integers, those over groups accumulated in float32.
"""

import torch
import torch.nn as nn

TOKENS = 2048
OUT = 8192
GROUPS = 32
GROUP = 128


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shifts", torch.arange(0, 32, 4, dtype=torch.int32))

    def forward(
        self, x: torch.Tensor, x_scale: torch.Tensor, packed: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor
    ) -> torch.Tensor:
        out_features, groups = scales.shape
        # A shift of a negative word brings in ones from the left; the mask takes them away.
        nibbles = ((packed.unsqueeze(-1) >> self.shifts) & 15).view(out_features, groups, -1)
        weight = (nibbles - zeros.unsqueeze(-1)) * scales.to(x_scale.dtype).unsqueeze(-1)
        product = torch.matmul(x.to(x_scale.dtype), weight.view(out_features, -1).t())
        return (product * x_scale.unsqueeze(1)).to(scales.dtype)


def get_inputs():
    x = torch.randint(-128, 128, (TOKENS, GROUPS * GROUP), dtype=torch.int8)
    x_scale = torch.rand(TOKENS) * 0.05 + 0.005
    packed = torch.randint(-(2**31), 2**31, (OUT, GROUPS * GROUP // 8), dtype=torch.int32)
    zeros = torch.randint(0, 16, (OUT, GROUPS), dtype=torch.uint8)
    return [x, x_scale, packed, zeros, torch.randn(OUT, GROUPS, dtype=torch.bfloat16) * 0.01]


def get_init_inputs():
    return []
