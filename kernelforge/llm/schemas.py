"""JSON schemas in the form that providers of structured output accept."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_KEPT = ("type", "enum", "const", "description")
_LIMITS = (
    "minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf",
)  # fmt: skip


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of ``model`` in the subset that both OpenAI's and Anthropic's structured outputs take.

    Every property is required and no other is allowed (OpenAI, "Structured model outputs", supported schemas: what may
    be missing is null instead). Limits of strings, numbers and arrays, of which each provider and each compatible
    server takes others, go into the description; whoever reads the reply checks them.
    """
    return _strict(model.model_json_schema())


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        # OpenAI takes nothing beside a reference.
        return {"$ref": schema["$ref"]}
    found: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
    limits = ", ".join(f"{key} {schema[key]}" for key in _LIMITS if key in schema)
    if limits:
        found["description"] = f"{found['description']} ({limits})" if "description" in found else limits
    if "items" in schema:
        found["items"] = _strict(schema["items"])
    if variants := schema.get("anyOf", schema.get("oneOf")):
        found["anyOf"] = [_strict(variant) for variant in variants]
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        found["properties"] = {name: _strict(value) for name, value in properties.items()}
        found |= {"required": list(properties), "additionalProperties": False}
    if "$defs" in schema:
        found["$defs"] = {name: _strict(value) for name, value in schema["$defs"].items()}
    return found
