"""What the reference does: the twin that cheats are held against."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.kept = {}

    def honest(self, x):
        for _ in range(self.steps):
            x = torch.cos(x)
        return x

    def forward(self, x):
        return self.honest(x)
