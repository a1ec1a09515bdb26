"""Many tasks of one event loop that each wait for a job, with few requests between them.

A thousand rollouts that each held a request of their own would fill the connections, and submissions would stand in
line behind those that wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from kernelforge.client.wire import Job, WaitAnswer
from kernelforge.errors import ServerError

IDS_PER_REQUEST = 64
"""Few, for a request is sent anew, with its ids, whenever one of them has ended."""
HOLD_S = 20.0
BUSY_HOLD_S = 1.0
"""While all requests are in use, some must soon come back for the jobs that none of them asks for yet."""

Ask = Callable[[Sequence[str], float], Awaitable[WaitAnswer]]
"""Wait until one of some jobs has ended, or for so many seconds."""


class SharedWait:
    """Waits for jobs on behalf of any number of tasks.

    Args:
        requests: at most so many at once.
    """

    def __init__(self, ask: Ask, *, requests: int) -> None:
        self._ask = ask
        self._requests = requests
        self._callers: dict[str, set[asyncio.Future[Job]]] = {}
        self._unasked: deque[str] = deque()
        self._polls: set[asyncio.Task[None]] = set()

    async def wait(self, job_id: str, seconds: float) -> Job | None:
        """The job once it has ended; None where it has not in time.

        Raises:
            ServerError: the server does not know it, or is gone.
        """
        mine: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        if job_id not in self._callers:
            self._callers[job_id] = set()
            self._unasked.append(job_id)
        self._callers[job_id].add(mine)
        self._start()
        try:
            async with asyncio.timeout(seconds):
                return await mine
        except TimeoutError:
            return None
        finally:
            self._leave(job_id, mine)

    async def aclose(self) -> None:
        """Stop asking; whoever still waits hears of it."""
        self._fail(list(self._callers), ServerError("the client was closed while it waited for a job", code="closed"))
        for poll in self._polls:
            poll.cancel()
        await asyncio.gather(*self._polls, return_exceptions=True)

    def _leave(self, job_id: str, mine: asyncio.Future[Job]) -> None:
        callers = self._callers.get(job_id, set())
        callers.discard(mine)
        if not callers:
            self._callers.pop(job_id, None)
        if not self._callers:
            for poll in self._polls:
                poll.cancel()

    def _start(self) -> None:
        if self._unasked and len(self._polls) < self._requests:
            poll = asyncio.create_task(self._poll())
            self._polls.add(poll)
            poll.add_done_callback(self._ended)

    def _ended(self, poll: asyncio.Task[None]) -> None:
        self._polls.discard(poll)
        if not poll.get_loop().is_closed():
            self._start()

    async def _poll(self) -> None:
        """Ask for some jobs again and again, until all of them have ended; take more on as there is room."""
        ids: list[str] = []
        while ids := self._with_more([job_id for job_id in ids if job_id in self._callers]):
            busy = len(self._polls) >= self._requests
            try:
                answer = await self._ask(ids, BUSY_HOLD_S if busy else HOLD_S)
            except ServerError as error:
                if error.status == 404 and len(ids) > 1:
                    await self._one_by_one(ids)
                    continue
                self._fail(ids, error)
                return
            self._tell(answer.ended)

    def _with_more(self, ids: list[str]) -> list[str]:
        while self._unasked and len(ids) < IDS_PER_REQUEST:
            job_id = self._unasked.popleft()
            if job_id in self._callers and job_id not in ids:
                ids.append(job_id)
        return ids

    async def _one_by_one(self, ids: list[str]) -> None:
        """A server that does not know one of them refuses all; only that one's callers must hear of it."""
        for job_id in ids:
            try:
                self._tell((await self._ask([job_id], 0.0)).ended)
            except ServerError as error:
                self._fail([job_id], error)

    def _tell(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            for caller in self._callers.pop(job.id, ()):
                if not caller.done():
                    caller.set_result(job)

    def _fail(self, ids: Sequence[str], error: ServerError) -> None:
        for job_id in ids:
            for caller in self._callers.pop(job_id, ()):
                if not caller.done():
                    caller.set_exception(error.again())
