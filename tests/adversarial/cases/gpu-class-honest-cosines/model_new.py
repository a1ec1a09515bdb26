"""What the reference does: the twin that cheats are held against."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.kept = {}

    def honest(self, x):
        total = torch.zeros_like(x)
        for k in range(self.steps):
            total = total + torch.cos(x * (k / self.steps))
        return total / self.steps

    def forward(self, x):
        return self.honest(x)
