"""Records are frozen, closed, validated on copy, and survive JSON; content is named by what it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, create_model

from kernelforge.records import (
    Attempt,
    DType,
    Evaluation,
    Graph,
    Metric,
    Node,
    Origin,
    Record,
    Size,
    SizeFacts,
    TensorSpec,
    Verdict,
    content_hash,
)
from kernelforge.records.base import field_docs
from tests.support.factories import make_attempt, make_candidate, make_evaluation


def test_a_record_cannot_be_changed() -> None:
    evaluation = make_evaluation()
    with pytest.raises(ValidationError, match="frozen"):
        evaluation.verdict = Verdict.WRONG  # type: ignore[misc]


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Metric(name="x", value=1.0, unit="1", origin=Origin.COUNTED, note="?")  # type: ignore[call-arg]


def test_a_copy_is_validated_like_a_new_record() -> None:
    with pytest.raises(ValidationError, match="must not carry a performance"):
        make_evaluation().model_copy(update={"verdict": Verdict.WRONG})
    with pytest.raises(ValidationError, match="Extra inputs"):
        make_attempt(0).model_copy(update={"acepted": True})


def test_a_copy_changes_what_it_was_told_and_nothing_else() -> None:
    attempt = make_attempt(0)
    copy = attempt.model_copy(update={"accepted": True, "note": "first"})
    assert (copy.accepted, copy.note) == (True, "first")
    assert copy.model_copy(update={"accepted": False, "note": ""}) == attempt
    assert attempt.model_copy() == attempt


def test_an_attempt_survives_json() -> None:
    attempt = make_attempt(1, accepted=True)
    assert Attempt.model_validate_json(attempt.model_dump_json()) == attempt


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.1, -0.0])
def test_every_float_survives_json(value: float) -> None:
    metric = Metric(name="x", value=value, unit="1", origin=Origin.COUNTED)
    back = Metric.model_validate_json(metric.model_dump_json()).value
    assert math.copysign(1, back) == math.copysign(1, value)
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_infinities_survive_json_where_the_type_is_open() -> None:
    """A masked softmax has -inf among the arguments of its graph; as a string it would be another program."""
    node = Node(name="m", kind="op", op="aten.masked_fill", args=({"ref": "x"}, -math.inf), kwargs={"v": [math.inf]})
    graph = Graph(size="full", nodes=(node,))
    assert Graph.model_validate_json(graph.model_dump_json()) == graph
    facts = SizeFacts(
        size="full",
        inputs=(math.inf, True, 1, 1.0, None),
        outputs=(),
        weights=(),
        attrs={"low": -math.inf, "one": 1, "yes": True, "mode": "mean"},
        compulsory_bytes=0,
        flops=0,
        eager_launches=0,
    )
    back = SizeFacts.model_validate_json(facts.model_dump_json())
    assert back == facts
    assert [type(value) for value in back.inputs] == [float, bool, int, float, type(None)]
    assert [type(value) for value in back.attrs.values()] == [float, int, bool, str]


def test_numbers_of_a_size_keep_their_types_through_json() -> None:
    size = Size(name="small", constants={"a": 2.0, "b": 2, "c": True, "d": math.inf})
    back = Size.model_validate_json(size.model_dump_json())
    assert [type(value) for value in back.constants.values()] == [float, int, bool, float]


def test_a_hash_is_the_same_tomorrow() -> None:
    """These names are in databases: a change here orphans every stored result and every cached build."""
    assert content_hash("a", 1, {"y": 2, "x": [1.5, None]}, b"blob") == "3e2c55776d03dc38"
    assert make_candidate().hash == "f1b4018b00c55411"


def test_a_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    assert make_candidate(choices={"A": 1, "B": 2}).hash == make_candidate(choices={"B": 2, "A": 1}).hash


@pytest.mark.slow
@given(st.lists(st.text() | st.integers() | st.booleans() | st.none(), max_size=4), st.data())
def test_a_hash_depends_on_every_part(parts: list[object], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.text() | st.integers() | st.booleans() | st.none(), max_size=4))
    same = [(type(p), p) for p in parts] == [(type(p), p) for p in other]
    assert (content_hash(*parts) == content_hash(*other)) == same


def test_a_hash_depends_on_the_bytes_of_a_blob() -> None:
    assert content_hash(b"a") != content_hash(b"b") != content_hash("b")


def test_what_has_no_canonical_text_is_not_hashed() -> None:
    with pytest.raises(TypeError, match="cannot hash a set"):
        content_hash({1, 2})


@pytest.mark.parametrize(
    ("shape", "stride", "contiguous"),
    [
        ((), (), True),
        ((4, 5), (5, 1), True),
        ((4, 5), (1, 4), False),
        ((4, 5), (6, 1), False),
        ((1, 5), (99, 1), True),
        ((4, 1), (1, 77), True),
        ((4, 5), (0, 1), False),
        ((0, 5), (1, 9), True),
        ((3, 0, 2), (7, 7, 7), True),
    ],
)
def test_contiguous_means_what_torch_means(shape: tuple[int, ...], stride: tuple[int, ...], contiguous: bool) -> None:
    assert TensorSpec(shape=shape, dtype=DType.FLOAT32, stride=stride).is_contiguous is contiguous


@pytest.mark.slow
@given(st.lists(st.integers(0, 5), max_size=5).map(tuple))
def test_a_contiguous_spec_is_contiguous(shape: tuple[int, ...]) -> None:
    spec = TensorSpec.contiguous(shape, DType.FLOAT16)
    assert spec.is_contiguous
    assert spec.numel == math.prod(shape)
    assert spec.nbytes == 2 * spec.numel


@pytest.mark.parametrize(("shape", "stride"), [((4, 5), (1,)), ((4,), (-1,)), ((-4,), (1,))])
def test_a_spec_that_names_no_tensor_is_refused(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match="stride"):
        TensorSpec(shape=shape, dtype=DType.FLOAT32, stride=stride)


def test_every_dtype_has_a_size() -> None:
    assert {dtype.itemsize for dtype in DType} == {1, 2, 4, 8}
    assert [dtype.value for dtype in DType if dtype.is_floating] == ["float64", "float32", "float16", "bfloat16"]


class Base(Record):
    kept: int
    """Of the base."""
    changed: int
    """Said before."""
    silenced: int
    """Said no more."""


class Derived(Base):
    changed: int
    """Said
    now."""
    silenced: int
    own: Metric = Field(description="As it was given.")
    """Not this."""
    bare: int = 0


@pytest.mark.slow
def test_a_schema_tells_what_is_written_under_each_field() -> None:
    properties = Derived.model_json_schema()["properties"]
    result = {name: field.get("description") for name, field in properties.items()}
    assert result == {
        "kept": "Of the base.",
        "changed": "Said\nnow.",
        "silenced": None,
        "own": "As it was given.",
        "bare": None,
    }
    assert field_docs(Derived)["kept"] == "Of the base."
    nested = Evaluation.model_json_schema()["$defs"]["SizeCheck"]["properties"]
    assert any("description" in field for field in nested.values())


def test_a_model_without_source_has_no_strings_to_tell() -> None:
    made = create_model("Made", __base__=Base, more=(int, 1))
    assert field_docs(made) == field_docs(Base)
