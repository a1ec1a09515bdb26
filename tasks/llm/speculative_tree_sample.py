"""Sampled verification of a tree of drafted tokens, by rejection.

X. Miao et al., "SpecInfer: Accelerating Generative Large Language Model Serving with Tree-based Speculative Inference
and Verification", ASPLOS 2024, arXiv:2305.09781, section 4.3: children of a token are tried in turn, and what a
rejected one had a chance of is taken off. Each of the tokens at DEPTH - 1 levels has WIDTH children; token 0 is the
last of the past, children of token t are WIDTH t + 1 to WIDTH t + WIDTH. With NODES tokens, of which INNER have
children, target (BATCH, NODES, VOCAB) and draft (BATCH, INNER, VOCAB) are logits in float32, tokens (BATCH, NODES) is
int64, uniforms (BATCH, NODES) float32 in [0, 1), seeds (BATCH) int64, 0 <= seed < 2^31. Of sequence b, from t = 0 on,

    p, q = softmax(target[b, t]), softmax(draft[b, t]);   rest = p
    for each child c of t, with x = tokens[b, c] and m = sum of rest:
        accepted if uniforms[b, c] m q[x] < rest[x]: then go on with t = c
        else rest = max(rest - m q, 0)
    without an accepted child, or without children: drawn = argmax over v of rest[v] / e[b, v]

    e[b, v] = -log((pcg((pcg(v) + seeds[b]) mod 2^32) div 2^9) / 2^23), infinity if that is log 0

Outputs, int64: path (BATCH, DEPTH), the numbers of the accepted tokens from level 1 on, drawn behind them, then -1;
and accepted (BATCH), how many there are. The argmax, the lowest if several, is a draw from rest, since the e are
exponential; "pcg" is that of M. Jarzynski, M. Olano, "Hash Functions for GPU Rendering", JCGT 9(3), 2020. At
the full size both models agree, so that every kernel reads a row of each at every level.
"""

import torch
import torch.nn as nn

BATCH = 16
DEPTH = 5
WIDTH = 2
NODES = sum(WIDTH**level for level in range(DEPTH))
INNER = sum(WIDTH**level for level in range(DEPTH - 1))
VOCAB = 128256
SPREAD = 0.0


class Model(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.depth = depth

    def forward(
        self,
        target: torch.Tensor,
        draft: torch.Tensor,
        tokens: torch.Tensor,
        uniforms: torch.Tensor,
        seeds: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.zeros_like(seeds).unsqueeze(1)
        rest = torch.softmax(_row(target, at), dim=-1)
        accepted = torch.zeros_like(seeds)
        path = []
        for level in range(self.depth - 1):
            # A sequence that stopped at an earlier level reads token 0 here, and keeps what it has.
            goes_on = (accepted == level).unsqueeze(1)
            parent = at.where(goes_on, 0)
            q = torch.softmax(_row(draft, parent), dim=-1)
            searching, chosen = goes_on, at
            for child in range(1, self.width + 1):
                number = self.width * parent + child
                x = tokens.gather(1, number)
                mass = rest.sum(dim=1, keepdim=True)
                agrees = searching & (uniforms.gather(1, number) * mass * q.gather(1, x) < rest.gather(1, x))
                chosen = number.where(agrees, chosen)
                searching = searching & ~agrees
                rest = torch.relu(rest - mass * q).where(searching, rest)
            moved = goes_on & ~searching
            path.append(chosen.where(moved, -1))
            accepted = accepted + moved.squeeze(1).long()
            at = chosen.where(moved, 0)
            rest = torch.softmax(_row(target, at), dim=-1).where(moved, rest)
        drawn = torch.argmax(rest / _exponential(rest, seeds), dim=1, keepdim=True)
        path = torch.cat([*path, torch.full_like(at, -1)], dim=1)
        place = torch.arange(self.depth, device=path.device)
        return drawn.where(place == accepted.unsqueeze(1), path), accepted


def _row(logits: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Row ``at[b, 0]`` of each sequence."""
    return logits.gather(1, at.unsqueeze(2).expand(-1, 1, logits.shape[2])).squeeze(1)


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
    target = 2.0 * torch.randn(BATCH, NODES, VOCAB) + torch.randn(BATCH, NODES, 1).mul(100.0).round()
    draft = target[:, :INNER] + SPREAD * torch.randn(BATCH, INNER, VOCAB)
    # Every child is a draw from its parent's distribution.
    q = torch.softmax(draft, dim=-1)
    children = [torch.argmax(q / torch.empty_like(q).exponential_(), dim=-1) for _ in range(WIDTH)]
    tokens = torch.cat([torch.zeros(BATCH, 1).long(), torch.stack(children, dim=2).flatten(1)], dim=1)
    return [target, draft, tokens, torch.rand(BATCH, NODES), torch.randint(0, 2**31, (BATCH,))]


def get_init_inputs():
    return [WIDTH, DEPTH]
