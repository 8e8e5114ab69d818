"""The status of a Backfill, projected from a decision and from the driver's counts. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.backfill_ledger import COMPARED, COUNTS, SAMPLE_TEXT_MAX, SAMPLES_MAX, Comparison, Ledger
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.planning import times
from fleet_operator.planning.backfill.attempts import end_status
from fleet_operator.planning.backfill.parsing import Progress
from fleet_operator.planning.backfill.phase import BackfillDecision, BackfillFacts
from fleet_operator.planning.backfill.ranges import IDENTITY, range_status
from fleet_operator.planning.run import run_conditions

DECIDING: Final = (
    *("topic", *IDENTITY, "resolvedRange", "resolvedTime", "startedAt", "finishedAt"),
    *("attempts", "handlerAttempt", "applicationName", "applicationUid", "lastEnded"),
)
"""Status fields on which the next step depends. Like the counts, these fields keep their values until newer values are
known."""
COUNTED: Final = (
    *("slices", "offsetsCovered", "offsetsTotal", "records", "comparison"),
    *("ratePerSecond", "estimatedEnd", "progressText", "repeatedTasks"),
)
UNREADY: Final = frozenset({c.POD_NOT_RUNNING, c.WAITING_TO_RETRY, c.NO_PROGRESS})
REMAINING_MAX: Final = 1000
"""Maximum number of partitions listed in `status.remaining`."""
UI_PORT: Final = 4040
YEARS_S: Final = 10 * 365 * 86_400
"""Maximum seconds from now to an estimated end. A later estimate is not written to the status."""


def project_backfill_status(facts: BackfillFacts, decision: BackfillDecision, now: float) -> dict[str, Any]:
    """Build the whole status. Counts that cannot be read keep their last values."""
    backfill, previous = facts.backfill, facts.backfill.status
    status: dict[str, Any] = {key: previous[key] for key in (*DECIDING, *COUNTED) if key in previous}
    status["phase"] = decision.phase
    if decision.resolved is not None:
        status |= range_status(decision.resolved)
        passes = len(facts.progress.passes) if isinstance(facts.progress, Progress) else 1
        status |= {"offsetsTotal": decision.resolved.offsets * passes, "offsetsCovered": 0}
    if isinstance(facts.progress, Progress) and facts.started:
        status |= _progress(facts.progress, previous, now)
    status["retries"] = backfill.spec.retry
    if backfill.is_reopened:
        status["handlerAttempt"] = backfill.attempts + 1
    if not decision.is_final:
        status.pop("finishedAt", None)
    if decision.attempt is not None:
        status |= {
            "attempts": decision.attempt,
            "applicationName": naming.backfill_application(backfill.metadata.name, decision.attempt),
            "startedAt": previous.get("startedAt") or times.to_text(now),
        }
        status.pop("applicationUid", None)
    elif facts.application.uid:
        status["applicationUid"] = facts.application.uid
    if decision.ended is not None:
        status["lastEnded"] = end_status(decision.ended)
    if decision.is_final:
        ended = None if backfill.is_reopened else previous.get("finishedAt")
        status["finishedAt"] = status["estimatedEnd"] = ended or times.to_text(now)
        if decision.phase == "Failed" and isinstance(facts.progress, Progress):
            status["remaining"] = _remaining(facts.progress)
        status.pop("throttledBy", None)
        if decision.estimate is not None:
            status["estimate"] = dict(decision.estimate)
        if decision.phase == "Succeeded" and status.get("offsetsTotal", 0) == 0:
            status["progressText"] = "nothing to do"
    if backfill.spec.spark.ui and decision.phase == "Running" and not facts.application.state.over:
        pod = f"pod/{naming.backfill_application(backfill.metadata.name, backfill.attempts)}-driver"
        status["sparkUI"] = (
            f"kubectl --namespace {backfill.metadata.namespace} port-forward {pod} {UI_PORT}, "
            f"then http://localhost:{UI_PORT}"
        )
    available = "the group, its cluster and its handler are available"
    verdicts = (
        *run_conditions(decision, facts.obstacle, unready=UNREADY, available=available),
        _spark(facts),
        _range(facts, decision),
        _handler(facts),
    )
    return c.with_conditions(status, verdicts, times.to_text(now), backfill.metadata.generation, previous)


def _progress(progress: Progress, previous: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Build the fields about progress. The estimated end changes only if the counts change; otherwise every reconcile
    would write the status."""
    ledger = progress.ledger
    status: dict[str, Any] = {"offsetsCovered": progress.covered, "offsetsTotal": progress.total}
    if ledger is None:
        return status
    status["slices"] = {
        "total": ledger.slices_done + ledger.slices_left,
        "done": ledger.slices_done,
        "running": int(ledger.slice_offsets > 0),
    }
    status["records"] = {name: getattr(ledger.counts, attribute) for name, attribute in COUNTS.items()}
    if ledger.repeated:
        status["repeatedTasks"] = ledger.repeated
    if ledger.comparison is not None:
        status["comparison"] = _comparison(ledger.comparison)
    status["ratePerSecond"] = round(min(ledger.records_per_second, 2.0**53))
    if ledger.throttled_by:
        status["throttledBy"] = ledger.throttled_by[:63]
    status["progressText"] = _text(progress, ledger)
    known = {key: previous.get(key) for key in ("offsetsCovered", "ratePerSecond")}
    if known != {key: status[key] for key in known} or "estimatedEnd" not in previous:
        left, rate = progress.total - progress.covered, ledger.offsets_per_second
        is_known = rate > 0.0 and left / rate <= YEARS_S
        status["estimatedEnd"] = times.to_text(now + left / rate) if is_known else previous.get("estimatedEnd")
    return {key: value for key, value in status.items() if value is not None}


