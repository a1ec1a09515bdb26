"""Quantisation of queries and keys to the 4 bits that SALE estimates scores from.

What the code of Ji, Zhang, Fu and Cui, "SALE: Low-bit Estimation for Efficient Sparse Attention in Long-context LLM
Prefilling", 2025, arXiv:2505.24179, does place by place before it selects blocks of keys: queries and keys are
smoothed, that is, their means over all places are taken off, and become signed 4-bit numbers under a scale of each
place. q and k are (HEADS, LENGTH, WIDTH) in float16. For x either of them, in each head:

    mean[d]     = (sum over i of x[i, d]) / LENGTH in float64, rounded to float32
    s[i, d]     = x[i, d] - mean[d] in float32
    exponent[i] = the least e with max over d |s[i, d]| <= 7 * 2^e, the maximum being taken as 2^-60 where it is less
    x4[i, d]    = s[i, d] * 2^-exponent[i], rounded to the nearest integer, halves to even
    offset[j]   = sum over d of q_mean[d] * k_s[j, d]

The estimate of a score q[i] . k[j], but for what is the same for all keys, is
    2^(q_exponent[i] + k_exponent[j]) q4[i] . k4[j] + offset[j]
The scales are powers of two, as in the task sale_selection, where that code divides the maximum by 7. Sums of float16
are multiples of 2^-24 below 2^16 LENGTH, which float64 holds exactly in any order, so that 4-bit numbers and exponents
are determined to the bit. Outputs: q4 and k4, two of a byte, the even one in the low half (uint8, HEADS, LENGTH,
WIDTH / 2), their exponents (int8, HEADS, LENGTH), and offset (float32, HEADS, LENGTH).
"""

import torch
import torch.nn as nn

HEADS = 32
LENGTH = 4096
WIDTH = 128


def smoothed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers without their means over the places, and the means."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = (wide.double().sum(1, keepdim=True) / x.shape[1]).to(wide.dtype)
    return wide - mean, mean


def quantised(s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """4-bit numbers, two of a byte, and the exponents of their scales."""
    # torch.frexp gives a fraction from 1/2 to 1, and 7 is 7/8 of 2^3.
    fraction, power = torch.frexp(s.abs().amax(2).clamp_min(2.0**-60))
    exponent = power - 3 + (fraction > 0.875)
    codes = torch.ldexp(s, -exponent.unsqueeze(2)).round().to(torch.int8).view(torch.uint8) & 15
    return codes[..., 0::2] | codes[..., 1::2] << 4, exponent.to(torch.int8)


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q_smooth, q_mean = smoothed(q)
        k_smooth, _ = smoothed(k)
        q4, q_exponent = quantised(q_smooth)
        k4, k_exponent = quantised(k_smooth)
        return q4, k4, q_exponent, k_exponent, (q_mean * k_smooth).sum(2)


def drawn():
    """Places of different size and channels with means of their own; in every second head 4-bit numbers and halves."""
    size = 2.0 ** torch.randint(-3, 4, (HEADS, LENGTH, 1))
    x = torch.randn(HEADS, LENGTH, WIDTH) * size + 2.0 * torch.randn(HEADS, 1, WIDTH)
    halves = torch.randint(-13, 14, (HEADS, LENGTH, WIDTH)) / 2.0
    # The largest is 7, and one place is nothing but the mean.
    halves[..., -1] = 7.0
    halves[:, 0] = 0.0
    exact = halves * size
    # Places that are each other's negatives: the mean is exactly what is added.
    pairs = LENGTH // 2
    exact[:, LENGTH - pairs :] = -exact[:, :pairs]
    exact[:, pairs : LENGTH - pairs] = 0.0
    x[0::2] = (exact + torch.randint(-8, 9, (HEADS, 1, WIDTH)) / 4.0)[0::2]
    return x.to(torch.float16)


def get_inputs():
    return [drawn(), drawn()]


def get_init_inputs():
    return []
