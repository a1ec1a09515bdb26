"""Inputs and weights of which only some slices are drawn, since no memory holds them."""

from __future__ import annotations

import pytest
import torch

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.reference import Reference, outline_of
from kernelforge.evaluation.oracle.worker.reference_facts import facts_at
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.evaluation.oracle.worker.tiles import TILE_BYTES, TiledTensor, Tiles, draw_tiles
from kernelforge.evaluation.oracle.worker.tracing import trace_at
from kernelforge.records import Task

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


def drawn(statements: str, seed: int = 5) -> tuple[tuple[object, ...], Tiles]:
    return draw_tiles(Reference(TASK.format(statements=statements), {}), seed)


@pytest.mark.slow
def test_a_large_input_is_drawn_as_its_task_does_but_not_all_of_it() -> None:
    x = f"x = torch.rand({ROWS}, {COLUMNS}) * 4 - 2; y = torch.ones(3)"
    inputs, tiled = drawn(x)
    assert (tiled[0].shape, tiled[0].nbytes) == ((ROWS, COLUMNS), 4 * ROWS * COLUMNS)
    assert isinstance(inputs[1], torch.Tensor)
    assert inputs[1].tolist() == [1, 1, 1]
    assert inputs[0] is tiled[0].tile
    assert (-2.01 < tiled[0].tile.min() < -1.99, 1.99 < tiled[0].tile.max() < 2.01) == (True, True)
    assert torch.equal(drawn(x)[1][0].tile, tiled[0].tile)


@pytest.mark.slow
def test_pages_of_a_tile_are_a_prime_that_the_seed_chooses() -> None:
    """Offsets that a power of two was lost from must not name an equal element."""
    pages = {drawn(f"x = torch.zeros({ROWS}, {COLUMNS}); y = 1", seed)[1][0].tile.nbytes / 4096 for seed in range(4)}
    assert len(pages) > 1
    assert all(TILE_BYTES / 2 < 4096 * count <= TILE_BYTES for count in pages)
    assert not any(count % divisor == 0 for count in pages for divisor in range(2, 129))


def test_slices_of_a_tiled_tensor_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (5, 7, 6, 11)
    tile = torch.arange(97)
    complete = tile[torch.arange(5 * 7 * 6 * 11) % 97].view(shape)
    tensor = TiledTensor(shape, tile)
    rows = {0: torch.tensor([1, 4]), 2: torch.tensor([0, 2, 5]), 3: torch.tensor([10])}
    for piece in (1 << 24, 20, 1):
        monkeypatch.setattr("kernelforge.evaluation.oracle.worker.tiles._PIECE", piece)
        assert torch.equal(tensor.select({}), complete)
        for count in range(1, 4):
            cut = dict(list(rows.items())[:count])
            expected = complete
            for axis, numbers in cut.items():
                expected = expected.index_select(axis, numbers)
            assert torch.equal(tensor.select(cut), expected)
        assert torch.equal(tensor.select({1: rows[2]}), complete.index_select(1, rows[2]))


@pytest.mark.slow
def test_a_mask_takes_the_shape_of_its_input() -> None:
    _, tiled = drawn(f"x = torch.rand({ROWS}, {COLUMNS}); y = torch.randint(0, 2, x.shape).bool()")
    assert [tensor.nbytes for tensor in tiled.values()] == [4 * ROWS * COLUMNS, ROWS * COLUMNS]
    assert 0.4 < tiled[1].tile.float().mean() < 0.6


