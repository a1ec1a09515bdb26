"""Constant-Q transform of a batch of signals.

The kernel of Cheuk, Anderson, Agres and Herremans, "nnAudio: An on-the-fly GPU Audio to Spectrogram Conversion Toolbox
Using 1D Convolution Neural Networks", IEEE Access 8, 2020, arXiv:1912.12055; the transform is that of Brown,
"Calculation of a constant Q spectral transform", JASA 89(1), 1991. Bin k has the frequency f_k = LOWEST * 2^(k /
OCTAVE) and the length n_k = ceil(q RATE / f_k), q = 1 / (2^(1 / OCTAVE) - 1). With w a periodic Hann window of n_k
samples, divided by its sum, in the middle of a frame of n_0 samples, the longest, from sample s_k = (n_0 - n_k) // 2
on,
    X[b, t, k] = sum over n < n_k of w[n] x[b, t HOP + s_k + n] exp(-2 pi i f_k (n - n_k // 2) / RATE)
where signals (BATCH, SAMPLES) are extended by n_0 // 2 zeros at both ends. Results: the real and the imaginary part
of X, each (BATCH, FRAMES, BINS). The kernels are buffers (BINS, n_0); high bins are short, and most of it is zero.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
SAMPLES = 220500
HOP = 512
BINS = 72
OCTAVE = 12
LOWEST = 65.40639132514966
RATE = 22050


def kernels(bins: int, octave: int, lowest: float, rate: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Real and imaginary parts (bins, longest) of the windowed waves, conjugated."""
    quality = 1.0 / (2.0 ** (1.0 / octave) - 1.0)
    longest = math.ceil(quality * rate / lowest)
    result = torch.zeros(2, bins, longest, dtype=torch.float64)
    for k in range(bins):
        frequency = lowest * 2.0 ** (k / octave)
        length = math.ceil(quality * rate / frequency)
        window = torch.hann_window(length, dtype=torch.float64)
        angle = 2.0 * math.pi * frequency / rate * (torch.arange(length, dtype=torch.float64) - length // 2)
        start = (longest - length) // 2
        wave = torch.stack([torch.cos(angle), -torch.sin(angle)])
        result[:, k, start : start + length] = wave * window / window.sum()
    real, imaginary = result.float()
    return real, imaginary


class Model(nn.Module):
    def __init__(self, hop: int, bins: int, octave: int, lowest: float, rate: int) -> None:
        super().__init__()
        self.hop = hop
        real, imaginary = kernels(bins, octave, lowest, rate)
        self.register_buffer("real", real)
        self.register_buffer("imaginary", imaginary)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        longest = self.real.shape[1]
        frames = F.pad(x, (longest // 2, longest // 2)).unfold(1, longest, self.hop)
        return torch.matmul(frames, self.real.t()), torch.matmul(frames, self.imaginary.t())


def get_inputs():
    return [torch.randn(BATCH, SAMPLES)]


def get_init_inputs():
    return [HOP, BINS, OCTAVE, LOWEST, RATE]
