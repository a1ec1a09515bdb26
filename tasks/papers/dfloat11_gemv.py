"""A product of a matrix in DFloat11 and a vector, decoded on the way.

Zhang, Hariri, Zhong, Chaudhary, Sui, Hu and Shrivastava, "70% Size, 100% Accuracy: Lossless LLM Compression for
Efficient GPU Inference via Dynamic-Length Float (DFloat11)", NeurIPS 2025, arXiv:2504.11651. The paper decodes all
weights before its products; here both are one kernel, so that no weight is written. A matrix (OUT, IN) of bfloat16 has
its exponents as prefix codes of 2 to 20 bits, most significant bit first, each row in a stream of its own:
- x: bfloat16 (IN)
- stream: uint8 (OUT, THREADS * 8 + 8), zeros after a row's last code
- gaps: uint8 (OUT, THREADS), bits from the start of a thread's 8 bytes to the first code that begins there
- packed: uint8 (OUT, IN), sign (1 bit) and mantissa (7 bits) of each weight
- tables: uint8 (TABLES, 256). The next 8 bits of a code index table 0; an entry e below 240 is the exponent, any other
  says that the 8 bits after these index table 256 - e
- lengths: uint8 (256), the length of an exponent's code
How many codes begin in the bytes of the threads before says which weight a thread's first one is; what is decoded
after a row's last weight counts for nothing. Result: y = W x in float32 (OUT), of exact products added in float32.
"""

import torch
import torch.nn as nn

OUT = 4096
THREADS = 256
BYTES = 8
# Codes take 4.2 bits on average as they are drawn here, so that the stream is nearly full.
IN = THREADS * 13 - 5
SHORTEST = 2
LONGEST = 20


def code_lengths() -> torch.Tensor:
    """Lengths of a complete prefix code: two codes of each length from 2 to 19 bits, four of 20."""
    pairs = [length for length in range(SHORTEST, LONGEST) for _ in range(2)]
    return torch.tensor(pairs + [LONGEST] * 4)


def exponents() -> torch.Tensor:
    """The exponent behind each code, commonest first."""
    return torch.cat([torch.tensor([123, 122, 124, 121, 120, 125, 0, 126]), torch.arange(80, 112)])


def first_codes() -> torch.Tensor:
    """The codes, canonical, each at the top of LONGEST bits."""
    spans = 2 ** (LONGEST - code_lengths())
    return torch.cumsum(spans, 0) - spans


def tables() -> tuple[torch.Tensor, torch.Tensor]:
    """The hierarchy of tables, and the lengths by exponent."""
    codes, sizes, symbols = first_codes().tolist(), code_lengths().tolist(), exponents().tolist()
    lengths = torch.zeros(256, dtype=torch.uint8)
    # A table is named by the bits that lead to it.
    hierarchy: dict[str, list[int]] = {"": [0] * 256}
    for code, size, symbol in zip(codes, sizes, symbols, strict=True):
        lengths[symbol] = size
        text = format(code, f"0{LONGEST}b")[:size]
        prefix = ""
        while len(text) > 8:
            if prefix + text[:8] not in hierarchy:
                hierarchy[prefix][int(text[:8], 2)] = 256 - len(hierarchy)
                hierarchy[prefix + text[:8]] = [0] * 256
            prefix, text = prefix + text[:8], text[8:]
        low = int(text.ljust(8, "0"), 2)
        for entry in range(low, low + 2 ** (8 - len(text))):
            hierarchy[prefix][entry] = symbol
    return torch.tensor(list(hierarchy.values()), dtype=torch.uint8), lengths


