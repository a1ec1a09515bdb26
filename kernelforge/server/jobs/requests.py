"""Parse job requests: find the task and the reward policy, and read the candidate out of the completion.

A completion is split into its blocks here; workers interpret the blocks. One that holds a ``ModelNew`` is converted in
a confined process, and is from then on the candidate that came out. One that cannot be converted is a candidate of lane
``modelnew`` where the workers run those, and else none. Parsed completions are cached by the hash of their
text, because rollouts of a group repeat them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from typing import NamedTuple

from pydantic import ValidationError

from kernelforge.agents.base import TaskContext
from kernelforge.candidate import model_new_in, parse_reply
from kernelforge.client.models import JobRequest
from kernelforge.errors import CandidateError, UsageError
from kernelforge.modelnew.convert import Conversion
from kernelforge.records import Candidate, Fingerprint, Task, content_hash, evaluation_key, first_fault
from kernelforge.records.task import MAX_PLAN_BYTES, MAX_SOURCE_BYTES
from kernelforge.rewards import find_policy
from kernelforge.server.base import LRUCache, RequestRejected
from kernelforge.server.jobs.conversion import ReplyConverter, Unconverted
from kernelforge.server.jobs.results import AS_SENT, Reading
from kernelforge.tasks.constants import plain_text
from kernelforge.tasks.suites import Catalogue

_LARGE_CHARS = 16 << 10
"""A longer completion is parsed in a thread, so that it does not block the event loop."""

_PIECE_BYTES = 2_047
"""The most that hashlib hashes without releasing the GIL (one byte less than CPython's ``HASHLIB_GIL_MINSIZE``)."""


class Registered(NamedTuple):
    """A task that the server offers."""

    name: str
    """``suite/name``."""
    task: Task
    digest: str


def reference_hash(text: str) -> str:
    """SHA-256 of a task file in hex. Line ends and surrounding space do not change it."""
    return hashlib.sha256(plain_text(text).strip().encode()).hexdigest()


class Registry:
    """The tasks of a catalogue by name, by digest and by the text of their files. Nothing is opened or executed."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._by_name: dict[str, Registered] = {}
        self._by_digest: dict[str, Registered] = {}
        self._by_code: dict[str, Registered] = {}
        for suite in catalogue.names:
            for task in catalogue.tasks(suite):
                registered = Registered(f"{suite}/{task.name}", task, task.digest)
                self._by_name[registered.name] = registered
                self._by_digest.setdefault(registered.digest, registered)
                self._by_code.setdefault(reference_hash(task.source), registered)
        for task in catalogue.tasks(catalogue.default):
            self._by_name.setdefault(task.name, self._by_name[f"{catalogue.default}/{task.name}"])

    def of_digest(self, digest: str) -> Registered | None:
        return self._by_digest.get(digest)

    def find(self, reference: str | None, reference_code: str | None = None) -> Registered:
        """The task of a name or digest, or of the text of its file.

        Raises:
            RequestRejected: 422: the task is not registered, or the code belongs to another task.
        """
        if reference is None:
            return self._of_code(reference_code or "")
        registered = self._by_name.get(reference) or self._by_digest.get(reference)
        if registered is None:
            close = get_close_matches(reference[:200], self._by_name, 3)
            advice = f"did you mean {' or '.join(close)}?" if close else "GET /v1/tasks lists those there are"
            raise RequestRejected(422, "unknown_task", f"there is no task {reference[:80]!r} here; {advice}")
        if reference_code is not None and reference_hash(reference_code) != reference_hash(registered.task.source):
            raise RequestRejected(
                422, "other_reference", f"the reference code is not that of {registered.name}; it was not executed"
            )
        return registered

    def _of_code(self, code: str) -> Registered:
        registered = self._by_code.get(reference_hash(code))
        if registered is None:
            raise RequestRejected(
                422,
                "unknown_reference",
                "the reference code belongs to no registered task and was not executed; name a task, or offer its "
                "suite when the server is started",
            )
        return registered


class ParsedCompletion(NamedTuple):
    """The evaluation that a request asks for."""

    registered: Registered
    candidate: str
    """Hash of the candidate, or of a completion without one."""
    key: str
    """Key of the evaluation."""
    text: str | None
    """SHA-256 of the completion."""
    fault: str | None
    """Why the completion holds no candidate; None if it holds one."""
    reading: Reading = AS_SENT
    """How the candidate was read out of the completion."""


class RequestParser:
    """Parses requests and caches parsed completions.

    Args:
        most_cached: number of completions in the cache.
        converter: closed with the parser.
        context: gives the context of a task; its facts name the weights for a ``ModelNew``.
        modelnew: gives the fingerprint by which a ``ModelNew`` is run that cannot be converted; None where none is.
    """

    def __init__(
        self,
        registry: Registry,
        default_policy: str,
        most_cached: int,
        converter: ReplyConverter,
        context: Callable[[Task], Awaitable[TaskContext]],
        modelnew: Callable[[], Fingerprint | None] = lambda: None,
    ) -> None:
        self.registry = registry
        self._converter = converter
        self._context = context
        self._modelnew = modelnew
        self.default_policy = find_policy(default_policy).name
        # One thread: several threads would compete for the GIL and delay the event loop.
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="intake")
        self._parsed: LRUCache[tuple[str, str, str], ParsedCompletion] = LRUCache(most_cached)

    def policy(self, request: JobRequest) -> str:
        """Name of the policy that the request asks for.

        Raises:
            RequestRejected: 422: there is no policy of that name.
        """
        return self.default_policy if request.policy is None else policy_name(request.policy)

    def close(self) -> None:
        self._reader.shutdown(cancel_futures=True)
        self._converter.close()

    async def parse(self, request: JobRequest, fingerprint: Fingerprint) -> tuple[ParsedCompletion, Candidate | None]:
        """The requested evaluation, and the candidate unless the completion was in the cache.

        Raises:
            RequestRejected: 422: unknown task; 413: a candidate given in parts is too large; 503: a ``ModelNew`` cannot
                be converted now.
        """
        registered = self.registry.find(request.task, request.reference_code)
        text = request.completion
        if text is None:
            candidate = candidate_in(request)
            return _parsed(registered, candidate, fingerprint), candidate
        sha256 = text_hash(text)
        cache_key = (registered.digest, sha256, fingerprint.evaluator)
        cached = self._parsed.get(cache_key)
        if cached is not None:
            return cached, None
        parsed = await self._parse(registered, text, sha256, fingerprint)
        self._parsed.put(cache_key, parsed[0])
        return parsed

    async def candidate(self, request: JobRequest, fingerprint: Fingerprint) -> Candidate | None:
        """The candidate of a request; None if its completion holds none.

        Raises:
            RequestRejected: as by :meth:`parse`.
        """
        text = request.completion
        if text is None:
            return candidate_in(request)
        registered = self.registry.find(request.task, request.reference_code)
        _, candidate = await self._parse(registered, text, text_hash(text), fingerprint)
        return candidate

    async def _parse(
        self, registered: Registered, text: str, sha256: str, fingerprint: Fingerprint
    ) -> tuple[ParsedCompletion, Candidate | None]:
        if len(text) > _LARGE_CHARS:
            loop = asyncio.get_running_loop()
            read = await loop.run_in_executor(self._reader, _read_text, text)
        else:
            read = _read_text(text)
        reading = AS_SENT
        if read.model_new is not None:
            read, reading = await self._read_model_new(registered.task, read.model_new, sha256)
            if reading.lane == "modelnew":
                fingerprint = self._modelnew() or fingerprint
        if read.candidate is None:
            digest = content_hash("reply", text)
            key = evaluation_key(digest, registered.digest, fingerprint)
            return ParsedCompletion(registered, digest, key, sha256, read.fault), None
        parsed = _parsed(registered, read.candidate, fingerprint, sha256)
        return parsed._replace(reading=reading), read.candidate

    async def _read_model_new(self, task: Task, text: str, sha256: str) -> tuple[_Read, Reading]:
        """The candidate of a file with a class ``ModelNew``, or the fault of one that is none."""
        conversion = await self._converter.convert(sha256, text)
        runs = self._modelnew() is not None
        if isinstance(conversion, Conversion):
            forbidden = [name for name in conversion.operators if name not in task.policy.library]
            if not forbidden or not runs:
                context = await self._context(task)
                candidate = conversion.fitted(task.source, context.facts.at("full"))
                return _Read(candidate), Reading.of("plan", conversion.notes)
            conversion = Unconverted((f"the task allows no plan to call {', '.join(forbidden)} of torch",))
        if not runs or not conversion.readable:
            return _Read(fault=conversion.refusal), AS_SENT
        try:
            candidate = Candidate(source=text, plan="", lane="modelnew")
        except ValidationError as error:
            return _Read(fault=f"the ModelNew is not a candidate: {first_fault(error)}"), AS_SENT
        return _Read(candidate), Reading.of("modelnew", conversion.problems)


def policy_name(reference: str) -> str:
    """Name of a reward policy with its version.

    Raises:
        RequestRejected: 422: there is no such policy.
    """
    try:
        return find_policy(reference).name
    except UsageError as error:
        raise RequestRejected(422, "unknown_policy", str(error)) from error


def candidate_in(request: JobRequest) -> Candidate:
    """The candidate of a request: of a completion that was parsed without a fault before, or given in parts.

    Raises:
        RequestRejected: 413 or 422: the parts are not a candidate.
    """
    if request.completion is not None:
        return parse_reply(request.completion)
    parts = request.candidate
    assert parts is not None  # JobRequest validates this
    for part, text, most in (("source", parts.source, MAX_SOURCE_BYTES), ("plan", parts.plan, MAX_PLAN_BYTES)):
        size = len(text.encode())
        if size > most:
            raise RequestRejected(413, "too_large", f"the {part} has {size:,} bytes; the limit is {most:,}")
    try:
        return Candidate(source=parts.source, plan=parts.plan, choices=parts.choices)
    except ValidationError as error:
        raise RequestRejected(422, "invalid", f"this is not a candidate: {first_fault(error)}") from error


def text_hash(text: str) -> str:
    """SHA-256 of a text in hex.

    The GIL is not released, as hashlib does for larger pieces: to get it back from a busy database thread can take
    milliseconds.
    """
    data = text.encode()
    digest = hashlib.sha256()
    for start in range(0, len(data), _PIECE_BYTES):
        digest.update(data[start : start + _PIECE_BYTES])
    return digest.hexdigest()


class _Read(NamedTuple):
    """Contents of a completion: one of the three."""

    candidate: Candidate | None = None
    fault: str = ""
    model_new: str | None = None
    """A Python file with a class ``ModelNew``."""


def _read_text(text: str) -> _Read:
    model_new = model_new_in(text)
    if model_new is not None:
        return _Read(model_new=model_new)
    try:
        return _Read(parse_reply(text))
    except CandidateError as error:
        return _Read(fault=str(error))


def _parsed(
    registered: Registered, candidate: Candidate, fingerprint: Fingerprint, text: str | None = None
) -> ParsedCompletion:
    digest = candidate.hash
    return ParsedCompletion(registered, digest, evaluation_key(digest, registered.digest, fingerprint), text, None)
