"""Protocols of trainers on the job service: each module translates a few routes.

What all of them keep to: a request names a registered task, or carries reference code whose hash is one's; trouble of
ours is an HTTP error or an answer without any number in it; an option that is not honoured is refused or reported.
"""

from __future__ import annotations

from fastapi import APIRouter

from kernelforge.server.base import RewardService
from kernelforge.server.protocols import kernelgym, nemo_gym, openenv, openrlhf, slime
from kernelforge.server.sessions.service import Sessions

__all__ = ["routers"]


def routers(core: RewardService, sessions: Sessions) -> list[APIRouter]:
    """Every dialect, for :func:`~kernelforge.server.http.app.create_app`."""
    return [
        openrlhf.router(core),
        slime.router(core),
        nemo_gym.router(core),
        kernelgym.router(core),
        openenv.router(core, sessions),
    ]
