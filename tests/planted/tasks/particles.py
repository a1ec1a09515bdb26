"""One drag step of particles: position moves by velocity, velocity is damped by the particle's own drag."""

import torch
import torch.nn as nn

PARTICLES = 262144
STEP = 0.125


class Model(nn.Module):
    """Records of eight floats: three of position, three of velocity, the drag, the mass."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.step = step

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        position, velocity, rest = records[:, 0:3], records[:, 3:6], records[:, 6:8]
        moved = position + self.step * velocity
        damped = velocity - self.step * records[:, 6:7] * velocity
        return torch.cat([moved, damped, rest], dim=1)


def get_inputs():
    return [torch.randn(PARTICLES, 8)]


def get_init_inputs():
    return [STEP]