@pytest.mark.slow
def test_rows_that_sum_to_one_do_so_in_a_tile() -> None:
    _, tiled = drawn(f"x = torch.rand({ROWS}, {COLUMNS}).softmax(dim=-1); y = 1")
    sums = tiled[0].tile[: tiled[0].tile.numel() // COLUMNS * COLUMNS].view(-1, COLUMNS).sum(1)
    assert torch.allclose(sums, torch.ones_like(sums))


@pytest.mark.parametrize("change", ["torch.tril(x)", "x.T", "x.softmax(dim=0)", "x - x.mean()", "x[:5]", "x.cumsum(0)"])
def test_what_is_not_the_same_on_some_rows_alone_is_refused(change: str) -> None:
    with pytest.raises(TaskError, match="some slices of a tensor alone"):
        drawn(f"x = torch.rand({ROWS}, {COLUMNS}); x = {change}; y = 1")


LARGE_WEIGHTS = """
import torch
import torch.nn as nn
width = 32768
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, 16, bias=False)
        self.gain = nn.Parameter({gain})
        self.steps = 2
        self.state = torch.zeros(8, 1)
    def forward(self, x):
        self.state = x.sum(1, keepdim=True) + self.state
        return self.second(torch.relu(self.first(x))) * self.gain.sum() + self.state
def get_inputs():
    return [torch.rand(8, width)]
def get_init_inputs():
    return [width]
"""


def large_task(gain: str = "torch.ones(1)") -> Task:
    sizes = [{"name": "full"}, {"name": "small", "constants": {"width": 64}}]
    return Task.model_validate(
        {"name": "large", "suite": "s", "title": "", "level": 2, "source": LARGE_WEIGHTS.format(gain=gain)}
        | {"sizes": sizes}
    )


def test_a_reference_with_large_weights_is_described_without_them() -> None:
    described = ReferenceRunner(large_task()).described("full")
    facts = facts_at(described, "full", (), (), fake=True)
    assert described.is_outline
    shapes = {weight.name: weight.spec.shape for weight in facts.weights}
    assert shapes["first.weight"] == (32768, 32768)
    assert shapes["second.weight"] == (16, 32768)
    assert shapes["state"] == (8, 1)
    assert facts.outputs[0].shape == (8, 16)
    assert facts.flops >= 2 * 8 * 32768 * (32768 + 16)


def test_an_outline_is_described_as_the_reference_itself() -> None:
    source, constants = LARGE_WEIGHTS.format(gain="torch.ones(1)"), {"width": 64}
    outline, reference = outline_of(source, constants), Reference(source, constants)
    assert facts_at(outline, "small", (), (), fake=True) == facts_at(reference, "small", (), (), fake=True)
    assert trace_at(outline, "small") == trace_at(reference, "small")


@pytest.mark.slow
def test_of_large_weights_some_rows_are_drawn_as_the_constructor_does() -> None:
    drawn, reference = ReferenceRunner(large_task()).draw_tiles("full", 3)
    assert isinstance(drawn.inputs[0], torch.Tensor)
    assert {name: tile.nbytes for name, tile in drawn.tiles.items()} == {"first.weight": 4 * 32768**2}
    content = drawn.tiles["first.weight"].tile
    assert TILE_BYTES / 2 < 4 * content.numel() <= TILE_BYTES
    assert float(content.std()) * 32768**0.5 == pytest.approx((1 / 3) ** 0.5, rel=0.05)
    assert reference.weights()["second.weight"].shape == (16, 32768)


@pytest.mark.slow
def test_a_weight_of_which_no_rows_can_be_drawn_alone_is_refused() -> None:
    with pytest.raises(TaskError, match="some slices of a tensor alone"):
        ReferenceRunner(large_task("torch.rand(32768, 32768).T")).draw_tiles("full", 3)


def test_weights_drawn_in_pieces_are_those_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = LARGE_WEIGHTS.format(gain="torch.ones(1)")
    references = [Reference(source, {"width": 64}) for _ in range(2)]
    references[0].redraw_weights(5)
    monkeypatch.setattr("kernelforge.evaluation.oracle.worker.reference._PART", 1 << 10)
    references[1].redraw_weights(5)
    for at_once, in_pieces in zip(*(reference.weights().values() for reference in references), strict=True):
        assert torch.allclose(at_once, in_pieces, rtol=1e-6)
