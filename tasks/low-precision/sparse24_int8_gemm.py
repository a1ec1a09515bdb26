"""Product of int8 activations and 2:4 sparse int8 weights.

C. Yu et al., "Boost Vision Transformer with GPU-Friendly Sparsity and Quantization", 2023, arXiv:2305.10727, prune to
two of four neighbouring weights and then quantise. x is (TOKENS, 8 OCTETS) in int8; values (OUT, 4 OCTETS) in int8;
positions (OUT, OCTETS) in uint8. Byte o of a row is about columns 8 o to 8 o + 7: bits 0 and 1, and bits 2 and 3, have
the positions, from 0 to 3, of values 4 o and 4 o + 1 among the first four columns, bits 4 to 7 those of values 4 o + 2
and 4 o + 3 among the last four. The first position is less than the second. x_scale (TOKENS) and weight_scale (OUT) are
float32, bias (OUT) is bfloat16. With W (OUT, 8 OCTETS) zero except for these values:

    out[t, n] = max(0, x_scale[t] * weight_scale[n] * sum over k of x[t, k] W[n, k] + bias[n])

The output is (TOKENS, OUT) in bfloat16; the sums are integers. The reference takes them in float32, which rounds a sum
only once it passes 2^24.
"""

import torch
import torch.nn as nn

TOKENS = 4096
OUT = 8192
OCTETS = 512

PAIRS = [0 | 1 << 2, 0 | 2 << 2, 0 | 3 << 2, 1 | 2 << 2, 1 | 3 << 2, 2 | 3 << 2]


class Model(nn.Module):
    def forward(
        self,
        x: torch.Tensor,
        values: torch.Tensor,
        positions: torch.Tensor,
        x_scale: torch.Tensor,
        weight_scale: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        columns = torch.stack((positions & 3, positions >> 2 & 3, positions >> 4 & 3, positions >> 6), dim=-1)
        columns = columns.flatten(1).unflatten(1, (-1, 2)).long()
        fours = torch.zeros(columns.shape[0], columns.shape[1], 4, dtype=x_scale.dtype, device=x.device)
        weight = fours.scatter(2, columns, values.unflatten(1, (-1, 2)).to(x_scale.dtype))
        sums = torch.matmul(x.to(x_scale.dtype), weight.flatten(1).t())
        return torch.relu(sums * x_scale.unsqueeze(1) * weight_scale + bias).to(bias.dtype)


def get_inputs():
    x = torch.randint(-128, 128, (TOKENS, OCTETS * 8), dtype=torch.int8)
    values = torch.randint(-128, 128, (OUT, OCTETS * 4), dtype=torch.int8)
    first, second = torch.tensor(PAIRS, dtype=torch.uint8)[torch.randint(0, 6, (2, OUT, OCTETS))]
    x_scale, weight_scale = torch.rand(TOKENS) * 0.01 + 0.001, torch.rand(OUT) * 0.01 + 0.001
    return [x, values, first | second << 4, x_scale, weight_scale, torch.randn(OUT, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
