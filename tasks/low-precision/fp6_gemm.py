"""Product with FP6 (E3M2) weights, stored as 2 and 4 bits.

H. Xia et al., "FP6-LLM: Efficiently Serving Large Language Models Through FP6-Centric Algorithm-System Co-Design",
2024, arXiv:2401.14112; the format is that of the "OCP Microscaling Formats (MX) Specification", version 1.0, 2023: one
bit of sign, three of exponent with bias 3, two of mantissa, subnormals, neither infinities nor NaN. x is
(TOKENS, 4 QUADS) in float16. high (OUT, QUADS) and low (OUT, 2 QUADS) are uint8 and have the two highest and the four
lowest bits of each code; the first column of a byte lies in its lowest bits. scales (OUT) are float16.

    out = x W^T    with W[n, k] = e3m2(code[n, k]) * scales[n]

The output is (TOKENS, OUT) in float16, accumulated in float32.
"""

import torch
import torch.nn as nn

TOKENS = 16
OUT = 16384
QUADS = 2048


def e3m2(code: int) -> float:
    """The number that a code of six bits stands for."""
    sign, exponent, mantissa = -1.0 if code & 32 else 1.0, code >> 2 & 7, code & 3
    return sign * (mantissa / 4 * 2.0**-2 if exponent == 0 else (1 + mantissa / 4) * 2.0 ** (exponent - 3))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.tensor([e3m2(code) for code in range(64)]))

    def forward(self, x: torch.Tensor, high: torch.Tensor, low: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        pairs = torch.stack((high & 3, high >> 2 & 3, high >> 4 & 3, high >> 6), dim=-1).flatten(1)
        nibbles = torch.stack((low & 15, low >> 4), dim=-1).flatten(1)
        weight = self.table[(pairs << 4 | nibbles).int()].to(x.dtype) * scales.unsqueeze(1)
        return torch.matmul(x, weight.t())


def get_inputs():
    x = torch.randn(TOKENS, QUADS * 4, dtype=torch.float16)
    high = torch.randint(0, 256, (OUT, QUADS), dtype=torch.uint8)
    low = torch.randint(0, 256, (OUT, QUADS * 2), dtype=torch.uint8)
    return [x, high, low, torch.rand(OUT, dtype=torch.float16) * 0.01 + 0.001]


def get_init_inputs():
    return []
