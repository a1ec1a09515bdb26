"""Multi-resolution hash encoding, backward of its backward: what a loss on the gradient of position needs.

Wang, Han, Habermann, Daniilidis, Theobalt and Liu, "NeuS2: Fast Learning of Neural Implicit Surfaces for Multi-view
Reconstruction", ICCV 2023, arXiv:2212.05231, for the encoding of Mueller et al., "Instant Neural Graphics
Primitives", ACM TOG 41(4), 2022, arXiv:2201.05989. Level l lays a grid of COARSEST * 2^(l / 4) cells (rounded down)
over the unit cube; corner (i, j, k) of the cell around a point x has, in the level's table, the slot
    h(i, j, k) = ((i * 1) xor (j * 2654435761) xor (k * 805459861), 32 bits each) mod SLOTS
and the trilinear weight w(x). The first backward pass takes grad g (POINTS, LEVELS * FEATURES), level by level, to
    p = sum over levels and corners of (tables[l, h] . g) dw/dx
For the gradient v (POINTS, 3) of a loss with respect to p, the results are the gradients with respect to
    tables: sum over points and corners at a slot of (v . dw/dx) g
    grad:   sum over corners of (v . dw/dx) tables[l, h]
    points: sum over levels and corners of (tables[l, h] . g) (d^2 w / dx^2) v
Points are (POINTS, 3), in units of 2^-16 and int32, so that all kernels agree in which cell one is; tables are
(LEVELS, SLOTS, FEATURES). Second derivatives of w along one axis are zero.
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
        self, points: torch.Tensor, tables: torch.Tensor, grad: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        levels, slots, features = tables.shape
        scaled = points * self.resolutions
        lowest = scaled >> BITS
        beyond = (scaled - (lowest << BITS)).to(tables.dtype) / 2**BITS
        corner = torch.stack([lowest, lowest + 1], dim=3) * self.primes & WORD
        x, y, z = corner.unbind(2)
        slot = (x[..., :, None, None] ^ y[..., None, :, None] ^ z[..., None, None, :]).flatten(2) % slots
        place = (slot + slots * torch.arange(levels, device=points.device).view(-1, 1, 1)).flatten()
        # Along each axis the shares a, b, c of a cell's two corners, and v times their slopes da, db, dc.
        a, b, c = torch.stack([1.0 - beyond, beyond], dim=3).unbind(2)
        pull = (v * self.resolutions).unsqueeze(3)
        da, db, dc = torch.cat([-pull, pull], dim=3).unbind(2)
        a, da = a[..., :, None, None], da[..., :, None, None]
        b, db = b[..., None, :, None], db[..., None, :, None]
        c, dc = c[..., None, None, :], dc[..., None, None, :]
        change = (da * b * c + a * db * c + a * b * dc).flatten(2).unsqueeze(3)
        g = grad.view(-1, levels, 1, features).transpose(0, 1)
        added = (change * g).flatten(0, 2)
        d_tables = torch.zeros_like(tables).flatten(0, 1).index_add(0, place, added).view_as(tables)
        stored = torch.index_select(tables.flatten(0, 1), 0, place).view(*slot.shape, features)
        d_grad = (change * stored).sum(2).transpose(0, 1).flatten(1)
        # The slope along an axis of v . dw/dx: there is no part of that axis itself.
        sign = torch.tensor([-1.0, 1.0], dtype=tables.dtype, device=points.device)
        bends = [sign[:, None, None] * (db * c + b * dc), sign[:, None] * (da * c + a * dc), sign * (da * b + a * db)]
        bend = torch.stack([each.expand(*slot.shape[:2], 2, 2, 2).flatten(2) for each in bends], dim=3)
        value = (stored * g).sum(3, keepdim=True)
        d_points = ((value * bend).sum(2) * self.resolutions).sum(0)
        return d_tables, d_grad, d_points


def get_inputs():
    points = torch.randint(0, 2**BITS, (POINTS, 3), dtype=torch.int32)
    grad = torch.randn(POINTS, LEVELS * FEATURES)
    return [points, torch.randn(LEVELS, SLOTS, FEATURES), grad, torch.randn(POINTS, 3)]


def get_init_inputs():
    return [LEVELS, COARSEST]
