"""Core neurons of a sentence: those that are among the largest activations of most of its tokens.

Q. Wang et al., "CoreInfer: Accelerating Large Language Model Inference with Semantics-Inspired Adaptive Sparse
Activation", 2024, arXiv:2410.18311, section 3.1. activations is (TOKENS, NEURONS) in bfloat16, what a feed-forward
layer's neurons give for the tokens of a prompt. Of token t with positive[t] activations above zero,

    threshold[t] = the k-th largest activation of t, k = ceil(positive[t] SHARE / 100)
    counts[n]    = how many tokens t have activations[t, n] > 0 and >= threshold[t]
    core         = the CORE neurons with the largest counts, of equal ones the lowest, in ascending order

Outputs: core (CORE) and counts (NEURONS), both int64. Which neurons are the token's own core is the paper's rule, as is
that the most frequent make the sentence's; that a fixed number is taken, and the order of equal ones, are ours.
llm/sparse_ffn computes with such a list.
"""

import torch
import torch.nn as nn

TOKENS = 2048
NEURONS = 14336
CORE = 5734
SHARE = 40


class Model(nn.Module):
    def __init__(self, core: int, share: int) -> None:
        super().__init__()
        self.core = core
        self.share = share

    def forward(self, activations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positive = activations > 0
        rank = (positive.sum(dim=1, keepdim=True) * self.share + 99) // 100
        # Without a positive activation the rank is 0, and no neuron counts, whichever threshold it has.
        descending = torch.sort(activations, dim=1, descending=True).values
        threshold = descending.gather(1, (rank - 1).clamp_min(0))
        counts = (positive & (activations >= threshold)).sum(dim=0)
        number = torch.arange(counts.shape[0], device=counts.device)
        order = counts * counts.shape[0] - number
        return torch.topk(order, self.core).indices.sort().values, counts


def get_inputs():
    # Neurons differ in how often they are active; some tokens have few positive activations, or none.
    level = torch.randn(NEURONS) - 0.5 + 2.0 * torch.randn(TOKENS, 1)
    return [(level + torch.randn(TOKENS, NEURONS)).bfloat16()]


def get_init_inputs():
    return [CORE, SHARE]
