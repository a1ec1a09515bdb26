"""Parse a request: its task, its policy, and the candidate in its completion.

A completion is only split into its blocks here; what the blocks hold is for workers. What was read is kept by the
hash of the text, so that the same completion, as a group's rollouts repeat it, is read once.
"""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pydantic import ValidationError

from kernelforge.candidate import parse_reply
from kernelforge.client.models import CandidateText, JobRequest
from kernelforge.errors import CandidateError, UsageError
from kernelforge.records import Candidate, Fingerprint, content_hash, evaluation_key, first_fault
from kernelforge.records.candidate import MAX_PLAN_BYTES, MAX_SOURCE_BYTES
from kernelforge.rewards import find_policy
from kernelforge.server.base import RequestRejected
from kernelforge.server.jobs.cache import Recent
from kernelforge.server.jobs.registry import Registered, Registry

_LARGE_CHARS = 16 << 10
"""From here on a completion is read in a thread: the event loop has others to serve."""

_PIECE_BYTES = 2_047
"""The most that hashlib hashes at a stretch (``HASHLIB_GIL_MINSIZE`` of CPython is one more)."""


class ParsedCompletion(NamedTuple):
    """What a request asks to be evaluated."""

    registered: Registered
    candidate: str
    """Hash of the candidate, or of a completion that holds none."""
    key: str
    """Key that the evaluation has or will have."""
    text: str | None
    """SHA-256 of the completion."""
    fault: str | None
    """Why the completion holds no candidate."""


class RequestParser:
    """Reads requests."""

    def __init__(self, registry: Registry, default_policy: str, most_kept: int) -> None:
        self.registry = registry
        self.default_policy = find_policy(default_policy).name
        # One thread: several would wait for the interpreter lock in turn, and the event loop behind all of them.
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="intake")
        self._readings: Recent[tuple[str, str], ParsedCompletion] = Recent(most_kept)

    def policy(self, request: JobRequest) -> str:
        """Name of the policy that the request asks for.

        Raises:
            RequestRejected: 422: there is none of that name.
        """
        if request.policy is None:
            return self.default_policy
        try:
            return find_policy(request.policy).name
        except UsageError as error:
            raise RequestRejected(422, "unknown_policy", str(error)) from error

    def close(self) -> None:
        self._reader.shutdown(cancel_futures=True)

    async def read(self, request: JobRequest, fingerprint: Fingerprint) -> tuple[ParsedCompletion, Candidate | None]:
        """What a request asks for; the candidate too, if it had to be read out of the text for that.

        Raises:
            RequestRejected: 422: unknown task; 413: a candidate in parts that is too large.
        """
        registered = self.registry.find(request.task, request.reference_code)
        text = request.completion
        if text is None:
            assert request.candidate is not None  # the request's own rule
            candidate = candidate_of(request.candidate)
            return _reading(registered, candidate, fingerprint), candidate
        sha256 = _sha256(text.encode())
        place = (registered.digest, sha256)
        known = self._readings.get(place)
        if known is not None:
            return known, None
        if len(text) > _LARGE_CHARS:
            loop = asyncio.get_running_loop()
            read = await loop.run_in_executor(self._reader, _read_text, registered, text, sha256, fingerprint)
        else:
            read = _read_text(registered, text, sha256, fingerprint)
        self._readings.put(place, read[0])
        return read

    async def candidate(self, request: JobRequest) -> Candidate:
        """The candidate of a request that was read without a fault before."""
        if len(request.completion or "") > _LARGE_CHARS:
            return await asyncio.get_running_loop().run_in_executor(self._reader, candidate_in, request)
        return candidate_in(request)


def candidate_in(request: JobRequest) -> Candidate:
    """The candidate of a request that was read without a fault."""
    if request.completion is not None:
        return parse_reply(request.completion)
    assert request.candidate is not None
    return candidate_of(request.candidate)


def candidate_of(parts: CandidateText) -> Candidate:
    """
    Raises:
        RequestRejected: 413 or 422: its parts are not a candidate.
    """
    for what, text, most in (("source", parts.source, MAX_SOURCE_BYTES), ("plan", parts.plan, MAX_PLAN_BYTES)):
        size = len(text.encode())
        if size > most:
            raise RequestRejected(413, "too_large", f"the {what} has {size:,} bytes; the limit is {most:,}")
    try:
        return Candidate(source=parts.source, plan=parts.plan, choices=parts.choices)
    except ValidationError as error:
        raise RequestRejected(422, "invalid", f"this is not a candidate: {first_fault(error)}") from error


def _sha256(data: bytes) -> str:
    """SHA-256 in hex, without a change of threads: hashlib lets go of the interpreter lock for larger pieces, and to
    get it back from a busy journal can take milliseconds."""
    digest = hashlib.sha256()
    for start in range(0, len(data), _PIECE_BYTES):
        digest.update(data[start : start + _PIECE_BYTES])
    return digest.hexdigest()


def _read_text(
    registered: Registered, text: str, sha256: str, fingerprint: Fingerprint
) -> tuple[ParsedCompletion, Candidate | None]:
    try:
        candidate = parse_reply(text)
    except CandidateError as error:
        named = content_hash("reply", text)
        key = evaluation_key(named, registered.digest, fingerprint)
        return ParsedCompletion(registered, named, key, sha256, str(error)), None
    return _reading(registered, candidate, fingerprint, sha256), candidate


def _reading(
    registered: Registered, candidate: Candidate, fingerprint: Fingerprint, text: str | None = None
) -> ParsedCompletion:
    named = candidate.hash
    return ParsedCompletion(registered, named, evaluation_key(named, registered.digest, fingerprint), text, None)
