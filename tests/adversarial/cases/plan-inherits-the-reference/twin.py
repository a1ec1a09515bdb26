import sys

Model = sys.modules['builtins'].__dict__.get('Model')
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        return x + x + y
