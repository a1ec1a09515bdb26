"""Unpacking of a message into strided blocks, nested twice, in place, and packing of what was there.

Pearson, Wu, Chung, Xiong and Hwu, "TEMPI: An Interposed MPI Library with a Canonical Representation of CUDA-aware
Datatypes", HPDC 2021, arXiv:2012.14363. A nest of MPI's vector types comes down to a start, counts and strides: each of
OBJECTS objects is PLANES planes of ROWS rows of RUN bytes that lie together. As MPI_Sendrecv_replace does, the blocks
of buffer, one axis of START + OBJECTS * EXTENT bytes (uint8), are sent, and replaced by a message that was received:
    sent[o, p, r, i] = what is in buffer[START + o EXTENT + p PLANE_STRIDE + r ROW_STRIDE + i] before
    received[o, p, r, i] is there after
Both are (OBJECTS, PLANES, ROWS, RUN). buffer is changed in place; its bytes between are kept as they are.
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

    def forward(self, received: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        strides = (self.extent, self.plane_stride, self.row_stride, 1)
        blocks = torch.as_strided(buffer, received.shape, strides, self.start)
        sent = blocks.clone()
        blocks.copy_(received)
        return sent


def get_inputs():
    received = torch.randint(0, 256, (OBJECTS, PLANES, ROWS, RUN), dtype=torch.uint8)
    return [received, torch.randint(0, 256, (START + OBJECTS * EXTENT,), dtype=torch.uint8)]


def get_init_inputs():
    return [START, EXTENT, PLANE_STRIDE, ROW_STRIDE]
