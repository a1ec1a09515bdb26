"""Floating-point instructions: exact where IEEE-754 says so, within PTX's documented error where it is approximate."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelforge.devices.emulated import layout as lay
from tests.devices.emulated.harness import apply, cuda

RNG = np.random.default_rng(11)


def patterns(bits: int, count: int = 3000) -> np.ndarray:
    """Random bit patterns (every exponent, denormals, infinities, NaN) and ordinary values."""
    kind = f"f{bits // 8}"
    raw = RNG.integers(0, 1 << 63, count, dtype=np.uint64) * 2 + RNG.integers(0, 2, count, dtype=np.uint64)
    wild = (raw >> np.uint64(64 - bits)).astype(f"u{bits // 8}").view(kind)
    tame = (RNG.standard_normal(count) * 10.0 ** RNG.integers(-3, 4, count)).astype(kind)
    limits = np.finfo(kind)
    extremes = [limits.tiny, -limits.tiny, limits.smallest_subnormal, limits.max, limits.min]
    edges = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, *extremes, 0.5, 1.5, 2.5], dtype=kind)
    return RNG.permutation(np.concatenate([wild, tame, edges]))


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    """Bitwise equal, any NaN for a NaN."""
    got = got.view(want.dtype)
    bad = ~((got.view(f"u{want.itemsize}") == want.view(f"u{want.itemsize}")) | (np.isnan(got) & np.isnan(want)))
    assert not bad.any(), (np.flatnonzero(bad)[:5], got[bad][:5], want[bad][:5])


def flushed(x: np.ndarray) -> np.ndarray:
    tiny = np.abs(x) < np.finfo(x.dtype).tiny
    return np.where(tiny, np.copysign(x.dtype.type(0), x), x)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("op", ["add.rn", "sub.rn", "mul.rn", "div.rn"])
def test_arithmetic_rounds_to_nearest_even(op: str, bits: int) -> None:
    a, b = patterns(bits), patterns(bits)
    with np.errstate(all="ignore"):
        want = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op[:3]](a, b)
    kind = f"f{bits}"
    assert_same(apply(f"{op}.{kind} {{d}}, {{a}}, {{b}};", kind, (kind, a), (kind, b)), want)


@pytest.mark.parametrize("op", ["add", "mul", "sub"])
def test_ftz_flushes_denormal_inputs_and_results(op: str) -> None:
    a, b = patterns(32), patterns(32)
    scale = np.float32(2.0**-100) if op == "mul" else np.float32(2.0**-120)
    a[:500], b[:500] = (
        RNG.standard_normal(500).astype(np.float32) * scale,
        RNG.standard_normal(500).astype(np.float32) * scale,
    )
    with np.errstate(all="ignore"):
        want = flushed({"add": np.add, "sub": np.subtract, "mul": np.multiply}[op](flushed(a), flushed(b)))
    assert_same(apply(f"{op}.ftz.f32 {{d}}, {{a}}, {{b}};", "f32", ("f32", a), ("f32", b)), want)
    assert (np.abs(want[:500]) > 0).any() or op == "mul"


def exact_rounding(value: Fraction, mode: str, kind: type) -> float:
    """Round an exact rational to f32 or f64 in a directed mode."""
    try:
        near = kind(float(value)) if kind is np.float64 else kind(value.numerator / value.denominator)
    except OverflowError:
        near = kind(math.inf if value > 0 else -math.inf)
    low = high = near
    if math.isinf(near):
        low = high = near
    while (not math.isinf(low) and Fraction(float(low)) > value) or low == math.inf:
        low = np.nextafter(low, kind(-np.inf))
    while (not math.isinf(high) and Fraction(float(high)) < value) or high == -math.inf:
        high = np.nextafter(high, kind(np.inf))
    while (
        not math.isinf(low) and Fraction(float(np.nextafter(low, kind(np.inf)))) <= value
        if not math.isinf(np.nextafter(low, kind(np.inf)))
        else False
    ):
        low = np.nextafter(low, kind(np.inf))
    while (
        not math.isinf(high) and Fraction(float(np.nextafter(high, kind(-np.inf)))) >= value
        if not math.isinf(np.nextafter(high, kind(-np.inf)))
        else False
    ):
        high = np.nextafter(high, kind(-np.inf))
    if mode == "rm":
        return low
    if mode == "rp":
        return high
    return low if value >= 0 else high


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "mul", "fma"])
def test_directed_rounding(op: str, mode: str, bits: int) -> None:
    kind = np.float32 if bits == 32 else np.float64
    count = 300
    a, b, c = ((RNG.standard_normal(count) * 10.0 ** RNG.integers(-6, 6, count)).astype(kind) for _ in range(3))
    name = f"f{bits}"
    operands = [(name, a), (name, b)] + ([(name, c)] if op == "fma" else [])
    text = ", ".join("{" + n + "}" for n in "dabc"[: 1 + len(operands)])
    got = apply(f"{op}.{mode}.{name} {text};", name, *operands).view(kind)
    for k in range(count):
        x, y, z = (Fraction(float(v[k])) for v in (a, b, c))
        value = {"add": x + y, "mul": x * y, "fma": x * y + z}[op]
        if value:
            assert got[k] == exact_rounding(value, mode, kind), (op, mode, a[k], b[k], c[k])


def test_fused_multiply_add_rounds_once() -> None:
    a, b, c = (RNG.standard_normal(500).astype(np.float32) for _ in range(3))
    got = apply("fma.rn.f32 {d}, {a}, {b}, {c};", "f32", ("f32", a), ("f32", b), ("f32", c)).view(np.float32)
    want = [
        np.float32(float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert np.max(np.abs(got - np.array(want)) / np.abs(got)) < 1e-7
    exact = apply("fma.rn.f32 {d}, {a}, {b}, {c};", "f32", ("f32", a), ("f32", b), ("f32", -(a * b))).view(np.float32)
    error = [Fraction(float(x)) * Fraction(float(y)) - Fraction(float(x * y)) for x, y in zip(a, b, strict=True)]
    assert all(Fraction(float(g)) == w for g, w in zip(exact, error, strict=True))


@pytest.mark.parametrize("bits", [32, 64])
def test_square_root_and_reciprocal_are_correctly_rounded(bits: int) -> None:
    a = patterns(bits)
    kind = f"f{bits}"
    with np.errstate(all="ignore"):
        assert_same(apply(f"sqrt.rn.{kind} {{d}}, {{a}};", kind, (kind, a)), np.sqrt(a))
        assert_same(apply(f"rcp.rn.{kind} {{d}}, {{a}};", kind, (kind, a)), a.dtype.type(1) / a)


def test_minimum_and_maximum_ignore_nan_unless_told() -> None:
    a, b = patterns(32), patterns(32)
    with np.errstate(all="ignore"):
        low, high = np.fmin(a, b), np.fmax(a, b)
        low = np.where(
            (a == 0) & (b == 0), np.where(np.signbit(a) | np.signbit(b), np.float32(-0.0), np.float32(0)), low
        )
        high = np.where(
            (a == 0) & (b == 0), np.where(np.signbit(a) & np.signbit(b), np.float32(-0.0), np.float32(0)), high
        )
    assert_same(apply("min.f32 {d}, {a}, {b};", "f32", ("f32", a), ("f32", b)), low)
    assert_same(apply("max.f32 {d}, {a}, {b};", "f32", ("f32", a), ("f32", b)), high)
    nan = np.isnan(a) | np.isnan(b)
    got = apply("max.NaN.f32 {d}, {a}, {b};", "f32", ("f32", a), ("f32", b)).view(np.float32)
    assert np.array_equal(np.isnan(got), nan)


COMPARE = {
    "eq": lambda a, b, n: (a == b) & ~n,
    "ne": lambda a, b, n: (a != b) & ~n,
    "lt": lambda a, b, n: a < b,
    "ge": lambda a, b, n: a >= b,
    "equ": lambda a, b, n: (a == b) | n,
    "neu": lambda a, b, n: (a != b) | n,
    "ltu": lambda a, b, n: (a < b) | n,
    "gtu": lambda a, b, n: (a > b) | n,
    "leu": lambda a, b, n: (a <= b) | n,
    "num": lambda a, b, n: ~n,
    "nan": lambda a, b, n: n,
}


@pytest.mark.parametrize("test", COMPARE)
def test_comparisons(test: str) -> None:
    a, b = patterns(32), patterns(32)
    b[::3] = a[::3]
    got = apply(f"setp.{test}.f32 %p1, {{a}}, {{b}}; selp.u32 {{d}}, 1, 0, %p1;", "u32", ("f32", a), ("f32", b))
    with np.errstate(all="ignore"):
        want = COMPARE[test](a, b, np.isnan(a) | np.isnan(b))
    assert np.array_equal(got, want.astype(np.uint32))


def test_saturation_and_classes() -> None:
    a = patterns(32)
    got = apply("add.sat.f32 {d}, {a}, 0f00000000;", "f32", ("f32", a)).view(np.float32)
    assert np.array_equal(got, np.where(np.isnan(a), 0, np.clip(a, 0, 1)).astype(np.float32))
    subnormal = (np.abs(a) < np.finfo(np.float32).tiny) & (a != 0)
    for name, want in (
        ("finite", np.isfinite(a)),
        ("infinite", np.isinf(a)),
        ("notanumber", np.isnan(a)),
        ("subnormal", subnormal),
    ):
        got = apply(f"testp.{name}.f32 %p1, {{a}}; selp.u32 {{d}}, 1, 0, %p1;", "u32", ("f32", a))
        assert np.array_equal(got, want.astype(np.uint32)), name


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        good = (
            np.isfinite(want) & (np.abs(want) >= np.finfo(np.float32).tiny) & (np.abs(want) <= np.finfo(np.float32).max)
        )
        return float(np.max(np.abs(got[good].astype(np.float64) - want[good]) / np.abs(want[good])))


VARIATIONS = (0, 1, 0xDEADBEEF, 2**32 - 2, lay.WORST_ERRORS)


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    """Largest distance in units of the last place of the correctly rounded result, where that is normal."""
    with np.errstate(all="ignore"):
        near = want.astype(got.dtype)
        info = np.finfo(got.dtype)
        good = np.isfinite(near) & (np.abs(near) >= info.tiny) & (np.abs(want) <= info.max)
        return float(np.max(np.abs(got[good].astype(np.float64) - want[good]) / np.spacing(np.abs(near[good]))))


@pytest.mark.parametrize("variation", VARIATIONS)
def test_approximate_functions_stay_within_their_documented_error(variation: int) -> None:
    x = np.concatenate(
        [patterns(32), RNG.uniform(-130, 130, 4000).astype(np.float32), RNG.uniform(0.5, 2, 2000).astype(np.float32)]
    )
    with np.errstate(invalid="ignore"):  # signalling NaNs become quiet
        wide = x.astype(np.float64)

    def run(op: str) -> np.ndarray:
        return apply(f"{op}.approx.f32 {{d}}, {{a}};", "f32", ("f32", x), variation=variation).view(np.float32)

    with np.errstate(all="ignore"):
        assert ulps(run("ex2"), np.exp2(wide)) <= 2.5  # 2 from the correctly rounded result
        assert relative_error(run("rsqrt"), 1 / np.sqrt(wide)) <= 2.0**-22.9
        assert ulps(run("rcp"), 1 / wide) <= 1
        assert relative_error(run("sqrt"), np.sqrt(wide)) <= 2.0**-23
        assert relative_error(run("tanh"), np.tanh(wide)) <= 2.0**-11
        logs = run("lg2")
        near = (wide > 0.5) & (wide < 2)
        assert np.max(np.abs(logs[near] - np.log2(wide[near]))) <= 2.0**-22
        assert relative_error(logs[~near], np.log2(wide[~near])) <= 2.0**-22
        assert np.array_equal(logs[wide == 0], np.full((wide == 0).sum(), -np.inf, np.float32))
        assert np.isnan(logs[wide < 0]).all()
        small, large = np.abs(wide) <= 2 * np.pi, np.abs(wide) <= 100 * np.pi
        for op, function in (("sin", np.sin), ("cos", np.cos)):
            assert np.max(np.abs(run(op)[small] - function(wide[small]))) <= 2.0**-20.5
            assert np.max(np.abs(run(op)[large] - function(wide[large]))) <= 2.0**-14.7
            assert np.max(np.abs(run(op)[large])) <= 1
        for op in ("ex2", "sin", "cos", "tanh", "lg2", "rsqrt", "rcp", "sqrt"):
            assert np.isnan(run(op)[np.isnan(wide)]).all()


@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("op", ["div.approx", "div.full"])
def test_approximate_division_stays_within_two_units(op: str, variation: int) -> None:
    a, b = (np.concatenate([patterns(32), RNG.standard_normal(4000).astype(np.float32)]) for _ in range(2))
    b = RNG.permutation(b)
    got = apply(f"{op}.f32 {{d}}, {{a}}, {{b}};", "f32", ("f32", a), ("f32", b), variation=variation).view(np.float32)
    with np.errstate(all="ignore"):
        fine = (np.abs(b) >= 2.0**-126) & (np.abs(b) <= 2.0**126)
        assert ulps(got[fine], a[fine].astype(np.float64) / b[fine]) <= 2
        assert np.array_equal(np.isnan(got[fine]), np.isnan(a[fine] / b[fine]))


@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize(
    ("op", "error"),
    [("ex2.approx.f16", 2.0**-9.9), ("tanh.approx.f16", 2.0**-10.987), ("ex2.approx.ftz.bf16", 2.0**-7),
     ("tanh.approx.bf16", 2.0**-8)],
)  # fmt: skip
def test_approximate_functions_of_halves_stay_within_theirs(op: str, error: float, variation: int) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    raw = apply(f"{op} {{d}}, {{a}};", "b16", ("b16", bits), variation=variation)
    if "bf16" in op:
        x, got = ((v.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for v in (bits, raw))
        tiny, top = 2.0**-126, 2.0**127
    else:
        x, got = (v.view(np.float16).astype(np.float64) for v in (bits, raw))
        tiny, top = 2.0**-14, 65504.0
    with np.errstate(all="ignore"):
        want = np.exp2(x) if "ex2" in op else np.tanh(x)
        good = np.isfinite(want) & (np.abs(want) >= tiny) & (np.abs(want) <= top)
        distance = np.abs(got - want)[good]
        assert np.max(distance / np.abs(want[good]) if "ex2" in op else distance) <= error
        assert np.array_equal(np.isnan(got), np.isnan(x))
    assert (
        raw[x == 0] == (want[x == 0].astype(np.float16).view(np.uint16) if "bf16" not in op else brain(want[x == 0]))
    ).all()


APPROXIMATE = ("ex2", "lg2", "sin", "cos", "tanh", "rsqrt", "rcp", "sqrt")


@pytest.mark.parametrize("op", [*APPROXIMATE, "div"])
def test_a_variation_moves_results_and_one_variation_always_alike(op: str) -> None:
    x = RNG.uniform(0.1, 3, 500).astype(np.float32)
    operands = "{d}, {a}, {b};" if op == "div" else "{d}, {a};"
    inputs = [("f32", x)] + [("f32", x[::-1])] * (op == "div")

    def run(variation: int, order: np.ndarray) -> np.ndarray:
        taken = [(kind, values[order]) for kind, values in inputs]
        return apply(f"{op}.approx.f32 {operands}", "f32", *taken, variation=variation)

    straight, shuffled = np.arange(500), RNG.permutation(500)
    first = run(7, straight)
    assert np.array_equal(first[shuffled], run(7, shuffled))
    for other in (run(0, straight), run(8, straight), run(7 << 20, straight)):
        assert 0.2 < np.mean(first != other) < 1.01


@pytest.mark.parametrize(
    ("op", "function", "unit", "error"),
    [
        ("ex2", np.exp2, "ulp", 0.4), ("rcp", np.reciprocal, "ulp", 0.5), ("sqrt", np.sqrt, "ulp", 0.5),
        ("div", lambda x: x / x[::-1], "ulp", 0.5),
        ("tanh", np.tanh, "relative", 0.9 * 2.0**-11), ("lg2", np.log2, "absolute", 0.4 * 2.0**-22),
        ("sin", np.sin, "absolute", 0.8 * 2.0**-20.5), ("cos", np.cos, "absolute", 0.8 * 2.0**-20.5),
    ],
)  # fmt: skip
def test_the_worst_errors_are_far_and_to_both_sides(
    op: str, function: Callable[[np.ndarray], np.ndarray], unit: str, error: float
) -> None:
    """Hardly a result is nearer than this to the true one."""
    x = RNG.uniform(1.1, 1.4, 600).astype(np.float32)
    operands = "{d}, {a}, {b};" if op == "div" else "{d}, {a};"
    inputs = [("f32", x)] + [("f32", x[::-1])] * (op == "div")
    want = function(x.astype(np.float64))
    scale = {"ulp": np.spacing(want.astype(np.float32)), "relative": np.abs(want), "absolute": np.ones(600)}[unit]

    def errors(variation: int) -> np.ndarray:
        raw = apply(f"{op}.approx.f32 {operands}", "f32", *inputs, variation=variation)
        return np.asarray((raw.view(np.float32) - want) / scale)

    worst = errors(lay.WORST_ERRORS)
    exact = want == want.astype(np.float32)
    assert np.mean(np.abs(worst[~exact]) >= error) > 0.9
    assert 0.3 < np.mean(worst > 0) < 0.7
    assert np.mean(np.abs(errors(0)[~exact]) >= error) < 0.3


@pytest.mark.slow
def test_what_the_tables_list_stays_exact_with_every_variation() -> None:
    powers = 2.0 ** np.arange(-20, 21)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0])
    x = np.concatenate([special, powers, powers**2]).astype(np.float32)
    integers = np.concatenate([special, np.arange(-126.0, 127)]).astype(np.float32)
    for variation in VARIATIONS[1:]:
        for op, values in (
            ("rcp", x), ("sqrt", np.concatenate([special, powers**2])), ("rsqrt", np.concatenate([special, powers**2])),
            ("lg2", np.append(special, powers[20:])), ("ex2", integers), ("sin", special[:5]), ("cos", special[:5]),
            ("tanh", np.append(special[:5], [11.0, -12.0])),
        ):  # fmt: skip
            column = ("f32", values.astype(np.float32))
            text = f"{op}.approx.f32 {{d}}, {{a}};"
            assert np.array_equal(apply(text, "f32", column, variation=variation), apply(text, "f32", column)), op
    assert apply("ex2.approx.f32 {d}, {a};", "f32", ("f32", np.zeros(1, np.float32)), variation=9).view(np.float32) == 1


@pytest.mark.parametrize("op", ["rcp", "rsqrt"])
def test_approximate_doubles_keep_their_upper_half(op: str) -> None:
    x = np.concatenate([RNG.uniform(0.1, 9, 200), [1.0, 4.0, 0.0, np.inf]])
    text = f"{op}.approx.ftz.f64 {{d}}, {{a}};"
    middle, varied = (apply(text, "f64", ("f64", x), variation=v) for v in (0, 5))
    assert not (varied & 0xFFFFFFFF).any()
    steps = (varied >> 32).astype(np.int64) - (middle >> 32).astype(np.int64)
    assert set(steps[:200]) == {0, 1}
    assert not steps[200:].any()


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--use_fast_math",)], ids=["precise", "fast"])
def test_libm_as_nvrtc_emits_it(options: tuple[str, ...]) -> None:
    functions = {
        "expf(x)": (np.exp, -80, 80),
        "logf(x)": (np.log, 1e-6, 1e6),
        "sinf(x)": (np.sin, -3, 3),
        "cosf(x)": (np.cos, -3, 3),
        "tanhf(x)": (np.tanh, -5, 5),
        "erff(x)": (np.vectorize(math.erf), -4, 4),
        "powf(x, 1.7f)": (lambda v: v ** np.float32(1.7), 1e-3, 1e3),
        "fmodf(x, 0.7f)": (lambda v: np.fmod(v, np.float64(np.float32(0.7))), -50, 50),
        "rsqrtf(x)": (lambda v: 1 / np.sqrt(v), 1e-6, 1e6),
        "sqrtf(x)": (np.sqrt, 0, 1e6),
        "atan2f(x, 2.0f)": (lambda v: np.arctan2(v, 2), -9, 9),
        "cbrtf(x)": (np.cbrt, -50, 50),
        "log1pf(x)": (np.log1p, -0.9, 10),
        "expm1f(x)": (np.expm1, -5, 5),
        "asinf(x)": (np.arcsin, -1, 1),
        "sinhf(x)": (np.sinh, -5, 5),
        "x / 3.0f": (lambda v: v / 3, -9, 9),
        "lgammaf(x)": (np.vectorize(math.lgamma), 0.5, 20),
        "roundf(x)": (np.vectorize(lambda v: math.copysign(math.floor(abs(v) + 0.5), v)), -9, 9),
    }
    cases = "".join(
        f"y[{k} * n + i] = {text};\n"
        for k, text in enumerate(
            f.replace("x", f"x[{k} * n + i]") if "exp" not in f else f.replace("(x", f"(x[{k} * n + i]")
            for k, f in enumerate(functions)
        )
    )
    source = f"""extern "C" __global__ void k(const float* x, float* y, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
{cases}}}"""
    n = 700
    x = np.stack([RNG.uniform(low, high, n) for _, low, high in functions.values()]).astype(np.float32)
    y = np.zeros_like(x)
    cuda(source, *options).run(6, 128, x, y, n)
    for row, (name, (function, _, _)) in enumerate(functions.items()):
        want = function(x[row].astype(np.float64))
        tolerance = 2e-6 if not options else 2e-4
        bad = np.abs(y[row] - want) > tolerance * np.maximum(np.abs(want), 1 if options else 0.01)
        assert not bad.any(), (name, x[row][bad][:3], y[row][bad][:3], want[bad][:3])


def test_large_sine_arguments_use_the_slow_path() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y) {
  int i = threadIdx.x;
  y[i] = sinf(x[i]);
  y[i + 64] = cosf(x[i]);
}"""
    x = (RNG.uniform(1, 2, 64) * 10.0 ** RNG.integers(0, 38, 64)).astype(np.float32)
    x[:4] = [np.inf, 1e5, -3e38, 0.0]
    y = np.zeros(128, np.float32)
    cuda(source).run(1, 64, x, y)
    assert np.isnan(y[0])
    assert np.isnan(y[64])
    for k in range(1, 64):
        value = Fraction(float(x[k]))
        turns = value / PI_TIMES_TWO
        angle = float((turns - (turns.numerator // turns.denominator)) * PI_TIMES_TWO)
        assert abs(y[k] - math.sin(angle)) < 3e-7
        assert abs(y[k + 64] - math.cos(angle)) < 3e-7


# 2 pi to 60 digits: enough to reduce any float.
PI_TIMES_TWO = Fraction(6283185307179586476925286766559005768394338798750211641949889184615, 10**66)


@pytest.mark.slow
def test_double_precision_functions() -> None:
    source = """extern "C" __global__ void k(const double* x, double* y) {
  int i = threadIdx.x;
  y[i] = exp(x[i]);
  y[i + 64] = log(fabs(x[i]));
  y[i + 128] = sin(x[i]);
  y[i + 192] = pow(fabs(x[i]), 1.3);
  y[i + 256] = x[i] / 7.0;
  y[i + 320] = sqrt(fabs(x[i]));
}"""
    x = RNG.uniform(-9, 9, 64)
    y = np.zeros(384)
    cuda(source).run(1, 64, x, y)
    want = np.concatenate([np.exp(x), np.log(np.abs(x)), np.sin(x), np.abs(x) ** 1.3, x / 7, np.sqrt(np.abs(x))])
    assert np.allclose(y, want, rtol=3e-15, atol=1e-16)
    assert np.array_equal(y[256:], want[256:])


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 2), min_size=1, max_size=64),
    st.sampled_from(["add", "sub", "mul", "div.rn"]),
)
def test_any_bit_patterns(pairs: list[tuple[int, int]], op: str) -> None:
    a, b = (np.array(column, dtype=np.uint32).view(np.float32) for column in zip(*pairs, strict=True))
    with np.errstate(all="ignore"):
        want = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div.rn": np.divide}[op](a, b)
    assert_same(apply(f"{op}.f32 {{d}}, {{a}}, {{b}};", "f32", ("f32", a), ("f32", b)), want)


