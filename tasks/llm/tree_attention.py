"""Attention of a tree of drafted tokens, each of which sees the past and its own ancestors.

X. Miao et al., "SpecInfer: Accelerating Generative Large Language Model Serving with Tree-based Speculative Inference
and Verification", ASPLOS 2024, arXiv:2305.09781, section 4.2: one kernel for all branches, which share the cache. q,
k_draft and v_draft are (BATCH, HEADS, DRAFTED, HEAD_DIM), the caches are (BATCH, HEADS, CAPACITY, HEAD_DIM), all
float16. Of sequence b only the first lengths[b] places (int32, at least 1) of the caches count. parents is int32
(BATCH, DRAFTED): the token before, which has a lower number, or -1 where that is the last of the past.

    seen[b, i]   = the past of b, i, and every ancestor of i
    out[b, h, i] = sum over t of seen[b, i] of softmax_t(q[b, h, i] . k[t] / sqrt(HEAD_DIM)) v[t]

At the full size the caches are nearly full, so that the bytes that every kernel must read are the caches' own.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
HEADS = 16
DRAFTED = 32
HEAD_DIM = 128
CAPACITY = 4096
MIN_LENGTH = 4000


class Model(nn.Module):
    def forward(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        k_draft: torch.Tensor,
        v_draft: torch.Tensor,
        lengths: torch.Tensor,
        parents: torch.Tensor,
    ) -> torch.Tensor:
        drafted, capacity = q.shape[2], k_cache.shape[2]
        tokens = torch.arange(drafted, device=q.device)
        # Each round doubles the part of its branch that a token sees: above is the first token beyond that.
        reach, above = (tokens == tokens.unsqueeze(1)).expand(q.shape[0], -1, -1), parents.long()
        for _ in range((drafted - 1).bit_length()):
            place = above.clamp_min(0)
            further = reach.gather(1, place.unsqueeze(2).expand(-1, -1, drafted))
            reach = reach | (further & (above >= 0).unsqueeze(2))
            above = above.gather(1, place)  # that of token 0, which begins a branch, is -1
        past = torch.arange(capacity, device=q.device) < lengths.unsqueeze(1)
        seen = torch.cat([past.unsqueeze(1).expand(-1, drafted, -1), reach], dim=2).unsqueeze(1)
        k, v = torch.cat([k_cache, k_draft], dim=2), torch.cat([v_cache, v_draft], dim=2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def get_inputs():
    draft, cache = (BATCH, HEADS, DRAFTED, HEAD_DIM), (BATCH, HEADS, CAPACITY, HEAD_DIM)
    q, k_draft, v_draft = torch.randn(3, *draft, dtype=torch.float16).unbind(0)
    k_cache, v_cache = torch.randn(2, *cache, dtype=torch.float16).unbind(0)
    lengths = torch.randint(MIN_LENGTH, CAPACITY + 1, (BATCH,), dtype=torch.int32)
    # One of the two tokens before, so that branches are long; now and then a token that begins a branch.
    tokens = torch.arange(DRAFTED)
    parents = (tokens - torch.randint(1, 3, (BATCH, DRAFTED))).clamp_min(-1)
    parents = torch.where(torch.rand(BATCH, DRAFTED) < 1 / 16, -1, parents)
    return [q, k_cache, v_cache, k_draft, v_draft, lengths, parents.int()]


def get_init_inputs():
    return []
