"""Figures of GPUs: that they are there, agree with what is published, and are given to no other GPU."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from kernelforge.errors import DeviceError
from kernelforge.hardware.specs import (
    A100,
    GENERATIONS,
    H100,
    H200,
    SPECS,
    DeviceSpec,
    NearestSpec,
    figures_digest,
    find_spec,
    nearest_spec,
    spec_by_key,
)

OF_A_CARD = (
    "sm_count", "max_clock_mhz", "dram_bytes", "dram_bandwidth_gbps", "l2_bytes", "tf32_tensor_tflops",
    "fp16_tensor_tflops",
)  # fmt: skip
NOT_CONFIRMED = "not confirmed: "
NOT_FIGURES = {"key", "title", "names", "compute_capability", "arch", "sources"}
EVERY_GPU = pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.key)

# FP32 TFLOPS, GB/s, TFLOPS of FP16 on tensor cores (dense, FP32 accumulation; None where NVIDIA publishes none).
PUBLISHED: dict[str, tuple[float, float, float | None]] = {
    "h100": (67, 3350, 989.5), "h200": (67, 4800, 989.5), "h100-pcie": (51, 2039, 756.5), "h100-nvl": (60, 3938, 835.5),
    "gh200": (67, 4000, 989.5), "a100": (19.5, 2039, 312), "a100-40gb": (19.5, 1555, 312),
    "a100-pcie": (19.5, 1935, 312), "b200": (75, 7700, 2250), "gb200": (80, 8000, 2500),
    "v100": (15.7, 900, 125), "v100-pcie": (14, 900, 112), "t4": (8.1, 320, 65),
    "a10": (31.2, 600, 125), "a10g": (35, 600, 70), "rtx-a6000": (38.7, 768, 154.8),
    "l4": (30.3, 300, 121), "l20": (59.8, 864, 119.5), "l40s": (91.6, 864, 366),
    "gtx-1650": (2.98, 192, 0), "gtx-1660-super": (5.03, 336, 0), "rtx-2060": (6.45, 336, 25.8),
    "rtx-3060-laptop": (9.85, 288, None),
    "rtx-3060": (12.74, 360, None), "rtx-3060-ti": (16.2, 448, None), "rtx-3070": (20.3, 448, 40.6),
    "rtx-3070-ti": (21.75, 608, None), "rtx-3080": (29.8, 760, 59.5), "rtx-3080-ti": (34.1, 912, None),
    "rtx-3090": (35.6, 936, 71), "rtx-3090-ti": (40, 1008, 80),
    "rtx-4060": (15.11, 272, None), "rtx-4060-ti": (22.06, 288, None), "rtx-4070": (29.15, 504, None),
    "rtx-4070-super": (35.48, 504, None), "rtx-4070-ti": (40.1, 504, 80.2), "rtx-4070-ti-super": (44.1, 672, None),
    "rtx-4080": (48.7, 716.8, 97.5), "rtx-4080-super": (52.2, 736, None), "rtx-4090": (82.6, 1008, 165.2),
    "rtx-5060": (19.2, 448, None), "rtx-5060-ti": (23.7, 448, None), "rtx-5070": (30.9, 672, 61.7),
    "rtx-5070-ti": (43.9, 896, 87.9), "rtx-5080": (56.3, 960, 112.6), "rtx-5090": (104.8, 1792, 209.5),
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "a_type", "sum_type", "tflops"),
    [
        ("a100", "s8", "s32", 624), ("a100", "s4", "s32", 1248), ("a100", "b1", "s32", 4992),
        ("a100", "f64", "f64", 19.5),
        ("a100", "f16", "f16", 312), ("h100", "e4m3", "f32", 1979), ("h100", "tf32", "f32", 494.7),
        ("rtx-4090", "f16", "f16", 330.3), ("rtx-4090", "s8", "s32", 660.6), ("rtx-4090", "e4m3", "f32", 330.3),
        ("l40s", "e4m3", "f32", 733), ("rtx-3090", "s8", "s32", 284),
    ],
)  # fmt: skip
def test_peaks_of_the_tensor_cores_by_type_are_those_of_the_datasheets(
    key: str, a_type: str, sum_type: str, tflops: float
) -> None:
    assert SPECS[key].tensor_flops_per_s(a_type, sum_type) == pytest.approx(tflops * 1e12, rel=0.02)


# As drivers report them.
NAMES = {
    "Tesla T4": "t4", "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-PCIE-40GB": "a100-40gb", "NVIDIA A100 80GB PCIe": "a100-pcie", "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": "h100-pcie", "NVIDIA H100 NVL": "h100-nvl", "NVIDIA GH200 480GB": "gh200",
    "NVIDIA GH200 120GB": "gh200",
    "NVIDIA H200": "h200", "NVIDIA B200": "b200", "NVIDIA GB200": "gb200", "Tesla V100-SXM2-16GB": "v100",
    "Tesla V100-SXM2-32GB": "v100", "Tesla V100-PCIE-16GB": "v100-pcie", "NVIDIA A10": "a10", "NVIDIA A10G": "a10g",
    "NVIDIA L4": "l4", "NVIDIA L20": "l20", "NVIDIA L40S": "l40s", "NVIDIA RTX A6000": "rtx-a6000",
    "RTX A6000": "rtx-a6000", "GeForce RTX 3090": "rtx-3090", "NVIDIA GeForce RTX 3060": "rtx-3060",
    "NVIDIA GeForce RTX 3060 Ti": "rtx-3060-ti", "NVIDIA GeForce RTX 4070 Ti": "rtx-4070-ti",
    "NVIDIA GeForce RTX 4070 Ti SUPER": "rtx-4070-ti-super", "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 5090": "rtx-5090", "emulated:a10g": "a10g",
}  # fmt: skip

# Names that contain that of a known GPU, or are contained in one, and stand for another.
OTHERS = [
    "NVIDIA RTX A1000", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA L40",
    "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA H200 NVL", "NVIDIA A10M", "NVIDIA RTX 4000 Ada Generation", "NVIDIA T400", "NVIDIA A100-SXM-64GB",
    "NVIDIA GeForce RTX 3080 Laptop GPU", "NVIDIA H100", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "",
    "emulated:b3000", "cuda:0",
]  # fmt: skip


@EVERY_GPU
def test_every_figure_names_its_source(spec: DeviceSpec) -> None:
    figures = {field.name for field in fields(spec)} - NOT_FIGURES
    assert set(spec.sources) == figures
    assert all(spec.sources.values())


def test_what_nvidia_does_not_publish_is_told_as_an_estimate() -> None:
    for spec in SPECS.values():
        for name in ("dram_sustained_gbps", "l2_bandwidth_gbps", "shared_latency_cycles"):
            assert spec.sources[name].startswith("estimate: "), (spec.key, name)


@EVERY_GPU
def test_a_document_of_nvidia_is_not_named_as_read_where_only_a_quotation_was(spec: DeviceSpec) -> None:
    for name in OF_A_CARD:
        source = spec.sources[name]
        assert "NVIDIA" not in source or ", as quoted in " in source, name
        assert "datasheet" not in source or ", as quoted in " in source, name


@EVERY_GPU
def test_what_is_not_confirmed_begins_with_these_words_or_with_those_of_an_estimate(spec: DeviceSpec) -> None:
    for name, source in spec.sources.items():
        assert NOT_CONFIRMED not in source or source.startswith((NOT_CONFIRMED, "estimate: ")), name


def test_the_figures_of_cards_that_nothing_confirms_are_these() -> None:
    l2 = {(key, "l2_bytes") for key in ("rtx-4060", "rtx-4070", "rtx-4080", "rtx-5070", "rtx-5070-ti")}
    peaks = {("a10g", "fp16_tensor_tflops"), ("a10g", "tf32_tensor_tflops")}
    unconfirmed = {
        (spec.key, name)
        for spec in SPECS.values()
        for name in OF_A_CARD
        if spec.sources[name].startswith(NOT_CONFIRMED)
    }
    assert unconfirmed == l2 | peaks


def test_l2_sizes_are_those_that_the_devices_report() -> None:
    assert SPECS["b200"].l2_bytes == SPECS["gb200"].l2_bytes == 132_644_864
    assert SPECS["rtx-3060"].l2_bytes == 2_359_296
    assert {SPECS[key].l2_bytes for key in ("h200", "h100-nvl", "gh200")} == {62_914_560}


TENSOR_CLOCK_MHZ = {"h100": 1830, "h200": 1830, "gh200": 1830, "h100-pcie": 1620, "h100-nvl": 1545, "b200": 1860}
"""At which NVIDIA gives the peaks of tensor cores, where it is not the boost clock."""
FP16_FLOPS_PER_CYCLE_PER_SM = {
    (7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192, (12, 0): 1024,
}  # fmt: skip
HALVED = {"a10g", "l20", *(key for key in SPECS if key.startswith("rtx-") and key != "rtx-a6000")}
"""Cards that accumulate in FP32 at half of the rate of FP16."""


@EVERY_GPU
def test_the_peak_of_tensor_cores_is_sms_by_clock_by_rate(spec: DeviceSpec) -> None:
    clock = TENSOR_CLOCK_MHZ.get(spec.key, spec.max_clock_mhz)
    rate = FP16_FLOPS_PER_CYCLE_PER_SM[spec.compute_capability] // (2 if spec.key in HALVED else 1)
    if spec.key.startswith("gtx-"):  # without tensor cores
        rate = 0
    assert spec.fp16_tensor_tflops == pytest.approx(spec.sm_count * clock * rate * 1e-6, rel=0.03)


@EVERY_GPU
def test_peaks_agree_with_what_is_published(spec: DeviceSpec) -> None:
    fp32, bandwidth, fp16 = PUBLISHED[spec.key]
    assert spec.fp32_flops_per_s == pytest.approx(fp32 * 1e12, rel=0.015)
    assert spec.dram_bandwidth_gbps == pytest.approx(bandwidth, rel=0.01)
    if fp16 is not None:
        assert spec.fp16_tensor_tflops == pytest.approx(fp16, rel=0.01)


@EVERY_GPU
def test_tf32_runs_at_half_the_rate_of_fp16_or_not_at_all(spec: DeviceSpec) -> None:
    if spec.compute_capability < (8, 0):
        assert spec.tf32_tensor_tflops == 0
    else:
        assert spec.tf32_tensor_tflops == pytest.approx(spec.fp16_tensor_tflops / 2, rel=0.03)


@pytest.mark.parametrize(("spec", "sparse"), [(H100, 1979), (H200, 1979), (A100, 624)])
def test_dense_peaks_of_tensor_cores_are_half_of_the_sparse_ones_on_the_datasheets(
    spec: DeviceSpec, sparse: float
) -> None:
    assert spec.fp16_tensor_tflops == pytest.approx(sparse / 2, rel=0.001)
    assert spec.tf32_tensor_tflops == pytest.approx(sparse / 4, rel=0.001)


def test_ridge_is_peak_arithmetic_over_peak_bandwidth() -> None:
    assert H100.ridge_flop_per_byte == pytest.approx(20.0, rel=0.01)
    assert A100.ridge_flop_per_byte == pytest.approx(9.55, rel=0.01)


@EVERY_GPU
def test_sustained_bandwidth_lies_below_peak_and_l2_above_dram(spec: DeviceSpec) -> None:
    assert 0.7 * spec.dram_bandwidth_gbps < spec.dram_sustained_gbps < spec.dram_bandwidth_gbps
    assert spec.l2_bandwidth_gbps > spec.dram_bandwidth_gbps
    assert spec.shared_latency_cycles < spec.l1_latency_cycles < spec.l2_latency_cycles < spec.dram_latency_cycles


@EVERY_GPU
def test_a_gpu_has_one_key_and_the_architecture_of_its_generation(spec: DeviceSpec) -> None:
    assert SPECS[spec.key] is spec
    assert spec.key == spec.key.lower()
    major, minor = spec.compute_capability
    assert spec.arch == f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def test_no_generation_is_without_a_gpu_and_no_name_or_title_is_borne_by_two() -> None:
    assert {spec.compute_capability for spec in SPECS.values()} == set(GENERATIONS)
    names = [name for spec in SPECS.values() for name in spec.names]
    assert len(set(names)) == len(names)
    assert len({spec.title for spec in SPECS.values()}) == len(SPECS)


def test_an_l2_of_two_partitions_holds_two_thirds_of_its_size_of_different_data() -> None:
    assert A100.l2_distinct_bytes == pytest.approx(27 * 2**20, rel=0.02)  # its bandwidth falls from there on
    assert H100.l2_distinct_bytes == H100.l2_bytes * 2 // 3
    for key in ("l40s", "rtx-4090", "t4"):
        assert SPECS[key].l2_distinct_bytes == SPECS[key].l2_bytes


def test_gpus_before_ampere_write_early_what_is_in_their_l2() -> None:
    early = {spec.key for spec in SPECS.values() if not spec.l2_keeps_written}
    assert early == {spec.key for spec in SPECS.values() if spec.compute_capability < (8, 0)} != set()


def test_the_default_comes_first() -> None:
    assert next(iter(SPECS)) == "h100"


@pytest.mark.parametrize(("name", "key"), NAMES.items())
def test_a_gpu_is_found_by_the_name_that_its_driver_reports(name: str, key: str) -> None:
    spec = find_spec(name)
    assert spec is not None
    assert spec.key == key
    assert nearest_spec(name, "sm_61") == NearestSpec(spec, exact=True)


@EVERY_GPU
def test_every_gpu_is_found_by_each_of_its_names(spec: DeviceSpec) -> None:
    assert [find_spec(name) for name in spec.names] == [spec] * len(spec.names)


@pytest.mark.parametrize("name", OTHERS)
def test_a_gpu_that_is_not_known_gets_no_figures_of_another_unsaid(name: str) -> None:
    assert find_spec(name) is None
    nearest = nearest_spec(name, "sm_89")
    assert not nearest.exact
    assert nearest.label == f"nearest known: {nearest.spec.title}"


def test_a_name_that_two_gpus_bear_is_told_apart_by_the_number_of_sms() -> None:
    """The GeForce RTX 3080 of 12 GB has 70 SMs."""
    assert find_spec("NVIDIA GeForce RTX 3080", 68) is SPECS["rtx-3080"]
    assert find_spec("NVIDIA GeForce RTX 3080", 70) is None
    assert nearest_spec("NVIDIA GeForce RTX 3080", "sm_86", 70) == NearestSpec(SPECS["rtx-3080"], exact=False)


@pytest.mark.parametrize(
    ("name", "arch", "sms", "key"),
    [
        ("NVIDIA GeForce RTX 4090 D", "sm_89", 114, "rtx-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "sm_89", 142, "rtx-4090"),
        ("NVIDIA L40", "sm_89", 142, "l40s"),
        ("NVIDIA GeForce RTX 3050", "sm_86", 20, "rtx-3060"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "sm_90a", 60, "h100"),
        ("NVIDIA A30", "sm_80", 56, "a100"),
        ("Quadro RTX 6000", "sm_75", 72, "rtx-2060"),
        ("NVIDIA B300 SXM6 AC", "sm_103a", 148, "b200"),  # no GPU of 10.3 is known: 10.0 is closest
        ("Orin", "sm_87", 16, "rtx-3060"),
        ("NVIDIA GB10", "sm_121a", 48, "rtx-5070"),
        ("", "sm_90a", None, "h100"),
        ("", "", None, "h100"),
    ],
)
def test_the_nearest_gpu_is_of_the_closest_compute_capability(name: str, arch: str, sms: int | None, key: str) -> None:
    assert nearest_spec(name, arch, sms) == NearestSpec(SPECS[key], exact=False)


def test_the_nearest_gpu_can_be_chosen_among_some() -> None:
    ampere = [SPECS["a10"], SPECS["a100"]]
    assert nearest_spec("NVIDIA H100 80GB HBM3", "sm_90a", among=ampere) == NearestSpec(SPECS["a10"], exact=False)
    assert nearest_spec("", among=ampere) == NearestSpec(SPECS["a10"], exact=False)


CARD = """
[[card]]
key = "mine"
title = "My card"
names = ["NVIDIA My Card"]
compute_capability = [9, 0]
sm_count = 100
max_clock_mhz = 1500
dram_gb = 64
dram_bandwidth_gbps = 2000
l2_mib = 40
fp16_tensor_tflops = 500
tf32_tensor_tflops = 250
dram_sustained_gbps = { value = 1800, source = "measured" }
source = "the driver"
[card.figures]
l1_latency_cycles = { value = 41, source = "measured {{twice}}" }
block_cycles = { value = 170.5, source = "measured" }
"""
"""A parameter file."""


def written(folder: Path, old: str = "", new: str = "") -> Path:
    path = folder / "mine.toml"
    path.write_text(CARD.replace(old, new) if old else CARD)
    return path


def test_a_parameter_file_replaces_figures_of_its_generation(tmp_path: Path) -> None:
    path = written(tmp_path)
    spec = spec_by_key(str(path))
    assert spec == find_spec(f"emulated:{path}")
    assert (spec.key, spec.sm_count, spec.dram_sustained_gbps) == (str(path), 100, 1800)
    assert (spec.l1_latency_cycles, spec.block_cycles) == (41, 170.5)
    assert spec.sources["l1_latency_cycles"] == "measured {twice}"
    assert spec.dram_latency_cycles == H100.dram_latency_cycles
    assert spec.sources["dram_latency_cycles"] == H100.sources["dram_latency_cycles"]


def test_figures_have_a_digest_whatever_the_card_is_called(tmp_path: Path) -> None:
    assert figures_digest(replace(H100, key="mine", sources={})) == figures_digest(H100) != figures_digest(H200)
    first = figures_digest(spec_by_key(str(written(tmp_path))))
    assert first == figures_digest(spec_by_key(str(written(tmp_path))))
    assert first != figures_digest(spec_by_key(str(written(tmp_path, "value = 1800", "value = 1801"))))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("[[card]]", "[card]", "card: Input should be a valid tuple"),
        ("[[card]]", "[[card]", "no parameter file"),
        ("[9, 0]", "[8, 7]", "compute capability 8.7"),
        ("sm_count = 100", "", "sm_count: Field required"),
        ("sm_count = 100", "sm_count = -1", "sm_count is -1"),
        ("sm_count = 100", "sm_count = 0", "sm_count is 0"),
        ("value = 1800", "value = nan", "dram_sustained_gbps is nan"),
        ("value = 1800", "value = inf", "dram_sustained_gbps is inf"),
        ("value = 41", "value = 41.5", "l1_latency_cycles: Input should be a valid integer"),
        ("l1_latency_cycles", "l1_latency_days", "l1_latency_days"),
        ("l1_latency_cycles", "key", "card.figures has key"),
        ("l1_latency_cycles", "l1_bytes_per_cycle", "l1_bytes_per_cycle is 41, which is no multiple"),
        ("{{twice}}", "{twice}", "twice"),
    ],
)
def test_a_parameter_file_that_is_none_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, why: str) -> None:
    path = written(tmp_path, old, new)
    with pytest.raises(DeviceError) as error:
        spec_by_key(str(path))
    assert why in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert find_spec(f"emulated:{path}") is None


def test_a_file_that_is_not_there_or_too_large_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"cannot be read: No such file.*kernelforge calibrate"):
        spec_by_key(str(tmp_path / "no.toml"))
    with pytest.raises(DeviceError, match="there are no figures of a GPU 'h1000'"):
        spec_by_key("h1000")
    path = tmp_path / "large.toml"
    path.write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(DeviceError, match="larger than"):
        spec_by_key(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DeviceError, match="no parameter file"):
        spec_by_key(str(path))


@EVERY_GPU
def test_a_spec_survives_the_channel_of_a_runner(spec: DeviceSpec) -> None:
    assert DeviceSpec.from_wire(json.loads(json.dumps(spec.to_wire()))) == spec


def test_the_peaks_of_tensor_cores_are_of_the_types_that_the_gpu_has() -> None:
    texts = {gpu: SPECS[gpu].tensor_peaks_text for gpu in ("h100", "a100", "t4")}
    assert texts["h100"] == "FP16 989, BF16 989, TF32 495, FP8 1,979 TFLOPS"
    assert texts["a100"] == "FP16 312, BF16 312, TF32 156 TFLOPS"
    assert texts["t4"] == "FP16 65 TFLOPS"
