"""Reasons why a candidate cannot be converted, with positions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One construct that has no counterpart in a launch plan, or that we cannot read."""

    line: int
    """1-based line of the candidate's file."""
    construct: str
    """The text at hand, shortened."""
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: `{self.construct}`: {self.why}"


class Unconvertible(Exception):
    """Raised where a construct is met, collected where its statement ends."""

    def __init__(self, line: int, construct: str, why: str) -> None:
        super().__init__(why)
        text = " ".join(construct.split())
        self.problem = Problem(line, text if len(text) <= 80 else text[:77] + "...", why)
