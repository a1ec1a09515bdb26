"""LoRA adapters of mixed ranks, whose rows lie in the pages of one pool.

Y. Sheng et al., "S-LoRA: Serving Thousands of Concurrent LoRA Adapters", MLSys 2024, arXiv:2311.03285, sections 5.1 and
5.3: the pool holds pages of one row each, and an adapter of rank r takes r pages for each of its two matrices, anywhere
in the pool. x and the base product y are (TOKENS, WIDTH), pool (PAGES, WIDTH), all bfloat16; ranks (ADAPTERS) and pages
(2, ADAPTERS, MAX_RANK) int32, of which adapter a's first ranks[a] are its own and the others mean nothing; scale
(ADAPTERS) float32; adapter (TOKENS) int32 is -1 for a token without one.

    out[t] = y[t] + scale[a] * sum over j < ranks[a] of (pool[pages[0, a, j]] . x[t]) pool[pages[1, a, j]]

with a = adapter[t], or y[t] where a is -1. Arithmetic is in float32, the output (TOKENS, WIDTH) is rounded once.
"""

import torch
import torch.nn as nn

TOKENS = 128
WIDTH = 4096
ADAPTERS = 48
MAX_RANK = 64
PAGES = 2 * ADAPTERS * MAX_RANK


class Model(nn.Module):
    def forward(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        pool: torch.Tensor,
        ranks: torch.Tensor,
        pages: torch.Tensor,
        scale: torch.Tensor,
        adapter: torch.Tensor,
    ) -> torch.Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        chosen = adapter.clamp_min(0)
        down, up = pages[:, chosen]
        used = torch.arange(pages.shape[2], device=x.device) < ranks[chosen].unsqueeze(1)
        inner = torch.bmm(pool[down].to(wide), x.to(wide).unsqueeze(-1)).squeeze(-1)
        inner = torch.where(used, inner, 0.0) * scale[chosen].unsqueeze(1)
        added = torch.bmm(inner.unsqueeze(1), pool[up].to(wide)).squeeze(1)
        return torch.where(adapter.unsqueeze(1) < 0, y, (y.to(wide) + added).to(y.dtype))


def get_inputs():
    y = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)
    x = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)
    pool = torch.randn(PAGES, WIDTH, dtype=torch.bfloat16) * 0.25
    # Ranks from the whole range, the largest one and 1 among them.
    ranks = torch.randint(1, MAX_RANK + 1, (ADAPTERS,), dtype=torch.int32)
    ranks[0], ranks[1] = MAX_RANK, 1
    pages = torch.randperm(PAGES)[: 2 * ADAPTERS * MAX_RANK].view(2, ADAPTERS, MAX_RANK).int()
    scale = (0.5 + torch.rand(ADAPTERS)) * 16.0 / WIDTH**0.5
    adapter = torch.arange(TOKENS) % (ADAPTERS + 1) - 1
    return [y, x, pool, ranks, pages, scale, adapter[torch.randperm(TOKENS)].int()]


def get_init_inputs():
    return []
