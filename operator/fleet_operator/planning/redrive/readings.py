"""A Redrive's Job and pods (plain dicts, as the API server gives them) and its offsets in Kafka, read into facts. Pure.

Objects may have been touched by people, and metadata of offsets is a text that anybody may write: what cannot be read
becomes the cautious value, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_consumer.contract.redrive_config import COUNTS
from fleet_operator.planning.foreign_json import read_last_object, read_object
from fleet_operator.planning.labels import REDRIVE_LABEL
from fleet_operator.planning.redrive.phase import JobReport, RunPod
from fleet_operator.planning.run import RunState, read_job, read_waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One committed offset of a Redrive's own Kafka group."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveProgress:
    """Progress of a Redrive, by its own count; `remaining` are offsets of the failed topic not looked at yet."""

    selected: int
    moved: int
    guarded: int
    remaining: int
    moved_before: int = 0
    failed_again: int = 0


def read_run_pods(pods: Iterable[Mapping[str, Any]], *, job_uid: str) -> tuple[RunPod, ...]:
    """Pods of a Redrive's runs, in the order of their making.

    Only those of the Job with this uid have a say: others may belong to a deleted Redrive of the same name.
    """
    ordered = sorted(pods, key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]))
    return tuple(_read_run_pod(pod, job_uid) for pod in ordered)


def redrive_of(child: Mapping[str, Any]) -> str | None:
    """The name of the Redrive that a Job or a pod was made for; None for one that was made for something else."""
    name: str | None = (child["metadata"].get("labels") or {}).get(REDRIVE_LABEL)
    return name


def at_work(jobs: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The Redrives that may be writing: their Job may make a pod at any time, or a pod of theirs has not ended."""
    active = [job for job in jobs if (read := read_job(job)) is not None and read.state is RunState.ACTIVE]
    busy = (*active, *(pod for pod in pods if redrive_of(pod) and not _read_run_pod(pod, "").ended))
    return tuple(name for child in busy if (name := redrive_of(child)) is not None)


def _read_run_pod(pod: Mapping[str, Any], job_uid: str) -> RunPod:
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    ended = status.get("phase") in ("Succeeded", "Failed")
    owners = pod["metadata"].get("ownerReferences") or ()
    if not any(owner.get("uid") == job_uid for owner in owners):
        return RunPod(name=name, ended=ended)
    if not ended:
        return RunPod(name=name, waiting=read_waiting(status))
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    terminated = (container.get("state") or {}).get("terminated") or {}
    return RunPod(name=name, ended=True, report=_report(terminated.get("message") or ""))


def _report(text: str) -> JobReport | None:
    found = read_last_object(text)
    if found is None or not isinstance(found.get("ok"), bool):
        return None
    return JobReport(
        ok=found["ok"],
        **{field: _count(found, name) for name, field in COUNTS.items()},
        redriven_to=_count(found, "redrivenTo") if "redrivenTo" in found else None,
        reason=str(found.get("reason") or ""),
        message=str(found.get("message") or ""),
    )


def read_progress(positions: Iterable[Position]) -> RedriveProgress | None:
    """The counts of all partitions together; None before the first commit."""
    counts = dict.fromkeys(COUNTS.values(), 0)
    remaining, known = 0, False
    for position in positions:
        # librdkafka commits the zero byte at the end of its strings as well.
        found = read_object(position.metadata.rstrip("\0"))
        if found is None:
            continue
        known = True
        for name, field in COUNTS.items():
            counts[field] += _count(found, name)
        remaining += max(_count(found, "end") - position.offset, 0)
    return RedriveProgress(**counts, remaining=remaining) if known else None


def _count(found: Mapping[str, Any], key: str) -> int:
    value = found.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
