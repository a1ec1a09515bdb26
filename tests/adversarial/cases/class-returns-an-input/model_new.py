import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        return y.add_(x, alpha=2)
