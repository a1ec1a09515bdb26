"""Vector times matrix of 7-bit weights in planes of 4, 2 and 1 bits.

A width of Y. Ding et al., "Tilus: A Tile-Level GPGPU Programming Language for Low-Precision Computation", 2025,
arXiv:2504.12984, stored so that each part of a code has a width that divides a byte. With K = GROUPS * GROUP, a
multiple of 8: x is (K) in bfloat16. low (OUT, K / 2), middle (OUT, K / 4) and high (OUT, K / 8) are uint8 and have bits
0 to 3, 4 and 5, and 6 of the codes; the first column of a byte lies in its lowest bits. scales (OUT, GROUPS) in
bfloat16 belong to GROUP neighbouring columns.

    out = W x    with W[n, k] = (code[n, k] - 64) * scales[n, k // GROUP]

The output is (OUT) in bfloat16, accumulated in float32.
"""

import torch
import torch.nn as nn

OUT = 16384
GROUPS = 64
GROUP = 128


def parts(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """The numbers of that many bits in each byte of a row, the lowest first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) >> shifts) & (2**bits - 1)).flatten(1)


class Model(nn.Module):
    def forward(
        self, x: torch.Tensor, low: torch.Tensor, middle: torch.Tensor, high: torch.Tensor, scales: torch.Tensor
    ) -> torch.Tensor:
        out_features, groups = scales.shape
        codes = parts(low, 4) | parts(middle, 2) << 4 | parts(high, 1) << 6
        weight = (codes.to(x.dtype) - 64.0).view(out_features, groups, -1) * scales.unsqueeze(-1)
        return torch.mv(weight.view(out_features, -1), x)


def get_inputs():
    columns = GROUPS * GROUP
    low, middle, high = (torch.randint(0, 256, (OUT, columns // n), dtype=torch.uint8) for n in (2, 4, 8))
    scales = torch.randn(OUT, GROUPS, dtype=torch.bfloat16) * 0.01
    return [torch.randn(columns, dtype=torch.bfloat16), low, middle, high, scales]


def get_init_inputs():
    return []
