"""View model of one fleet's Backfills, with their progress."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_operator.console.views.fleet import ConditionView, Explains, condition_views


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillView:
    """One Backfill. `percent` is None while its range is unknown."""

    name: str
    phase: str
    topic: str
    percent: int | None
    progress: str
    records: tuple[tuple[str, int], ...]
    rate: int | None
    started: str
    end: str
    attempts: int
    verdicts: tuple[ConditionView, ...]


def backfill_views(
    bodies: Iterable[Mapping[str, Any]], explanations: Mapping[str, Explains]
) -> tuple[BackfillView, ...]:
    """Build the views of Backfills, newest first."""
    ordered = sorted(bodies, key=lambda body: str(body["metadata"].get("creationTimestamp", "")), reverse=True)
    return tuple(_view(body, explanations) for body in ordered)


def _view(body: Mapping[str, Any], explanations: Mapping[str, Explains]) -> BackfillView:
    status = body.get("status") or {}
    total, covered = status.get("offsetsTotal"), status.get("offsetsCovered") or 0
    return BackfillView(
        name=body["metadata"]["name"],
        phase=str(status.get("phase") or "Pending"),
        topic=str(status.get("topic") or ""),
        percent=min(100, 100 * covered // total) if total else None,
        progress=str(status.get("progressText") or ""),
        records=tuple((str(name), int(count)) for name, count in (status.get("records") or {}).items()),
        rate=status.get("ratePerSecond"),
        started=str(status.get("startedAt") or ""),
        end=str(status.get("finishedAt") or status.get("estimatedEnd") or ""),
        attempts=status.get("attempts") or 0,
        verdicts=condition_views(status, explanations),
    )
