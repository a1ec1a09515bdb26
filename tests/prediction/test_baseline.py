"""Predicted times of PyTorch: what must hold for any parameters, and for those that ship."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kernelforge.hardware.specs import A100, H100, SPECS
from kernelforge.prediction import BaselineKind, BaselineTime, Operator, OperatorTrace, predict_baseline
from kernelforge.prediction.baseline import fitted, fused_groups
from kernelforge.prediction.operators import GEOMETRY, KINDS, Operand

MIB = 2**20


def pointwise(size: int, *producers: int | None, name: str = "relu") -> Operator:
    return Operator(
        name=name,
        kind="pointwise",
        dtype="float32",
        reads=tuple(Operand(bytes=size, producer=producer) for producer in producers),
        write_bytes=size,
        flops=size // 4,
        geometry={"elements": size // 4, "strided": 0},
    )


def product(m: int, n: int, k: int) -> Operator:
    return Operator(
        name="mm",
        kind="matmul",
        dtype="float32",
        reads=(Operand(bytes=4 * m * k), Operand(bytes=4 * k * n)),
        write_bytes=4 * m * n,
        flops=2 * m * n * k,
        geometry={"batch": 1, "m": m, "n": n, "k": k},
    )


def trace(*operators: Operator) -> OperatorTrace:
    return OperatorTrace(size="full", operators=operators)


def test_a_stream_takes_what_its_bytes_take_at_most_of_the_peak() -> None:
    predicted = predict_baseline(trace(pointwise(512 * MIB, None)), H100)
    fastest = 2 * 512 * MIB / (H100.dram_bandwidth_gbps * 1e3)
    assert 1.0 < predicted.time_us / fastest < 1.4
    assert predicted.origin == "predicted"
    assert predicted.low_us < predicted.time_us < predicted.high_us


def test_a_product_takes_what_its_operations_take_without_tensor_cores() -> None:
    predicted = predict_baseline(trace(product(4096, 4096, 4096)), H100, tf32=True)
    fastest = 2 * 4096**3 / H100.fp32_flops_per_s * 1e6
    assert 1.0 < predicted.time_us / fastest < 1.6


def test_what_was_just_written_is_read_from_the_cache() -> None:
    near = predict_baseline(trace(pointwise(4 * MIB, None), pointwise(4 * MIB, 0)), H100, "graph")
    far = predict_baseline(trace(pointwise(4 * MIB, None), pointwise(4 * MIB, None)), H100, "graph")
    assert near.time_us < far.time_us


@pytest.mark.parametrize("kind", ["eager", "graph", "compile", "compile-graph"])
def test_more_work_takes_longer_and_a_faster_gpu_less(kind: BaselineKind) -> None:
    small, large = trace(pointwise(64 * MIB, None)), trace(pointwise(256 * MIB, None))
    assert predict_baseline(small, H100, kind).time_us < predict_baseline(large, H100, kind).time_us
    assert predict_baseline(large, H100, kind).time_us < predict_baseline(large, A100, kind).time_us


def test_a_graph_is_never_slower_than_launches_from_the_host() -> None:
    many = trace(*(pointwise(4096, None) for _ in range(50)))
    assert predict_baseline(many, H100, "graph").time_us < predict_baseline(many, H100, "eager").time_us


def test_compile_fuses_a_chain_that_eager_runs_one_by_one() -> None:
    chain = trace(*(pointwise(256 * MIB, position - 1 if position else None) for position in range(4)))
    eager, compiled = predict_baseline(chain, H100), predict_baseline(chain, H100, "compile")
    assert compiled.time_us < 0.4 * eager.time_us
    assert len(compiled.per_operator) == 1


def test_a_graph_of_compiled_code_leaves_out_the_call() -> None:
    stream = trace(pointwise(MIB, None))
    assert predict_baseline(stream, H100, "compile-graph").time_us < predict_baseline(stream, H100, "compile").time_us


def test_branches_that_meet_are_fused_unless_a_product_lies_between() -> None:
    meeting = (pointwise(MIB, None), pointwise(MIB, None), pointwise(MIB, 0, 1))
    assert fused_groups(meeting) == [[0, 1, 2]]
    between = (pointwise(MIB, None), product(512, 512, 512), pointwise(MIB, 0, 1))
    assert fused_groups(between) == [[0], [1], [2]]


def test_compile_does_not_fuse_across_a_product() -> None:
    operators = (pointwise(MIB, None), product(512, 512, 512), pointwise(MIB, 1), pointwise(MIB, 2))
    assert fused_groups(operators) == [[0], [1], [2, 3]]


def test_parts_of_the_time_are_named_by_operator() -> None:
    predicted = predict_baseline(trace(pointwise(MIB, None, name="gelu"), product(512, 512, 512)), H100, "graph")
    assert [part.name for part in predicted.per_operator] == ["gelu", "mm"]
    assert sum(part.time_us for part in predicted.per_operator) <= predicted.time_us


def test_another_gpu_than_those_of_the_fit_has_a_wider_interval() -> None:
    stream = trace(pointwise(512 * MIB, None))
    assert "rtx-4090" not in fitted().gpus
    strange, familiar = predict_baseline(stream, SPECS["rtx-4090"]), predict_baseline(stream, H100)
    assert strange.high_us / strange.time_us > familiar.high_us / familiar.time_us


def test_every_gpu_and_every_kind_of_operator_has_a_time() -> None:
    geometry = dict.fromkeys(GEOMETRY, 4) | {"groups": 1}
    operators = [
        Operator(
            name=kind, kind=kind, dtype="float32", reads=(Operand(bytes=4096),), write_bytes=4096, flops=1024,
            geometry=geometry,
        )
        for kind in KINDS
    ]  # fmt: skip
    for spec in SPECS.values():
        for tf32 in (False, True):
            predicted = predict_baseline(trace(*operators), spec, tf32=tf32)
            assert all(part.time_us > 0 for part in predicted.per_operator)


def test_a_time_outside_of_its_interval_is_refused() -> None:
    predicted = predict_baseline(trace(pointwise(MIB, None)), H100)
    with pytest.raises(ValidationError, match="outside"):
        BaselineTime.model_validate({**dict(predicted), "high_us": predicted.time_us / 2})
