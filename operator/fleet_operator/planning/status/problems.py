"""Root causes, in the order in which a user should fix them.

The checks run in the order of `CHAIN`, and each returns one kind of problem or None. The condition `Ready` shows the
first problem if the fleet does not work; `Degraded` also shows it if the fleet works.
"""

from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning import times
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import PodFacts
from fleet_operator.planning.lag import lag_bucket, lag_text
from fleet_operator.planning.problem import Problem, name_some
from fleet_operator.planning.retry.topics import missing_topics
from fleet_operator.planning.scaling.schedules import find_refused
from fleet_operator.planning.status.facts import ConsumerGroupFacts

FAILING_REASONS: Final = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "Unschedulable",
    }
)
"""Waiting reasons of the kubelet and the scheduler that persist until somebody changes something."""

DEPLOYMENT_REASONS: Final = frozenset({conditions.OUTPUT_NOT_LISTED, conditions.HANDLER_MISCONFIGURED})
"""Reasons that workers report for errors in the configuration, not in a record."""

REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance"})
REBALANCE_LONG_S: Final = 120.0
"""Seconds after which a rebalance is reported as a problem. A longer rebalance may still be normal. It waits for the
slowest handler, and members may take `consumer.maxPollIntervalSeconds` (by default five minutes) to join."""


def find_problem(facts: ConsumerGroupFacts) -> Problem | None:
    found = (check(facts) for check in CHAIN)
    return next((problem for problem in found if problem is not None), None)


def _spec(facts: ConsumerGroupFacts) -> Problem | None:
    """Return the problem that prevents a revision from being planned. Without a revision, the later checks have no
    meaning."""
    cause = facts.rollout.cause if facts.rollout.phase is RolloutPhase.HELD else None
    if cause is not None and cause.reason == conditions.TOPIC_NOT_CREATED:
        return facts.topic_problem or cause  # if the brokers refused the topics, their message has more detail
    return cause


def _cluster(facts: ConsumerGroupFacts) -> Problem | None:
    """Return the problem if the Kafka cluster does not answer. This problem also explains errors of the workers."""
    observation = facts.observation
    if observation is None or observation.reachable:
        return None
    return Problem(observation.reason or conditions.BROKER_UNREACHABLE, observation.message)


def _revision(facts: ConsumerGroupFacts) -> Problem | None:
    """Return the problem if the wanted revision failed its check or was refused."""
    return None if _is_late(facts) or facts.rollout.phase is RolloutPhase.HELD else facts.rollout.cause


def _late(facts: ConsumerGroupFacts) -> Problem | None:
    """Return the problem if the wanted revision did not become ready in time. Its place in `CHAIN` is after the pods'
    and workers' own problems."""
    return facts.rollout.cause if _is_late(facts) and facts.rollout.phase is not RolloutPhase.HELD else None


def _is_late(facts: ConsumerGroupFacts) -> bool:
    cause = facts.rollout.cause
    return cause is not None and cause.reason == conditions.PROGRESS_DEADLINE_EXCEEDED


def find_failure(pods: Iterable[PodFacts], reason: str = conditions.WORKERS_FAILING) -> Problem | None:
    """Return the problem of the first pod that cannot run or whose container died recently; None without such a pod."""
    for pod in pods:
        if not pod.deleting and pod.reason in FAILING_REASONS:
            return Problem(reason, f"pod {pod.name}: {pod.reason}: {pod.message}")
        if not pod.deleting and pod.ended is not None:
            return Problem(reason, f"pod {pod.name}: {pod.ended}")
    return None


def _policy(facts: ConsumerGroupFacts) -> Problem | None:
    retry = facts.retry
    if retry is None or retry.problem is None:
        return None
    stays = f"; workers keep policy revision {retry.current}" if retry.current else ""
    return Problem(retry.problem.reason, f"{retry.problem.message}{stays}")


def _unread(facts: ConsumerGroupFacts) -> Problem | None:
    """Return the problem of records that wait although retries have ended. Another tool, or a worker on a disconnected
    node, may have written them."""
    observed = facts.observed_group
    waiting = observed.retry.waiting if observed is not None and observed.retry is not None else None
    if facts.retry is None or not facts.retry.ended or not waiting:
        return None
    return Problem(
        conditions.RETRY_NOT_CONFIGURED,
        "records wait in retry topics that no worker reads, because spec.retry was removed: set spec.retry to have "
        "them processed, or delete the topics",
    )


def _schedule(facts: ConsumerGroupFacts) -> Problem | None:
    scaling = facts.group.spec.scaling
    refused = find_refused(scaling) if scaling is not None else None
    if refused is None:
        return None
    return Problem(conditions.SCHEDULE_REFUSED, f"{refused}; until it is corrected, scaling ignores this schedule")


def _offset_reset(facts: ConsumerGroupFacts) -> Problem | None:
    hold = facts.hold
    if hold is None or not hold.waits:
        return None
    message = f"OffsetReset {hold.name!r} waits: {hold.reason}: {hold.message}"
    return Problem(conditions.OFFSET_RESET_WAITS, message)


def needs_revisit(facts: ConsumerGroupFacts) -> bool:
    """True if a problem may begin or end without an event, so the group must be reconciled again soon."""
    if facts.scale.replicas == 0 and not facts.retry_pods:
        return False
    if worker_problem(facts) is not None or find_failure(facts.all_pods) is not None:
        return True
    if any(worker.stuck or worker.breaker_open for worker in facts.workers):
        return True
    observed = facts.observed_group
    return observed is not None and observed.state in REBALANCING


