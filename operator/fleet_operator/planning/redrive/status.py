"""The status of a Redrive, projected from a decision and from what its runs count. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet_consumer.contract.redrive_config import COUNTS
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.api.v1alpha1.redrive import FINAL_PHASES
from fleet_operator.planning import times
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.redrive.phase import JobReport, RedriveDecision, RedriveFacts
from fleet_operator.planning.redrive.readings import RedriveProgress
from fleet_operator.planning.run import Act


def project_redrive_status(
    facts: RedriveFacts,
    decision: RedriveDecision,
    progress: RedriveProgress | None,
    rate_per_second: int | None,
    now: float,
) -> dict[str, Any]:
    """The whole status; counts that could not be asked keep their last values, and no count ever goes back."""
    redrive, previous = facts.redrive, facts.redrive.status
    status: dict[str, Any] = {"phase": decision.phase}
    status |= _counts(facts, progress, previous) | _redriven(facts, decision, previous)
    if facts.started or decision.phase == "Running":
        status["startedAt"] = previous.get("startedAt") or times.to_text(now)
    if decision.phase in FINAL_PHASES:
        status["finishedAt"] = previous.get("finishedAt") or times.to_text(now)
        rate_per_second = _whole_rate(status, now)
    if rate_per_second is not None:
        status["ratePerSecond"] = rate_per_second
    verdicts = (_ready(facts, decision), *_ends(decision))
    return c.with_conditions(status, verdicts, times.to_text(now), redrive.metadata.generation, previous)


def renew_final_status(status: Mapping[str, Any], generation: int) -> dict[str, Any]:
    """The status of a Redrive that has ended and was edited since: nothing but the generation that was looked at."""
    renewed = [{**condition, "observedGeneration": generation} for condition in status.get("conditions") or ()]
    return {**status, "observedGeneration": generation, "conditions": renewed}


def invalid_redrive_status(
    generation: int, problem: Problem, previous: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """The status of an object that the CRD should have refused: the last known one, and why it is not looked at."""
    verdicts = (
        Condition(c.READY, "False", problem.reason, problem.message),
        Condition(c.COMPLETE, "Unknown", problem.reason, problem.message),
        Condition(c.FAILED, "Unknown", problem.reason, problem.message),
    )
    return c.with_conditions(previous, verdicts, times.to_text(now), generation)


def _counts(facts: RedriveFacts, progress: RedriveProgress | None, previous: Mapping[str, Any]) -> dict[str, int]:
    """A run's last word is exact; before it, what it has committed."""
    counts: dict[str, int] = {name: previous[name] for name in (*COUNTS, "remaining") if name in previous}
    report = facts.report
    tellers: list[RedriveProgress | JobReport] = [] if progress is None else [progress]
    if progress is not None:
        counts["remaining"] = progress.remaining
    if report is not None and report.ok:
        tellers.append(report)
        counts["remaining"] = 0
    for teller in tellers:
        counts |= {name: max(getattr(teller, field), counts.get(name, 0)) for name, field in COUNTS.items()}
    return counts


def _redriven(facts: RedriveFacts, decision: RedriveDecision, previous: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that `planning.status.retry` reads of a Redrive that has succeeded.

    The topic's id is that of a look before the first Job was made, and never renewed: as no topic has the id of
    another, whoever sees it again later knows that the run read this very topic.
    """
    topic_id = previous.get("failedTopicId")
    if decision.act is Act.CREATE and not facts.started:
        topic_id = facts.failed_topic_id
    redriven_to, report = previous.get("redrivenTo"), facts.report
    if decision.phase == "Succeeded" and report is not None and report.ok and report.redriven_to is not None:
        redriven_to = report.redriven_to
    known = {"failedTopicId": topic_id, "redrivenTo": redriven_to}
    return {name: value for name, value in known.items() if value is not None}


def _whole_rate(status: Mapping[str, Any], now: float) -> int | None:
    """Over the whole time of a Redrive that has ended; a run of less than a second counts as one."""
    began = times.from_text(status.get("startedAt"))
    moved: int | None = status.get("moved")
    if began is None or moved is None:
        return None
    ended = times.from_text(status.get("finishedAt")) or now
    return round(moved / max(ended - began, 1.0))


def _ready(facts: RedriveFacts, decision: RedriveDecision) -> Condition:
    """Ready: all that a run needs exists; a Redrive that has ended needs nothing."""
    if decision.phase == "Succeeded":
        return Condition(c.READY, "True", decision.reason, decision.message)
    if decision.phase in ("Failed", "Cancelled", "Pending") or decision.reason == c.POD_NOT_RUNNING:
        return Condition(c.READY, "False", decision.reason, decision.message)
    if decision.phase == "Paused" and facts.obstacle is not None:
        return Condition(c.READY, "False", facts.obstacle.reason, facts.obstacle.message)
    return Condition(c.READY, "True", c.READY_TO_RUN, "the group, its cluster and its topics are available")


def _ends(decision: RedriveDecision) -> tuple[Condition, Condition]:
    """Complete and Failed, as a Job has them: at most one is True, and exactly one of a Redrive that has ended."""
    done, final = decision.phase == "Succeeded", decision.phase in FINAL_PHASES
    return (
        Condition(c.COMPLETE, "True" if done else "False", decision.reason, decision.message),
        Condition(c.FAILED, "True" if final and not done else "False", decision.reason, decision.message),
    )
