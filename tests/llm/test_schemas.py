"""Schemas in the subset that structured output takes, and replies that follow them."""

import json

import pytest
from pydantic import BaseModel, Field

from kernelforge.agents.reflexion import LessonsReply
from kernelforge.agents.reply_forms import OptimiseReply, RepairReply, parse_finding
from kernelforge.errors import CandidateError
from kernelforge.llm.http import strict_schema


def objects_and_leaves(schema):
    """Every schema inside a schema, itself included."""
    yield schema
    for key in ("properties", "$defs"):
        for inner in schema.get(key, {}).values():
            yield from objects_and_leaves(inner)
    for inner in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])):
        yield from objects_and_leaves(inner)


@pytest.mark.parametrize("model", [OptimiseReply, RepairReply, LessonsReply])
def test_schemas_of_replies_are_strict_throughout(model):
    schemas = list(objects_and_leaves(strict_schema(model)))
    for schema in schemas:
        if "$ref" in schema:
            assert set(schema) == {"$ref"}
            continue
        assert set(schema) <= {
            "type", "description", "properties", "required", "additionalProperties", "items", "anyOf", "$defs",
        }  # fmt: skip
        if schema.get("type") == "object":
            assert schema["required"] == list(schema["properties"])
            assert schema["additionalProperties"] is False
    assert len(schemas) > 3


def test_what_may_be_missing_may_be_null():
    stop = strict_schema(OptimiseReply)["properties"]["stop"]
    assert {variant["type"] for variant in stop["anyOf"]} == {"string", "null"}


def test_limits_are_told_in_words():
    class Small(BaseModel):
        name: str = Field(max_length=12, description="What it is called.")

    assert strict_schema(Small)["properties"]["name"] == {
        "type": "string",
        "description": "What it is called. (maxLength 12)",
    }


def test_a_finding_with_nulls_for_what_is_missing_is_read():
    finding = parse_finding(
        json.dumps({"bottleneck": "b", "method": "m", "plan": "p", "metrics": None, "stop": None}), optimise=True
    )
    assert (finding.kind, finding.headline, finding.metrics) == ("optimise", "b", ())


@pytest.mark.parametrize("nothing", [None, "", " "])
def test_a_stop_with_nothing_else_is_read(nothing):
    reply = {"bottleneck": nothing, "method": nothing, "plan": nothing, "metrics": [], "stop": "nothing is left"}
    assert parse_finding(json.dumps(reply), optimise=True).kind == "stop"


@pytest.mark.parametrize("nothing", [None, "", " "])
def test_a_stop_that_says_nothing_does_not_stop(nothing):
    reply = {"bottleneck": "b", "method": "m", "plan": "p", "metrics": ["a__b.sum"], "stop": nothing}
    assert parse_finding(json.dumps(reply), optimise=True).kind == "optimise"


@pytest.mark.parametrize("nothing", [None, "", " "])
def test_a_repair_must_say_everything(nothing):
    reply = {"critical_issue": "i", "why_it_matters": "w", "minimal_fix": nothing}
    with pytest.raises(CandidateError, match="minimal_fix"):
        parse_finding(json.dumps(reply), optimise=False)


def test_a_reply_of_nulls_alone_is_no_finding():
    with pytest.raises(CandidateError, match="bottleneck"):
        parse_finding(json.dumps(dict.fromkeys(OptimiseReply.model_fields)), optimise=True)
