"""Scores of local alignments with affine gaps, one for each pair of sequences.

Gotoh, "An Improved Algorithm for Matching Biological Sequences", J. Mol. Biol. 162, 1982, as Schmidt, Kallenborn,
Chacon and Hundt, "CUDASW++4.0: ultra-fast GPU-based Smith-Waterman protein sequence database search", BMC
Bioinformatics 25, 2024, compute it with the DPX instructions of Hopper. For the letters a of first (PAIRS, M) and b of
the first lengths[p] letters of second (PAIRS, N), all int8, and scores (LETTERS, LETTERS) int32,
    E[i][j] = max(H[i][j-1] - gap_open, E[i][j-1] - gap_extend)
    F[i][j] = max(H[i-1][j] - gap_open, F[i-1][j] - gap_extend)
    H[i][j] = max(0, H[i-1][j-1] + scores[a_i][b_j], E[i][j], F[i][j]),   H[0][j] = H[i][0] = 0
    best[p] = max over i and j of H[i][j]
best is int32 (PAIRS); gap_open is at least gap_extend, and both are whole numbers above 0.

The reference takes rows one after the other. With gap_extend * j added, extending a gap along a row costs nothing, so E
is a running maximum of what H is without it: opening a gap where one ends never pays.
"""

import torch
import torch.nn as nn

PAIRS = 1024
M = 512
N = 512
LETTERS = 20
GAP_OPEN = 11
GAP_EXTEND = 1


class Model(nn.Module):
    def forward(
        self,
        first: torch.Tensor,
        second: torch.Tensor,
        lengths: torch.Tensor,
        scores: torch.Tensor,
        gap_open: int,
        gap_extend: int,
    ) -> torch.Tensor:
        n = second.shape[1]
        place = torch.arange(n, dtype=torch.int32, device=first.device)
        free = place * gap_extend
        beyond = place >= lengths[:, None]
        letters = second.long()
        row = torch.zeros(second.shape, dtype=torch.int32, device=first.device)
        down, best = row, row
        for letter in first.long().unbind(1):
            step = scores[letter].gather(1, letters).masked_fill(beyond, -(2**20))
            down = torch.maximum(row - gap_open, down - gap_extend)
            bare = torch.maximum(step + nn.functional.pad(row, (1, 0))[:, :n], down).clamp(min=0)
            along = torch.cummax(bare + free, dim=1).values - free - gap_open
            row = torch.maximum(bare, nn.functional.pad(along, (1, 0))[:, :n])
            best = torch.maximum(best, row)
        return best.amax(1)


def get_inputs():
    first = torch.randint(0, LETTERS, (PAIRS, M))
    # The second sequence holds a run of the first, with letters put in or left out at some place and others changed.
    # Of three pairs one ends as the first sequence ends, and one more does so after a long gap near the end.
    kind, place = torch.arange(PAIRS)[:, None] % 3, torch.arange(N)
    common = min(M, N)
    cut = torch.where(kind == 1, N - common // 7 - common // 9, (torch.rand(PAIRS, 1) * N).long())
    gap = torch.randint(-(common // 4), common // 4 + 1, (PAIRS, 1))
    gap = torch.where(kind == 0, 0, torch.where(kind == 1, common // 9, gap))
    start = torch.where(kind == 2, torch.randint(0, N - common + 1, (PAIRS, 1)), N - M - gap)
    source = place - start - torch.where(place < cut, 0, gap)
    alike = (source >= 0) & (source < M) & ((place < cut) | (place >= cut + gap))
    alike &= (kind < 2) | (torch.rand(PAIRS, N) < 0.9)
    fresh = torch.randint(0, LETTERS, (PAIRS, N))
    second = torch.where(alike, first.gather(1, source.clamp(0, M - 1)), fresh)
    shorter = (torch.rand(PAIRS) * 1.5 - 0.5).clamp(min=0).mul(N // 2).int()
    lengths = N - torch.where(kind[:, 0] == 2, shorter, 0)
    scores = torch.randint(-4, 3, (LETTERS, LETTERS), dtype=torch.int32)
    scores += torch.diag(torch.randint(5, 10, (LETTERS,), dtype=torch.int32))
    return [first.to(torch.int8), second.to(torch.int8), lengths, scores, GAP_OPEN, GAP_EXTEND]


def get_init_inputs():
    return []
