"""Product with 2:4 sparse weights in float16.

A. Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021, arXiv:2104.08378, section 3: of four neighbouring
weights at most two are not zero, so that two values and two positions of two bits are stored. x is (TOKENS, 8 OCTETS)
in float16; values (OUT, 4 OCTETS) in float16; positions (OUT, OCTETS) in uint8. Byte o of a row is about columns 8 o to
8 o + 7: bits 0 and 1, and bits 2 and 3, have the positions, from 0 to 3, of values 4 o and 4 o + 1 among the first four
columns, bits 4 to 7 those of values 4 o + 2 and 4 o + 3 among the last four. Of two the first position is less.

    out = x W^T    with W (OUT, 8 OCTETS) zero except for these values

The output is (TOKENS, OUT) in float16, accumulated in float32.
"""

import torch
import torch.nn as nn

TOKENS = 2048
OUT = 8192
OCTETS = 512

PAIRS = [0 | 1 << 2, 0 | 2 << 2, 0 | 3 << 2, 1 | 2 << 2, 1 | 3 << 2, 2 | 3 << 2]


class Model(nn.Module):
    def forward(self, x: torch.Tensor, values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        columns = torch.stack((positions & 3, positions >> 2 & 3, positions >> 4 & 3, positions >> 6), dim=-1)
        columns = columns.flatten(1).unflatten(1, (-1, 2)).long()
        fours = torch.zeros(columns.shape[0], columns.shape[1], 4, dtype=values.dtype, device=values.device)
        weight = fours.scatter(2, columns, values.unflatten(1, (-1, 2)))
        return torch.matmul(x, weight.flatten(1).t())


def get_inputs():
    x = torch.randn(TOKENS, OCTETS * 8, dtype=torch.float16)
    values = torch.randn(OUT, OCTETS * 4, dtype=torch.float16) * 0.05
    first, second = torch.tensor(PAIRS, dtype=torch.uint8)[torch.randint(0, 6, (2, OUT, OCTETS))]
    return [x, values, first | second << 4]


def get_init_inputs():
    return []
