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
    """Model whose JSON schema describes fields by the strings under them.

    ``use_attribute_docstrings`` of pydantic would read the source of every class at import, which takes a third of the
    import time; here it is read when a schema is made.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        docs = field_docs(cls)
        for name, property_schema in handler.resolve_ref_schema(schema).get("properties", {}).items():
            if name in docs:
                property_schema.setdefault("description", docs[name])
        return schema


@functools.cache
def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The strings under a model's fields, and under those that it inherits, by field."""
    docs: dict[str, str] = {}
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
                docs.pop(field.target.id, None)
                if (
                    isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                    and isinstance(text.value.value, str)
                ):
                    docs[field.target.id] = inspect.cleandoc(text.value.value)
    return docs


class Record(Documented):
    """Frozen, closed (unknown fields are errors), JSON both ways; NaN and infinities survive as strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", allow_inf_nan=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with ``update`` applied, validated like a new record, unlike pydantic's own copy.

        Raises:
            pydantic.ValidationError: the copy would be a state that this record does not allow.
        """
        copy = super().model_copy(deep=deep)
        return copy if not update else type(self).model_validate({**dict(copy), **update})


def first_fault(error: ValidationError, *, show_input: bool = False) -> str:
    """The first error of a validation: ``path: message``, or the message alone for the complete record.

    Args:
        show_input: quote the refused value.
    """
    fault = error.errors()[0]
    # The path may hold an invented key of any length.
    path = ".".join(str(part) for part in fault["loc"])[:80]
    message = f"{path}: {fault['msg']}" if path else fault["msg"]
    return f"{message} (given: {fault['input']!r})" if show_input else message


def restore_non_finite(value: Any) -> Any:
    """Convert the strings of JSON back to NaN and infinities, for fields without a numeric type."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, Mapping):
        return {key: restore_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(restore_non_finite(item) for item in value)
    return value


_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def content_hash(*parts: Any) -> str:
    """First 16 hex digits of a SHA-256 over canonical JSON of ``parts``; bytes enter by their own SHA-256."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return "sha256:" + hashlib.sha256(value).hexdigest()
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json")
        raise TypeError(f"cannot hash a {type(value).__name__}")

    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
