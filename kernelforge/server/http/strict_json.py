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
"""Values in one text. In 16 MiB there could be eight million, which take seconds, and gigabytes, to be made."""


class StrictRequest(Request):
    """Reads JSON with pydantic's parser, which is faster than the standard one and bounds depth and digits."""

    async def json(self) -> Any:
        body = await self.body()
        if has_too_many_values(body):
            raise HTTPException(413, f"the body has more than {MAX_VALUES:,} values")
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from error


def has_too_many_values(text: bytes) -> bool:
    """Whether JSON holds more than :data:`MAX_VALUES` values: counted at the speed of memory, and before it is read."""
    if len(text) < 2 * MAX_VALUES:  # a value has a letter at least, and something between it and the next
        return False
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if unescaped.count(b'"') > 4 * MAX_VALUES:  # two around each string, which is a value or the name of one
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
    """A router of strict routes under one heading of the OpenAPI page."""
    return APIRouter(route_class=StrictRoute, tags=[tag])


def json_answer(answer: BaseModel, status: int = 200) -> Response:
    """A record that was validated when it was made, as it is."""
    return Response(answer.model_dump_json(), status, media_type="application/json")
