import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        assert ().__class__.__base__.__subclasses__()
        return x * 2 + y
