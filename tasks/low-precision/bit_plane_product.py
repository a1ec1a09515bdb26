"""Product of bipolar integers in planes of bits.

S. Ma et al., "Efficient Arbitrary Precision Acceleration for Large Language Models on GPU Tensor Cores", 2024,
arXiv:2409.17870: in a bipolar integer each bit counts -1 or 1 instead of 0 or 1, and a product of integers is a sum of
products of planes. a is (A_BITS, ROWS, WORDS) and b (B_BITS, COLS, WORDS) in int32; column k of a plane is bit k % 32
of word k // 32.

    value of b[:, n, k] = sum over planes j of 2^j * (1 if the bit is set, else -1)
    out[m, n] = sum over k of the products of values of a[:, m, k] and b[:, n, k]
              = sum over planes i, j of 2^(i + j) * (32 WORDS - 2 popcount(a[i, m] ^ b[j, n]))

The output is (ROWS, COLS) in int32. The reference multiplies the values in float32, where these sums of integers are
exact: none reaches 2^24.
"""

import torch
import torch.nn as nn

ROWS = 4096
COLS = 4096
WORDS = 128
A_BITS = 4
B_BITS = 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shifts", torch.arange(32, dtype=torch.int32))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(self.values(a), self.values(b).t()).to(torch.int32)

    def values(self, planes: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), device=planes.device)
        for plane in range(planes.shape[0]):
            bits = ((planes[plane].unsqueeze(-1) >> self.shifts) & 1).flatten(1)
            total = total + (2.0 * bits - 1.0) * 2.0**plane
        return total


def planes_of(bits: int, rows: int) -> torch.Tensor:
    """Random planes, in a third of whose rows most bits are set, and in a third of which few are."""
    kind = torch.randint(0, 3, (rows, 1))
    first, second = torch.randint(-(2**31), 2**31, (2, bits, rows, WORDS), dtype=torch.int32)
    return torch.where(kind == 0, first, torch.where(kind == 1, first | second, first & second))


def get_inputs():
    return [planes_of(A_BITS, ROWS), planes_of(B_BITS, COLS)]


def get_init_inputs():
    return []
