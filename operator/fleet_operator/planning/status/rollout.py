"""Conditions of a rollout: Progressing, Serving and Stalled.

Progressing is True while the newest revision is being rolled out, and False once the rollout has ended. Its reason is
then Complete after a success, or Refused after a refusal. Serving is True while workers of any good revision handle
records. Helm and Flux treat an object as failed if Stalled is True (kstatus).

Decision: docs/decisions/0040-deployment-tools.md.
"""

from collections.abc import Mapping
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.fleet.waves import advance
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import Upgrade
from fleet_operator.planning.status.facts import ConsumerGroupFacts

SPEC_MISTAKES: Final = frozenset(
    {c.SPEC_INVALID, c.SPEC_TOO_LARGE, c.TEMPLATE_REFUSED, c.TOPIC_PATTERN_REFUSED, c.HANDLER_CONTAINER_NOT_FOUND}
)
"""Reasons of problems that only a change of the spec can resolve. All other problems may end without such a change."""


BEING_MADE: Final = frozenset({c.NOT_YET_OBSERVED, c.TOPIC_NOT_CREATED, c.CHECKING_REVISION, c.ROLLING_OUT})
"""Reasons of the condition Ready while a fleet is being created and has no ready worker yet."""


def is_being_made(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """True if both statuses show a fleet that is being created and has no ready worker. Another status will then follow
    soon."""
    if before.get("observedGeneration") != after.get("observedGeneration"):
        return False
    ready = [c.find_condition(status.get("conditions") or (), c.READY) or {} for status in (before, after)]
    on_the_way = all(each.get("status") == "False" and each.get("reason") in BEING_MADE for each in ready)
    return on_the_way and not before.get("readyReplicas") and not after.get("readyReplicas")


def progressing(facts: ConsumerGroupFacts) -> Condition:
    refusal = refused(facts)
    if refusal is not None:
        return Condition(c.PROGRESSING, "False", c.REFUSED, refusal.message)
    if facts.hold is not None and not facts.group.spec.suspend:
        return Condition(c.PROGRESSING, "True", c.WAITING, f"{c.RESETTING_OFFSETS}: {facts.hold.text}")
    phase = facts.rollout.phase
    if phase is RolloutPhase.SETTLED:
        return Condition(c.PROGRESSING, "False", c.COMPLETE, f"revision {facts.revision} runs")
    waits = find_wait(facts)
    if waits is not None:
        return Condition(c.PROGRESSING, "True", c.WAITING, f"{waits.reason}: {waits.message}")
    if phase is RolloutPhase.HELD:
        message = "no workers are wanted; the newest revision is checked when workers are wanted"
        return Condition(c.PROGRESSING, "False", c.COMPLETE, message)
    if phase is RolloutPhase.CHECKING:
        message = f"a check pod tests revision {facts.revision} before workers run it"
        return Condition(c.PROGRESSING, "True", c.CHECKING, message)
    message = f"{updated_replicas(facts)} of {facts.scale.replicas} workers run revision {facts.revision}"
    return Condition(c.PROGRESSING, "True", c.ROLLING_OUT, message)


def serving(facts: ConsumerGroupFacts) -> Condition:
    if facts.group.spec.suspend:
        return Condition(c.SERVING, "False", c.SUSPENDED, "spec.suspend is true: no workers run")
    if facts.scale.replicas == 0:
        return Condition(c.SERVING, "False", c.NO_WORKERS_WANTED, "no workers are wanted")
    revisions = sorted({pod.revision for pod in facts.pods if pod.ready and not pod.deleting})
    if not revisions:
        return Condition(c.SERVING, "False", c.NO_WORKER_READY, "no worker is ready")
    ready = sum(pod.ready and not pod.deleting for pod in facts.pods)
    workers = "1 worker" if ready == 1 else f"{ready} workers"
    message = f"{workers} of revision {' and '.join(revisions)} {'handles' if ready == 1 else 'handle'} records"
    if len(revisions) > 1:
        return Condition(c.SERVING, "True", c.SEVERAL_REVISIONS, message)
    newest = revisions[0] == facts.revision
    return Condition(c.SERVING, "True", c.NEWEST_REVISION if newest else c.LAST_GOOD_REVISION, message)


def stalled(facts: ConsumerGroupFacts) -> Condition:
    """True if the newest revision is refused. A refused revision runs only after a change or another try."""
    refusal = refused(facts)
    if refusal is not None:
        return Condition(c.STALLED, "True", c.REFUSED, refusal.message)
    return Condition(c.STALLED, "False", c.NOT_REFUSED, "the newest revision is not refused")


def refused(facts: ConsumerGroupFacts) -> Problem | None:
    """Return the refusal of the newest revision by its check, its pods or the API server; None if the revision is not
    refused."""
    phase, cause = facts.rollout.phase, facts.rollout.cause
    if phase is RolloutPhase.HELD and cause is not None and cause.reason in SPEC_MISTAKES:
        return cause
    if facts.refusal is not None and facts.refusal.reason == c.REFUSED_BY_API_SERVER:
        return facts.refusal
    late = cause is not None and cause.reason == c.PROGRESS_DEADLINE_EXCEEDED
    if cause is None or not (phase is RolloutPhase.REFUSED or (phase is RolloutPhase.WAITING and late)):
        return None
    runs = phase is RolloutPhase.REFUSED and facts.fleet is not None and facts.scale.replicas > 0
    stays = f"; revision {facts.rollout.target} keeps running" if runs else ""
    repeated = "" if late else " and every ten minutes"
    message = (
        f"revision {facts.revision} is refused: {cause.reason}: {cause.message}{stays}; it is tried again when the "
        f"spec or the annotation consumerfleet.io/retry-rollout changes{repeated}"
    )
    return Problem(cause.reason, message)


def advanced_upgrade(facts: ConsumerGroupFacts) -> Upgrade | None:
    """Return the last upgrade, with its phase updated from the rollout of its revision."""
    if facts.upgrade is None or facts.slot.begins:
        return facts.upgrade  # if an upgrade starts now, all facts still describe the previous revision
    return advance(
        facts.upgrade,
        settled=progressing(facts).reason == c.COMPLETE,
        serving=serving(facts).status == "True",
        failed=refused(facts) is not None or facts.rollout.phase is RolloutPhase.CHECK_FAILED,
    )


def updated_replicas(facts: ConsumerGroupFacts) -> int:
    return sum(pod.revision == facts.revision and not pod.deleting for pod in facts.pods)


def find_wait(facts: ConsumerGroupFacts) -> Problem | None:
    """Return the problem that delays the rollout of the newest revision; None without such a problem."""
    if facts.group.paused and facts.rollout.phase is not RolloutPhase.HELD:
        message = "the operator changes nothing while annotation consumerfleet.io/paused is set: remove it to continue"
        return Problem(c.PAUSED_BY_ANNOTATION, message)
    if facts.refusal is not None:
        return facts.refusal
    if facts.rollout.waits is not None:
        return facts.rollout.waits
    cause = facts.rollout.cause
    if facts.rollout.phase is RolloutPhase.CHECK_FAILED and cause is not None:
        return Problem(cause.reason, f"{cause.message}; it is checked again every minute")
    return cause
