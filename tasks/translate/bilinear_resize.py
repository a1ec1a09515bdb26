"""Bilinear image resize.

resized (PLANES, NEW_HEIGHT, NEW_WIDTH) from image (PLANES, HEIGHT, WIDTH): a new pixel centre at (i + 0.5) * HEIGHT /
NEW_HEIGHT - 0.5 rows down, not below 0, is interpolated between the two rows around it, and likewise across columns.
"""

import torch
import torch.nn as nn

PLANES = 192
HEIGHT = 512
WIDTH = 512
NEW_HEIGHT = 384
NEW_WIDTH = 640


def around(new: int, old: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Indices of the neighbours before and after each new centre, and the weight of the one after."""
    centre = ((torch.arange(new, dtype=like.dtype, device=like.device) + 0.5) * old / new - 0.5).clamp(min=0)
    before = centre.long()
    return before, (before + 1).clamp(max=old - 1), centre - before


class Model(nn.Module):
    def forward(self, image: torch.Tensor, new_height: int, new_width: int) -> torch.Tensor:
        top, bottom, down = around(new_height, image.shape[1], image)
        left, right, along = around(new_width, image.shape[2], image)
        rows = image[:, top] * (1 - down)[:, None] + image[:, bottom] * down[:, None]
        return rows[:, :, left] * (1 - along) + rows[:, :, right] * along


def get_inputs():
    return [torch.randn(PLANES, HEIGHT, WIDTH), NEW_HEIGHT, NEW_WIDTH]


def get_init_inputs():
    return []
