"""Product with symmetric 4-bit weights in groups of 128, few tokens.

E. Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large Language Models", 2024,
arXiv:2408.11743, which keeps the speed of 4-bit weights up to batches of 16 to 32 and measures up to 128. With K =
128 GROUPS: x is (TOKENS, K) in float16; packed is (K / 8, OUT) in int32, bits 4 i to 4 i + 3 of word (j, n) holding
the weight of row 8 j + i and column n; scales (GROUPS, OUT) in float16 belong to 128 neighbouring rows of a column.
There are no zero points: 8 stands for 0.

    out = x W    with W[k, n] = (nibble[k, n] - 8) * scales[k // 128, n]

The output is (TOKENS, OUT) in float16, accumulated in float32. A kernel may not reorder the weights beforehand, as
MARLIN does: they are inputs.
"""

import torch
import torch.nn as nn

TOKENS = 16
OUT = 16384
GROUPS = 64
GROUP = 128


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shifts", torch.arange(0, 32, 4, dtype=torch.int32).unsqueeze(1))

    def forward(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        groups, out_features = scales.shape
        # A shift of a negative word brings in ones from the left; the mask takes them away.
        nibbles = ((packed.unsqueeze(1) >> self.shifts) & 15).to(x.dtype).view(groups, -1, out_features)
        weight = (nibbles - 8.0) * scales.unsqueeze(1)
        return torch.matmul(x, weight.view(-1, out_features))


def get_inputs():
    x = torch.randn(TOKENS, GROUPS * GROUP, dtype=torch.float16)
    packed = torch.randint(-(2**31), 2**31, (GROUPS * GROUP // 8, OUT), dtype=torch.int32)
    return [x, packed, torch.randn(GROUPS, OUT, dtype=torch.float16) * 0.02]


def get_init_inputs():
    return []
