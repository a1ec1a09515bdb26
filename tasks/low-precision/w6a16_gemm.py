"""Product with signed 6-bit weights, four in three bytes.

A width of Y. Ding et al., "Tilus: A Tile-Level GPGPU Programming Language for Low-Precision Computation", 2025,
arXiv:2504.12984. x is (TOKENS, 4 QUADS) in bfloat16; packed is (OUT, QUADS, 3) in uint8: three bytes are 24 bits, the
first byte the lowest of them, and column 4 q + i has bits 6 i to 6 i + 5, a two's complement number from -32 to 31.
scales (OUT) are float32.

    out[t, n] = scales[n] * sum over k of x[t, k] code[n, k]

The output is (TOKENS, OUT) in bfloat16, accumulated in float32.
"""

import torch
import torch.nn as nn

TOKENS = 64
OUT = 14336
QUADS = 2048


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shifts", torch.arange(0, 24, 6, dtype=torch.int32))

    def forward(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        first, second, third = packed.int().unbind(dim=-1)
        bits = first | second << 8 | third << 16
        codes = (bits.unsqueeze(-1) >> self.shifts) & 63
        # 32 to 63 stand for -32 to -1.
        codes = (codes ^ 32) - 32
        product = torch.matmul(x, codes.flatten(1).to(x.dtype).t())
        return (product * scales).to(x.dtype)


def get_inputs():
    x = torch.randn(TOKENS, QUADS * 4, dtype=torch.bfloat16)
    packed = torch.randint(0, 256, (OUT, QUADS, 3), dtype=torch.uint8)
    return [x, packed, torch.rand(OUT) * 0.01 + 0.001]


def get_init_inputs():
    return []
