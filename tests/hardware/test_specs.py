"""The emulated devices' figures."""

from dataclasses import fields

import pytest

from kernelforge.hardware.specs import A100, H100, H200, SPECS, DeviceSpec

NOT_FIGURES = {"key", "title", "arch", "sources"}


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.key)
def test_every_figure_names_its_source(spec: DeviceSpec) -> None:
    figures = {field.name for field in fields(spec)} - NOT_FIGURES
    assert set(spec.sources) == figures
    assert all(spec.sources.values())


def test_peak_arithmetic_agrees_with_the_datasheets() -> None:
    assert H100.fp32_flops_per_s == pytest.approx(67e12, rel=0.01)
    assert H200.fp32_flops_per_s == pytest.approx(67e12, rel=0.01)
    assert A100.fp32_flops_per_s == pytest.approx(19.5e12, rel=0.01)


@pytest.mark.parametrize(("spec", "sparse"), [(H100, 1979), (H200, 1979), (A100, 624)])
def test_dense_peaks_of_tensor_cores_are_half_of_the_sparse_ones_on_the_datasheets(
    spec: DeviceSpec, sparse: float
) -> None:
    assert spec.fp16_tensor_tflops == pytest.approx(sparse / 2, rel=0.001)
    assert spec.tf32_tensor_tflops == pytest.approx(sparse / 4, rel=0.001)


def test_ridge_is_peak_arithmetic_over_peak_bandwidth() -> None:
    assert H100.ridge_flop_per_byte == pytest.approx(20.0, rel=0.01)
    assert A100.ridge_flop_per_byte == pytest.approx(9.55, rel=0.01)


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.key)
def test_sustained_bandwidth_lies_below_peak_and_l2_above_dram(spec: DeviceSpec) -> None:
    assert 0.7 * spec.dram_bandwidth_gbps < spec.dram_sustained_gbps < spec.dram_bandwidth_gbps
    assert spec.l2_bandwidth_gbps > spec.dram_bandwidth_gbps
    assert spec.l1_latency_cycles < spec.l2_latency_cycles < spec.dram_latency_cycles


def test_the_default_comes_first() -> None:
    assert next(iter(SPECS)) == "h100"
