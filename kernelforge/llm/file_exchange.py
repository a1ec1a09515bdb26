"""The ``exchange`` provider: a person or a coding agent answers prompts through a folder.

A request is ``NNNN-<agent>-<task>.prompt.md``, put there in one rename. The answer is ``NNNN-<agent>-<task>.reply.md``
in the same folder: rename it into place, or write it in place; it is read once two polls in a row find it unchanged. A
reply that cannot be used is renamed to ``....rejected-K.md`` and ``....error.md`` says what is wrong with it; the
prompt then waits for another, three replies in all.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kernelforge.candidate import split_reasoning
from kernelforge.errors import BudgetExhausted, CandidateError, UsageError
from kernelforge.llm.base import ASKS, COMPLAINT, Answer, Question
from kernelforge.records import Message

POLL_SECONDS = 0.5
MAX_REPLY_BYTES = 4 << 20


class FileExchangeModel:
    """Answers prompts through a folder.

    Args:
        folder: where prompts go and replies come from; made if missing.
        poll_seconds: how often to look for a reply.
        timeout_seconds: give up after this long without a reply; None waits for ever.
        stopped: asked at every look; true ends the wait.
        keeps_reasoning: whether thinking in a reply is kept, apart from it.

    Raises:
        UsageError: the folder cannot be made or written.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        poll_seconds: float = POLL_SECONDS,
        timeout_seconds: float | None = None,
        stopped: Callable[[], bool] = lambda: False,
        keeps_reasoning: bool = True,
    ) -> None:
        self.name = f"exchange:{folder}"
        self.folder = Path(folder).expanduser()
        self.poll_seconds = poll_seconds
        self.timeout_seconds = timeout_seconds
        self._stopped = stopped
        self._keeps_reasoning = keeps_reasoning
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the exchange folder {self.folder} cannot be made: {error.strerror}; choose another"
            ) from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise UsageError(
                f"the exchange folder {self.folder} cannot be written; choose another or change its rights"
            )

    def ask(self, question: Question) -> Answer:
        """Put a prompt in the folder and wait for a reply that can be used, three replies at most.

        Raises:
            BudgetExhausted: the wait was stopped or timed out; the prompt stays for a later answer to be of no use.
            UsageError: the folder can no longer be read or written.
        """
        try:
            return self._converse(question)
        except OSError as error:
            raise UsageError(
                f"the exchange folder {self.folder} cannot be used any more: {error.strerror or error}; free space, or "
                "see that what lies in it belongs to you"
            ) from error

    def _converse(self, question: Question) -> Answer:
        stem = self._post(question.agent, re.sub(r"[^\w.-]+", "_", question.task), question.prompt.text)
        messages = [Message(agent=question.agent, role="prompt", provider=self.name, content=question.prompt.text)]
        text = ""
        for number in range(1, ASKS + 1):
            thinking, text = split_reasoning(self._wait(stem))
            reasoning = (thinking if self._keeps_reasoning else "") or None
            messages.append(
                Message(agent=question.agent, role="reply", provider=self.name, content=text, reasoning=reasoning)
            )
            try:
                question.check(text)
            except CandidateError as error:
                if number < ASKS:
                    complaint = self._reject(stem, number, str(error))
                    messages.append(Message(agent=question.agent, role="prompt", provider=self.name, content=complaint))
                continue
            self._path(stem, "error").unlink(missing_ok=True)
            break
        return Answer(text, tuple(messages))

    def _path(self, stem: str, kind: str) -> Path:
        return self.folder / f"{stem}.{kind}.md"

    def _post(self, agent: str, task: str, prompt: str) -> str:
        """Write the prompt under the next free number; two runs may share a folder."""
        taken = [int(match[1]) for name in os.listdir(self.folder) if (match := re.match(r"(\d{4,})-", name))]
        number = max(taken, default=0) + 1
        draft: Path | None = None
        try:
            draft = self._draft(prompt)
            while True:
                stem = f"{number:04d}-{agent}-{task}"
                claim = self.folder / f".{number:04d}.claim"
                try:
                    os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                except FileExistsError:
                    number += 1
                    continue
                os.replace(draft, self._path(stem, "prompt"))
                return stem
        except OSError as error:
            if draft is not None:
                draft.unlink(missing_ok=True)
            raise UsageError(
                f"cannot write a prompt to {self.folder}: {error.strerror}; free space or choose another folder"
            ) from error

    def _wait(self, stem: str) -> str:
        """The reply's text, once it is whole."""
        path = self._path(stem, "reply")
        deadline = None if self.timeout_seconds is None else time.monotonic() + self.timeout_seconds
        seen: tuple[int, int] | None = None
        while True:
            if self._stopped():
                raise BudgetExhausted(f"stopped while waiting for {path}")
            now = self._state(path)
            if now is not None and now == seen:
                return self._read(path)
            seen = now
            if deadline is not None and time.monotonic() > deadline:
                raise BudgetExhausted(f"no reply at {path} within {self.timeout_seconds:g} s")
            time.sleep(self.poll_seconds)

    @staticmethod
    def _state(path: Path) -> tuple[int, int] | None:
        """Size and time of change, or None where there is nothing to read yet."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return None
        # Who may write here may not make us read a file of ours: a link, a pipe or a device is no reply.
        readable = stat.S_ISREG(status.st_mode) and status.st_size > 0
        return (status.st_size, status.st_mtime_ns) if readable else None

    @staticmethod
    def _read(path: Path) -> str:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"the reply {path} cannot be read: {error.strerror}; write it as a plain file") from error
        with os.fdopen(handle, "rb") as file:
            # It may be another file than the one that was looked at.
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UsageError(f"the reply {path} is no plain file any more; write it as one")
            return file.read(MAX_REPLY_BYTES).decode("utf-8", "replace")

    def _reject(self, stem: str, number: int, reason: str) -> str:
        """Move an unusable reply aside and say what is wrong."""
        self._path(stem, "reply").replace(self._path(stem, f"rejected-{number}"))
        text = (
            f"{COMPLAINT}\n\n{reason}\n\nIt now lies in `{stem}.rejected-{number}.md`. Write a new "
            f"`{stem}.reply.md`; {ASKS - number} of {ASKS} tries are left.\n"
        )
        os.replace(self._draft(text), self._path(stem, "error"))
        return text

    def _draft(self, text: str) -> Path:
        """A new file with ``text``; never one that lies there, which might be a link to somewhere else."""
        handle, name = tempfile.mkstemp(prefix=".", suffix=".draft", dir=self.folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(handle, 0o644)
            file.write(text)
        return Path(name)
