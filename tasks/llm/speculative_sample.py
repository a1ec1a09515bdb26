"""Sampled verification of a chain of drafted tokens, by rejection.

Y. Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023, arXiv:2211.17192,
algorithm 1. target (BATCH, DRAFTED + 1, VOCAB) and draft (BATCH, DRAFTED, VOCAB) are logits in float32, of the model
and of the drafting one; drafted (BATCH, DRAFTED) is int64, uniforms (BATCH, DRAFTED) float32 in [0, 1), seeds (BATCH)
int64, 0 <= seed < 2^31.

    p[b, i], q[b, i] = softmax(target[b, i]), softmax(draft[b, i])
    accepted[b]      = how many i have uniforms[b, i] q[b, i, x] < p[b, i, x], x = drafted[b, i], before the first
                       that has not
    rest[b]          = max(p[b, n] - q[b, n], 0), n = accepted[b], and p[b, n] where n = DRAFTED
    e[b, v]          = -log((pcg((pcg(v) + seeds[b]) mod 2^32) div 2^9) / 2^23), infinity if that is log 0
    tokens[b]        = the accepted ones, then argmax over v of rest[b, v] / e[b, v], the lowest if several, then -1

Outputs: tokens (BATCH, DRAFTED + 1) and accepted (BATCH), both int64. The argmax is a draw from rest, since the e are
exponential; its hash "pcg" is that of M. Jarzynski, M. Olano, "Hash Functions for GPU Rendering", JCGT 9(3), 2020. At
the full size both models agree and all drafts are accepted, so that there is no gain in leaving logits unread.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 32
DRAFTED = 4
VOCAB = 128256
SPREAD = 0.0


class Model(nn.Module):
    def forward(
        self,
        target: torch.Tensor,
        draft: torch.Tensor,
        drafted: torch.Tensor,
        uniforms: torch.Tensor,
        seeds: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        p, q = torch.softmax(target, dim=-1), F.pad(torch.softmax(draft, dim=-1), (0, 0, 0, 1))
        # Behind the drafted tokens q is 0, whichever token.
        token = F.pad(drafted, (0, 1)).unsqueeze(2)
        p_token, q_token = p.gather(2, token).squeeze(2)[:, :-1], q.gather(2, token).squeeze(2)[:, :-1]
        accepted = torch.cumprod((uniforms * q_token < p_token).long(), dim=1).sum(dim=1)
        row = accepted.reshape(-1, 1, 1).expand(-1, 1, p.shape[2])
        rest = torch.relu(p.gather(1, row) - q.gather(1, row)).squeeze(1)
        drawn = torch.argmax(rest / _exponential(rest, seeds), dim=1, keepdim=True)
        place, end = torch.arange(p.shape[1], device=p.device), accepted.unsqueeze(1)
        return torch.where(place < end, token.squeeze(2), drawn.where(place == end, -1)), accepted


def _exponential(like: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Exponential noise of a shape and dtype. A uniform number has 23 bits: exact in float32."""
    tokens = torch.arange(like.shape[1], device=like.device)
    bits = _pcg((_pcg(tokens) + seeds.unsqueeze(1)) & 0xFFFFFFFF) >> 9
    return -torch.log(bits.to(like.dtype) * 2.0**-23)


def _pcg(value: torch.Tensor) -> torch.Tensor:
    """A 32-bit hash, in int64: no product of two 32-bit numbers here reaches 2^63."""
    state = (value * 747796405 + 2891336453) & 0xFFFFFFFF
    word = (((state >> ((state >> 28) + 4)) ^ state) * 277803737) & 0xFFFFFFFF
    return (word >> 22) ^ word


def get_inputs():
    # A row may be far from zero, where a softmax needs its maximum.
    target = 2.0 * torch.randn(BATCH, DRAFTED + 1, VOCAB) + torch.randn(BATCH, DRAFTED + 1, 1).mul(100.0).round()
    draft = target[:, :-1] + SPREAD * torch.randn(BATCH, DRAFTED, VOCAB)
    p, q = torch.softmax(target[:, :-1], dim=-1), torch.softmax(draft, dim=-1)
    drafted = torch.argmax(q / torch.empty_like(q).exponential_(), dim=-1)
    # No uniform number is so near the ratio that rounding decides.
    token = drafted.unsqueeze(2)
    ratio = (p.gather(2, token) / q.gather(2, token)).squeeze(2)
    uniforms = torch.rand(BATCH, DRAFTED)
    uniforms = torch.where((uniforms - ratio).abs() < 1 / 256, (uniforms + 0.5) % 1.0, uniforms)
    return [target, draft, drafted, uniforms, torch.randint(0, 2**31, (BATCH,))]


def get_init_inputs():
    return []
