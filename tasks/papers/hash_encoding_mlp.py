"""Multi-resolution hash encoding and the small network behind it, as one kernel.

Mueller, Evans, Schied and Keller, "Instant Neural Graphics Primitives with a Multiresolution Hash Encoding", ACM TOG
41(4), 2022, arXiv:2201.05989, sections 3 and 4; the pair that Mubarik, Kanungo, Zirr and Kumar, "Hardware Acceleration
of Neural Graphics", ISCA 2023, arXiv:2303.05735, want fused. Level l lays a grid of COARSEST * 2^(l / 4) cells (rounded
down) over the unit cube, and interpolates trilinearly the features that the corners (i, j, k) of the cell around a
point have in the level's table, at
    h(i, j, k) = ((i * 1) xor (j * 2654435761) xor (k * 805459861), 32 bits each) mod SLOTS
The features e of all levels, level by level, go through a network without biases, whose weights are parameters:
    y = V relu(U relu(W e)),   W (WIDTH, LEVELS * FEATURES), U (WIDTH, WIDTH), V (OUT, WIDTH)
Points are (POINTS, 3), tables (LEVELS, SLOTS, FEATURES); the result is (POINTS, OUT). Encodings never need memory.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

POINTS = 2**18
LEVELS = 16
SLOTS = 2**19
FEATURES = 2
COARSEST = 16
WIDTH = 64
OUT = 16

PRIMES = (1, 2654435761, 805459861)
WORD = 0xFFFFFFFF


class Model(nn.Module):
    def __init__(self, levels: int, features: int, coarsest: int, width: int, out: int) -> None:
        super().__init__()
        resolutions = torch.tensor([int(coarsest * 2.0 ** (0.25 * level)) for level in range(levels)])
        self.register_buffer("resolutions", resolutions.view(-1, 1, 1))
        self.register_buffer("primes", torch.tensor(PRIMES).view(-1, 1))
        encoded = levels * features
        self.first = nn.Parameter(torch.randn(width, encoded) * math.sqrt(2.0 / encoded))
        self.second = nn.Parameter(torch.randn(width, width) * math.sqrt(2.0 / width))
        self.third = nn.Parameter(torch.randn(out, width) * math.sqrt(2.0 / width))

    def forward(self, points: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
        levels, slots, features = tables.shape
        scaled = points * self.resolutions
        lowest = torch.floor(scaled)
        # Along each axis the two corners' shares and hashes; the cell's eight are their products and xors.
        share = torch.stack([1.0 - (scaled - lowest), scaled - lowest], dim=3)
        corner = torch.stack([lowest, lowest + 1], dim=3).long() * self.primes & WORD
        x, y, z = corner.unbind(2)
        slot = (x[..., :, None, None] ^ y[..., None, :, None] ^ z[..., None, None, :]).flatten(2) % slots
        a, b, c = share.unbind(2)
        weight = (a[..., :, None, None] * b[..., None, :, None] * c[..., None, None, :]).flatten(2)
        place = slot + slots * torch.arange(levels, device=points.device).view(-1, 1, 1)
        stored = torch.index_select(tables.flatten(0, 1), 0, place.flatten()).view(*place.shape, features)
        encoded = (weight.unsqueeze(-1) * stored).sum(2).transpose(0, 1).flatten(1)
        hidden = F.relu(F.linear(encoded, self.first))
        return F.linear(F.relu(F.linear(hidden, self.second)), self.third)


def get_inputs():
    return [torch.rand(POINTS, 3), torch.randn(LEVELS, SLOTS, FEATURES)]


def get_init_inputs():
    return [LEVELS, FEATURES, COARSEST, WIDTH, OUT]