def needs_reports(facts: ConsumerGroupFacts) -> bool:
    """True if the operator must poll the workers often. This is necessary while records wait, because a record could
    get stuck unnoticed, and while a report shows a problem."""
    if facts.scale.replicas == 0 and not facts.retry_pods:
        return False
    if needs_revisit(facts):
        return True
    observed, lag = facts.observed_group, facts.view.lag
    if observed is None or lag is None:
        return False  # when these values become known, the observer requeues the group
    retry = observed.retry
    if facts.retry_pods and retry is not None and (retry.due_lag != 0 or not retry.counted):
        return True
    return not lag.complete or lag.total != 0


def deployment_problem(facts: ConsumerGroupFacts) -> Problem | None:
    """Return a configuration error that a worker reports, or None. The affected records wait until the error is
    fixed."""
    for worker in sorted(facts.workers, key=lambda worker: worker.pod):
        for stuck in worker.stuck:
            if stuck.reason in DEPLOYMENT_REASONS:
                place = f"{stuck.topic}-{stuck.partition} at offset {stuck.offset}"
                return Problem(stuck.reason, f"worker {worker.pod} cannot continue {place}: {stuck.message}")
        if worker.error_reason in DEPLOYMENT_REASONS:
            message = f"worker {worker.pod} cannot handle its records: {worker.error_message}"
            return Problem(worker.error_reason, message)
    return None


def worker_problem(facts: ConsumerGroupFacts) -> Problem | None:
    for worker in sorted(facts.workers, key=lambda worker: worker.pod):
        if worker.error_reason:
            named = worker.error_reason in (conditions.DATA_UNREADABLE, conditions.COMMITS_REFUSED)
            return Problem(
                worker.error_reason if named else conditions.WORKER_REPORTS_ERROR,
                f"worker {worker.pod} reports {worker.error_reason}: {worker.error_message}",
            )
        if worker.ended_reason:
            since = "" if worker.ended_since is None else f" since {times.to_text(worker.ended_since)}"
            return Problem(
                conditions.WORKER_REPORTS_ERROR,
                f"worker {worker.pod} restarts its sessions after errors{since}: "
                f"{worker.ended_reason}: {worker.ended_message}",
            )
    return None


def _rebalance(facts: ConsumerGroupFacts) -> Problem | None:
    """Return the problem if a rebalance takes long. Until the rebalance ends, some or all partitions are not read. The
    duration is measured between observations of this process, so a new process measures from zero."""
    observed = facts.observed_group
    if observed is None or observed.state not in REBALANCING:
        return None
    latest = takewhile(lambda transition: transition.after in REBALANCING, reversed(observed.transitions))
    *_, began = observed.observed_at, *(transition.at for transition in latest)
    if observed.observed_at - began < REBALANCE_LONG_S:
        return None
    mine = {pod.name for pod in facts.pods}
    revoking = sorted(worker.pod for worker in facts.workers if worker.revoking and worker.pod in mine)
    held_up = "it waits for a member that is slow to release its partitions, or to assign them"
    if revoking:
        held_up = f"it waits for handlers that have not released their partitions, in {name_some(revoking)}"
    return Problem(
        conditions.REBALANCE_TAKES_LONG,
        f"the group has been rebalancing since {times.to_text(began)} and is in {observed.state}: {held_up}; see "
        "status.members and the workers' logs",
    )


def _transaction(facts: ConsumerGroupFacts) -> Problem | None:
    """Return the problem of a hanging transaction. Until the transaction ends, consumers with read_committed wait, and
    their lag is 0."""
    hanging = facts.observed_group.hanging if facts.observed_group is not None else {}
    if not hanging:
        return None
    (topic, number), first = next(iter(hanging.items()))
    behind = lag_text(lag_bucket(first.end_offset - first.offset))
    others = [f"{name}-{partition}" for name, partition in hanging][1:]
    more = f"; the same in {name_some(others)}" if others else ""
    return Problem(
        conditions.TRANSACTION_HANGS,
        f"{topic}-{number} has been blocked at offset {first.offset} since {times.to_text(first.since)}: a transaction "
        f"that starts there is open. The group reads only committed records, so it does not get the {behind} records "
        "from there on, and its lag does not count them. Check the producer; if it no longer runs, brokers end the "
        "transaction after its transaction.timeout.ms. If the transaction stays open, find it with "
        f"kafka-transactions.sh --bootstrap-server ... find-hanging --topic {topic}, and end it with abort --topic "
        f"{topic} --partition {number} --start-offset {first.offset}{more}",
    )


def topics_problem(facts: ConsumerGroupFacts) -> Problem | None:
    """Return the first known problem with a topic, or None. A topic that has not been observed yet is not a problem."""
    if facts.observation is None or not facts.observation.reachable:
        return None
    missing = missing_topics(facts.group, facts.view)
    if missing is not None:
        return missing
    for name in (*(facts.view.source_topics or ()), *facts.group.spec.handler.outputs):
        topic = facts.observation.topics.get(name)
        if topic is not None and topic.error:
            return Problem(topic.error, f"topic {name} cannot be used: the brokers answer {topic.error}")
    return facts.topic_problem


CHAIN: Final[tuple[Callable[[ConsumerGroupFacts], Problem | None], ...]] = (
    _spec,
    lambda facts: facts.refusal,  # exceeded quota, admission webhook, or a template that the API server rejects
    _cluster,
    topics_problem,
    _revision,
    lambda facts: find_failure(facts.pods),
    deployment_problem,
    worker_problem,
    _late,
    _rebalance,
    _transaction,
    _policy,
    # If retry workers fail, no record is lost, but waiting records are not retried.
    lambda facts: find_failure(facts.retry_pods, conditions.RETRY_WORKERS_FAILING),
    _schedule,
    _offset_reset,
    _unread,
)