@pytest.mark.parametrize("op", ["add", "mul", "sub"])
@pytest.mark.parametrize("packed", [False, True])
def test_half_arithmetic_is_correctly_rounded(op: str, packed: bool) -> None:
    a, b = patterns(16), patterns(16)
    a, b = a[: a.size // 2 * 2], b[: b.size // 2 * 2]
    with np.errstate(all="ignore"):
        want = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op](a, b)
    if packed:
        got = apply(
            f"{op}.rn.f16x2 {{d}}, {{a}}, {{b}};", "b32", ("b32", a.view(np.uint32)), ("b32", b.view(np.uint32))
        ).view(np.float16)
    else:
        got = apply(f"{op}.rn.f16 {{d}}, {{a}}, {{b}};", "b16", ("b16", a.view(np.uint16)), ("b16", b.view(np.uint16)))
    assert_same(got, want)


def brain(x: np.ndarray) -> np.ndarray:
    """Round float64 to bfloat16 bit patterns exactly, through integers."""
    near = x.astype(np.float32)
    inexact = near.astype(np.float64) != x
    bits = near.view(np.uint32).astype(np.int64)
    odd = np.where(
        inexact & (bits & 1 == 0), np.where(np.abs(near.astype(np.float64)) > np.abs(x), bits - 1, bits + 1), bits
    )
    return ((odd + 0x7FFF + (odd >> 16 & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_fused_multiply_add_rounds_once(kind: str) -> None:
    a, b, c = (RNG.standard_normal(4000) for _ in range(3))
    if kind == "f16":
        raw = [v.astype(np.float16).view(np.uint16) for v in (a, b, c)]
        x, y, z = (r.view(np.float16).astype(np.float64) for r in raw)
        want = (x * y + z).astype(np.float16).view(np.uint16)  # exact in double, NumPy rounds once
    else:
        raw = [brain(v) for v in (a, b, c)]
        x, y, z = ((r.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for r in raw)
        want = brain(x * y + z)
    got = apply(f"fma.rn.{kind} {{d}}, {{a}}, {{b}}, {{c}};", "b16", *(("b16", r) for r in raw))
    assert np.array_equal(got, want)
