"""Gradient of gated linear attention over several chunks, for q, k, v, the gate's logits and the first state.

Yang, Wang, Shen, Panda and Kim, "Gated Linear Attention Transformers with Hardware-Efficient Training", ICML 2024,
arXiv:2312.06635, section 4 and appendix C. The forward pass is gate_t = sigmoid(logits_t)^(1/16),
S_t = diag(gate_t) S_(t-1) + k_t^T v_t, o_t = q_t S_t / sqrt(KEY_WIDTH). q, k, logits are (HEADS, LENGTH, KEY_WIDTH), v
and do = dL/do (HEADS, LENGTH, VALUE_WIDTH), S_0 and dS = dL/dS_LENGTH (HEADS, KEY_WIDTH, VALUE_WIDTH). With G_t the
gradient for S_t, where G_LENGTH has dS added,
    G_t = q_t^T do_t / sqrt(KEY_WIDTH) + diag(gate_(t+1)) G_(t+1)
    dq_t = do_t S_t^T / sqrt(KEY_WIDTH),   dk_t = v_t G_t^T,   dv_t = k_t G_t,   dS_0 = diag(gate_1) G_1
    dL/d(log gate_t) = rowsum(dS S_LENGTH) + sum over s >= t of (q_s dq_s - k_s dk_s)
Results: dq, dk, dv, dlogits, dS_0. The reference takes CHUNK steps at once: states go forward from chunk to chunk, G
goes backward, and within a chunk all pairs of steps are taken.
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
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        logits: torch.Tensor,
        state: torch.Tensor,
        grad: torch.Tensor,
        grad_state: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        parts = [each.split(self.chunk, dim=1) for each in (q, k, v, F.logsigmoid(logits) / self.gate_normaliser, grad)]
        passed = [torch.cumsum(gates, dim=1) for gates in parts[3]]
        states = [state]
        for b, kc, vc in zip(passed, parts[1], parts[2], strict=True):
            kept = (kc * torch.exp(b[:, -1:] - b)).transpose(1, 2)
            states.append(torch.exp(b[:, -1:]).transpose(1, 2) * states[-1] + torch.bmm(kept, vc))
        # What all gates do to the last state, through which dS comes in.
        tail = torch.sum(grad_state * states[-1], dim=2).unsqueeze(1)
        dq, dk, dv, slopes = [], [], [], []
        for c in reversed(range(len(passed))):
            b, qc, kc, vc, gc = passed[c], parts[0][c], parts[1][c], parts[2][c], self.scale * parts[4][c]
            past = torch.ones(b.shape[1], b.shape[1], dtype=torch.bool, device=q.device).tril()
            # By step t, then by the key j before it.
            decay = torch.exp((b[:, :, None] - b[:, None]).masked_fill(~past.unsqueeze(-1), -math.inf))
            pairs = torch.bmm(gc, vc.transpose(1, 2)).unsqueeze(-1) * decay
            weights = torch.sum(qc[:, :, None] * decay * kc[:, None], dim=3)
            reach, left = torch.exp(b), torch.exp(b[:, -1:] - b)
            dq.append(torch.sum(pairs * kc[:, None], dim=2) + reach * torch.bmm(gc, states[c].transpose(1, 2)))
            dk.append(torch.sum(pairs * qc[:, :, None], dim=1) + left * torch.bmm(vc, grad_state.transpose(1, 2)))
            dv.append(torch.bmm(weights.transpose(1, 2), gc) + torch.bmm(kc * left, grad_state))
            through = qc * dq[-1] - kc * dk[-1]
            later = torch.flip(torch.cumsum(torch.flip(through, [1]), dim=1), [1]) + tail
            slopes.append(later)
            tail = later[:, :1]
            grad_state = torch.bmm((qc * reach).transpose(1, 2), gc) + reach[:, -1:].transpose(1, 2) * grad_state
        dlogits = torch.cat(slopes[::-1], dim=1) * torch.sigmoid(-logits) / self.gate_normaliser
        return *(torch.cat(each[::-1], dim=1) for each in (dq, dk, dv)), dlogits, grad_state


def get_inputs():
    keys, values = (HEADS, LENGTH, KEY_WIDTH), (HEADS, LENGTH, VALUE_WIDTH)
    state = (HEADS, KEY_WIDTH, VALUE_WIDTH)
    q, k, logits = (torch.randn(keys) for _ in range(3))
    return [q, k, torch.randn(values), logits, torch.randn(state), torch.randn(values), torch.randn(state)]


def get_init_inputs():
    return [KEY_WIDTH, GATE_NORMALISER, CHUNK]
