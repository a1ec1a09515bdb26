"""The kernels of ``benchmarks/ladder`` compute what NumPy does, at small sizes."""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.devices.emulated.harness import Device
from tests.devices.emulated.nvrtc import compile_ptx
from tests.support.benchmark_scripts import BENCHMARKS, benchmark_script

Array = np.ndarray
Sizes = Mapping[str, int]


SCRIPT = benchmark_script("hardware_ladder")
CASES = SCRIPT.cases_of(small=True)


@functools.cache
def loaded(family: str) -> Device:
    """All kernels of a file, compiled once."""
    return Device(compile_ptx((SCRIPT.LADDER / f"{family}.cu").read_text(encoding="utf-8")))


def wide(x: Array, n: int = 0) -> Array:
    """An input in double precision; a bfloat16 is given by its bits; n: of a square matrix."""
    if x.dtype == np.uint16:
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64).reshape(n, n) if n else x.astype(np.float64)


def product(a: list[Any], s: Sizes, dtype: str) -> dict[int, Any]:
    n = s["n"]
    first, second = (x.view(np.float16) if dtype == "float16" else x for x in a[:2])
    return {2: wide(first, n) @ wide(second, n)}


def blocks_of(x: Array, out: Array) -> Array:
    """Sums of the equal parts of an input that the blocks have."""
    return np.asarray(wide(x).reshape(len(out), -1).sum(1))


def filtered(images: Array, filters: Array) -> Array:
    """Images ``(..., h, w)`` filtered by ``(..., 3, 3)``, zeros around them."""
    h, w = images.shape[-2:]
    padded = np.pad(images, [(0, 0)] * (images.ndim - 2) + [(1, 1), (1, 1)])
    parts = [filters[..., i, j, None, None] * padded[..., i : i + h, j : j + w] for i in range(3) for j in range(3)]
    return np.asarray(sum(parts))


def softmax(x: Array, columns: int) -> Array:
    rows = wide(x).reshape(-1, columns)
    e = np.exp(rows - rows.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def layer_norm(a: list[Any], columns: int) -> dict[int, Any]:
    rows = wide(a[0]).reshape(-1, columns)
    normal = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    return {3: normal * a[1] + a[2]}


def rms_norm(a: list[Any], columns: int) -> dict[int, Any]:
    rows = wide(a[0]).reshape(-1, columns)
    return {2: rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-6) * a[1]}


def erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def read_again(a: list[Any], s: Sizes) -> dict[int, Any]:
    quads = wide(a[0]).reshape(-1, 4).sum(1)
    out = np.zeros((s["g"], 1024))
    for block in range(s["g"]):
        for turn in range(s["k"]):
            for i in range(0, len(quads), 1024):
                out[block] += quads[(i + np.arange(1024) + block * 1024 + turn * 256) % len(quads)]
    return {1: out}


def strided(x: Array, threads: int) -> Array:
    """Sums over the elements of each thread of a loop with a stride of the grid, four elements each."""
    quads = wide(x).reshape(-1, 4).sum(1)
    out = np.zeros(threads)
    np.add.at(out, np.arange(len(quads)) % threads, quads)
    return out


def chain(a: list[Any], s: Sizes, step: Callable[[Array], Array], start: Array) -> dict[int, Any]:
    value = start
    for _ in range(s["k"]):
        value = step(value)
    return {0: value}


