"""Product with 5-bit weights and zero points in one stream of bits.

A width of Y. Ding et al., "Tilus: A Tile-Level GPGPU Programming Language for Low-Precision Computation", 2025,
arXiv:2504.12984. With K = GROUPS * GROUP: x is (TOKENS, K) in bfloat16; packed is (OUT, WORDS) in int32, WORDS =
ceil(5 K / 32). A row is a stream of bits, from the lowest bit of its first word on: code k has bits 5 k to 5 k + 4, in
one word or in two. scales (OUT, GROUPS) in bfloat16 and zeros (OUT, GROUPS) in uint8, 0 to 31, belong to GROUP
neighbouring columns.

    out = x W^T    with W[n, k] = (code[n, k] - zeros[n, k // GROUP]) * scales[n, k // GROUP]

The output is (TOKENS, OUT) in bfloat16, accumulated in float32.
"""

import torch
import torch.nn as nn

TOKENS = 16
OUT = 16384
GROUPS = 64
GROUP = 128

BITS = 5


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shifts", torch.arange(8, dtype=torch.uint8))

    def forward(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
        out_features, groups = scales.shape
        # The bytes of a word, lowest first, hold its bits in order, and the bits of a row those of all its codes.
        bits = ((packed.view(torch.uint8).unsqueeze(-1) >> self.shifts) & 1).flatten(1)
        bits = bits[:, : x.shape[1] * BITS].unflatten(1, (-1, BITS))
        codes = (bits << self.shifts[:BITS]).sum(dim=-1, dtype=torch.uint8)
        codes = codes.to(x.dtype).view(out_features, groups, -1)
        weight = (codes - zeros.unsqueeze(-1)) * scales.unsqueeze(-1)
        return torch.matmul(x, weight.view(out_features, -1).t())


def get_inputs():
    x = torch.randn(TOKENS, GROUPS * GROUP, dtype=torch.bfloat16)
    words = (GROUPS * GROUP * BITS + 31) // 32
    packed = torch.randint(-(2**31), 2**31, (OUT, words), dtype=torch.int32)
    scales = torch.randn(OUT, GROUPS, dtype=torch.bfloat16) * 0.01
    zeros = torch.randint(0, 32, (OUT, GROUPS), dtype=torch.uint8)
    return [x, packed, scales, zeros]


def get_init_inputs():
    return []
