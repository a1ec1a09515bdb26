"""Base class of objects that are closed at the end of a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context that gives itself, and closes itself at its end, errors or not."""

    @abstractmethod
    def close(self) -> None:
        """Free what the object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
