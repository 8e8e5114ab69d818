"""Kubernetes times: conversion of epoch seconds to RFC 3339 strings in UTC, and the reverse."""

from datetime import UTC, datetime
from typing import Final

from fleet_consumer.contract import naming

LATEST: Final = 253_402_300_799.0
"""The last second of the year 9999, in epoch seconds. Later times are shown as this time; the operator never writes
later times."""


def to_text(epoch_s: float) -> str:
    """Format epoch seconds as `2026-01-31T12:00:00Z`. Fractions are cut off, as the API server does."""
    return datetime.fromtimestamp(int(min(max(epoch_s, 0.0), LATEST)), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_milli_text(epoch_s: float) -> str:
    """Format as `2026-01-31T12:00:00.250Z`, for events that may share a second."""
    at = datetime.fromtimestamp(round(min(max(epoch_s, 0.0), LATEST), 3), UTC)
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def to_micro_text(epoch_s: float) -> str:
    """Format as `metav1.MicroTime`, which Leases and Events use: with six digits after the decimal point."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_text(text: str | None) -> float | None:
    """Parse an RFC 3339 time to epoch seconds; None if the string is absent or invalid. Anybody may have written the
    string."""
    if not text:
        return None
    try:
        parsed = datetime.fromisoformat(text.upper())  # RFC 3339 allows a lowercase t and z
        return parsed.timestamp() if parsed.tzinfo else parsed.replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def duration_text(seconds: int) -> str:
    """Format a duration with its two largest units: `2h40m`, `7d`; 90 seconds are `1m30s`."""
    parts = []
    for unit, size in reversed(naming.UNIT_SECONDS.items()):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def soonest(*delays: float | None) -> float | None:
    return min((delay for delay in delays if delay is not None), default=None)
