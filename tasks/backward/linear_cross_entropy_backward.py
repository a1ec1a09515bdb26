"""Gradients of the mean cross-entropy behind a linear layer, for its input and its weight.

The head of Luo, Li, Zhao and Li, "StreamBP: Memory-Efficient Exact Backpropagation for Long Sequence Training of LLMs",
2025, arXiv:2506.03077, section 3.2, which takes rows chunk by chunk, so that the (BATCH, CLASSES) scores are never
held. With s_i = W x_i, g = dL/dloss, a single number, and the n rows with a target, at least one,
    d_i = g / n (softmax(s_i) - [j = t_i]), 0 where t_i = IGNORED
    dx_i = W^T d_i,   dW = sum over i of d_i x_i^T
Outputs: dx (BATCH, IN_FEATURES) and dW (CLASSES, IN_FEATURES).
"""

import math

import torch
import torch.nn as nn

BATCH = 2048
IN_FEATURES = 512
CLASSES = 16384
IGNORED = -100
IGNORED_SHARE = 0.2


class Model(nn.Module):
    def __init__(self, ignored: int) -> None:
        super().__init__()
        self.ignored = ignored

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        counts = (target != self.ignored).unsqueeze(1)
        classes = torch.arange(weight.shape[0], device=weight.device)
        scores = torch.matmul(x, weight.t())
        difference = torch.softmax(scores, dim=1) - (classes == target.unsqueeze(1)).to(scores.dtype)
        d = torch.where(counts, difference, 0.0) * (grad / counts.sum().to(scores.dtype))
        return torch.matmul(d, weight), torch.matmul(d.t(), x)


def get_inputs():
    target = torch.where(torch.rand(BATCH) < IGNORED_SHARE, IGNORED, torch.randint(0, CLASSES, (BATCH,)))
    target[0] = torch.randint(0, CLASSES, ())
    # Scores of a standard deviation of four: some rows are sure of a class.
    x = torch.randn(BATCH, IN_FEATURES)
    weight = 4.0 * torch.randn(CLASSES, IN_FEATURES) / math.sqrt(IN_FEATURES)
    return [x, weight, target, BATCH * torch.randn(())]


def get_init_inputs():
    return [IGNORED]
