"""Product with 8-bit floating weights (E5M2).

The widest of Y. Ding et al., "Tilus: A Tile-Level GPGPU Programming Language for Low-Precision Computation", 2025,
arXiv:2504.12984, in the format E5M2 of P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022, arXiv:2209.05433,
section 3: one bit of sign, five of exponent with bias 15, two of mantissa, subnormals. With K = GROUPS * GROUP: x is
(TOKENS, K) in float16; weight (OUT, K) holds the numbers as their bytes, uint8, and none of exponent 31, which are
infinities and NaN; scales (OUT, GROUPS) in float16 belong to GROUP neighbouring columns.

    out = x W^T    with W[n, k] = e5m2(weight[n, k]) * scales[n, k // GROUP]

The output is (TOKENS, OUT) in float16, accumulated in float32.
"""

import torch
import torch.nn as nn

TOKENS = 16
OUT = 16384
GROUPS = 64
GROUP = 128


def e5m2(code: int) -> float:
    """The number that a byte stands for; 0 for infinities and NaN."""
    sign, exponent, mantissa = -1.0 if code & 128 else 1.0, code >> 2 & 31, code & 3
    if exponent == 31:
        return 0.0
    return sign * (mantissa / 4 * 2.0**-14 if exponent == 0 else (1 + mantissa / 4) * 2.0 ** (exponent - 15))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.tensor([e5m2(code) for code in range(256)]))

    def forward(self, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        numbers = self.table[weight.int()].to(x.dtype).unflatten(1, (scales.shape[1], -1))
        return torch.matmul(x, (numbers * scales.unsqueeze(-1)).flatten(1).t())


def get_inputs():
    x = torch.randn(TOKENS, GROUPS * GROUP, dtype=torch.float16)
    # Groups of very different size, down to subnormal numbers, with scales that make up for it.
    spread = 2.0 ** torch.randint(-14, 10, (OUT, GROUPS, 1))
    numbers = torch.randn(OUT, GROUPS, GROUP) * spread
    scales = (torch.rand(OUT, GROUPS) * 0.02 + 0.005) / spread.squeeze(-1)
    weight = numbers.flatten(1).to(torch.float8_e5m2).view(torch.uint8)
    return [x, weight, scales.to(torch.float16)]


def get_init_inputs():
    return []
