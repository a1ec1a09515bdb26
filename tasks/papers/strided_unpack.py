"""Unpacking of a message into strided blocks, nested twice, in place.

Pearson, Wu, Chung, Xiong and Hwu, "TEMPI: An Interposed MPI Library with a Canonical Representation of CUDA-aware
Datatypes", HPDC 2021, arXiv:2012.14363. The other way round from packing: of a message packed (OBJECTS, PLANES, ROWS,
RUN), in bytes (uint8), each byte goes to its place in buffer, one axis of START + OBJECTS * EXTENT bytes,
    buffer[START + o EXTENT + p PLANE_STRIDE + r ROW_STRIDE + i] = packed[o, p, r, i]
and the bytes between are kept as they are.
"""

import torch
import torch.nn as nn

OBJECTS = 4
PLANES = 128
ROWS = 512
RUN = 600
ROW_GAP = 424
PLANE_GAP = 4096
GAP = 65536
START = 64
ROW_STRIDE = RUN + ROW_GAP
PLANE_STRIDE = ROWS * ROW_STRIDE + PLANE_GAP
EXTENT = PLANES * PLANE_STRIDE + GAP


class Model(nn.Module):
    def __init__(self, start: int, extent: int, plane_stride: int, row_stride: int) -> None:
        super().__init__()
        self.start = start
        self.extent = extent
        self.plane_stride = plane_stride
        self.row_stride = row_stride

    def forward(self, packed: torch.Tensor, buffer: torch.Tensor) -> None:
        strides = (self.extent, self.plane_stride, self.row_stride, 1)
        torch.as_strided(buffer, packed.shape, strides, self.start).copy_(packed)


def get_inputs():
    packed = torch.randint(0, 256, (OBJECTS, PLANES, ROWS, RUN), dtype=torch.uint8)
    return [packed, torch.randint(0, 256, (START + OBJECTS * EXTENT,), dtype=torch.uint8)]


def get_init_inputs():
    return [START, EXTENT, PLANE_STRIDE, ROW_STRIDE]
