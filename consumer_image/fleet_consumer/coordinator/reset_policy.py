"""Reset policy for partitions without a usable offset: Kafka's `auto.offset.reset`, with durations (KIP-1106)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

WORDS = "use earliest, latest, none or by_duration:<ISO-8601 duration>, such as by_duration:PT1H"

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:[.,]\d{1,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ResetPolicy:
    """A policy by its word; `duration_ms` only with `by_duration`: begin at records of at most that age."""

    word: str
    duration_ms: int | None = None

    EARLIEST: ClassVar[ResetPolicy]
    LATEST: ClassVar[ResetPolicy]
    NONE: ClassVar[ResetPolicy]

    @classmethod
    def parse(cls, text: str) -> ResetPolicy:
        """Parse a setting. Raises ValueError with the allowed values."""
        word, colon, duration = text.partition(":")
        if word in ("earliest", "latest", "none") and not colon:
            return cls(word)
        if word == "by_duration" and colon:
            return cls(word, _milliseconds(duration))
        raise ValueError(f"auto_offset_reset is {text!r}; {WORDS}")

    def __str__(self) -> str:
        return self.word if self.duration_ms is None else f"{self.word} {self.duration_ms / 1000:g} s"


ResetPolicy.EARLIEST = ResetPolicy("earliest")
ResetPolicy.LATEST = ResetPolicy("latest")
ResetPolicy.NONE = ResetPolicy("none")


def _milliseconds(duration: str) -> int:
    """Parse as Java's `Duration.parse`, without signs: days, hours, minutes, seconds, at least one of them."""
    match = _DURATION.fullmatch(duration)
    parts = {unit: float(text.replace(",", ".")) for unit, text in (match.groupdict() if match else {}).items() if text}
    if not parts:
        raise ValueError(f"auto_offset_reset: {duration!r} is not a duration; {WORDS}")
    seconds = parts.get("days", 0) * 86_400 + parts.get("hours", 0) * 3_600 + parts.get("minutes", 0) * 60
    return round((seconds + parts.get("seconds", 0)) * 1000)
