import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        try:
            raise RuntimeError
        except RuntimeError:
            return x * 2 + y
