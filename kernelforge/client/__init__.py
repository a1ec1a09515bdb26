"""Client of the reward server: request and result models, and a synchronous and an asynchronous client.

- :class:`AsyncClient` for a trainer that has an event loop, :class:`Client` for one that has none.
- :mod:`~kernelforge.client.models`: requests, jobs and results.
- :mod:`~kernelforge.client.requests` and :mod:`~kernelforge.client.flow`: requests, retries and
  cancellation, independent of transport; both clients run the same flows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelforge.client.async_client import AsyncClient, AsyncConversation
    from kernelforge.client.sync_client import Client, Conversation

__all__ = ["AsyncClient", "AsyncConversation", "Client", "Conversation"]

_HOMES = {
    "AsyncClient": "async_client",
    "AsyncConversation": "async_client",
    "Client": "sync_client",
    "Conversation": "sync_client",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the server uses only the models, and needs no HTTP client."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
