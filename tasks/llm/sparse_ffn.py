"""SwiGLU feed-forward layer of which a list of neurons is computed, the others being left out.

Q. Wang et al., "CoreInfer: Accelerating Large Language Model Inference with Semantics-Inspired Adaptive Sparse
Activation", 2024, arXiv:2410.18311: the core neurons of a sentence are chosen once, and decoding computes those alone,
without copying their weights together. x is (TOKENS, HIDDEN); gate, up and down are (NEURONS, HIDDEN), row n being
that of neuron n, all bfloat16. core is int64 (CORE), the numbers of neurons, ascending and distinct.

    out[t] = sum over n in core of silu(gate[n] . x[t]) (up[n] . x[t]) down[n]
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 4
HIDDEN = 4096
NEURONS = 14336
CORE = 5734


class Model(nn.Module):
    def forward(
        self, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, core: torch.Tensor
    ) -> torch.Tensor:
        hidden = F.silu(torch.matmul(x, gate[core].t())) * torch.matmul(x, up[core].t())
        return torch.matmul(hidden, down[core])


def get_inputs():
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16)
    # Gate and up give numbers of unit size.
    gate, up, down = torch.randn(3, NEURONS, HIDDEN).unbind(0)
    gate, up = (gate / HIDDEN**0.5).bfloat16(), (up / HIDDEN**0.5).bfloat16()
    core = torch.randperm(NEURONS)[:CORE].sort().values
    return [x, gate, up, down.bfloat16(), core]


def get_init_inputs():
    return []
