"""View model of one fleet's retries: waiting records on a time line of due times, and failed records by reason, with
commands.

The page never shows contents of records, because the operator has no permission to read them from Kafka. Instead, the
page shows the exact command (`fleet-consumer failed`) that prints them in a worker.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import refs
from fleet_operator.clients.kinds import REDRIVE
from fleet_operator.console.views.fleet import Explains, observed_group
from fleet_operator.console.views.plot import WIDTH, across
from fleet_operator.planning import times
from fleet_operator.planning.lag import lag_text
from fleet_operator.planning.observation import ClusterObservation, RetryObservation

BAR_PIXELS_MIN: Final = 4.0


@dataclass(frozen=True, slots=True)
class DelayView:
    """One retry topic. The first waiting record becomes due at `first_due`; the last one, at most one `delay` after the
    observation. `left` and `width` place this span on the time line. If no record waits, `first_due` is empty and
    `width` is 0."""

    delay: str
    waiting: int | None
    first_due: str
    late: bool
    left: float
    width: float
    error: str


@dataclass(frozen=True, slots=True)
class FailedView:
    """Failed records with one reason and error class; `records` is a rounded minimum of their number. `preview` is the
    command that lists these records, `redrive` the manifest of a Redrive of all records with this reason."""

    reason: str
    error: str
    records: str
    meaning: str
    preview: str
    redrive: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesView:
    """Retries of a fleet. `since` and `until` are the ends of the time line; `now_at` is the coordinate of the
    observation's time. While `observed_at` is empty, `waiting` and `due` are rounded numbers from the status."""

    enabled: bool
    observed_at: str
    waiting: int | None
    due: int | None
    redriven_waiting: int | None
    failed: int | None
    next_due: str
    safe_until: str
    expired: int
    policy: str
    delays: tuple[DelayView, ...]
    since: str
    until: str
    now_at: float
    failures: tuple[FailedView, ...]


def retries_view(
    body: Mapping[str, Any], observation: ClusterObservation | None, explanations: Mapping[str, Explains]
) -> RetriesView:
    retry = (body.get("status") or {}).get("retry") or {}
    group, group_id = observed_group(body, observation), refs.group_id_of(dict(body))
    seen = group.retry if group is not None else None
    since, until = _span(seen, group_id)
    redrive = seen.topics.get(naming.redrive_topic(group_id)) if seen is not None else None
    return RetriesView(
        enabled="retry" in body["spec"],
        observed_at=times.to_text(seen.observed_at) if seen is not None else "",
        waiting=seen.waiting if seen is not None else retry.get("waiting"),
        due=seen.due_lag if seen is not None else retry.get("dueLag"),
        redriven_waiting=redrive.waiting if redrive is not None else None,
        failed=retry.get("failed"),
        next_due=str(retry.get("nextDueAt") or ""),
        safe_until=str(retry.get("safeUntil") or ""),
        expired=retry.get("expired") or 0,
        policy=str(retry.get("policyRevision") or ""),
        delays=_delays(seen, group_id, since, until) if seen is not None else (),
        since=times.to_text(since),
        until=times.to_text(until),
        now_at=across(seen.observed_at, since, until) if seen is not None else 0.0,
        failures=tuple(_failed(body, each, explanations) for each in retry.get("failedReasons") or ()),
    )


def _by_delay(seen: RetryObservation, group_id: str) -> dict[str, str]:
    """The retry topics of a group, keyed by delay, shortest delay first."""
    prefix = naming.retry_topic(group_id, "")
    found = [topic.removeprefix(prefix) for topic in seen.topics if topic.startswith(prefix)]
    known = sorted((delay for delay in found if naming.is_canonical_delay(delay)), key=naming.parse_delay)
    return {delay: prefix + delay for delay in known}


def _first_due(seen: RetryObservation, delay: str, topic: str) -> float | None:
    oldest = seen.topics[topic].oldest_at
    return oldest + naming.parse_delay(delay) if oldest is not None else None


def _span(seen: RetryObservation | None, group_id: str) -> tuple[float, float]:
    """The two ends of the time line. It begins at the first due time or at the observation, whichever is earlier. It
    ends one longest delay after the observation."""
    if seen is None:
        return 0.0, 0.0
    delays = _by_delay(seen, group_id)
    dues = [at for delay, topic in delays.items() if (at := _first_due(seen, delay, topic)) is not None]
    longest = max(map(naming.parse_delay, delays), default=60)
    return min([seen.observed_at, *dues]), seen.observed_at + longest


def _delays(seen: RetryObservation, group_id: str, since: float, until: float) -> tuple[DelayView, ...]:
    found = []
    for delay, topic in _by_delay(seen, group_id).items():
        known, due = seen.topics[topic], _first_due(seen, delay, topic)
        left = across(due, since, until) if due is not None else 0.0
        right = across(seen.observed_at + naming.parse_delay(delay), since, until)
        found.append(
            DelayView(
                delay,
                known.waiting,
                times.to_text(due) if due is not None else "",
                due is not None and due < seen.observed_at,
                min(left, WIDTH - BAR_PIXELS_MIN),
                max(right - left, BAR_PIXELS_MIN) if due is not None else 0.0,
                known.error or "",
            )
        )
    return tuple(found)


def _failed(body: Mapping[str, Any], entry: Mapping[str, Any], explanations: Mapping[str, Explains]) -> FailedView:
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    reason, error = str(entry["reason"]), str(entry.get("errorClass") or "")
    about = explanations.get(reason)
    worker = f"kubectl --namespace {namespace} exec {naming.main_workers(name)}-0 --"
    chosen = f"--reason {shlex.quote(reason)}" + (f" --error-class {shlex.quote(error)}" if error else "")
    spec = {"groupRef": {"name": name}, "filter": {"reasons": [reason]}}
    metadata = {"generateName": f"{name}-", "namespace": namespace}
    manifest = {"apiVersion": REDRIVE.api_version, "kind": REDRIVE.kind, "metadata": metadata, "spec": spec}
    return FailedView(
        reason,
        error,
        lag_text(entry["records"]),
        about.meaning if about is not None else "",
        f"{worker} fleet-consumer failed list --config /etc/consumer-fleet/worker.json {chosen}",
        json.dumps(manifest, indent=2),
    )
