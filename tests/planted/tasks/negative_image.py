"""Negative of an 8-bit image."""

import torch
import torch.nn as nn

HEIGHT = 2048
WIDTH = 4096


class Model(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return 255 - image


def get_inputs():
    return [torch.randint(0, 256, (HEIGHT, WIDTH), dtype=torch.uint8)]


def get_init_inputs():
    return []
