"""Product of two NVFP4 operands.

NVIDIA's format of FP4, which A. Panferov et al., "Quartet II: Accurate LLM Pre-Training in NVFP4 by Improved Unbiased
Gradient Estimation", 2026, arXiv:2601.22813, train in: codes E2M1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign) in blocks of
16 that share a scale E4M3, and one scale of the tensor in float32. With K = 16 BLOCKS: x (TOKENS, K / 2) and
weight (OUT, K / 2) are uint8 and hold two codes each, the even column in the low four bits; x_scale (TOKENS, BLOCKS)
and weight_scale (OUT, BLOCKS) are E4M3 numbers carried as their bytes, uint8, all positive; alpha (1) in float32 is the
product of the two tensors' scales; bias (OUT) is bfloat16.

    out[t, n] = bias[n] + alpha * sum over k of
        e4m3(x_scale[t, k // 16]) e2m1(x[t, k]) * e4m3(weight_scale[n, k // 16]) e2m1(weight[n, k])

The output is (TOKENS, OUT) in bfloat16, accumulated in float32 and rounded once.
"""

import torch
import torch.nn as nn

TOKENS = 4096
OUT = 4096
BLOCKS = 256
BLOCK = 16

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("e2m1", torch.tensor(E2M1 + [-value for value in E2M1]))
        values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        self.register_buffer("e4m3", values.nan_to_num(0.0))

    def forward(
        self,
        x: torch.Tensor,
        x_scale: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        alpha: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        product = torch.matmul(self.values(x, x_scale), self.values(weight, weight_scale).t())
        return (product * alpha + bias).to(bias.dtype)

    def values(self, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
        blocks = self.e2m1[codes.int()].unflatten(1, (scale.shape[1], -1))
        return (blocks * self.e4m3[scale.int()].unsqueeze(-1)).flatten(1)


def get_inputs():
    columns = BLOCKS * BLOCK
    x = torch.randint(0, 256, (TOKENS, columns // 2), dtype=torch.uint8)
    weight = torch.randint(0, 256, (OUT, columns // 2), dtype=torch.uint8)
    # Tokens whose scales are subnormal too: bytes from 1 (2^-9) to 0x7E (448).
    x_scale = torch.randint(1, 0x7F, (TOKENS, BLOCKS), dtype=torch.uint8)
    weight_scale = torch.randint(0x20, 0x50, (OUT, BLOCKS), dtype=torch.uint8)
    return [x, x_scale, weight, weight_scale, torch.rand(1) * 1e-3 + 1e-4, torch.randn(OUT, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
