"""Root causes, in the order in which a person should fix them.

A chain of checks: each looks at one place and returns a problem or None. `Ready` shows the first problem when the fleet
does not work, `Degraded` shows it in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
"""The kubelet's and the scheduler's waiting reasons that do not pass by themselves."""

DEPLOYMENT_REASONS: Final = frozenset({conditions.OUTPUT_NOT_LISTED, conditions.HANDLER_MISCONFIGURED})
"""Reasons of workers for errors that are the deployment's, and no record's."""

REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance"})
REBALANCE_LONG_S: Final = 120.0
"""A rebalance waits for the slowest handler. One that lasts longer is worth a look, though it may be as meant: members
have `consumer.maxPollIntervalSeconds`, five minutes by default, to join."""


def find_problems(facts: ConsumerGroupFacts) -> Iterator[Problem]:
    """All problems, root causes first."""
    for check in CHAIN:
        problem = check(facts)
        if problem is not None:
            yield problem


def _spec(facts: ConsumerGroupFacts) -> Problem | None:
    """The spec cannot become a revision: later checks have nothing to go by."""
    cause = facts.rollout.cause if facts.rollout.phase is RolloutPhase.HELD else None
    if cause is not None and cause.reason == conditions.TOPIC_NOT_CREATED:
        return facts.topic_problem or cause  # the brokers refuse the topics: their message says more
    return cause


def _cluster(facts: ConsumerGroupFacts) -> Problem | None:
    """The Kafka cluster does not answer: the workers' errors follow from this."""
    observation = facts.observation
    if observation is None or observation.reachable:
        return None
    return Problem(observation.reason or conditions.BROKER_UNREACHABLE, observation.message)


def _revision(facts: ConsumerGroupFacts) -> Problem | None:
    """The wanted revision failed its check."""
    return None if _is_late(facts) or facts.rollout.phase is RolloutPhase.HELD else facts.rollout.cause


def _late(facts: ConsumerGroupFacts) -> Problem | None:
    """The wanted revision did not become ready, and neither pods nor workers report a reason."""
    return facts.rollout.cause if _is_late(facts) and facts.rollout.phase is not RolloutPhase.HELD else None


def _is_late(facts: ConsumerGroupFacts) -> bool:
    cause = facts.rollout.cause
    return cause is not None and cause.reason == conditions.PROGRESS_DEADLINE_EXCEEDED


def _pods(facts: ConsumerGroupFacts) -> Problem | None:
    """Pods that cannot run."""
    failure = next(failures(facts.pods), None)
    return None if failure is None else Problem(conditions.WORKERS_FAILING, failure)


def failures(pods: Iterable[PodFacts]) -> Iterator[str]:
    """One sentence for each pod that cannot run, or whose container died lately."""
    for pod in pods:
        if pod.deleting:
            continue
        if pod.reason in FAILING_REASONS:
            yield f"pod {pod.name}: {pod.reason}: {pod.message}"
        elif pod.ended is not None:
            yield f"pod {pod.name}: {pod.ended}"


def _policy(facts: ConsumerGroupFacts) -> Problem | None:
    """The RetryPolicy cannot be used as it is now; the workers go on with what they know."""
    retry = facts.retry
    if retry is None or retry.problem is None:
        return None
    stays = f"; workers stay with revision {retry.current}" if retry.current else ""
    return Problem(retry.problem.reason, f"{retry.problem.message}{stays}")


def _retry_pods(facts: ConsumerGroupFacts) -> Problem | None:
    """Retry workers that cannot run: no record is lost, but waiting ones are not retried."""
    failure = next(failures(facts.retry_pods), None)
    return None if failure is None else Problem(conditions.RETRY_WORKERS_FAILING, failure)


def _unread(facts: ConsumerGroupFacts) -> Problem | None:
    """Records written to retry topics after retries had ended: by a worker that was cut off, or by other tools."""
    observed = facts.observed_group
    waiting = observed.retry.waiting if observed is not None and observed.retry is not None else None
    if facts.retry is None or not facts.retry.ended or not waiting:
        return None
    return Problem(
        conditions.RETRY_NOT_CONFIGURED,
        "records wait in retry topics that no worker reads, as spec.retry was removed: set spec.retry to have them "
        "processed, or delete the topics",
    )


def _schedule(facts: ConsumerGroupFacts) -> Problem | None:
    """A schedule of scaling that cannot be read: the fleet goes on by its load and its other bounds."""
    scaling = facts.group.spec.scaling
    refused = find_refused(scaling) if scaling is not None else None
    if refused is None:
        return None
    return Problem(conditions.SCHEDULE_REFUSED, f"{refused}; until it is corrected, the fleet is sized without it")


def _offset_reset(facts: ConsumerGroupFacts) -> Problem | None:
    """An OffsetReset that holds the workers down and waits for something outside."""
    hold = facts.hold
    if hold is None or not hold.waits:
        return None
    message = f"OffsetReset {hold.name!r} waits: {hold.reason}: {hold.message}"
    return Problem(conditions.OFFSET_RESET_WAITS, message)


