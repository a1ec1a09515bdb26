"""The stored form of DFloat11: decoding in two phases, with a hierarchy of compact tables.

Zhang, Hariri, Zhong, Chaudhary, Sui, Hu and Shrivastava, "70% Size, 100% Accuracy: Lossless LLM Compression for
Efficient GPU Inference via Dynamic-Length Float (DFloat11)", NeurIPS 2025, arXiv:2504.11651, section 2.3. The exponents
of WEIGHTS bfloat16 weights stand in one bit stream as prefix codes of 2 to 20 bits, most significant bit first; signs
and mantissas stand apart in one byte each (sign, then 7 bits). One thread decodes the codes that begin in its 8 bytes
of the stream, THREADS threads are a block:
- stream: uint8 (BLOCKS * THREADS * 8 + 8), zeros after the last code
- gaps: uint8 (BLOCKS, THREADS), bits from the start of a thread's bytes to the first code that begins there
- first: int32 (BLOCKS), index of the first weight whose code begins in a block
- packed: uint8 (WEIGHTS), sign and mantissa of each weight
- tables: uint8 (TABLES, 256). The next 8 bits of a code index table 0; an entry e below 240 is the exponent, any other
  says that the 8 bits after these index table 256 - e
- lengths: uint8 (256), the length of an exponent's code
Phase one counts each thread's codes, and a sum within the block gives the index of each thread's first weight; phase
two decodes again and writes. What is decoded after the last weight counts for nothing. Result: the bits of the weights
as int16 (WEIGHTS), to be exact: sign, 8 exponent bits, 7 mantissa bits.
"""

import torch
import torch.nn as nn

BLOCKS = 4096
THREADS = 256
BYTES = 8
# Codes take 4.2 bits on average as they are drawn here, so that the stream is nearly full.
WEIGHTS = BLOCKS * THREADS * 13 - 5
SHORTEST = 2
LONGEST = 20


def code_lengths() -> torch.Tensor:
    """Lengths of a complete prefix code: two codes of each length from 2 to 19 bits, four of 20."""
    pairs = [length for length in range(SHORTEST, LONGEST) for _ in range(2)]
    return torch.tensor(pairs + [LONGEST] * 4)


def exponents() -> torch.Tensor:
    """The exponent behind each code, commonest first; none is 240 or more, which a table needs for itself."""
    return torch.cat([torch.tensor([121, 120, 122, 119, 118, 123, 0, 239]), torch.arange(80, 112)])


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
        stream: torch.Tensor,
        gaps: torch.Tensor,
        first: torch.Tensor,
        packed: torch.Tensor,
        tables: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        blocks, threads = gaps.shape
        chunk = 8 * ((stream.shape[0] - 8) // (blocks * threads))
        starts = torch.arange(blocks * threads, device=stream.device).view(blocks, threads) * chunk
        at, end = starts + gaps, starts + chunk
        wide, entries = stream.int(), tables.int().flatten()
        symbols, inside = [], []
        for _ in range(self.most):
            live = at < end
            # The 32 bits from here on; the last ones of the stream are zeros.
            byte = torch.where(live, at, 0) // 8
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
        before = first.unsqueeze(1) + torch.cumsum(counts, 1) - counts
        places = before.unsqueeze(2) + torch.arange(self.most, device=stream.device)
        weights = packed.shape[0]
        # Places of no weight are written to one after the last, and left there.
        places = torch.where(written & (places < weights), places, weights).flatten()
        ordered = torch.zeros(weights + 1, dtype=torch.int32, device=stream.device)
        ordered = ordered.scatter(0, places, exponent.flatten())[:weights]
        rest = packed.int()
        bits = ((rest & 0x80) << 8) | (ordered << 7) | (rest & 0x7F)
        return ((bits ^ 0x8000) - 0x8000).to(torch.int16)


def encoded() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A stream of WEIGHTS random codes, its threads' gaps, and its blocks' first weights."""
    sizes = code_lengths()
    room = 8 * BYTES * BLOCKS * THREADS
    # One code in eight is any of them; the others are drawn with probability 2^-length, for which the code is best.
    which = torch.searchsorted(torch.cumsum(0.5**sizes, 0), torch.rand(WEIGHTS).clamp(max=1 - 2**-18))
    which = torch.where(torch.rand(WEIGHTS) < 0.125, torch.randint(0, len(sizes), (WEIGHTS,)), which)
    # A run of the shortest code fills one thread's bytes with as many codes as they can hold.
    which[WEIGHTS // 4 :][:64] = 0
    ends = torch.cumsum(sizes[which], 0)
    # Should they not fit, the last codes are the shortest one.
    which = torch.where(ends + 2 * (WEIGHTS - torch.arange(WEIGHTS)) + 64 > room, 0, which)
    codes, taken = first_codes()[which], sizes[which]
    ends = torch.cumsum(taken, 0)
    starts = ends - taken
    bits = torch.zeros(room + 64, dtype=torch.uint8)
    for bit in range(LONGEST):
        # Bits beyond a code's end are those of the codes that follow: added as nothing.
        value = ((codes >> (LONGEST - 1 - bit)) & 1) * (bit < taken)
        bits.scatter_add_(0, (starts + bit).clamp(max=room + 63), value.to(torch.uint8))
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8)
    stream = (bits.view(-1, 8) * weights).sum(1, dtype=torch.uint8)
    chunks = torch.arange(BLOCKS * THREADS) * 8 * BYTES
    begins = torch.searchsorted(starts, chunks)
    # After the last code all bits are zeros, which a thread takes for the shortest code, again and again.
    gaps = torch.where(begins < WEIGHTS, starts[begins.clamp(max=WEIGHTS - 1)], chunks) - chunks
    return stream, gaps.view(BLOCKS, THREADS).to(torch.uint8), begins.view(BLOCKS, THREADS)[:, 0].int()


def get_inputs():
    packed = torch.randint(0, 256, (WEIGHTS,), dtype=torch.uint8)
    return [*encoded(), packed, *tables()]


def get_init_inputs():
    return [LONGEST, 8 * BYTES // SHORTEST]
