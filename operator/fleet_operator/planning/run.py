"""Runs: Jobs or Spark applications that work through records once. Pure.

Objects may have been touched by people: a value that cannot be read becomes the cautious one, never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from fleet_operator.planning.labels import RATE_ANNOTATION
from fleet_operator.planning.problem import Problem

NO_LIMIT: Final = "unlimited"
UNREADABLE_RATE: Final = -1
"""No rate that can be asked for, so that a Job whose annotation is damaged is replaced."""


class RunState(Enum):
    """The state of a run's Job."""

    ACTIVE = "Active"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Act(Enum):
    """The one thing to do about a run's Job or application; only Jobs are suspended and resumed."""

    NOTHING = "Nothing"
    CREATE = "Create"
    SUSPEND = "Suspend"
    RESUME = "Resume"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """The Job; `rate` is the limit that it was made with, `problem` why it failed."""

    state: RunState
    rate: int | None = None
    deleting: bool = False
    problem: Problem | None = None

    @property
    def at_work(self) -> bool:
        """True if it may make pods and is meant to."""
        return self.state is RunState.ACTIVE and not self.deleting


def suspension(job: JobFacts | None) -> Act:
    """Stop a Job from making pods, if one does."""
    return Act.SUSPEND if job is not None and job.at_work else Act.NOTHING


def removal(job: JobFacts | None) -> Act:
    """Delete the Job, if there is one."""
    return Act.DELETE if job is not None and not job.deleting else Act.NOTHING


def rate_text(rate: int | None) -> str:
    return NO_LIMIT if rate is None else str(rate)


def read_job(body: Mapping[str, Any] | None) -> JobFacts | None:
    """The Job; None when there is none."""
    if body is None:
        return None
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    held = {entry["type"]: entry for entry in status.get("conditions") or () if entry.get("status") == "True"}
    state, problem = RunState.ACTIVE, None
    if "Complete" in held:
        state = RunState.COMPLETE
    elif "Failed" in held:
        state, failure = RunState.FAILED, held["Failed"]
        problem = Problem(failure.get("reason") or "Failed", failure.get("message") or "no message")
    elif spec.get("suspend"):
        state = RunState.SUSPENDED
    rate = _rate((metadata.get("annotations") or {}).get(RATE_ANNOTATION))
    return JobFacts(state=state, rate=rate, deleting="deletionTimestamp" in metadata, problem=problem)


def read_waiting(pod_status: Mapping[str, Any]) -> Problem | None:
    """The reason why a pod that has not ended does not run yet; None while it runs or starts normally."""
    container: Mapping[str, Any] = next(iter(pod_status.get("containerStatuses") or ()), {})
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if reason and reason not in ("ContainerCreating", "PodInitializing"):
        return Problem(reason, waiting.get("message", "") or "no message")
    for condition in pod_status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return Problem(condition.get("reason") or "Unschedulable", condition.get("message") or "no message")
    return None


def _rate(text: str | None) -> int | None:
    if text == NO_LIMIT:
        return None
    return int(text) if text is not None and text.isascii() and text.isdigit() else UNREADABLE_RATE
