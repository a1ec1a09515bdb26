"""The base of every record, and the one way to name content."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Immutable, closed (unknown fields are errors), JSON both ways; NaN and infinities survive as strings."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", allow_inf_nan=True, use_attribute_docstrings=True
    )


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
