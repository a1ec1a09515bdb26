import os
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        assert os.getpid()
        return x * 2 + y
