"""A nonlinear RNN over a sequence by Newton iterations, each solved by a scan that is parallel in time.

Danieli, Rodriguez, Sarabia, Suau and Zappella, "ParaRNN: Unlocking Parallel Training of Nonlinear RNNs for Large
Language Models", 2025, arXiv:2510.21450. The cell is its GRU with diagonal recurrent weights a (3, WIDTH), a parameter;
with the inputs' share x (BATCH, STEPS, 3, WIDTH) already multiplied, f_t(h) is
    z = sigmoid(a_0 h + x_0),  r = sigmoid(a_1 h + x_1),  c = tanh(a_2 r h + x_2),  f = (1 - z) h + z c
All states are unknowns of h_t - f_t(h_(t-1)) = 0 at once. From zeros, each of ITERATIONS iterations adds d to them,
    d_t = f_t'(h_(t-1)) d_(t-1) + f_t(h_(t-1)) - h_t,   d_0 = 0
a linear recurrence, which the reference takes in log2(STEPS) rounds of doubling reach. h_0 is (BATCH, WIDTH). Result:
the states (BATCH, STEPS, WIDTH) after the last iteration.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
STEPS = 1024
WIDTH = 512
ITERATIONS = 3


def scan(slope: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """d with d_t = slope_t d_(t-1) + value_t along axis 1, from 0."""
    reach = 1
    while reach < value.shape[1]:
        # What lies `reach` steps back covers as many steps; before the first there is nothing to add.
        earlier = F.pad(value[:, :-reach], (0, 0, reach, 0))
        value = value + slope * earlier
        slope = slope * F.pad(slope[:, :-reach], (0, 0, reach, 0))
        reach *= 2
    return value


class Model(nn.Module):
    def __init__(self, width: int, iterations: int) -> None:
        super().__init__()
        self.recurrent = nn.Parameter(torch.randn(3, width))
        self.iterations = iterations

    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        a = self.recurrent
        h = x.new_zeros(x.shape[0], x.shape[1], x.shape[3])
        for _ in range(self.iterations):
            before = torch.cat([first.unsqueeze(1), h[:, :-1]], dim=1)
            z = torch.sigmoid(a[0] * before + x[:, :, 0])
            r = torch.sigmoid(a[1] * before + x[:, :, 1])
            c = torch.tanh(a[2] * r * before + x[:, :, 2])
            after = (1.0 - z) * before + z * c
            reset = r + before * r * (1.0 - r) * a[1]
            slope = (1.0 - z) + (c - before) * z * (1.0 - z) * a[0] + z * (1.0 - c * c) * a[2] * reset
            h = h + scan(slope, after - h)
        return h


def get_inputs():
    return [torch.randn(BATCH, STEPS, 3, WIDTH), torch.randn(BATCH, WIDTH)]


def get_init_inputs():
    return [WIDTH, ITERATIONS]
