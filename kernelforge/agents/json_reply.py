"""The JSON object in a reply that may hold prose around it, and the form that it must have."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from kernelforge.errors import CandidateError
from kernelforge.records import first_fault

MAX_CHARS = 32_768
"""How much of a reply's end is searched: looking costs the square of the length, and the object is short."""
MAX_DEPTH = 32
"""Deepest nesting of an object that counts; what goes on with it may use Python's own stack."""


FormT = TypeVar("FormT", bound=BaseModel)


def read_form(form: type[FormT], text: str, wanted: str) -> FormT:
    """The last JSON object in a reply, which must be of a form.

    Args:
        wanted: what the object has, for the author of the reply: ``with the keys ...``.

    Raises:
        CandidateError: there is none, or it has another form; the message says what is wanted.
    """
    raw = last_object(text)
    if raw is None:
        raise CandidateError(f"the reply holds no JSON object; give one in a ```json block {wanted}")
    try:
        return form.model_validate(raw)
    except ValidationError as error:
        told = f"the JSON object is not the one asked for ({first_fault(error)}); give one {wanted}"
        raise CandidateError(told) from error


def last_object(text: str) -> dict[str, object] | None:
    """The last top-level JSON object in the end of a text, or None."""
    text = text[-MAX_CHARS:]
    decoder, found, at = json.JSONDecoder(), None, 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        if isinstance(value, dict) and _is_flat(value):
            found = value
        at = end
    return found


def _is_flat(value: object) -> bool:
    """Whether a JSON value is nested no deeper than :data:`MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return True
    return False
