"""Protocols of trainers on the job service: each module translates a few routes.

Common rules: a request names a registered task, or carries reference code with the hash of one; an infrastructure
failure is an HTTP error or an answer without numbers; an unsupported option is refused or reported.
"""

from __future__ import annotations

from fastapi import APIRouter

from kernelforge.server.jobs.service import JobService
from kernelforge.server.protocols import kernelgym, nemo_gym, openenv, openrlhf, slime
from kernelforge.server.sessions.service import Sessions

__all__ = ["routers"]


def routers(service: JobService, sessions: Sessions) -> list[APIRouter]:
    """Routers of all protocols, for :func:`~kernelforge.server.http.app.create_app`."""
    return [
        openrlhf.router(service),
        slime.router(service),
        nemo_gym.router(service),
        kernelgym.router(service),
        openenv.router(service, sessions),
    ]