def units(kernel: str, a: list[Any], s: Sizes, block: int) -> dict[int, Any]:
    """Outputs of the loops that keep one unit busy."""
    t = np.arange(block)[:, None]
    k = np.arange(8)[None, :]
    p, q = (a[3], a[4]) if len(a) == 5 else (0, 0)
    mask = 2**32
    starts = {
        "loop_fma32": t * 0.001 + k, "loop_fma64": t * 0.001 + k, "loop_add32": t * 0.001 + k, "loop_mad_int": t + k,
        "loop_logic": t + k, "loop_ex2": t * 0.001 - k, "loop_sin": t * 0.001 + k, "loop_rsqrt": t * 0.001 + k + 1,
        "loop_div32": t * 0.001 + k + 1, "loop_div_int": t + k + 1,
    }  # fmt: skip
    steps: dict[str, Callable[[Array], Array]] = {
        "loop_fma32": lambda v: v * p + q, "loop_fma64": lambda v: v * p + q, "loop_add32": lambda v: v + p,
        "loop_mad_int": lambda v: (v * int(p) + int(q)) % mask, "loop_logic": lambda v: (v & int(p)) ^ (int(q) + k),
        "loop_ex2": np.exp2, "loop_sin": np.sin, "loop_rsqrt": lambda v: v**-0.5, "loop_div32": lambda v: p / v,
        "loop_div_int": lambda v: int(p) // (v | 1) + int(q),
    }  # fmt: skip
    value = starts[kernel] + np.zeros_like(k)
    if value.dtype.kind == "f" and kernel != "loop_fma64":
        value = value.astype(np.float64)
    with np.errstate(over="ignore"):
        for _ in range(4 * s["k"]):
            value = steps[kernel](value)
    total = value.sum(1)
    if value.dtype.kind == "i":
        total = (total % mask).astype(np.uint32).view(np.int32)
    return {0: np.tile(total, s["g"])}


def shuffled(a: list[Any], s: Sizes, block: int) -> dict[int, Any]:
    lanes = np.arange(block)
    value = lanes[:, None] + np.arange(4)
    for r in range(s["k"]):
        value = value[lanes ^ (1 + r % 16)] + 1
    return {0: np.tile(value.sum(1), s["g"])}


def divergent(a: list[Any], s: Sizes, block: int) -> dict[int, Any]:
    path = np.arange(block) % s["t"]
    value = np.arange(block, dtype=np.float64)
    for _ in range(s["k"]):
        value = value * np.float32(1.0001) + 0.5 + path
    return {0: np.tile(value, s["g"])}


def conflicting(a: list[Any], s: Sizes, block: int) -> dict[int, Any]:
    at = np.arange(block) % 32 * s["t"] % 1024
    return {0: np.tile(s["k"] * sum((at + k) & 1023 for k in range(8)), s["g"])}


def followed(links: Array, steps: int) -> int:
    at = 0
    for _ in range(steps):
        at = int(links[at])
    return at


def spread(case: dict[str, Any], a: list[Any], s: Sizes, step: Callable[[Array], Array]) -> dict[int, Any]:
    out = np.zeros(s["t"] * s["d"])
    i = np.arange(case["grid"][0] * case["block"][0])
    np.add.at(out, i % s["t"] * s["d"], step(i))
    return {0: out}


def shared_counts(s: Sizes) -> dict[int, Any]:
    words = np.zeros(s["t"])
    for r in range(s["k"]):
        np.add.at(words, (np.arange(256) + r) % s["t"], 1)
    return {0: np.tile(words, s["g"])}


def bins(a: list[Any]) -> dict[int, Any]:
    return {1: np.bincount(a[0], minlength=256)}


def expected(case: dict[str, Any], a: list[Any]) -> dict[int, Any]:
    """Position of an argument → what it holds after the launch."""
    kernel, s, block = case["kernel"], case["sizes"], case["block"][0]
    n = s.get("n", 0)
    match case["family"]:
        case "matmul" if kernel.startswith("matvec"):
            return {2: wide(a[0], n) @ wide(a[1])}
        case "matmul":
            return product(a, s, case["arguments"][0]["array"])
        case "transpose":
            return {1: a[0].reshape(n, n).T}
        case "reduction" if kernel == "sum_columns":
            return {1: wide(a[0]).reshape(s["r"], s["c"]).sum(0)}
        case "reduction" if kernel == "sum_vectors":
            return {1: strided(a[0], s["g"] * block).reshape(s["g"], block).sum(1)}
        case "reduction":
            return {1: blocks_of(a[0], a[1])}
        case "scan":
            per_block = n // case["grid"][0]
            return {1: a[0].reshape(-1, per_block).cumsum(1)}
        case "histogram":
            return bins(a)
        case "convolution":
            return convolved(kernel, a, s)
        case "copies":
            return copied(kernel, a, s, block)
        case "rows" if kernel.startswith("softmax"):
            return {1: softmax(a[0], s.get("n", 1024))}
        case "rows":
            return (layer_norm if kernel.startswith("layer") else rms_norm)(a, s.get("n", 4096))
        case "elementwise":
            return by_element(kernel, a)
    return of_units(case, kernel, a, s, block)


