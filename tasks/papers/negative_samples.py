"""Negative samples for node embedding, drawn from an alias table by a counter-based hash.

Zhu, Xu, Qu and Tang, "GraphVite: A High-Performance CPU-GPU Hybrid System for Node Embedding", WWW 2019,
arXiv:1903.00757, section 3.2: every GPU draws its negative samples itself, from the nodes of its own block, by their
degree to the power 3/4; tables as in A. J. Walker, "An Efficient Method for Generating Discrete Random Variables with
General Distributions", ACM TOMS 3(3), 1977. threshold is float32 (NODES), alias int32 (NODES), seed int64 (1),
0 <= seed < 2^31. With e of EDGES and j of NEGATIVES, and the hash "pcg" of M. Jarzynski, M. Olano, "Hash Functions for
GPU Rendering", JCGT 9(3), 2020,

    a         = pcg(e NEGATIVES + j + seed),   b = pcg(a)
    slot      = (a NODES) div 2^32
    out[e, j] = slot if (b div 2^8) / 2^24 < threshold[slot], else alias[slot]

The output is int64 (EDGES, NEGATIVES); papers/node_embedding_step takes such numbers. All draws agree to the last bit.
"""

import torch
import torch.nn as nn

NODES = 262144
EDGES = 2097152
NEGATIVES = 4


class Model(nn.Module):
    def __init__(self, edges: int, negatives: int) -> None:
        super().__init__()
        self.edges = edges
        self.negatives = negatives

    def forward(self, threshold: torch.Tensor, alias: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        number = torch.arange(self.edges * self.negatives, device=seed.device)
        first = _pcg(number + seed)
        slot = (first * threshold.shape[0]) >> 32
        uniform = (_pcg(first) >> 8).to(threshold.dtype) * 2.0**-24
        drawn = torch.where(uniform < threshold[slot], slot, alias[slot].long())
        return drawn.view(self.edges, self.negatives)


def _pcg(value: torch.Tensor) -> torch.Tensor:
    """A 32-bit hash, in int64: no product of two 32-bit numbers here reaches 2^63."""
    state = (value * 747796405 + 2891336453) & 0xFFFFFFFF
    word = (((state >> ((state >> 28) + 4)) ^ state) * 277803737) & 0xFFFFFFFF
    return (word >> 22) ^ word


def _alias_table(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Thresholds and aliases that give every node its share of the weight: each slot has at most two nodes."""
    share = (weight * (weight.numel() / weight.sum())).tolist()
    alias = list(range(len(share)))
    small = [node for node, part in enumerate(share) if part < 1.0]
    large = [node for node, part in enumerate(share) if part >= 1.0]
    while small and large:
        node, donor = small.pop(), large[-1]
        alias[node] = donor
        share[donor] -= 1.0 - share[node]
        if share[donor] < 1.0:
            small.append(large.pop())
    return torch.tensor(share).clamp(max=1.0), torch.tensor(alias, dtype=torch.int32)


def get_inputs():
    # Degrees of a power law.
    degree = torch.rand(NODES, dtype=torch.float64).clamp_min(1e-6) ** -0.5
    threshold, alias = _alias_table(degree**0.75)
    return [threshold.float(), alias, torch.randint(0, 2**31, (1,))]


def get_init_inputs():
    return [EDGES, NEGATIVES]
