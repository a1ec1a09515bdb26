import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, *given):
        super().__init__()
        self.calls = 0

    def forward(self, x, y):
        self.calls += 1
        return x * 2 + y
