"""Errors that end an attempt, final ones and others, and the meaning of what Spark reports."""

from __future__ import annotations

import json
import re
from typing import Final

MARK: Final = "fleet-task-failed:"
"""Begins the text of an error that a task raises, so that it is found among Spark's own words."""
_MARKED: Final = re.compile(re.escape(MARK) + r"(\{.*?\});")


class BackfillFailed(Exception):
    """An attempt ended before its work. `final`: another attempt would fail alike."""

    def __init__(self, reason: str, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.reason = reason
        self.final = final


class Superseded(Exception):
    """A newer attempt owns the ledger; this one must not write anything more."""

    reason = "Superseded"


class TaskFailed(Exception):
    """An error that a task raises on purpose; its text can be read back with `marked` from Spark's report."""

    def __init__(self, reason: str, message: str, *, final: bool) -> None:
        document = json.dumps({"reason": reason, "message": message, "final": final})
        # No brace but the last ends the document for the expression that finds it.
        super().__init__(MARK + document.replace("};", "} ;") + ";")


def marked(text: str) -> BackfillFailed | None:
    """The error of a task that Spark reports in this text, if it is one of ours."""
    found = _MARKED.search(text)
    if found is None:
        return None
    try:
        document = json.loads(found[1])
        return BackfillFailed(str(document["reason"]), str(document["message"]), final=document["final"] is True)
    except (ValueError, KeyError, TypeError):
        return None


MESSAGE_CHARACTERS_MAX: Final = 600

_LOST: Final = re.compile(
    r"OffsetOutOfRange|Some data may have been lost|could not read offset|KAFKA_DATA_LOSS|Cannot fetch offset", re.I
)
_MISSING: Final = re.compile(r"UnknownTopicOrPartition|UnknownTopicIdException")
_MEMORY: Final = re.compile(
    r"Python worker exited unexpectedly|OutOfMemoryError|Java heap space|ExecutorLostFailure"
    r"|[Ee]xit (?:code|status)[: ]+(?:52|137)\b|Max number of executor failures|MemoryError"
)
_LOGIN: Final = re.compile(r"SaslAuthenticationException|SslAuthenticationException|Authentication failed")
_RIGHTS: Final = re.compile(r"(?:Topic|Group|Cluster)AuthorizationException")
_RANGE: Final = re.compile(r"offset[s]? (?:in )?\[?(\d+), ?(\d+)\)? for topic partition (\S+)|partition[s]? (\S+-\d+)")


def meaning(text: str, topic: str) -> BackfillFailed:
    """The error to report for what Spark, its Kafka source or a task said."""
    ours = marked(text)
    if ours is not None:
        return ours
    said = summary(text)
    if _LOST.search(text):
        place = _RANGE.search(text)
        where = f" ({place[0]})" if place else ""
        message = f"records of the range are gone from topic {topic!r}{where}; give a Backfill a range that is there"
        return BackfillFailed("RangeExpired", message, final=True)
    if _MISSING.search(text):
        message = f"topic {topic!r} or a partition of it does not exist (any more); create it, or correct the name"
        return BackfillFailed("SourceTopicNotFound", message, final=True)
    if _LOGIN.search(text):
        return BackfillFailed("AuthenticationFailed", f"the brokers refuse the login: {said}", final=False)
    if _RIGHTS.search(text):
        advice = f"allow the principal Read and Describe on topic {topic!r} and on groups with prefix fleet-backfill-"
        return BackfillFailed("AuthorizationFailed", f"{said}; {advice}", final=False)
    if _MEMORY.search(text):
        advice = (
            "raise spark.executor.memoryOverhead (Python and the handler) or spark.executor.memory (Java), or see "
            "whether the handler ends its process"
        )
        return BackfillFailed("ExecutorLost", f"{said}; {advice}", final=False)
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
