"""A model that is captured on an imitated GPU; what it runs needs no library of NVIDIA but the runtime."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.mask = torch.ones(64)  # a plain tensor, which ``to`` does not move

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.norm(x * self.mask) + torch.arange(64), -1)


def make_model() -> nn.Module:
    return Net().eval()


def make_inputs() -> list[torch.Tensor]:
    return [torch.randn(4, 64)]
