"""Gated linear attention over a sequence of several chunks.

Yang, Wang, Shen, Panda and Kim, "Gated Linear Attention Transformers with Hardware-Efficient Training", ICML 2024,
arXiv:2312.06635, section 4. For each of HEADS independent heads, with q, k and the gate's logits (HEADS, LENGTH,
KEY_WIDTH), v (HEADS, LENGTH, VALUE_WIDTH) and the first state S (HEADS, KEY_WIDTH, VALUE_WIDTH),
    gate_t = sigmoid(logits_t)^(1/16)
    S_t = diag(gate_t) S_(t-1) + k_t^T v_t,   o_t = q_t S_t / sqrt(KEY_WIDTH)
Results: o (HEADS, LENGTH, VALUE_WIDTH) and the state after the last step. The reference takes CHUNK steps at once and
carries the state from chunk to chunk; the last chunk may be shorter. Within a chunk, key j reaches step t through the
product of the gates j + 1 to t, added up as logarithms.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

HEADS = 32
LENGTH = 1024
CHUNK = 64
KEY_WIDTH = 64
VALUE_WIDTH = 128
GATE_NORMALISER = 16.0


class Model(nn.Module):
    def __init__(self, key_width: int, gate_normaliser: float, chunk: int) -> None:
        super().__init__()
        self.scale = 1.0 / math.sqrt(key_width)
        self.gate_normaliser = gate_normaliser
        self.chunk = chunk

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, logits: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gates = F.logsigmoid(logits) / self.gate_normaliser
        outputs = []
        for qc, kc, vc, gc in zip(*(each.split(self.chunk, dim=1) for each in (q, k, v, gates)), strict=True):
            passed = torch.cumsum(gc, dim=1)
            past = torch.ones(qc.shape[1], qc.shape[1], dtype=torch.bool, device=q.device).tril().unsqueeze(-1)
            between = (passed[:, :, None] - passed[:, None]).masked_fill(~past, -math.inf)
            weights = torch.matmul(torch.exp(between) * kc[:, None], qc.unsqueeze(-1)).squeeze(-1)
            outputs.append(torch.bmm(weights, vc) + torch.bmm(qc * torch.exp(passed), state))
            last = passed[:, -1:]
            kept = (kc * torch.exp(last - passed)).transpose(1, 2)
            state = torch.exp(last).transpose(1, 2) * state + torch.bmm(kept, vc)
        return self.scale * torch.cat(outputs, dim=1), state


def get_inputs():
    keys = (HEADS, LENGTH, KEY_WIDTH)
    return [
        torch.randn(keys),
        torch.randn(keys),
        torch.randn(HEADS, LENGTH, VALUE_WIDTH),
        torch.randn(keys),
        torch.randn(HEADS, KEY_WIDTH, VALUE_WIDTH),
    ]


def get_init_inputs():
    return [KEY_WIDTH, GATE_NORMALISER, CHUNK]
