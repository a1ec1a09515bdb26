"""Rows of a feature table whose width is no whole number of cache lines, gathered by node number.

Min, Wu, Huang, Hidayetoglu, Xiong, Ebrahimi, Chen and Hwu, "PyTorch-Direct: Enabling GPU Centric Data Access for Very
Large Graph Neural Network Training with Irregular Accesses", 2021, arXiv:2101.07956, and "Large Graph Convolutional
Network Training with GPU-Oriented Data Communication Architecture", VLDB 2021, arXiv:2103.03330. A row starts anywhere
in a line of 128 bytes; their kernel shifts the places that threads read circularly, so that each warp reads whole
lines. There the table lies in the host's memory; here in the device's, where what is lost are sectors.
    out[i] = features[nodes[i]], zeros where nodes[i] is -1
features are (NODES, WIDTH), nodes int64 (COUNT); the result is (COUNT, WIDTH).
"""

import torch
import torch.nn as nn

NODES = 2**17
WIDTH = 301
COUNT = 2**17


class Model(nn.Module):
    def forward(self, features: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        rows = torch.index_select(features, 0, nodes.clamp(min=0))
        return rows.masked_fill((nodes < 0)[:, None], 0.0)


def get_inputs():
    nodes = torch.randint(0, NODES, (COUNT,))
    nodes[torch.rand(COUNT) < 0.1] = -1
    return [torch.randn(NODES, WIDTH), nodes]


def get_init_inputs():
    return []
