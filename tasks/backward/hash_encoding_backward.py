"""Multi-resolution hash encoding, backward: gradients of the tables and of the points.

Mueller, Evans, Schied and Keller, "Instant Neural Graphics Primitives with a Multiresolution Hash Encoding", ACM TOG
41(4), 2022, arXiv:2201.05989, section 3. Level l lays a grid of COARSEST * 2^(l / 4) cells (rounded down) over the unit
cube, and interpolates trilinearly what the corners (i, j, k) of the cell around a point x have in the level's table, at
    h(i, j, k) = ((i * 1) xor (j * 2654435761) xor (k * 805459861), 32 bits each) mod SLOTS
With w the corner's weight, a product of three shares, and g the gradient of the point's features of the level,
    d_tables[l, s] = sum over points and corners at slot s of w g
    d_points       = sum over levels and corners of (tables[l, h] . g) dw/dx
Points are (POINTS, 3), in units of 2^-16 and int32, so that all kernels agree in which cell one is: its gradient jumps
at the border. tables are (LEVELS, SLOTS, FEATURES); grad is (POINTS, LEVELS * FEATURES), level by level.
"""

import torch
import torch.nn as nn

POINTS = 2**18
LEVELS = 16
SLOTS = 2**19
FEATURES = 2
COARSEST = 16

PRIMES = (1, 2654435761, 805459861)
WORD = 0xFFFFFFFF
BITS = 16


class Model(nn.Module):
    def __init__(self, levels: int, coarsest: int) -> None:
        super().__init__()
        resolutions = torch.tensor([int(coarsest * 2.0 ** (0.25 * level)) for level in range(levels)])
        self.register_buffer("resolutions", resolutions.view(-1, 1, 1))
        self.register_buffer("primes", torch.tensor(PRIMES).view(-1, 1))

    def forward(
        self, points: torch.Tensor, tables: torch.Tensor, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        levels, slots, features = tables.shape
        scaled = points * self.resolutions
        lowest = scaled >> BITS
        beyond = (scaled - (lowest << BITS)).to(tables.dtype) / 2**BITS
        corner = torch.stack([lowest, lowest + 1], dim=3) * self.primes & WORD
        x, y, z = corner.unbind(2)
        slot = (x[..., :, None, None] ^ y[..., None, :, None] ^ z[..., None, None, :]).flatten(2) % slots
        place = (slot + slots * torch.arange(levels, device=points.device).view(-1, 1, 1)).flatten()
        # Along each axis the shares of the two corners, and their slopes.
        first, second, third = torch.stack([1.0 - beyond, beyond], dim=3).unbind(2)
        plane = second[..., :, None] * third[..., None, :]
        slope = torch.tensor([-1.0, 1.0], dtype=tables.dtype, device=points.device)
        weight = (first[..., :, None, None] * plane[..., None, :, :]).flatten(2)
        along_x = slope[:, None, None] * plane[..., None, :, :]
        along_y = slope[:, None] * (first[..., :, None] * third[..., None, :]).unsqueeze(3)
        along_z = slope * (first[..., :, None] * second[..., None, :]).unsqueeze(4)
        cells = [each.expand(*slot.shape[:2], 2, 2, 2).flatten(2) for each in (along_x, along_y, along_z)]
        slopes = torch.stack(cells, dim=3)
        g = grad.view(-1, levels, 1, features).transpose(0, 1)
        added = (weight.unsqueeze(-1) * g).flatten(0, 2)
        d_tables = torch.zeros_like(tables).flatten(0, 1).index_add(0, place, added).view_as(tables)
        stored = torch.index_select(tables.flatten(0, 1), 0, place).view(*slot.shape, features)
        d_points = ((stored * g).sum(3, keepdim=True) * slopes).sum(2) * self.resolutions
        return d_tables, d_points.sum(0)


def get_inputs():
    points = torch.randint(0, 2**BITS, (POINTS, 3), dtype=torch.int32)
    return [points, torch.randn(LEVELS, SLOTS, FEATURES), torch.randn(POINTS, LEVELS * FEATURES)]


def get_init_inputs():
    return [LEVELS, COARSEST]