class Model(nn.Module):
    def __init__(self, longest: int, most: int) -> None:
        super().__init__()
        self.levels = -(-longest // 8)
        # Codes that can begin within one thread's bytes.
        self.most = most

    def forward(
        self,
        x: torch.Tensor,
        stream: torch.Tensor,
        gaps: torch.Tensor,
        packed: torch.Tensor,
        tables: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        rows, threads = gaps.shape
        chunk = 8 * ((stream.shape[1] - 8) // threads)
        starts = torch.arange(threads, device=stream.device) * chunk
        at, end = starts + gaps, starts + chunk
        row = torch.arange(rows, device=stream.device).unsqueeze(1) * stream.shape[1]
        wide, entries = stream.int().flatten(), tables.int().flatten()
        symbols, inside = [], []
        for _ in range(self.most):
            live = at < end
            # The 32 bits from here on; the last ones of the stream are zeros.
            byte = row + torch.where(live, at, 0) // 8
            window = (wide[byte].long() << 32) | (wide[byte + 1] << 24).long() & 0xFFFFFFFF
            window = window | (wide[byte + 2] << 16) | (wide[byte + 3] << 8) | wide[byte + 4]
            window = window >> (8 - at % 8)
            symbol = entries[(window >> 24) & 0xFF]
            for level in range(1, self.levels):
                deeper = 256 * (256 - symbol) + ((window >> (24 - 8 * level)) & 0xFF)
                symbol = torch.where(symbol < 240, symbol, entries[torch.where(symbol < 240, 0, deeper)])
            symbols.append(symbol)
            inside.append(live)
            at = at + torch.where(live, lengths[symbol].long(), 0)
        exponent, written = torch.stack(symbols, dim=2), torch.stack(inside, dim=2)
        counts = written.sum(2)
        places = (torch.cumsum(counts, 1) - counts).unsqueeze(2) + torch.arange(self.most, device=stream.device)
        width = packed.shape[1]
        # Places of no weight are written to one after the last of the row, and left there.
        places = torch.where(written & (places < width), places, width).flatten(1)
        ordered = torch.zeros(rows, width + 1, dtype=torch.int32, device=stream.device)
        ordered = ordered.scatter(1, places, exponent.flatten(1))[:, :width]
        rest = packed.int()
        bits = ((rest & 0x80) << 8) | (ordered << 7) | (rest & 0x7F)
        weights = ((bits ^ 0x8000) - 0x8000).to(torch.int16).view(torch.bfloat16)
        dtype = torch.promote_types(x.dtype, torch.float32)
        return torch.mv(weights.to(dtype), x.to(dtype))


def encoded() -> tuple[torch.Tensor, torch.Tensor]:
    """Streams of random codes, one for each row, and the gaps of their threads."""
    sizes = code_lengths()
    room = 8 * BYTES * THREADS
    # One code in eight is any of them; the others are drawn with probability 2^-length, for which the code is best.
    which = torch.searchsorted(torch.cumsum(0.5**sizes, 0), torch.rand(OUT, IN).clamp(max=1 - 2**-18))
    which = torch.where(torch.rand(OUT, IN) < 0.125, torch.randint(0, len(sizes), (OUT, IN)), which)
    # In every third row a run of the shortest code fills one thread's bytes with as many codes as they can hold.
    which[::3, :64] = 0
    ends = torch.cumsum(sizes[which], 1)
    # Should they not fit, the last codes are the shortest one.
    which = torch.where(ends + 2 * (IN - torch.arange(IN)) + 64 > room, 0, which)
    codes, taken = first_codes()[which], sizes[which]
    starts = torch.cumsum(taken, 1) - taken
    bits = torch.zeros(OUT, room + 64, dtype=torch.uint8)
    for bit in range(LONGEST):
        # Bits beyond a code's end are those of the codes that follow: added as nothing.
        value = ((codes >> (LONGEST - 1 - bit)) & 1) * (bit < taken)
        bits.scatter_add_(1, (starts + bit).clamp(max=room + 63), value.to(torch.uint8))
    stream = bits.view(OUT, -1, 8) * torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8)
    chunks = (torch.arange(THREADS) * 8 * BYTES).expand(OUT, THREADS).contiguous()
    begins = torch.searchsorted(starts, chunks)
    # After the last code all bits are zeros, which a thread takes for the shortest code, again and again.
    gaps = torch.where(begins < IN, starts.gather(1, begins.clamp(max=IN - 1)), chunks) - chunks
    return stream.sum(2, dtype=torch.uint8), gaps.to(torch.uint8)


def get_inputs():
    packed = torch.randint(0, 256, (OUT, IN), dtype=torch.uint8)
    return [torch.randn(IN, dtype=torch.bfloat16), *encoded(), packed, *tables()]


def get_init_inputs():
    return [LONGEST, 8 * BYTES // SHORTEST]
