"""Quantisation to MXFP4 after a Hadamard rotation.

What a forward pass of R. L. Castro et al., "Quartet: Native FP4 Training Can Be Optimal for Large Language Models",
2025, arXiv:2505.14669, does to an operand: each block of 32 numbers is multiplied by a Hadamard matrix, which spreads
outliers, and becomes codes E2M1 under a scale E8M0 ("OCP Microscaling Formats (MX) Specification", version 1.0, 2023,
section 6.3). x is (ROWS, 32 BLOCKS) in bfloat16, and no number of it reaches 2^100. For each block b of x:

    m       = floor(log2(max |b|)), max |b| being taken as 2^-100 where it is less
    g       = b * 2^(14 - m), rounded to the nearest integer, halves to even
    r       = H g    with H[i, j] = (-1)^popcount(i & j)
    e       = floor(log2(max |r|)) - 2, max |r| being taken as 1 where it is less
    code    = the E2M1 number nearest to r * 2^-e, of two that are equally near the one with an even code, at most 6

Outputs: codes in uint8 (ROWS, 16 BLOCKS), bit 3 of a code its sign and the first column of a byte in its
low half (a number that becomes 0 has code 0 or 8 as r is signed, and r = 0 has code 0); and e + m + 113 in uint8
(ROWS, BLOCKS), the scale with bias 127 of r * 2^(m - 14). H is not divided by sqrt(32): a product of two rotated
operands is 32 times as large, exactly. Sums of g are exact in float32 in any order, so that codes are determined to
the bit; of bfloat16 numbers within 2^7 of the largest of the block, g loses nothing.
"""

import torch
import torch.nn as nn

ROWS = 16384
BLOCKS = 256
BLOCK = 32

MIDDLES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
"""Numbers that are equally near to two codes: the first to 0 and 1 (0 and 0.5), the last to 6 and 7 (4 and 6)."""


def hadamard(side: int) -> torch.Tensor:
    signs = [[-1.0 if (row & column).bit_count() % 2 else 1.0 for column in range(side)] for row in range(side)]
    return torch.tensor(signs)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("signs", hadamard(BLOCK))
        self.register_buffer("middles", torch.tensor(MIDDLES))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = x.to(self.signs.dtype).unflatten(1, (-1, BLOCK))
        # torch.frexp gives a fraction from 1/2 to 1 and an exponent that is one more than floor(log2).
        largest = blocks.abs().amax(dim=-1, keepdim=True).clamp_min(2.0**-100)
        fraction, first = torch.frexp(largest)
        grid = (blocks / (largest / fraction) * 2.0**15).round()
        rotated = torch.matmul(grid, self.signs)
        largest = rotated.abs().amax(dim=-1, keepdim=True).clamp_min(1.0)
        fraction, second = torch.frexp(largest)
        scaled = rotated / (largest / fraction) * 8.0
        # A number in the middle goes down to an even code, and up from an odd one.
        size = scaled.abs().unsqueeze(-1)
        codes = (size[..., 0:1] > self.middles[0::2]).sum(-1) + (size[..., 0:1] >= self.middles[1::2]).sum(-1)
        codes = codes + 8 * (scaled < 0)
        pairs = codes.flatten(1).unflatten(1, (-1, 2)).to(torch.uint8)
        packed = pairs[..., 0] | pairs[..., 1] << 4
        return packed, (first + second + 109).squeeze(-1).to(torch.uint8)


def get_inputs():
    # Rows of very different size, some of whose columns are outliers.
    spread = 2.0 ** torch.randint(-8, 9, (ROWS, 1))
    outliers = 1.0 + 15.0 * (torch.rand(BLOCKS * BLOCK) < 0.03)
    x = torch.randn(ROWS, BLOCKS * BLOCK) * spread * outliers
    # In one block of sixteen the last number makes all others vanish, and every result is in the middle of two codes.
    alone = torch.rand(ROWS, BLOCKS, 1) < 1 / 16
    blocks = torch.where(alone, x.unflatten(1, (BLOCKS, BLOCK)) * 2.0**-20, x.unflatten(1, (BLOCKS, BLOCK)))
    blocks[..., -1:] = torch.where(alone, 5.0 * spread.unsqueeze(-1), blocks[..., -1:])
    return [blocks.flatten(1).to(torch.bfloat16)]


def get_init_inputs():
    return []
