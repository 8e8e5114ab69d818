"""Errors that end an attempt, final ones and others, and the meaning of what Spark reports."""

from __future__ import annotations

import re
from typing import Final

from fleet_consumer.contract.backfill_ledger import RunProblem


class BackfillFailed(Exception):
    """An attempt, or a task of it, ended before its work. `final`: another attempt would fail alike."""

    def __init__(self, reason: str, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.final = final

    @property
    def problem(self) -> RunProblem:
        """The error as reports and the ledger have it."""
        return RunProblem(reason=self.reason, message=str(self), final=self.final)


class Superseded(Exception):
    """A newer attempt owns the ledger; this one must not write anything more."""

    reason = "Superseded"


class ExecutorsLost(BackfillFailed):
    """Executors died, or what was to run in one. `task` is the number of the task that died again and again, so often
    as `tries` says; None where Spark names none."""

    def __init__(self, message: str, task: int | None, tries: int) -> None:
        super().__init__("ExecutorLost", message, final=False)
        self.task = task
        self.tries = tries


MESSAGE_CHARACTERS_MAX: Final = 600

_LOST: Final = re.compile(
    r"Python worker exited unexpectedly|OutOfMemoryError|Java heap space|ExecutorLostFailure"
    r"|[Ee]xit (?:code|status)[: ]+(?:52|137)\b|Max number of executor failures|MemoryError"
)
_FILE_SYSTEM: Final = re.compile(r"No FileSystem for scheme[^\n]{0,40}|Class [\w.]*FileSystem not found")
_TASK: Final = re.compile(r"Task (\d+) in stage [\d.]+ failed (\d+) times")
ADVICE: Final = (
    "raise spark.executor.memoryOverhead (Python and the handler) or spark.executor.memory (Java), or see whether the "
    "handler ends its process"
)


def meaning(text: str) -> BackfillFailed:
    """The error to report for what Spark said."""
    said = summary(text)
    if _LOST.search(text):
        task = _TASK.search(text)
        number, tries = (int(task[1]), int(task[2])) if task else (None, 0)
        return ExecutorsLost(f"{said}; {ADVICE}", number, tries)
    if system := _FILE_SYSTEM.search(text):
        return BackfillFailed(
            "SinkUnsupported", f"the Spark image has no file system for the sink: {system[0]}", final=True
        )
    return BackfillFailed("SliceFailed", said, final=False)


def summary(text: str) -> str:
    """The lines that name errors, innermost last, cut."""
    lines = [line.strip() for line in text.splitlines()]
    named = [
        line
        for line in lines
        if line
        and not line.startswith(("at ", "...", "File ", "Traceback", "^", "~"))
        and re.match(r"(?:Caused by: |: )?[\w.$]+(?:Exception|Error|Exit|Interrupt)\b", line)
    ]
    kept = list(dict.fromkeys(line.removeprefix("Caused by: ").removeprefix(": ") for line in named))[-3:] or lines[:1]
    words = " | ".join(kept)
    return words if len(words) <= MESSAGE_CHARACTERS_MAX else words[: MESSAGE_CHARACTERS_MAX - 1] + "…"
