"""Inputs of which only some slices are drawn, since no memory holds them."""

from __future__ import annotations

import pytest
import torch

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.reference import Reference
from kernelforge.evaluation.oracle.worker.tiles import TILE_BYTES, draw_tiles

TASK = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, x, y):
        return x
def get_inputs():
    {statements}
    return [x, y]
def get_init_inputs():
    return []
"""
ROWS, COLUMNS = 1 << 18, 1 << 14  # 17 GB


def drawn(statements: str) -> tuple[tuple[object, ...], dict[int, int], dict[int, torch.Tensor]]:
    inputs, nbytes, tiles = draw_tiles(Reference(TASK.format(statements=statements), {}), 5)
    kinds = {position: value.dtype for position, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
    return inputs, nbytes, {at: torch.frombuffer(bytearray(tile), dtype=kinds[at]) for at, tile in tiles.items()}


def test_a_large_input_is_drawn_as_its_task_does_but_not_all_of_it() -> None:
    x = f"x = torch.rand({ROWS}, {COLUMNS}) * 4 - 2; y = torch.ones(3)"
    inputs, nbytes, tiles = drawn(x)
    assert nbytes == {0: 4 * ROWS * COLUMNS}
    assert isinstance(inputs[1], torch.Tensor)
    assert inputs[1].tolist() == [1, 1, 1]
    assert 4 * tiles[0].numel() == TILE_BYTES
    assert (-2.01 < tiles[0].min() < -1.99, 1.99 < tiles[0].max() < 2.01) == (True, True)
    assert torch.equal(drawn(x)[2][0], tiles[0])


def test_a_mask_takes_the_shape_of_its_input() -> None:
    _, nbytes, tiles = drawn(f"x = torch.rand({ROWS}, {COLUMNS}); y = torch.randint(0, 2, x.shape).bool()")
    assert nbytes == {0: 4 * ROWS * COLUMNS, 1: ROWS * COLUMNS}
    assert 0.4 < tiles[1].float().mean() < 0.6


def test_rows_that_sum_to_one_do_so_in_a_tile() -> None:
    _, _, tiles = drawn(f"x = torch.rand({ROWS}, {COLUMNS}).softmax(dim=-1); y = 1")
    sums = tiles[0].view(-1, COLUMNS).sum(1)
    assert torch.allclose(sums, torch.ones_like(sums))


@pytest.mark.parametrize("change", ["torch.tril(x)", "x.T", "x.softmax(dim=0)", "x - x.mean()", "x[:5]", "x.cumsum(0)"])
def test_what_is_not_the_same_on_some_rows_alone_is_refused(change: str) -> None:
    with pytest.raises(TaskError, match="some slices of a tensor alone"):
        drawn(f"x = torch.rand({ROWS}, {COLUMNS}); x = {change}; y = 1")
