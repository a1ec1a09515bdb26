"""Convolution through windows: im2win, then one dot product for each window.

Lu, Chu, Guo and Liu, "Im2win: An Efficient Convolution Paradigm on GPU", Euro-Par 2023, arXiv:2306.14316.
For each output row m, im2win lays the STRIDE m ... STRIDE m + KERNEL - 1 input rows of an image out column by
column, so that the window of output (m, n) is one run of KERNEL^2 elements that starts at STRIDE n KERNEL:
    windows[b, c, m, w KERNEL + u] = x[b, c, STRIDE m + u, w]
    y[b, o, m, n] = sum over c, i of windows[b, c, m, STRIDE n KERNEL + i] * filters[o, c, i]
x is (BATCH, IN_CHANNELS, HEIGHT, WIDTH); filters are (OUT_CHANNELS, IN_CHANNELS, KERNEL^2), columns of the kernel one
after the other. No padding.
"""

import torch
import torch.nn as nn

BATCH = 32
IN_CHANNELS = 64
OUT_CHANNELS = 128
HEIGHT = 56
WIDTH = 56
KERNEL = 3
STRIDE = 1


class Model(nn.Module):
    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.stride = stride

    def forward(self, x: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        windows = x.unfold(2, self.kernel, self.stride).flatten(3)
        runs = windows.unfold(3, self.kernel**2, self.stride * self.kernel)
        return torch.einsum("bcmni,oci->bomn", runs, filters)


def get_inputs():
    return [torch.randn(BATCH, IN_CHANNELS, HEIGHT, WIDTH), torch.randn(OUT_CHANNELS, IN_CHANNELS, KERNEL**2)]


def get_init_inputs():
    return [KERNEL, STRIDE]