def needs_revisit(facts: ConsumerGroupFacts) -> bool:
    """True if the group is reconciled again soon without another event: a problem may last, or pass with time."""
    if facts.scale.replicas == 0 and not facts.retry_pods:
        return False
    if worker_problem(facts) is not None or next(failures(facts.all_pods), None) is not None:
        return True
    if any(worker.stuck or worker.breaker_open for worker in facts.workers):
        return True
    observed = facts.observed_group
    return observed is not None and observed.state in REBALANCING


def needs_reports(facts: ConsumerGroupFacts) -> bool:
    """True if the workers are asked for their reports often: records wait for them, which could get stuck unnoticed, or
    a report shows a problem."""
    if facts.scale.replicas == 0 and not facts.retry_pods:
        return False
    if needs_revisit(facts):
        return True
    observed, lag = facts.observed_group, facts.view.lag
    if observed is None or lag is None:
        return False  # the observer requeues the group when that changes
    retry = observed.retry
    if facts.retry_pods and retry is not None and (retry.due_lag != 0 or not retry.counted):
        return True
    return not lag.complete or lag.total != 0


def deployment_problem(facts: ConsumerGroupFacts) -> Problem | None:
    """An error of the deployment that workers have met: records stay where they are until it is corrected."""
    for worker in sorted(facts.workers, key=lambda worker: worker.pod):
        for stuck in worker.stuck:
            if stuck.reason in DEPLOYMENT_REASONS:
                place = f"{stuck.topic}-{stuck.partition} at offset {stuck.offset}"
                return Problem(stuck.reason, f"worker {worker.pod} holds {place}: {stuck.message}")
        if worker.error_reason in DEPLOYMENT_REASONS:
            message = f"worker {worker.pod} holds its records: {worker.error_message}"
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
    """A rebalance that does not come to its end: nobody reads some of the partitions, or any.

    Its time is that between two observations of this process; a new process starts its own count.
    """
    observed = facts.observed_group
    if observed is None or observed.state not in REBALANCING:
        return None
    began = observed.observed_at
    for transition in reversed(observed.transitions):
        if transition.after not in REBALANCING:
            break
        began = transition.at
    if observed.observed_at - began < REBALANCE_LONG_S:
        return None
    mine = {pod.name for pod in facts.pods}
    revoking = sorted(worker.pod for worker in facts.workers if worker.revoking and worker.pod in mine)
    held_up = "a member that takes long to give its partitions back, or to assign them, holds it up"
    if revoking:
        held_up = f"it waits for handlers that hold partitions, in {name_some(revoking)}"
    return Problem(
        conditions.REBALANCE_TAKES_LONG,
        f"the group has been rebalancing since {times.to_text(began)} and is in {observed.state}: {held_up}; see "
        "status.members and the workers' logs",
    )


def _transaction(facts: ConsumerGroupFacts) -> Problem | None:
    """A transaction that stays open: readers of committed records wait for its end, and their lag is 0 meanwhile."""
    hanging = facts.observed_group.hanging if facts.observed_group is not None else {}
    if not hanging:
        return None
    (topic, number), first = next(iter(hanging.items()))
    behind = lag_text(lag_bucket(first.end_offset - first.offset))
    others = [f"{name}-{partition}" for name, partition in hanging][1:]
    more = f"; the same in {name_some(others)}" if others else ""
    return Problem(
        conditions.TRANSACTION_HANGS,
        f"{topic}-{number} stands at offset {first.offset} since {times.to_text(first.since)}: a transaction that "
        f"begins there is open, and the group, which reads committed records only, does not get the {behind} records "
        "from there on, which its lag leaves out. See to the producer; of one that is gone brokers end the transaction "
        "after its transaction.timeout.ms. If it stays, find it with kafka-transactions.sh --bootstrap-server ... "
        f"find-hanging --topic {topic}, and end it with abort --topic {topic} --partition {number} --start-offset "
        f"{first.offset}{more}",
    )


def topics_problem(facts: ConsumerGroupFacts) -> Problem | None:
    """The first certain problem with a topic: one that has not been observed yet is no problem."""
    if facts.observation is None or not facts.observation.reachable:
        return None
    missing = missing_topics(facts.group, facts.view)
    if missing is not None:
        return missing
    topics = facts.observation.topics
    sources = facts.view.source_topics
    needed = (*(sources or ()), *facts.group.spec.handler.outputs)
    bad = {name: topics[name].error for name in needed if name in topics and topics[name].error}
    for name, error in bad.items():
        return Problem(str(error), f"topic {name} cannot be used, the brokers answer {error}")
    return facts.topic_problem


CHAIN: Final[tuple[Callable[[ConsumerGroupFacts], Problem | None], ...]] = (
    _spec,
    lambda facts: facts.refusal,  # quota, admission, a template that the API server cannot accept
    _cluster,
    topics_problem,
    _revision,
    _pods,
    deployment_problem,
    worker_problem,
    _late,
    _rebalance,
    _transaction,
    _policy,
    _retry_pods,
    _schedule,
    _offset_reset,
    _unread,
)
