"""Vector times matrix of 3-bit weights in one stream of bits.

Weights of a width that is no power of two, as in Y. Ding et al., "Tilus: A Tile-Level GPGPU Programming Language for
Low-Precision Computation", 2025, arXiv:2504.12984, which has widths from 1 to 8. With K = GROUPS * GROUP: x is (K) in
float16; packed is (OUT, WORDS) in int32, WORDS = ceil(3 K / 32). A row is a stream of bits, from the lowest bit of its
first word on: code k has bits 3 k to 3 k + 2, so every tenth code or so lies in two words. scales (OUT, GROUPS) in
float16 belong to GROUP neighbouring columns.

    out = W x    with W[n, k] = (code[n, k] - 4) * scales[n, k // GROUP]

The output is (OUT) in float16, accumulated in float32.
"""

import torch
import torch.nn as nn

OUT = 16384
GROUPS = 64
GROUP = 128

BITS = 3


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shifts", torch.arange(8, dtype=torch.uint8))

    def forward(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        out_features, groups = scales.shape
        # The bytes of a word, lowest first, hold its bits in order, and the bits of a row those of all its codes.
        bits = ((packed.view(torch.uint8).unsqueeze(-1) >> self.shifts) & 1).flatten(1)
        bits = bits[:, : x.shape[0] * BITS].unflatten(1, (-1, BITS))
        codes = (bits << self.shifts[:BITS]).sum(dim=-1, dtype=torch.uint8)
        weight = (codes.to(x.dtype) - 4.0).view(out_features, groups, -1) * scales.unsqueeze(-1)
        return torch.mv(weight.view(out_features, -1), x)


def get_inputs():
    x = torch.randn(GROUPS * GROUP, dtype=torch.float16)
    words = (GROUPS * GROUP * BITS + 31) // 32
    packed = torch.randint(-(2**31), 2**31, (OUT, words), dtype=torch.int32)
    return [x, packed, torch.randn(OUT, GROUPS, dtype=torch.float16) * 0.05]


def get_init_inputs():
    return []
