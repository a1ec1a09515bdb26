"""Vector times matrix of double-quantised NF4 weights.

T. Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023, arXiv:2305.14314, section 3: the scales of
blocks of 64 weights are themselves quantised, less their mean, to 8-bit floats in blocks of 256. Here the 8-bit float
is E4M3, since the paper leaves open which. With K = BLOCKS * BLOCK: x is (K) in bfloat16; codes (OUT, K / 2) in uint8
hold two weights each, the even column in the high four bits; coded (OUT, BLOCKS) in uint8 are the bytes of E4M3
numbers, and 0x7F and 0xFF, which are NaN, do not occur. second (ceil(OUT * BLOCKS / RUN)) in float32 are the scales of
those: number n * BLOCKS + b belongs to second[(n * BLOCKS + b) // RUN], so a run goes on from one row to the next.
mean (1) is float32. The sixteen values of the table are those of the paper's appendix E.

    absmax[n, b] = e4m3(coded[n, b]) * second[(n * BLOCKS + b) // RUN] + mean
    out = W x    with W[n, k] = table[code[n, k]] * absmax[n, k // BLOCK]

The output is (OUT) in bfloat16. Weights are rounded to bfloat16 before the product; it accumulates in float32.
"""

import torch
import torch.nn as nn

OUT = 16384
BLOCKS = 128
BLOCK = 64
RUN = 256

NF4 = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
]


class Model(nn.Module):
    def __init__(self, run: int) -> None:
        super().__init__()
        self.run = run
        self.register_buffer("table", torch.tensor(NF4))
        values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        self.register_buffer("e4m3", values.nan_to_num(0.0))

    def forward(
        self, x: torch.Tensor, codes: torch.Tensor, coded: torch.Tensor, second: torch.Tensor, mean: torch.Tensor
    ) -> torch.Tensor:
        out_features, blocks = coded.shape
        scales = second.repeat_interleave(self.run)[: coded.numel()].view(out_features, blocks)
        absmax = self.e4m3[coded.int()] * scales + mean
        halves = torch.stack((codes >> 4, codes & 15), dim=-1)
        values = self.table[halves.int()].view(out_features, blocks, -1) * absmax.unsqueeze(-1)
        return torch.mv(values.view(out_features, -1).to(x.dtype), x)


def get_inputs():
    x = torch.randn(BLOCKS * BLOCK, dtype=torch.bfloat16)
    codes = torch.randint(0, 256, (OUT, BLOCKS * BLOCK // 2), dtype=torch.uint8)
    # Magnitudes from 0x40 (2) to 0x7E (448), of both signs.
    coded = torch.randint(0x40, 0x7F, (OUT, BLOCKS), dtype=torch.uint8)
    coded = coded | torch.randint(0, 2, (OUT, BLOCKS), dtype=torch.uint8) << 7
    second = torch.rand((OUT * BLOCKS + RUN - 1) // RUN) * 2e-4 + 1e-5
    return [x, codes, coded, second, torch.rand(1) * 0.05 + 0.05]


def get_init_inputs():
    return [RUN]
