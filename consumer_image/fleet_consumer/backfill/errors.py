"""Errors that end an attempt, and the conversion of Spark's error messages to these errors."""

import re
from typing import Final

from fleet_consumer.contract.backfill_ledger import RunProblem


class BackfillFailed(Exception):
    """An attempt or one of its tasks failed. `final` is True if further attempts would fail as well."""

    def __init__(self, reason: str, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.final = final

    @property
    def problem(self) -> RunProblem:
        return RunProblem(reason=self.reason, message=str(self), final=self.final)


class Superseded(Exception):
    """A newer attempt owns the ledger, so this attempt must stop writing."""

    reason = "Superseded"


class ExecutorsLost(BackfillFailed):
    """Executors or Python workers died. `task` is the number of the task that failed `tries` times (None: unknown)."""

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
    "raise spark.executor.memoryOverhead (Python and the handler) or spark.executor.memory (Java), or check whether "
    "the handler ends its process"
)


def meaning(text: str) -> BackfillFailed:
    """Return the error to report for an error message of Spark."""
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
    """Return the last three lines that name errors (innermost error last), shortened to MESSAGE_CHARACTERS_MAX."""
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