def convolved(kernel: str, a: list[Any], s: Sizes) -> dict[int, Any]:
    h, w = s["h"], s["w"]
    x, f = wide(a[0]).reshape(-1, h, w), wide(a[1]).reshape(-1, 3, 3)
    if kernel == "filter_depthwise":
        return {2: filtered(x, np.tile(f, (s["z"] // s["c"], 1, 1)))}
    if kernel == "filter_channels":
        return {2: np.stack([filtered(x, g).sum(0) for g in f.reshape(s["z"], s["c"], 3, 3)])}
    return {2: filtered(x, f)}


def copied(kernel: str, a: list[Any], s: Sizes, block: int) -> dict[int, Any]:
    n = s["n"]
    match kernel:
        case "copy_strided":
            return {1: a[0][:: s["t"]]}
        case "copy_spread":
            out = np.zeros(n * s["t"])
            out[:: s["t"]] = a[0]
            return {1: out}
        case "copy_shifted":
            return {1: a[0][s["t"] :]}
        case "copy_gathered":
            return {2: a[0][a[1]]}
        case "copy_scattered":
            return {2: a[0][np.argsort(a[1])]}
        case "read_again":
            return read_again(a, s)
        case "read_only":
            return {1: strided(a[0], s["g"] * block)}
        case "write_only":
            return {0: np.full(n, 1.5)}
    return {1: a[0]}


def by_element(kernel: str, a: list[Any]) -> dict[int, Any]:
    x = wide(a[0])
    match kernel:
        case "gelu_erf":
            return {1: 0.5 * x * (1 + erf(x * math.sqrt(0.5)))}
        case "gelu_tanh":
            return {1: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))}
        case "relu":
            return {1: np.maximum(x, 0)}
        case "add":
            return {2: x + a[1]}
        case "divide_integers":
            return {1: a[0] // 7 + a[0] % 7}
        case "bias_columns":
            return {2: x + np.resize(a[1], len(x))}
    return {1: x / (1 + np.exp(-x))}


def of_units(case: dict[str, Any], kernel: str, a: list[Any], s: Sizes, block: int) -> dict[int, Any]:
    lanes = np.arange(block)
    match kernel:
        case "chain_fma32" | "chain_fma64":
            return chain(a, s, lambda v: v * a[3] + a[4], lanes.astype(np.float64))
        case "loop_shuffle":
            return shuffled(a, s, block)
        case "loop_mma":
            return {0: np.full(s["g"] * block, 8 * 4 * 16 * s["k"])}
        case "loop_shared":
            return conflicting(a, s, block)
        case "loop_shared_vectors":
            return {0: np.tile(4 * s["k"] * (4 * lanes + 6), s["g"])}
        case "chase_shared":
            return {0: (lanes + 33 * s["k"]) % 1024}
        case "chase_global":
            return {1: [followed(a[0], s["w"] + s["k"])]}
        case "add_ints" | "add_floats":
            return spread(case, a, s, np.ones_like)
        case "take_tickets":
            return spread(case, a, s, lambda i: i % 3)
        case "add_shared":
            return shared_counts(s)
        case "loop_barrier":
            return {0: np.full(s["g"] * block, s["k"])}
        case "one_word_a_block":
            return {0: np.arange(s["g"])}
        case "nothing":
            return {}
        case "loop_divergent":
            return divergent(a, s, block)
    return units(kernel, a, s, block)


@pytest.mark.one_in(15)
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_kernel_of_the_ladder_computes_what_numpy_does(case: dict[str, Any]) -> None:
    arguments: list[Any] = [
        SCRIPT.full_array(a, index) if "array" in a else np.dtype(a["scalar"]).type(a["value"])
        for index, a in enumerate(case["arguments"])
    ]
    want = expected(case, arguments)
    loaded(case["family"]).run(case["grid"], case["block"], *arguments, kernel=case["kernel"], shared=case["shared"])
    for position, values in want.items():
        got, right = arguments[position].ravel(), np.asarray(values).ravel()
        assert got.shape == right.shape
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-5 * float(np.abs(right).max()))
        else:
            assert np.array_equal(got, right)


def test_every_kernel_of_the_ladder_has_a_case() -> None:
    plain = re.compile(r'extern "C" __global__ void (?:__\w+__\([^()]*\) ?)?\s*(\w+)\(')
    macro = re.compile(r"^(?:COPY|EACH|CHAINS)\((\w+),", re.MULTILINE)
    texts = {file.stem: file.read_text(encoding="utf-8") for file in SCRIPT.LADDER.glob("*.cu")}
    written = {
        (family, name)
        for family, text in texts.items()
        for pattern in (plain, macro)
        for name in pattern.findall(text)
        if name != "name"
    }
    assert written == {(case["family"], case["kernel"]) for case in CASES}
    assert len(CASES) >= 150


CHILD = """
import os, pathlib, sys, time
parts, first = pathlib.Path(sys.argv[1]), int(sys.argv[3])
for number in range(first, 5):
    if number == 1:
        os.kill(os.getpid(), 11)
    if number == 3:
        time.sleep(60)
    (parts / f"{number}.json").write_text('{"case": %d}' % number)
    if number == 2:
        sys.exit(3)
"""


def test_cases_go_on_after_one_that_crashes_fails_or_hangs(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    assert SCRIPT.run_children([sys.executable, "-c", CHILD, str(parts)], parts, 5, 2.0)
    records = [json.loads((parts / f"{number}.json").read_text()) for number in range(5)]
    assert [record["case"] for record in records] == list(range(5))
    errors = {number: record["error"] for number, record in enumerate(records) if "error" in record}
    assert errors == {1: "its process ended with -11", 3: "hung"}
    assert not SCRIPT.run_children([sys.executable, "-c", "raise SystemExit(4)"], parts, 5, 2.0)


def test_what_an_h100_gave_is_of_these_cases_and_adds_up() -> None:
    folder = BENCHMARKS.parent / "results" / "reference" / "h100"
    cases = {case["name"]: case for case in SCRIPT.cases_of()}
    records, metrics = SCRIPT.measured(list(cases.values()), folder, [])
    assert list(records) == list(cases)
    for name, record in records.items():
        assert 0 < record["cold_us"]["least"] <= record["cold_us"]["median"]
        assert record["sums"].keys() == {
            str(number) for number, argument in enumerate(cases[name]["arguments"]) if argument.get("out")
        }
    lines = [json.loads(line) for line in (folder / SCRIPT.KEPT_SASS).read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 116
    for line in lines:
        executed = metrics[line["name"]]["smsp__inst_executed.sum"]
        assert sum(count * times for _, count, times in line["executed"]) == executed
        assert sum(line["opcodes"].values()) == executed


@pytest.mark.slow
def test_prepare_compiles_the_kernels_of_its_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = SCRIPT.cases_of()[0]
    monkeypatch.setattr(SCRIPT, "cases_of", lambda: [first])
    SCRIPT.prepare(tmp_path)
    assert json.loads((tmp_path / "cases.json").read_text())[0]["name"] == first["name"]
    assert (tmp_path / f"{first['family']}.cubin").read_bytes().startswith(b"\x7fELF")
    assert ".entry" in (tmp_path / f"{first['family']}.ptx").read_text()
