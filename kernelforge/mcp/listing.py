"""The listing of tools in few tokens: a client's model may have to read all of it before its first call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mcp_types import Tool

_KEYWORDS_WITHOUT_NEWS = ("title", "additionalProperties")
"""Titles repeat the names. That an answer has no further field is said once, by the server's instructions."""


def shortened(tools: Iterable[Tool]) -> Iterator[Tool]:
    """The same tools with schemas that say everything once.

    A part of an answer that an earlier tool's answer has too is an object without fields, whose description names that
    tool: answers fit such a schema as well. The complete ones are resources.
    """
    described: dict[str, str] = {}
    for tool in tools:
        output = None if tool.output_schema is None else _answer(tool.name, tool.output_schema, described)
        update = {
            "description": " ".join((tool.description or "").split()),
            "input_schema": _short(tool.input_schema),
            "output_schema": output,
        }
        yield tool.model_copy(update=update)


def _answer(tool: str, schema: Mapping[str, Any], described: dict[str, str]) -> dict[str, Any]:
    """The schema of a tool's answer. ``described`` has the tools that parts were described at; it gets this one's."""
    parts: dict[str, Any] = {}
    for name, part in schema.get("$defs", {}).items():
        if name in described:
            parts[name] = {"type": part["type"], "description": f"As `{described[name]}` answers: {name}."}
        else:
            parts[name] = part
    described.setdefault(schema.get("title", tool), tool)
    for name in parts:
        described.setdefault(name, tool)
    root = {key: value for key, value in schema.items() if key not in ("$defs", "description")}
    used = set(_references(root, parts))
    kept = {"$defs": {name: part for name, part in parts.items() if name in used}} if used else {}
    short: dict[str, Any] = _short({**kept, **root})
    return short


def _references(schema: Any, parts: Mapping[str, Any]) -> Iterator[str]:
    """Names of the parts that a schema needs, those of its parts among them."""
    if isinstance(schema, Mapping):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            name = reference.rpartition("/")[2]
            yield name
            yield from _references(parts[name], parts)
        schema = list(schema.values())
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item, parts)


def _short(schema: Any, *, names: bool = False) -> Any:
    """A schema without titles, with a list of types where it may be null. ``names``: its keys are names of fields."""
    if isinstance(schema, list):
        return [_short(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    short = {
        key: _short(value, names=key in ("properties", "$defs") and not names)
        for key, value in schema.items()
        if names or key not in _KEYWORDS_WITHOUT_NEWS or isinstance(value, Mapping)
    }
    match short.get("anyOf"):
        case [{"type": str(kind)} as one, {"type": "null"}] if not names:
            del short["anyOf"]
            short = {**one, **short, "type": [kind, "null"]}
    if not names and isinstance(short.get("description"), str):
        short["description"] = " ".join(short["description"].replace("``", "`").split())
    return short
