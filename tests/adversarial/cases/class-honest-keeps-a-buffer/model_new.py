import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, *given):
        super().__init__()
        self.kept = None

    def forward(self, x, y):
        if self.kept is None or self.kept.shape != x.shape:
            self.kept = torch.empty_like(x)
        return torch.add(y, x, alpha=2, out=self.kept)
