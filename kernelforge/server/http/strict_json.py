"""Strict JSON: one pass, bounded depth, no NaN, no lone surrogates."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.exceptions import HTTPException

MAX_VALUES = 1_000_000
"""Most values in one text. In 16 MiB there could be eight million, which take seconds and gigabytes to parse."""


class StrictRequest(Request):
    """Request that parses JSON with pydantic's parser, which is fast and limits depth and digits."""

    async def json(self) -> Any:
        body = await self.body()
        if has_too_many_values(body):
            raise HTTPException(413, f"the body has more than {MAX_VALUES:,} values")
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from error


def has_too_many_values(text: bytes) -> bool:
    """Whether JSON holds more than :data:`MAX_VALUES` values, counted quickly and before it is parsed."""
    if len(text) < 2 * MAX_VALUES:  # a value and its separator take two characters at least
        return False
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if unescaped.count(b'"') > 4 * MAX_VALUES:  # two around each string, which is a value or a key
        return True
    outside = b"".join(unescaped.split(b'"')[::2])
    return sum(outside.count(mark) for mark in (b",", b"[", b"{")) >= MAX_VALUES


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return read_strictly


def api_router(tag: str) -> APIRouter:
    """A router of strict routes under one tag of the OpenAPI page."""
    return APIRouter(route_class=StrictRoute, tags=[tag])


def json_answer(answer: BaseModel, status: int = 200) -> Response:
    """Serialise an already validated model."""
    return Response(answer.model_dump_json(), status, media_type="application/json")
