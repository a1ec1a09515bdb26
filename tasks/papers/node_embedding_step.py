"""One step of node embedding with negative samples, for a batch of edges; both tables in place.

Zhu, Xu, Qu and Tang, "GraphVite: A High-Performance CPU-GPU Hybrid System for Node Embedding", WWW 2019,
arXiv:1903.00757, section 3: the objective of LINE and DeepWalk on one GPU's block of the tables. vertex and context are
(NODES, WIDTH); source is int64 (EDGES), other int64 (EDGES, 1 + NEGATIVES): of each edge the node it leads to, then
nodes that were drawn, which may be that node again. With s = vertex[source[e]] . context[other[e, j]] before the step,
and y = 1 for j = 0, else 0,
    loss[e]              = sum over j of softplus(s) - y s
    vertex[source[e]]   -= RATE (sigmoid(s) - y) context[other[e, j]]
    context[other[e, j]] -= RATE (sigmoid(s) - y) vertex[source[e]]
for all e and j, all from values before the step: what meets in a row is added up. The result is loss (EDGES).
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

NODES = 262144
WIDTH = 128
EDGES = 65536
NEGATIVES = 4
RATE = 0.25


class Model(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(
        self, vertex: torch.Tensor, context: torch.Tensor, source: torch.Tensor, other: torch.Tensor
    ) -> torch.Tensor:
        near, far = vertex[source], context[other]
        scores = torch.bmm(far, near.unsqueeze(2)).squeeze(2)
        positive = torch.arange(other.shape[1], device=other.device) == 0
        step = self.rate * (torch.sigmoid(scores) - positive.to(scores.dtype))
        vertex.index_add_(0, source, torch.bmm(step.unsqueeze(1), far).squeeze(1), alpha=-1)
        context.index_add_(0, other.flatten(), (step.unsqueeze(2) * near.unsqueeze(1)).flatten(0, 1), alpha=-1)
        return (F.softplus(scores) - torch.where(positive, scores, 0.0)).sum(dim=1)


def get_inputs():
    vertex, context = (torch.randn(2, NODES, WIDTH) / WIDTH**0.25).unbind(0)
    # Two edges of three leave the first eighth of the nodes, so that rows are met by several.
    source = torch.randint(0, NODES, (EDGES,))
    source = torch.where(torch.rand(EDGES) < 2 / 3, source % (NODES // 8 + 1), source)
    return [vertex, context, source, torch.randint(0, NODES, (EDGES, 1 + NEGATIVES))]


def get_init_inputs():
    return [RATE]
