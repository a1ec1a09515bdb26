"""Product of two MXFP4 operands.

The product of R. L. Castro et al., "Quartet: Native FP4 Training Can Be Optimal for Large Language Models", 2025,
arXiv:2505.14669, in the format of the "OCP Microscaling Formats (MX) Specification", version 1.0, 2023, sections 5 and
6: codes E2M1 (a sign, two bits of exponent with bias 1, one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6) in blocks that
share a scale E8M0, a power of two with bias 127. With K = 32 BLOCKS: x (TOKENS, K / 2) and weight (OUT, K / 2) are
uint8 and hold two codes each, the even column in the low four bits; x_scale (TOKENS, BLOCKS) and weight_scale
(OUT, BLOCKS) are uint8 and belong to 32 neighbouring columns. 0 and 255 do not occur in scales. bias
(OUT) is bfloat16.

    out[t, n] = bias[n] + sum over k of
        2^(x_scale[t, k // 32] - 127) e2m1(x[t, k]) * 2^(weight_scale[n, k // 32] - 127) e2m1(weight[n, k])

The output is (TOKENS, OUT) in bfloat16, accumulated in float32 and rounded once.
"""

import torch
import torch.nn as nn

TOKENS = 4096
OUT = 4096
BLOCKS = 128
BLOCK = 32

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.tensor(E2M1 + [-value for value in E2M1]))

    def forward(
        self,
        x: torch.Tensor,
        x_scale: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        product = torch.matmul(self.values(x, x_scale), self.values(weight, weight_scale).t())
        return (product + bias).to(bias.dtype)

    def values(self, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
        # The bits of a power of two in float32 are its biased exponent, followed by 23 zeros.
        powers = (scale.int() << 23).view(torch.float32)
        return (self.table[codes.int()].unflatten(1, (scale.shape[1], -1)) * powers.unsqueeze(-1)).flatten(1)


def get_inputs():
    columns = BLOCKS * BLOCK
    x = torch.randint(0, 256, (TOKENS, columns // 2), dtype=torch.uint8)
    weight = torch.randint(0, 256, (OUT, columns // 2), dtype=torch.uint8)
    # Tokens of very different size.
    x_scale = torch.randint(107, 147, (TOKENS, 1)) + torch.randint(-4, 5, (TOKENS, BLOCKS))
    weight_scale = torch.randint(118, 124, (OUT, BLOCKS), dtype=torch.uint8)
    return [x, x_scale.to(torch.uint8), weight, weight_scale, torch.randn(OUT, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
