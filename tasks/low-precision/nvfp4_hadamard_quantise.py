"""Quantisation to NVFP4 after a Hadamard rotation.

What NVIDIA, "Pretraining Large Language Models with NVFP4", 2025, arXiv:2509.25149, do to an operand, but for the
random signs: each block of 16 numbers is multiplied by a Hadamard matrix, which spreads outliers, and becomes codes
E2M1 under a scale E4M3, with one float32 scale of the tensor. x is (ROWS, 16 BLOCKS) in bfloat16; some number of it
reaches 2^-100, and none 2^100. For each block b of x:

    m       = floor(log2(max |b|)); if all of b is 0, so is r
    g       = b * 2^(14 - m), rounded to the nearest integer, halves to even
    r       = H g * 2^(m - 16)    with H[i, j] = (-1)^popcount(i & j)

so that r is b times H / sqrt(16), and then, every operation one of float32, correctly rounded:

    encode  = 2688 / max |r| over the whole tensor; 2688 = 6 * 448
    decode  = 1 / encode
    scale   = the E4M3 number nearest to (max |r| of the block / 6) * encode, halves to even
    code    = the E2M1 number nearest to r * (1 / (scale * decode)), of two that are equally near the one with an even
              code, at most 6; 0 where the scale is 0

Outputs: codes in uint8 (ROWS, 8 BLOCKS), bit 3 of a code its sign and the first column of a byte in its low half (a
number that becomes 0 has code 0 or 8 as r is signed, and r = 0 has code 0); scales as their bytes in uint8
(ROWS, BLOCKS); and decode in float32 (1). Sums of g are exact in float32 in any order, so that codes are determined to
the bit; of bfloat16 numbers within 2^7 of the largest of the block, g loses nothing.
"""

import torch
import torch.nn as nn

ROWS = 16384
BLOCKS = 512
BLOCK = 16

MIDDLES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
"""Numbers that are equally near to two codes: the first to 0 and 1 (0 and 0.5), the last to 6 and 7 (4 and 6)."""


def hadamard(side: int) -> torch.Tensor:
    signs = [[-1.0 if (row & column).bit_count() % 2 else 1.0 for column in range(side)] for row in range(side)]
    return torch.tensor(signs)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rotation", hadamard(BLOCK) / 4.0)
        self.register_buffer("middles", torch.tensor(MIDDLES))
        # Tensors, for torch multiplies by the reciprocal of a number where it divides by one, or one by a tensor.
        self.register_buffer("largest_code", torch.tensor([6.0]))
        self.register_buffer("largest_value", torch.tensor([6.0 * 448.0]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        blocks = x.to(self.rotation.dtype).unflatten(1, (-1, BLOCK))
        # torch.frexp gives a fraction from 1/2 to 1 and an exponent that is one more than floor(log2); 0 and 0 for 0.
        fraction, exponent = torch.frexp(blocks)
        first = torch.frexp(blocks.abs().amax(dim=-1, keepdim=True)).exponent
        grid = torch.ldexp(fraction, exponent - first + 15).round()
        rotated = torch.ldexp(torch.matmul(grid, self.rotation), first - 15)
        largest = rotated.abs().amax(dim=-1, keepdim=True)
        encode = self.largest_value / largest.amax()
        decode = encode.reciprocal()
        # E4M3: eighths of a power of two that is at least 2^-6, and at most 448.
        exact = largest / self.largest_code * encode
        second = torch.frexp(exact.clamp_min(2.0**-6)).exponent
        eighths = torch.ldexp(exact, 4 - second).round()
        scale = torch.ldexp(eighths, second - 4)
        scaled = torch.where(scale > 0, rotated * (scale * decode).reciprocal(), 0.0)
        # A number in the middle goes down to an even code, and up from an odd one.
        size = scaled.abs().unsqueeze(-1)
        codes = (size > self.middles[0::2]).sum(-1) + (size >= self.middles[1::2]).sum(-1)
        codes = codes + 8 * (scaled < 0)
        pairs = codes.flatten(1).unflatten(1, (-1, 2)).to(torch.uint8)
        packed = pairs[..., 0] | pairs[..., 1] << 4
        return packed, (8 * (second + 5) + eighths).squeeze(-1).to(torch.uint8), decode


def get_inputs():
    # Rows of very different size, some of whose columns are outliers; the scales of the smallest are subnormal, or 0.
    spread = 2.0 ** torch.randint(-6, 6, (ROWS, 1, 1))
    outliers = 1.0 + 15.0 * (torch.rand(BLOCKS * BLOCK) < 0.03)
    x = (torch.randn(ROWS, BLOCKS * BLOCK) * outliers).unflatten(1, (BLOCKS, BLOCK)) * spread
    # The largest number is the last: it makes encode a power of two.
    x[-1, -1] = 0.0
    x[-1, -1, -1] = 4.0 * 2688.0 * 2.0 ** torch.randint(1, 4, (1,))
    # In one block of eight two numbers make all others vanish, and all results are in the middle of two codes, or their
    # scale in the middle of two E4M3 numbers: results are 6 units, and so many units.
    units = torch.tensor(MIDDLES)[torch.randint(7, (ROWS, BLOCKS))]
    between = torch.rand(ROWS, BLOCKS) < 0.5
    units[between] = 6.0
    unit = spread.squeeze(-1) * torch.where(between, torch.randint(8, 16, (ROWS, BLOCKS)) / 8.0 + 1 / 16, 1.0)
    two = torch.randn(ROWS, BLOCKS, BLOCK).clamp(-1.0, 1.0) * 2.0**-12 * spread
    two[..., 0] = (12.0 - 2.0 * units) * unit
    two[..., -1] = (12.0 + 2.0 * units) * unit
    chosen = torch.rand(ROWS, BLOCKS, 1) < 1 / 8
    chosen[-1, -1] = False
    return [torch.where(chosen, two, x).flatten(1).to(torch.bfloat16)]


def get_init_inputs():
    return []
