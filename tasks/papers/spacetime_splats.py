"""Slices of 4D Gaussian splats at a time: centre, covariance and opacity of the 3D splats there.

Duan, Wei, Dai, He, Chen and Chen, "4D-Rotor Gaussian Splatting: Towards Efficient Novel View Synthesis for Dynamic
Scenes", SIGGRAPH 2024, arXiv:2402.03307. Splat s has a centre (x, y, z, t), the logarithms of its four
axes' lengths, an opacity's logit, and a rotation of space-time, as a rotor of 8 numbers; here as the two quaternions
that it is made of, l and r (w, x, y, z), of any length but 0. With L(l) the matrix of p -> l p, R(r) that of p -> p r,
and both quaternions divided by their lengths,
    covariance = A A^T,   A = L(l) R(r) diag(exp(log_axes)) = [[U, c], [c^T, w]] after the product
For dt = time - t the slice is the 3D splat with
    centre (x, y, z) + c dt / w,   covariance U - c c^T / w,   opacity sigmoid(logit) exp(-dt^2 / (2 w))
Inputs: centre (SPLATS, 4), left and right (SPLATS, 4), log_axes (SPLATS, 4), logit (SPLATS), time a tensor of one
element. Results: centres (SPLATS, 3), covariances (SPLATS, 6) as xx, xy, xz, yy, yz, zz, opacities (SPLATS).
"""

import torch
import torch.nn as nn

SPLATS = 2**21


class Model(nn.Module):
    def forward(
        self,
        centre: torch.Tensor,
        left: torch.Tensor,
        right: torch.Tensor,
        log_axes: torch.Tensor,
        logit: torch.Tensor,
        time: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        w, x, y, z = (left / torch.linalg.vector_norm(left, dim=1, keepdim=True)).unbind(1)
        before = torch.stack([w, -x, -y, -z, x, w, -z, y, y, z, w, -x, z, -y, x, w], dim=1).view(-1, 4, 4)
        w, x, y, z = (right / torch.linalg.vector_norm(right, dim=1, keepdim=True)).unbind(1)
        after = torch.stack([w, -x, -y, -z, x, w, z, -y, y, -z, w, x, z, y, -x, w], dim=1).view(-1, 4, 4)
        axes = torch.matmul(before, after) * torch.exp(log_axes)[:, None, :]
        covariance = torch.matmul(axes, axes.transpose(1, 2))
        across, along = covariance[:, :3, 3], covariance[:, 3, 3]
        away = time - centre[:, 3]
        slope = across / along[:, None]
        moved = centre[:, :3] + slope * away[:, None]
        sliced = covariance[:, :3, :3] - slope[:, :, None] * across[:, None, :]
        six = torch.stack([sliced[:, i, j] for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))], dim=1)
        return moved, six, torch.sigmoid(logit) * torch.exp(-0.5 * away * away / along)


def get_inputs():
    # Quaternions of any direction, axes from a fifth to five.
    return [
        torch.randn(SPLATS, 4),
        torch.randn(SPLATS, 4),
        torch.randn(SPLATS, 4),
        0.5 * torch.randn(SPLATS, 4),
        torch.randn(SPLATS),
        torch.randn(1),
    ]


def get_init_inputs():
    return []
