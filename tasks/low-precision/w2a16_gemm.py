"""Product with 2-bit weights, sixteen in a word.

A width of Y. Ding et al., "Tilus: A Tile-Level GPGPU Programming Language for Low-Precision Computation", 2025,
arXiv:2504.12984. With K = GROUPS * GROUP: x is (TOKENS, K) in bfloat16; packed is (OUT, ceil(K / 16)) in int32, and
column k has bits 2 (k % 16) and the next of word k // 16. scales and offsets (OUT, GROUPS) in bfloat16 belong to GROUP
neighbouring columns.

    out = x W^T    with W[n, k] = code[n, k] * scales[n, k // GROUP] + offsets[n, k // GROUP]

The output is (TOKENS, OUT) in bfloat16, accumulated in float32. Weights are rounded to bfloat16 before the product.
"""

import torch
import torch.nn as nn

TOKENS = 16
OUT = 16384
GROUPS = 128
GROUP = 64


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shifts", torch.arange(0, 32, 2, dtype=torch.int32))

    def forward(
        self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        out_features, groups = scales.shape
        # A shift of a negative word brings in ones from the left; the mask takes them away.
        codes = ((packed.unsqueeze(-1) >> self.shifts) & 3).flatten(1)[:, : x.shape[1]]
        codes = codes.to(x.dtype).reshape(out_features, groups, -1)
        weight = codes * scales.unsqueeze(-1) + offsets.unsqueeze(-1)
        return torch.matmul(x, weight.view(out_features, -1).t())


def get_inputs():
    x = torch.randn(TOKENS, GROUPS * GROUP, dtype=torch.bfloat16)
    packed = torch.randint(-(2**31), 2**31, (OUT, (GROUPS * GROUP + 15) // 16), dtype=torch.int32)
    scales = torch.randn(OUT, GROUPS, dtype=torch.bfloat16) * 0.05
    return [x, packed, scales, torch.randn(OUT, GROUPS, dtype=torch.bfloat16) * 0.05]


def get_init_inputs():
    return []
