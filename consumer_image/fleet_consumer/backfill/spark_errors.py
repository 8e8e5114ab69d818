"""Meaning of an error that Spark reports. Pure."""

from __future__ import annotations

import re
from typing import Final

from fleet_consumer.backfill.errors import BackfillFailed, marked

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
