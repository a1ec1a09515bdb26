"""``predict``: the table, the JSON, and what is refused."""

from __future__ import annotations

import pytest

from kernelforge.tiles import TILES


@pytest.fixture
def one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.tiles.products.TILES", TILES[3:4])


@pytest.mark.slow
@pytest.mark.usefixtures("one_tile")
def test_the_table_and_the_json_have_the_same(cli):
    done = cli("predict", "256", "128", "64", "--device", "emulated:a100")
    assert done.code == 0, done.err
    assert "times are modelled" in done.out
    assert "64 x 64 x 8, 4 x 4 a thread" in done.out
    data = cli("predict", "256", "128", "64", "--device", "emulated:a100", "--json").json()
    assert (data["m"], data["n"], data["k"], data["origin"]) == (256, 128, 64, "modelled")
    (tile,) = data["tiles"]
    assert tile["blocks"] == 8
    assert tile["energy_mj"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0", "1", "1"), "M = 0: give a number from 1"),
        (("1", "1", "1", "--device", "cuda:7"), "cuda:7"),
        (("1", "1", "1", "--device", "emulated:none.toml"), "none.toml cannot be read"),
    ],
)
def test_bad_input_is_one_message(cli, arguments: tuple[str, ...], message: str):
    done = cli("predict", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
