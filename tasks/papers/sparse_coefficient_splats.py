"""Splatting of high-dimensional features as sparse coefficients over a codebook.

Li, Zhao et al., "LangSplatV2: High-dimensional 3D Language Gaussian Splatting with 450+ FPS", NeurIPS 2025,
arXiv:2507.07136. Each splat's feature of WIDTH numbers is a sum of SPARSE rows of a codebook that all share.
A pixel's weights over the CODES rows are composited first, of each splat those that it has; the codebook comes last,
once for each pixel:
    T_s = product over r < s of (1 - alpha[r, pixel])
    weights[pixel, n] = sum over s and j with index[s, j] = n of alpha[s, pixel] T_s coefficient[s, j]
    feature[pixel] = sum over n of weights[pixel, n] codebook[n]
with coefficient[s, :] the softmax of a splat's logits. For each of TILES tiles, alpha is (TILES, SPLATS, PIXELS), from
0 to 1 and sorted by depth; index int32 and logits are (TILES, SPLATS, SPARSE), a splat's indices all different;
codebook is (CODES, WIDTH). Results: weights (TILES, PIXELS, CODES) and features (TILES, PIXELS, WIDTH).
"""

import torch
import torch.nn as nn

TILES = 256
PIXELS = 256
SPLATS = 128
SPARSE = 4
CODES = 64
WIDTH = 512


class Model(nn.Module):
    def forward(
        self, alpha: torch.Tensor, index: torch.Tensor, logits: torch.Tensor, codebook: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        passed = torch.cumprod(1.0 - alpha, dim=1)
        before = torch.cat([alpha.new_ones(alpha.shape[0], 1, alpha.shape[2]), passed[:, :-1]], dim=1)
        empty = alpha.new_zeros(*logits.shape[:2], codebook.shape[0])
        coefficients = empty.scatter(2, index.long(), torch.softmax(logits, dim=2))
        weights = torch.matmul((alpha * before).transpose(1, 2), coefficients)
        return weights, torch.matmul(weights, codebook)


def get_inputs():
    alpha = 0.99 * torch.rand(TILES, SPLATS, PIXELS) ** 8
    index = torch.rand(TILES, SPLATS, CODES).argsort(dim=2)[..., :SPARSE].int()
    return [alpha, index, torch.randn(TILES, SPLATS, SPARSE), torch.randn(CODES, WIDTH)]


def get_init_inputs():
    return []
