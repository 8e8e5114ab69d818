"""The status of a Redrive, projected from a decision and from the counts of its runs. Pure."""

from collections.abc import Mapping
from typing import Any

from fleet_consumer.contract.redrive_config import COUNTS
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.planning import times
from fleet_operator.planning.redrive.phase import RedriveFacts, RedriveProgress
from fleet_operator.planning.run import Act, RunDecision, run_conditions


def project_redrive_status(
    facts: RedriveFacts,
    decision: RunDecision,
    progress: RedriveProgress | None,
    rate_per_second: int | None,
    now: float,
) -> dict[str, Any]:
    """Build the whole status. Counts that cannot be read keep their last values. Only the count `remaining` may
    decrease."""
    redrive, previous = facts.redrive, facts.redrive.status
    status: dict[str, Any] = {"phase": decision.phase}
    status |= _counts(facts, progress, previous) | _redriven(facts, decision, previous)
    if facts.started or decision.phase == "Running":
        status["startedAt"] = previous.get("startedAt") or times.to_text(now)
    if decision.is_final:
        status["finishedAt"] = previous.get("finishedAt") or times.to_text(now)
        rate_per_second = _whole_rate(status, now)
    if rate_per_second is not None:
        status["ratePerSecond"] = rate_per_second
    available = "the group, its cluster and its topics are available"
    verdicts = run_conditions(decision, facts.obstacle, unready=(c.POD_NOT_RUNNING,), available=available)
    return c.with_conditions(status, verdicts, times.to_text(now), redrive.metadata.generation, previous)


def _counts(facts: RedriveFacts, progress: RedriveProgress | None, previous: Mapping[str, Any]) -> dict[str, int]:
    """Return the exact counts in the run's final report or, without a report, the counts in the run's commits."""
    counts: dict[str, int] = {name: previous[name] for name in (*COUNTS, "remaining") if name in previous}
    report = facts.report
    for told in (progress, report.counts if report is not None and report.ok else None):
        if told is not None:
            counts |= {name: max(getattr(told, field), counts.get(name, 0)) for name, field in COUNTS.items()}
            counts["remaining"] = told.remaining
    return counts


def _redriven(facts: RedriveFacts, decision: RunDecision, previous: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that `planning.status.retry` needs from a Redrive that has succeeded.

    The failed topic's id comes from a poll before the first Job was created, and is never updated. Topic ids are
    unique. So if a later poll shows the same id, the run has read this topic and not a recreated topic."""
    topic_id = previous.get("failedTopicId")
    if decision.act is Act.CREATE and not facts.started:
        topic_id = facts.failed_topic_id
    redriven_to, report = previous.get("redrivenTo"), facts.report
    if decision.phase == "Succeeded" and report is not None and report.ok and report.redriven_to is not None:
        redriven_to = report.redriven_to
    known = {"failedTopicId": topic_id, "redrivenTo": redriven_to}
    return {name: value for name, value in known.items() if value is not None}


def _whole_rate(status: Mapping[str, Any], now: float) -> int | None:
    """The average rate of an ended Redrive in records per second. A duration below one second counts as one second."""
    began = times.from_text(status.get("startedAt"))
    moved: int | None = status.get("moved")
    if began is None or moved is None:
        return None
    ended = times.from_text(status.get("finishedAt")) or now
    return round(moved / max(ended - began, 1.0))
