"""Talking to a reward server: what goes over the wire, and the clients that send it.

- :class:`AsyncClient` for a trainer that has an event loop, :class:`Client` for one that has none.
- :mod:`~kernelforge.client.wire`: requests, jobs and results.
- :mod:`~kernelforge.client.calls` and :mod:`~kernelforge.client.flows`: what is sent, what is tried again and what is
  cancelled, free of any transport; both clients run the same flows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelforge.client.asynchronous import AsyncClient, AsyncConversation
    from kernelforge.client.blocking import Client, Conversation

__all__ = ["AsyncClient", "AsyncConversation", "Client", "Conversation"]

_HOMES = {
    "AsyncClient": "asynchronous",
    "AsyncConversation": "asynchronous",
    "Client": "blocking",
    "Conversation": "blocking",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the server reads the wire's models from here, and needs no HTTP client."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
