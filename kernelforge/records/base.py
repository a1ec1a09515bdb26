"""Base class of every record, and content hashes."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class Documented(BaseModel):
    """Says in its JSON schema what the strings under its fields say.

    ``use_attribute_docstrings`` would read them from the source when the class is made: of all classes, in each
    process, which is a third of the time that it takes to import them.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        told = field_docs(cls)
        for name, known in handler.resolve_ref_schema(schema).get("properties", {}).items():
            if name in told:
                known.setdefault("description", told[name])
        return schema


@functools.cache
def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The strings under a model's fields, and under those that it inherits, by field."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, Documented):
            continue
        try:
            read = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):  # made without source, as is a generic model of a type
            continue
        body = read.body if isinstance(read, ast.ClassDef) else []
        for field, text in zip(body, [*body[1:], None], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found.pop(field.target.id, None)
                if (
                    isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                    and isinstance(text.value.value, str)
                ):
                    found[field.target.id] = inspect.cleandoc(text.value.value)
    return found


class Record(Documented):
    """Frozen, closed (unknown fields are errors), JSON both ways; NaN and infinities survive as strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", allow_inf_nan=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with ``update`` applied and validated like any new record, which pydantic's own copy is not.

        Raises:
            pydantic.ValidationError: the copy would be a state that this record does not allow.
        """
        copy = super().model_copy(deep=deep)
        return copy if not update else type(self).model_validate({**dict(copy), **update})


def first_fault(error: ValidationError, *, given: bool = False) -> str:
    """The first thing that a validation found: ``place: message``, the message alone where it is about the whole.

    Args:
        given: quote the value that was refused.
    """
    fault = error.errors()[0]
    # A key that whoever is at fault made up is part of the place.
    place = ".".join(str(part) for part in fault["loc"])[:80]
    told = f"{place}: {fault['msg']}" if place else fault["msg"]
    return f"{told} (given: {fault['input']!r})" if given else told


def restore_non_finite(value: Any) -> Any:
    """Undo what JSON did to NaN and infinities where a field's type does not say that it is a number."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, Mapping):
        return {key: restore_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(restore_non_finite(item) for item in value)
    return value


_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def content_hash(*parts: Any) -> str:
    """Name content by what it is: the first 16 hex digits of a SHA-256 over canonical JSON of ``parts``.

    Bytes enter by their own SHA-256, so large blobs may be passed as they are.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return "sha256:" + hashlib.sha256(value).hexdigest()
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json")
        raise TypeError(f"cannot hash a {type(value).__name__}")

    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
