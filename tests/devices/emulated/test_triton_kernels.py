"""Triton kernels on the emulated devices against NumPy: through the compiler's jail and the runner's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kernelforge.candidate import parse_plan
from kernelforge.candidate.plan import signatures
from kernelforge.compile import Artifact, Compiler
from kernelforge.compile.triton_build import installed_triton
from kernelforge.devices import make_device
from kernelforge.devices.base import RunRequest
from kernelforge.devices.emulated.device import EmulatedDevice
from kernelforge.sandbox import select_tier
from tests.devices.emulated import triton_kernels as kernels
from tests.devices.emulated.emulated_plans import Array, input_bytes, specs
from tests.devices.emulated.tensor_memory import elements
from tests.devices.emulated.test_tcgen05_scaled import scale_values

pytestmark = [
    pytest.mark.skipif(select_tier().tier == "none", reason="no jail tier works on this machine"),
    pytest.mark.skipif(installed_triton() is None, reason="the extra triton is not installed"),
]
RANDOM = np.random.default_rng(7)


@pytest.fixture(scope="module", params=["emulated:a100", "emulated:h100", "emulated:b200"])
def device(request: pytest.FixtureRequest, open_warm: Callable[..., Any]) -> Iterator[EmulatedDevice]:
    with open_warm(make_device, request.param, threads=2) as made:
        yield made


@pytest.fixture
def run(compiler: Compiler, device: EmulatedDevice) -> Callable[..., list[Array]]:
    """Outputs of a plan on arrays, as arrays of one dimension."""

    def outputs(source: str, plan: str, *arrays: Array) -> list[Array]:
        resolved = parse_plan(plan, "triton").resolve(specs(arrays), {}, {})
        built = compiler.build(source, (), signatures=signatures(resolved), arch=device.arch)
        assert isinstance(built, Artifact), built.diagnostics
        bound = resolved.bound_to(built.build)
        with device.open(built) as session:
            result = session.run(RunRequest(bound, input_bytes(bound, arrays), deadline_s=120.0))
        assert result.faults == ()
        types = [np.dtype(output.dtype.value) for output in bound.outputs]
        return [np.frombuffer(data, dtype) for data, dtype in zip(result.outputs, types, strict=True)]

    return outputs


def normal(*shape: int, dtype: str = "float32") -> Array:
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("n", [1, 1024, 5000])
def test_vector_add(run: Callable[..., list[Array]], n: int) -> None:
    x, y = normal(n), normal(n)
    (out,) = run(kernels.ADD, kernels.ADD_PLAN, x, y)
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 781), (5, 1024)])
def test_fused_softmax(run: Callable[..., list[Array]], rows: int, columns: int) -> None:
    x = normal(rows, columns)
    (out,) = run(kernels.SOFTMAX, kernels.SOFTMAX_PLAN, x)
    exponentials = np.exp(x.astype(float) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, (exponentials / exponentials.sum(1, keepdims=True)).reshape(-1), 2e-6, 1e-9)


@pytest.mark.slow
@pytest.mark.one_in(10)
@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 64), (100, 72, 40), (65, 33, 17)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_matmul(run: Callable[..., list[Array]], m: int, n: int, k: int, dtype: str) -> None:
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
    (out,) = run(kernels.MATMUL, kernels.MATMUL_PLAN, a, b)
    product = a.astype(float) @ b.astype(float)
    expected = np.where(product >= 0, product, 0.01 * product)
    # float32 is multiplied as TF32, Triton's default: 10 bits of mantissa.
    np.testing.assert_allclose(out, expected.reshape(-1), 2e-3, 2e-2)


@pytest.mark.slow
def test_low_memory_dropout(run: Callable[..., list[Array]]) -> None:
    x = np.ones(10_000, dtype="float32")
    (first,), (second,) = (run(kernels.DROPOUT, kernels.DROPOUT_PLAN, x) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert np.mean(first == 0) == pytest.approx(0.25, abs=0.02)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("rows", "columns"), [(3, 1000), (4, 256), (2, 5)])
def test_layer_norm(run: Callable[..., list[Array]], rows: int, columns: int) -> None:
    x, weight, bias = normal(rows, columns), normal(columns), normal(columns)
    out, mean, rstd = run(kernels.LAYER_NORM, kernels.LAYER_NORM_PLAN, x, weight, bias)
    exact = x.astype(float)
    scale = 1 / np.sqrt(exact.var(1) + 1e-5)
    np.testing.assert_allclose(mean, exact.mean(1), 1e-5, 1e-6)
    np.testing.assert_allclose(rstd, scale, 1e-5)
    expected = (exact - exact.mean(1, keepdims=True)) * scale[:, None] * weight + bias
    np.testing.assert_allclose(out, expected.reshape(-1), 1e-4, 1e-5)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("heads", "n", "d"), [(2, 128, 64), (3, 100, 32)])
def test_attention(run: Callable[..., list[Array]], heads: int, n: int, d: int) -> None:
    q, k, v = (normal(heads, n, d, dtype="float16") for _ in range(3))
    (out,) = run(kernels.ATTENTION, kernels.ATTENTION_PLAN, q, k, v)
    scores = q.astype(float) @ k.astype(float).transpose(0, 2, 1) / np.sqrt(d)
    weights = np.exp(np.where(np.tri(n), scores, -np.inf))
    expected = weights @ v.astype(float) / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, expected.reshape(-1), 5e-3, 5e-3)


@pytest.mark.slow
def test_grouped_gemm(run: Callable[..., list[Array]]) -> None:
    sizes = np.array([[64, 32, 16], [40, 33, 50], [7, 70, 24]], dtype="int32")
    lefts = [normal(m, k, dtype="float16") for m, _, k in sizes]
    rights = [normal(k, n, dtype="float16") for _, n, k in sizes]
    expected = np.concatenate([(a.astype(float) @ b).reshape(-1) for a, b in zip(lefts, rights, strict=True)])
    packed = [np.concatenate([part.reshape(-1) for part in parts]) for parts in (lefts, rights)]
    (out,) = run(kernels.GROUPED, kernels.GROUPED_PLAN, *packed, sizes, np.zeros(expected.size, "float16"))
    np.testing.assert_allclose(out, expected, 5e-3, 2e-2)


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("a_type", "b_type", "group"),
    [("e4m3", "e4m3", 32), ("e5m2", "e4m3", 32), ("e2m1", "e2m1", 32), ("e2m1", "e2m1", 16)],
)
def test_scaled_products(
    run: Callable[..., list[Array]], device: EmulatedDevice, a_type: str, b_type: str, group: int
) -> None:
    """MXFP8, MXFP4 and NVFP4."""
    if device.arch == "sm_80" or (group == 16 and device.arch != "sm_100a"):
        pytest.skip("Triton has no such types for older GPUs")
    m, n, k = 256, 128, 256
    packed = 2 if a_type == "e2m1" else 1
    (a, a_values), (b, b_values) = elements(a_type, (m, k)), elements(b_type, (n, k))
    if packed == 2:
        a, b = (x[:, ::2] | x[:, 1::2] << 4 for x in (a, b))
    middle = 127 if group == 32 else 60
    scales = [RANDOM.integers(middle - 6, middle + 6, (lines, k // group)).astype(np.uint8) for lines in (m, n)]
    fields = f"BN = 64\nBK = 128\nA_TYPE = {a_type!r}\nB_TYPE = {b_type!r}\nGROUP = {group}\nPACKED = {packed}\n"
    (out,) = run(kernels.SCALED, fields + kernels.SCALED_PLAN, a, scales[0], b, scales[1])
    of_a, of_b = (np.repeat(scale_values(raw, group == 16), group, axis=1) for raw in scales)
    a_scaled, b_scaled = a_values * of_a, b_values * of_b
    error = np.abs(out.reshape(m, n) - a_scaled @ b_scaled.T) / (np.abs(a_scaled) @ np.abs(b_scaled).T)
    assert error.max() < 1e-4
