"""Layer of a relational graph network: each relation's product, from gathered nodes to scattered ones.

Wu, Hidayetoglu, Song, Huang, Zheng, Nisa and Hwu, "Hector: An Efficient Programming and Compilation Framework for
Implementing Relational Graph Neural Networks in GPU Architectures", ASPLOS 2024, arXiv:2301.06284: products
typed by relation, which gather their rows and scatter their results. The layer is that of Schlichtkrull et al.,
"Modeling Relational Data with Graph Convolutional Networks", 2018, arXiv:1703.06103. Edges are sorted by relation:
those of r are offsets[r] to offsets[r + 1] - 1; a relation may have none.
    out[d] = x[d] weight[R] + sum over edges e into d of scale[e] x[source[e]] weight[r(e)]
x is (NODES, IN); source and target, int64, and scale are (EDGES); offsets is int64 (RELATIONS + 1); weight, a
parameter, is (RELATIONS + 1, IN, OUT), and its last matrix is that of the node itself. The result is (NODES, OUT).

No relation has more than CAPACITY edges. The reference puts each relation's edges into a block of so many, so that its
shapes do not hang on values; a kernel need not, and does half as much work.
"""

import math

import torch
import torch.nn as nn

NODES = 65536
EDGES = 262144
RELATIONS = 16
IN = 64
OUT = 64
CAPACITY = (2 * EDGES + RELATIONS - 1) // RELATIONS


class Model(nn.Module):
    def __init__(self, relations: int, width: int, out: int, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.weight = nn.Parameter(torch.randn(relations + 1, width, out) / math.sqrt(width))

    def forward(
        self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, scale: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        edges = offsets[:-1, None] + torch.arange(self.capacity, device=x.device)
        beyond = edges >= offsets[1:, None]
        edges = edges.masked_fill(beyond, 0)
        gathered = x[source[edges]] * scale[edges].masked_fill(beyond, 0.0).unsqueeze(2)
        messages = torch.bmm(gathered, self.weight[:-1])
        return torch.matmul(x, self.weight[-1]).index_add(0, target[edges].flatten(), messages.flatten(0, 1))


def get_inputs():
    # Two relations share their edges at a random place; one time in four the first of them gets none.
    relation = torch.arange(RELATIONS + 1)
    even = relation // 2 * 2 * EDGES // RELATIONS
    beyond = (relation // 2 * 2 + 2).clamp_max(RELATIONS) * EDGES // RELATIONS
    share = torch.rand(RELATIONS + 1) * (torch.rand(RELATIONS + 1) > 0.25) * (relation % 2)
    offsets = torch.where(relation < RELATIONS, even + ((beyond - even) * share).long(), EDGES)
    source, target = torch.randint(0, NODES, (2, EDGES)).unbind(0)
    return [torch.randn(NODES, IN), source, target, torch.rand(EDGES), offsets]


def get_init_inputs():
    return [RELATIONS, IN, OUT, CAPACITY]
