"""The ``replay`` provider: a transcript answers.

A reply is found by its agent and the SHA-256 of the prompt, so what is replayed is what was answered, never something
near it: a prompt that was not recorded is an error that shows where it differs. A conversation is replayed whole: where
the author was asked again, the complaint and the further replies follow as they were recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path

from kernelforge.errors import ProviderError
from kernelforge.llm.base import Answer, Meter, Question
from kernelforge.llm.transcript import Conversation, conversations, read_transcript, sha256_of
from kernelforge.records import Message

SHOWN_CHARS = 160
"""How much of a line an error shows."""


class Recording:
    """A transcript of which each conversation is played once. Shared between tasks and threads.

    Args:
        name: as the CLI spells it, ``match=order`` included.
        path: the transcript.
        in_order: give each agent's conversations on a task in the order they were recorded, whatever the prompt.

    Raises:
        UsageError: as :func:`~kernelforge.llm.transcript.read_transcript`.
    """

    def __init__(self, name: str, path: str | Path, *, in_order: bool = False) -> None:
        self.name = name
        self.header, self._recorded = read_transcript(path)
        self._in_order = in_order
        self._used: set[int] = set()
        self._lock = threading.Lock()

    def recall(self, task: str, messages: Iterable[Message]) -> None:
        """Mark as used what this recording has answered before, in a run that is resumed.

        Args:
            messages: of the task's journal; those of other providers are passed over.
        """
        said = [message for message in messages if message.provider == self.name]
        with self._lock:
            for talk in conversations(said):
                prompt, replies = talk[0][0], tuple(reply.content for _, reply in talk)
                fitting = self._fitting(prompt.agent, task, prompt.content)
                used = next((one for one in fitting if self._free(one) and one.replies == replies), None)
                if used is not None:
                    self._used.add(used.number)

    def take(self, question: Question) -> Conversation:
        """The next conversation recorded for a question.

        Of several that begin with the same prompt it is the one with the question's ``sample``, so that questions asked
        side by side get the same replies in every process; else the first that is unused.

        Raises:
            ProviderError: there is none, or all are used.
        """
        prompt = question.prompt.text
        with self._lock:
            fitting = self._fitting(question.agent, question.task, prompt)
            free = [one for one in fitting if self._free(one)]
            if free:
                chosen = next((one for one in free if one.first.sample == question.sample), free[0])
                self._used.add(chosen.number)
                return chosen
        raise ProviderError(self._miss(question, len(fitting)))

    def _free(self, one: Conversation) -> bool:
        return one.number not in self._used

    def _fitting(self, agent: str, task: str, prompt: str) -> list[Conversation]:
        """Conversations that answer a prompt, used or not, in recorded order."""
        if self._in_order:
            return self._of(agent, task)
        name = sha256_of(prompt)
        return [one for one in self._recorded if one.first.agent == agent and one.first.sha256 == name]

    def _of(self, agent: str, task: str) -> list[Conversation]:
        return [one for one in self._recorded if one.first.agent == agent and one.first.task == task]

    def _miss(self, question: Question, used: int) -> str:
        agent, task, prompt = question.agent, question.task, question.prompt.text
        which = f"{self.name} has no reply to this prompt of the {agent} on task {task!r} (sha256 {sha256_of(prompt)})"
        if used:
            what = f"the {agent} on that task" if self._in_order else "it"
            return (
                f"{which}: the {used} that it has for {what} {'is' if used == 1 else 'are'} used; record more of them"
            )
        same = self._of(agent, task)
        if not same:
            known = ", ".join(sorted({f"{one.first.agent} on {one.first.task!r}" for one in self._recorded}))
            return f"{which}: it has nothing for that agent and task; it has {known or 'no reply at all'}"
        lines = prompt.splitlines()
        nearest = max(same, key=lambda one: _likeness(lines, one.first.prompt.splitlines()))
        number, recorded, asked = _first_difference(nearest.first.prompt, prompt)
        return (
            f"{which}. The nearest that it has, at line {nearest.number} of the file, first differs in line {number} "
            f"of the prompt:\n  recorded: {recorded}\n  asked:    {asked}\n"
            f"Record it anew, or add ?match=order to take replies in recorded order whatever the prompt"
        )


class Replay:
    """Answers prompts from a recording. Nothing is bought: replies carry no usage and cost the meter nothing."""

    def __init__(self, recording: Recording, meter: Meter) -> None:
        self.name = recording.name
        self._recording = recording
        self._meter = meter

    def ask(self, question: Question) -> Answer:
        """The recorded conversation, from its first reply to its last.

        Raises:
            BudgetExhausted: the run is to stop.
            ProviderError: the transcript has no reply to this prompt; the message says which and where it differs.
        """
        self._meter.check()
        recorded = self._recording.take(question).lines
        messages: list[Message] = []
        for line in recorded:
            prompt = question.prompt.text if line.turn == 0 else line.prompt
            messages.append(Message(agent=question.agent, role="prompt", provider=self.name, content=prompt))
            messages.append(Message(agent=question.agent, role="reply", provider=self.name, content=line.reply))
        return Answer(recorded[-1].reply, tuple(messages))


def _likeness(ours: list[str], theirs: list[str]) -> float:
    return SequenceMatcher(None, ours, theirs, autojunk=False).ratio()


def _first_difference(recorded: str, asked: str) -> tuple[int, str, str]:
    """Number of the first line in which two prompts differ, from 1, and both lines as they are shown."""
    pairs = zip_longest(recorded.splitlines(keepends=True), asked.splitlines(keepends=True))
    for number, (left, right) in enumerate(pairs, 1):
        if left != right:
            return number, _shown(left), _shown(right)
    raise ValueError("the prompts are the same")


def _shown(line: str | None) -> str:
    return "(nothing)" if line is None else repr(line[:SHOWN_CHARS])
