"""The parameter file of a calibration: the figures of one card, in the format of ``hardware/gpus.toml``."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kernelforge.calibration.figures import CalibratedFigure, Calibration
from kernelforge.calibration.plan_timer import CardFacts
from kernelforge.hardware.specs import MIB, DeviceSpec

CARD_FIGURES = ("dram_sustained_gbps", "l2_bandwidth_gbps")
"""Figures that have a table of their own in a card."""
PEAKS = ("fp16_tensor_tflops", "tf32_tensor_tflops")


def parameter_file(calibration: Calibration, facts: CardFacts, spec: DeviceSpec) -> str:
    """Text of a parameter file, for :func:`kernelforge.hardware.specs.spec_by_key`.

    Args:
        calibration: The figures.
        facts: Facts of the GPU, from its driver.
        spec: Figures that were known of the GPU or of the nearest one: where peaks of tensor cores come from that were
            not measured.
    """
    return "\n".join(_lines(calibration, facts, spec)) + "\n"


def _lines(calibration: Calibration, facts: CardFacts, spec: DeviceSpec) -> Iterator[str]:
    figures = {figure.name: figure for figure in calibration.figures if figure.in_file}
    peaks = {name: _peak(name, figures.get(name), calibration, facts, spec) for name in PEAKS}
    yield f"# Figures of one GPU, {calibration.origin}. An emulated device of it: --device emulated:FILE."
    yield "# Cycles are those of max_clock_mhz x sustained_clock_share."
    yield "# What is not here is published of every GPU of the compute capability."
    if calibration.sm_mhz is not None:
        low, high = calibration.sm_mhz
        reasons = f"; throttled: {', '.join(calibration.throttled)}" if calibration.throttled else ""
        yield f"# The SMs' clock after the measurements: {low} to {high} MHz{reasons}."
    yield ""
    yield "[[card]]"
    yield f"key = {_text('calibrated')}"
    yield f"title = {_text(f'{facts.name}, {calibration.origin}')}"
    yield f"names = [{_text(facts.name)}]"
    yield f"compute_capability = {list(facts.compute_capability)}"
    yield f"sm_count = {facts.sm_count}"
    yield f"max_clock_mhz = {facts.max_clock_mhz}"
    yield f"dram_gb = {_number(facts.dram_bytes / 1e9)}"
    yield f"dram_bandwidth_gbps = {_number(facts.dram_bandwidth_gbps)}"
    yield f"l2_mib = {_number(facts.l2_bytes / MIB)}"
    yield from (f"{name} = {_number(value)}" for name, (value, _) in peaks.items())
    yield from (_entry(figures[name], calibration) for name in CARD_FIGURES if name in figures)
    yield f"source = {_text(f'as the device reports it, {calibration.date}')}"
    yield "[card.sources]"
    yield from (f"{name} = {_text(source)}" for name, (_, source) in peaks.items())
    yield "[card.figures]"
    yield _line("sustained_clock_share", facts.clock_share, spec.sources["sustained_clock_share"])
    yield _line("dram_ecc_share", facts.dram_ecc_share, spec.sources["dram_ecc_share"])
    others = (figure for name, figure in figures.items() if name not in (*PEAKS, *CARD_FIGURES))
    yield from (_entry(figure, calibration) for figure in others)


def _peak(
    name: str, figure: CalibratedFigure | None, calibration: Calibration, facts: CardFacts, spec: DeviceSpec
) -> tuple[float, str]:
    """Peak of the tensor cores and its source: measured, or that of the known GPU by SMs and clock."""
    if figure is not None:
        return figure.value, _source(figure, calibration)
    ratio = facts.sm_count * facts.max_clock_mhz / (spec.sm_count * spec.max_clock_mhz)
    value = float(f"{getattr(spec, name) * ratio:.4g}")
    scaled = "" if ratio == 1 else ", by SMs and clock"
    return value, f"not measured, as of {spec.title}{scaled}: {spec.sources[name]}"


def _source(figure: CalibratedFigure, calibration: Calibration) -> str:
    low, high, raw = (f"{value:.4g}" for value in (figure.lowest, figure.highest, figure.raw))
    spread = f"{low} to {high}" if calibration.runs > 1 else raw
    return f"{calibration.provenance}: {spread} {figure.unit}"


def _entry(figure: CalibratedFigure, calibration: Calibration) -> str:
    return _line(figure.name, figure.value, _source(figure, calibration))


def _line(name: str, value: float, source: str) -> str:
    return f"{name} = {{ value = {_number(value)}, source = {_text(source)} }}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _text(text: str) -> str:
    """A string of TOML; braces would stand for titles of works."""
    return json.dumps(text.replace("{", "{{").replace("}", "}}"))