def _remaining(progress: Progress) -> list[dict[str, int]]:
    """List the remaining range of each partition in the form of `spec.range.offsets`."""
    left = progress.ledger.remaining if progress.ledger is not None else {}
    return [
        {"partition": partition, "from": ranges[0][0], "to": ranges[-1][1]}
        for partition, ranges in sorted(left.items())[:REMAINING_MAX]
    ]


def _text(progress: Progress, ledger: Ledger) -> str:
    percent = 100 * progress.covered // progress.total if progress.total else 100
    total = ledger.slices_done + ledger.slices_left
    which = f" of the {ledger.handlers.lower()} handler" if len(progress.passes) > 1 else ""
    if not ledger.offsets_left:
        return f"{percent} %, {total} slice{'s' if total != 1 else ''}{which}"
    return f"{percent} %, slice {min(ledger.slices_done + 1, total)} of {total}{which}"


def _comparison(comparison: Comparison) -> dict[str, Any]:
    samples = [
        {
            "partition": sample.partition,
            "offset": sample.offset,
            "live": sample.live[:SAMPLE_TEXT_MAX],
            "candidate": sample.candidate[:SAMPLE_TEXT_MAX],
        }
        for sample in comparison.samples[:SAMPLES_MAX]
    ]
    return {**{name: getattr(comparison, attribute) for name, attribute in COMPARED.items()}, "samples": samples}


def _spark(facts: BackfillFacts) -> Condition:
    if facts.backfill.only_counts:
        return Condition(c.SPARK_AVAILABLE, "Unknown", c.SPARK_NOT_NEEDED, "a dry run needs no Spark")
    if facts.spark is not None:
        return Condition(c.SPARK_AVAILABLE, "False", facts.spark.reason, facts.spark.message)
    if facts.spark_asked:
        return Condition(c.SPARK_AVAILABLE, "True", c.SPARK_INSTALLED, "SparkApplications can be created")
    return _kept(facts, c.SPARK_AVAILABLE, c.SPARK_NOT_ASKED, "the API server has not been asked for SparkApplications")


def _range(facts: BackfillFacts, decision: BackfillDecision) -> Condition:
    found = decision.resolved or facts.resolved
    if found is not None:
        message = f"the range has {found.size} of topic {found.topic!r}"
        if decision.resolved is None:
            return _kept(facts, c.RANGE_RESOLVED, c.RESOLVED, message, "True")
        reason = c.EXPIRED_IGNORED if found.note else c.RESOLVED
        return Condition(c.RANGE_RESOLVED, "True", reason, "; ".join(filter(None, (message, found.note, found.cut))))
    if decision.is_final or decision.reason not in (c.RESOLVING, c.SUSPENDED):
        return Condition(c.RANGE_RESOLVED, "False", decision.reason, decision.message)
    return Condition(c.RANGE_RESOLVED, "Unknown", c.RESOLVING, "the brokers have not been asked for the range")


def _handler(facts: BackfillFacts) -> Condition:
    if facts.handler is not None:
        return Condition(c.HANDLER_SUPPORTED, "False", facts.handler.reason, facts.handler.message)
    if facts.handler_read:
        return Condition(c.HANDLER_SUPPORTED, "True", c.HANDLER_RUNNABLE, "the handler can be run on Spark")
    return _kept(facts, c.HANDLER_SUPPORTED, c.NOT_YET_OBSERVED, "the ConsumerGroup's handler has not been read")


def _kept(facts: BackfillFacts, kind: str, reason: str, message: str, status: c.Status = "Unknown") -> Condition:
    """Return the stored condition. Return a new condition if none is stored, or if `status` is True and the stored
    status is not."""
    found = c.find_condition(facts.backfill.status.get("conditions") or (), kind)
    if found is None or (status == "True" and found.get("status") != "True"):
        return Condition(kind, status, reason, message)
    return Condition(kind, found["status"], str(found.get("reason")), str(found.get("message")))
