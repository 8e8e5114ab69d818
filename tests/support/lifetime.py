"""Servers that tests start: whatever happens between start and end, nothing remains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Server(ABC):
    """A context manager that starts on entry and closes on exit, also if the start fails half-way."""

    @abstractmethod
    def start(self) -> None:
        """Start and wait until it answers."""

    @abstractmethod
    def close(self) -> None:
        """End it and remove its files; may be called after a failed start."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
