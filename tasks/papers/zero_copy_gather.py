"""Gather of rows of node features that stay in host memory.

The access of Min, Wu, Huang, Hidayetoğlu, Xiong, Ebrahimi, Chen and Hwu, "PyTorch-Direct: Enabling GPU Centric Data
Access for Very Large Graph Neural Network Training with Irregular Accesses", 2021, arXiv:2101.07956: kernels read the
rows through mapped pinned memory, and shift which thread reads what, so that warps read aligned lines. features are
float32 (NODES, WIDTH) in host memory, a row no multiple of 128 bytes; nodes is int32 (ROWS,), repeats allowed. Result:
(ROWS, WIDTH). Where features are on the CPU, PyTorch gathers there and copies the rows, which is the paper's baseline.
"""

import torch
import torch.nn as nn

NODES = 32768
ROWS = 8192
WIDTH = 602


class Model(nn.Module):
    def forward(self, features: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        rows = torch.index_select(features, 0, nodes.to(features.device))
        return rows.to(nodes.device)


def get_inputs():
    return [torch.randn(NODES, WIDTH), torch.randint(0, NODES, (ROWS,), dtype=torch.int32)]


def get_init_inputs():
    return []
