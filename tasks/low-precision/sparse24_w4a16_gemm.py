"""Product with 2:4 sparse 4-bit weights in groups of 128.

The sparse variant of E. Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large Language
Models", 2024, arXiv:2408.11743: of four neighbouring weights two are stored, in 4 bits each, with their positions in 2.
x is (TOKENS, 8 OCTETS) in float16. Numbers about columns 8 o to 8 o + 7 of a row: codes (OUT, OCTETS) in int16, bits
4 i to 4 i + 3 holding the code of stored weight i; positions (OUT, OCTETS) in uint8, bits 2 i and 2 i + 1 holding its
position, from 0 to 3, among the first four columns for i = 0 and 1, among the last four for i = 2 and 3. Of two the
first position is less. scales (OUT, GROUPS) in float16, with OCTETS = 16 GROUPS, belong to 128 neighbouring columns; 8
stands for 0.

    out = x W^T    with W (OUT, 8 OCTETS) zero except for (code - 8) * scale of the stored weights

The output is (TOKENS, OUT) in float16, accumulated in float32.
"""

import torch
import torch.nn as nn

TOKENS = 16
OUT = 16384
GROUPS = 64

PAIRS = [0 | 1 << 2, 0 | 2 << 2, 0 | 3 << 2, 1 | 2 << 2, 1 | 3 << 2, 2 | 3 << 2]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shifts", torch.arange(4, dtype=torch.int16))

    def forward(
        self, x: torch.Tensor, codes: torch.Tensor, positions: torch.Tensor, scales: torch.Tensor
    ) -> torch.Tensor:
        out_features, groups = scales.shape
        # A shift of a negative number brings in ones from the left; the mask takes them away.
        stored = ((codes.unsqueeze(-1) >> 4 * self.shifts) & 15).to(x.dtype) - 8.0
        stored = (stored.view(out_features, groups, -1) * scales.unsqueeze(-1)).view(out_features, -1, 2)
        columns = ((positions.unsqueeze(-1).to(torch.int16) >> 2 * self.shifts) & 3).view(out_features, -1, 2)
        fours = torch.zeros(out_features, columns.shape[1], 4, dtype=x.dtype, device=x.device)
        return torch.matmul(x, fours.scatter(2, columns.long(), stored).flatten(1).t())


def get_inputs():
    octets = GROUPS * 16
    x = torch.randn(TOKENS, octets * 8, dtype=torch.float16)
    codes = torch.randint(-(2**15), 2**15, (OUT, octets), dtype=torch.int16)
    first, second = torch.tensor(PAIRS, dtype=torch.uint8)[torch.randint(0, 6, (2, OUT, octets))]
    return [x, codes, first | second << 4, torch.randn(OUT, GROUPS, dtype=torch.float16) * 0.02]


def get_init_inputs():
    return []
