"""Packing of strided blocks, nested twice, into one message.

Pearson, Wu, Chung, Xiong and Hwu, "TEMPI: An Interposed MPI Library with a Canonical Representation of CUDA-aware
Datatypes", HPDC 2021, arXiv:2012.14363. A nest of MPI's vector types comes down to a start, counts and strides: each of
OBJECTS objects is PLANES planes of ROWS rows of RUN bytes that lie together. Bytes are uint8:
    packed[o, p, r, i] = buffer[START + o EXTENT + p PLANE_STRIDE + r ROW_STRIDE + i]
packed is (OBJECTS, PLANES, ROWS, RUN); buffer is one axis of START + OBJECTS * EXTENT bytes.
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
    def __init__(
        self, planes: int, rows: int, run: int, start: int, extent: int, plane_stride: int, row_stride: int
    ) -> None:
        super().__init__()
        self.planes = planes
        self.rows = rows
        self.run = run
        self.start = start
        self.extent = extent
        self.plane_stride = plane_stride
        self.row_stride = row_stride

    def forward(self, buffer: torch.Tensor) -> torch.Tensor:
        counts = ((buffer.shape[0] - self.start) // self.extent, self.planes, self.rows, self.run)
        strides = (self.extent, self.plane_stride, self.row_stride, 1)
        return torch.as_strided(buffer, counts, strides, self.start).clone()


def get_inputs():
    return [torch.randint(0, 256, (START + OBJECTS * EXTENT,), dtype=torch.uint8)]


def get_init_inputs():
    return [PLANES, ROWS, RUN, START, EXTENT, PLANE_STRIDE, ROW_STRIDE]
