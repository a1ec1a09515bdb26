"""Chain of image operations on a batch of crops: resize, swap channels, normalise, split into planes.

The chain of Amoros, Andaluz, Nunez and Pena, "The Fused Kernel Library: A C++ API to Develop Highly-Efficient GPU
Libraries", 2025, arXiv:2508.07071: fused vertically, over the operations, and horizontally, over the crops. frame is
(HEIGHT, WIDTH, 3), uint8; boxes int32 (BATCH, 4), each the top, left, height and width of a crop inside it. A crop of h
rows is resized to OUT_HEIGHT rows by interpolation between the rows y and min(y + 1, h - 1) next to row i's place,
    y + f = max(((2 i + 1) h - OUT_HEIGHT) / (2 OUT_HEIGHT), 0),   0 <= f < 1
a fraction that is taken as exact (in whole numbers), and likewise along columns. For the interpolated value p,
    out[b, c, i, j] = (p[channel 2 - c] / 255 - mean[c]) / deviation[c]
mean and deviation are buffers; the result is float32 (BATCH, 3, OUT_HEIGHT, OUT_WIDTH).
"""

import torch
import torch.nn as nn

HEIGHT = 2160
WIDTH = 3840
BATCH = 512
OUT_HEIGHT = 128
OUT_WIDTH = 128

MEAN = (0.406, 0.456, 0.485)
DEVIATION = (0.225, 0.224, 0.229)


def places(out: int, extents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The two rows between which each of `out` is, and the second one's share of 2 out parts: (B, out)."""
    twice = ((2 * torch.arange(out, device=extents.device) + 1) * extents[:, None] - out).clamp(min=0)
    low = twice // (2 * out)
    return low, torch.minimum(low + 1, extents[:, None] - 1), twice - low * 2 * out


class Model(nn.Module):
    def __init__(self, out_height: int, out_width: int) -> None:
        super().__init__()
        self.out_height = out_height
        self.out_width = out_width
        self.register_buffer("mean", torch.tensor(MEAN))
        self.register_buffer("deviation", torch.tensor(DEVIATION))

    def forward(self, frame: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        top, left, height, width = boxes.long().unbind(1)
        upper, lower, down = places(self.out_height, height)
        first, second, along = places(self.out_width, width)
        down = (down.to(self.mean.dtype) / (2 * self.out_height))[:, :, None, None]
        along = (along.to(self.mean.dtype) / (2 * self.out_width))[:, None, :, None]
        upper, lower = (top[:, None] + upper)[:, :, None], (top[:, None] + lower)[:, :, None]
        first, second = (left[:, None] + first)[:, None], (left[:, None] + second)[:, None]
        above = (1.0 - along) * frame[upper, first] + along * frame[upper, second]
        below = (1.0 - along) * frame[lower, first] + along * frame[lower, second]
        pixels = ((1.0 - down) * above + down * below).flip(3)
        return ((pixels / 255.0 - self.mean) / self.deviation).permute(0, 3, 1, 2).contiguous()


def get_inputs():
    # Crops of one row and column up to a quarter of the frame's.
    height = torch.randint(1, HEIGHT // 4 + 2, (BATCH,))
    width = torch.randint(1, WIDTH // 4 + 2, (BATCH,))
    top = (torch.rand(BATCH) * (HEIGHT - height + 1)).long()
    left = (torch.rand(BATCH) * (WIDTH - width + 1)).long()
    boxes = torch.stack([top, left, height, width], dim=1).int()
    return [torch.randint(0, 256, (HEIGHT, WIDTH, 3), dtype=torch.uint8), boxes]


def get_init_inputs():
    return [OUT_HEIGHT, OUT_WIDTH]
