"""Sum over the inner and the outer axis of a batch, leaving one value per channel."""

import torch
import torch.nn as nn

BATCH = 64
CHANNELS = 256
LENGTH = 256


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=(0, 2))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs():
    return []
