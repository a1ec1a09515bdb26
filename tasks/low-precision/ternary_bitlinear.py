"""Ternary BitLinear with fused RMSNorm and int8 activations.

R.-J. Zhu et al., "Scalable MatMul-free Language Modeling", 2024, arXiv:2406.02528, section 3 and algorithm 1: a dense
layer whose weights are -1, 0 or 1, of activations that are normalised and quantised by their largest number on the way
in. x is (TOKENS, IN) in bfloat16; packed is (OUT, ceil(IN / 16)) in int32, and column k has bits 2 (k % 16) and the
next of word k // 16, 0 to 2 for weights from -1 to 1, never 3; scale (1) in float32. The norm's weight (IN) is a
parameter in float32. For each token:

    y   = x / sqrt(mean(x^2) + EPS) * weight
    m   = max(max |y|, 1e-5)
    q   = y * 127 / m, rounded to the nearest integer, halves to even
    out = scale * m / 127 * W q

The output is (TOKENS, OUT) in bfloat16; the sums are integers. Where y * 127 / m is near a half, another order of
roundings gives another integer. That moves a result by 1 / (40 sqrt(IN)) of its size, or by 1 / (6 sqrt(IN)) where
one number is 20 times as large as the others, which bfloat16 hides unless IN is small and such a half occurs.
"""

import torch
import torch.nn as nn

TOKENS = 256
IN = 8192
OUT = 8192
EPS = 1e-6


class Model(nn.Module):
    def __init__(self, features: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))
        self.register_buffer("shifts", torch.arange(0, 32, 2, dtype=torch.int32))

    def forward(self, x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        wide = x.to(self.weight.dtype)
        y = wide * torch.rsqrt(wide.square().mean(dim=1, keepdim=True) + self.eps) * self.weight
        largest = y.abs().amax(dim=1, keepdim=True).clamp_min(1e-5)
        codes = torch.round(y * (127.0 / largest))
        ternary = ((packed.unsqueeze(-1) >> self.shifts) & 3).flatten(1)[:, : x.shape[1]] - 1
        sums = torch.matmul(codes, ternary.to(codes.dtype).t())
        return (sums * (largest / 127.0) * scale).to(x.dtype)


def get_inputs():
    # Three of four codes occur in weights: 0, 1 and 2.
    words = (IN + 15) // 16
    codes = torch.randint(0, 3, (OUT, words, 16), dtype=torch.uint8)
    packed = torch.zeros(OUT, words, dtype=torch.int32)
    for i in range(16):
        packed |= codes[:, :, i].int() << 2 * i
    # One token in eight is so small that EPS counts. Half of the tokens have an outlier, often in the last channel.
    x = torch.randn(TOKENS, IN)
    channel = torch.where(torch.rand(TOKENS, 1) < 0.5, IN - 1, torch.randint(0, IN, (TOKENS, 1)))
    x.scatter_(1, channel, x.gather(1, channel) + 20.0 * torch.randint(0, 2, (TOKENS, 1)))
    x = x * torch.where(torch.rand(TOKENS, 1) < 1 / 8, 1e-7, 1.0)
    return [x.to(torch.bfloat16), packed, torch.rand(1) * 0.05 + 0.01]


def get_init_inputs():
    return [IN, EPS]
