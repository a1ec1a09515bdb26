"""Vector times matrix of 1-bit weights.

The narrowest width of Y. Ding et al., "Tilus: A Tile-Level GPGPU Programming Language for Low-Precision Computation",
2025, arXiv:2504.12984. With K = GROUPS * GROUP: x is (K) in float16; packed is (OUT, ceil(K / 32)) in int32, and column
k is bit k % 32 of word k // 32. scales (OUT, GROUPS) in float16 belong to GROUP neighbouring columns.

    out = W x    with W[n, k] = scales[n, k // GROUP] where the bit is set, and its negative where it is not

The output is (OUT) in float16, accumulated in float32.
"""

import torch
import torch.nn as nn

OUT = 16384
GROUPS = 64
GROUP = 128


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shifts", torch.arange(32, dtype=torch.int32))

    def forward(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        out_features, groups = scales.shape
        # A shift of a negative word brings in ones from the left; the mask takes them away.
        bits = ((packed.unsqueeze(-1) >> self.shifts) & 1).flatten(1)[:, : x.shape[0]]
        signs = (2 * bits - 1).to(x.dtype).view(out_features, groups, -1)
        return torch.mv((signs * scales.unsqueeze(-1)).view(out_features, -1), x)


def get_inputs():
    x = torch.randn(GROUPS * GROUP, dtype=torch.float16)
    packed = torch.randint(-(2**31), 2**31, (OUT, (GROUPS * GROUP + 31) // 32), dtype=torch.int32)
    return [x, packed, torch.randn(OUT, GROUPS, dtype=torch.float16) * 0.05]


def get_init_inputs():
    return []
