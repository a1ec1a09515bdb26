"""Sparse attention over the key blocks that a 4-bit estimate of the scores selects.

Both kernels of Ji, Zhang, Fu and Cui, "SALE: Low-bit Estimation for Efficient Sparse Attention in Long-context LLM
Prefilling", 2025, arXiv:2505.24179. q, k and v are (HEADS, BLOCKS * BLOCK, WIDTH). q and k are given in 4 bits as well:
signed numbers, two of a byte (uint8, HEADS, BLOCKS * BLOCK, WIDTH / 2), the even one in the low half, with an exponent
for each place (int8, HEADS, BLOCKS * BLOCK). The estimated score, causal, is
    e[i, j] = 2^(q_exponent[i] + k_exponent[j]) q4[i] . k4[j]   for j <= i
The scales are powers of two here, so that all honest orders of operations select the same blocks. A block of keys is
always kept for a block of queries where it is one of the first SINK or of the last LOCAL up to the queries' own. Any
other earlier one is kept where some e[i, j] in it is at least m[i] - THRESHOLD, with m[i] the largest e[i, j] of the
blocks that are always kept. Result: o[i] = sum over j of p[i, j] v[j] (HEADS, BLOCKS * BLOCK, WIDTH), with p[i, :] the
softmax of q[i] . k[j] / sqrt(WIDTH) over the keys j <= i of the kept blocks.
"""

import math

import torch
import torch.nn as nn

HEADS = 4
BLOCKS = 32
BLOCK = 64
WIDTH = 64
SINK = 1
LOCAL = 2
THRESHOLD = 1.0


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Signed 4-bit numbers, two of a byte, the even one in its low half."""
    wide = packed.int()
    both = torch.stack([wide & 15, wide >> 4], dim=-1).flatten(-2)
    return ((both ^ 8) - 8).float()


class Model(nn.Module):
    def __init__(self, block: int, sink: int, local: int, threshold: float, width: int) -> None:
        super().__init__()
        self.block = block
        self.sink = sink
        self.local = local
        self.threshold = threshold
        self.scale = 1.0 / math.sqrt(width)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        q4: torch.Tensor,
        k4: torch.Tensor,
        q_exponent: torch.Tensor,
        k_exponent: torch.Tensor,
    ) -> torch.Tensor:
        length = q4.shape[1]
        # Products of 4-bit numbers and powers of two: exact in any order.
        dots = torch.matmul(unpack(q4), unpack(k4).transpose(1, 2))
        estimate = torch.ldexp(dots, q_exponent.int().unsqueeze(2) + k_exponent.int().unsqueeze(1))
        place = torch.arange(length, device=q4.device)
        query, key = place.unsqueeze(1), place.unsqueeze(0)
        query_block, key_block = query // self.block, key // self.block
        always = (key_block < self.sink) | (key_block > query_block - self.local)
        level = estimate.masked_fill(~(always & (key <= query)), -math.inf).amax(2, keepdim=True)
        # Blocks after the queries' own are kept or not: no query sees a key there.
        near = always | (estimate >= level - self.threshold)
        blocks = length // self.block
        kept = near.view(-1, blocks, self.block, blocks, self.block).any(4).any(2)
        seen = kept.repeat_interleave(self.block, dim=1).repeat_interleave(self.block, dim=2) & (key <= query)
        scores = torch.matmul(q, k.transpose(1, 2)) * self.scale
        return torch.matmul(torch.softmax(scores.masked_fill(~seen, -math.inf), dim=2), v)


def quantised():
    """4-bit queries and keys, two of a byte, and their exponents; whole blocks of keys matter more or less."""
    packed = [torch.randint(0, 256, (HEADS, BLOCKS * BLOCK, WIDTH // 2), dtype=torch.uint8) for _ in range(2)]
    # The last query is the last key: its largest score is that with itself.
    packed[0][:, -1] = packed[1][:, -1]
    q_exponent = torch.randint(-4, -1, (HEADS, BLOCKS * BLOCK), dtype=torch.int8)
    # The sink matters to most queries, as it does in a model.
    tier = torch.randint(-8, -2, (HEADS, BLOCKS, 1))
    tier[:, 0] = -3
    k_exponent = tier.expand(-1, -1, BLOCK).flatten(1) - torch.randint(0, 2, (HEADS, BLOCKS * BLOCK))
    q_exponent[:, -1], k_exponent[:, -1] = -2, -2
    return [*packed, q_exponent, k_exponent.to(torch.int8)]


def get_inputs():
    q4, k4, q_exponent, k_exponent = quantised()
    # What the 4 bits stand for, and what they have lost.
    q, k = (
        torch.ldexp(unpack(packed) + 0.5 * torch.randn(HEADS, BLOCKS * BLOCK, WIDTH), exponent.int().unsqueeze(2))
        for packed, exponent in ((q4, q_exponent), (k4, k_exponent))
    )
    return [q * math.sqrt(WIDTH), k, torch.randn(HEADS, BLOCKS * BLOCK, WIDTH), q4, k4, q_exponent, k_exponent]


def get_init_inputs():
    return [BLOCK, SINK, LOCAL, THRESHOLD, WIDTH]
