"""A server that speaks the wire, found the way a trainer finds it: through the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from wire_server import Says, WireServer, refusal

from kernelforge.client.wire import Job, JobRequest, TurnRequest


class RewardServer(WireServer):
    """Rewards a completion with the last number in it, or 0; one with ``infra`` in it ends in trouble."""

    def __init__(self) -> None:
        super().__init__()
        self.scored: list[JobRequest] = []
        """As they arrived."""
        self.tell: Callable[[str], str] = _told
        """What becomes of a completion, in the words of a ``WireServer``."""

    def _accept(self, request: JobRequest, key: str) -> Job:
        if key not in self.keys:
            self.scored.append(request)
        return super()._accept(request.model_copy(update={"completion": self.tell(request.completion or "")}), key)

    def _turn(self, session_id: str, request: TurnRequest) -> Says:
        told = self.tell(request.completion)
        if told == "infra":
            return refusal(503, "infra_error", "three workers died")
        return super()._turn(session_id, request.model_copy(update={"completion": told}))


def _told(completion: str) -> str:
    if "infra" in completion:
        return "infra"
    return (re.findall(r"-?\d+\.\d+", completion) or ["0.0"])[-1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RewardServer]:
    monkeypatch.delenv("KERNELFORGE_TOKEN", raising=False)
    with RewardServer().running() as running:
        monkeypatch.setenv("KERNELFORGE_SERVER", running.url)
        assert isinstance(running, RewardServer)
        yield running
