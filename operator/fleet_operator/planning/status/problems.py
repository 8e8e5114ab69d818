"""Root causes, in the order in which a person should mend them.

A chain of small questions: each looks at one place and answers with a problem or None. `Ready` shows the first one when
the fleet does not work, `Degraded` shows it in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning import times
from fleet_operator.planning.fleet.rollout import PodFacts, RolloutPhase
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.members import name_some

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
"""Waiting reasons that do not pass by themselves, in the kubelet's and the scheduler's words."""


def find_problems(facts: ConsumerGroupFacts) -> Iterator[Problem]:
    """Everything that is wrong, root causes first."""
    for question in CHAIN:
        problem = question(facts)
        if problem is not None:
            yield problem


def _spec(facts: ConsumerGroupFacts) -> Problem | None:
    """The spec cannot become a revision: nothing further down can be judged."""
    cause = facts.rollout.cause if facts.rollout.phase is RolloutPhase.HELD else None
    if cause is not None and cause.reason == conditions.TOPIC_NOT_CREATED:
        return facts.topic_problem or cause  # workers wait for topics that the brokers refuse: tell their words
    return cause


def _refusal(facts: ConsumerGroupFacts) -> Problem | None:
    """The API server refused a child: quota, admission, a template that it cannot accept."""
    return facts.refusal


def _cluster(facts: ConsumerGroupFacts) -> Problem | None:
    """Kafka does not answer us: whatever the workers complain of follows from it."""
    observation = facts.observation
    if observation is None or observation.reachable:
        return None
    return Problem(observation.reason or conditions.BROKER_UNREACHABLE, observation.message)


def _topics(facts: ConsumerGroupFacts) -> Problem | None:
    """A topic that the fleet needs is not there."""
    return topics_problem(facts)


def _revision(facts: ConsumerGroupFacts) -> Problem | None:
    """The wanted revision failed its check."""
    return None if _is_late(facts) or facts.rollout.phase is RolloutPhase.HELD else facts.rollout.cause


def _late(facts: ConsumerGroupFacts) -> Problem | None:
    """The wanted revision did not become ready, and neither pods nor workers say why."""
    return facts.rollout.cause if _is_late(facts) and facts.rollout.phase is not RolloutPhase.HELD else None


def _is_late(facts: ConsumerGroupFacts) -> bool:
    cause = facts.rollout.cause
    return cause is not None and cause.reason == conditions.PROGRESS_DEADLINE_EXCEEDED


def _pods(facts: ConsumerGroupFacts) -> Problem | None:
    """Pods that cannot run, in the kubelet's or the scheduler's words."""
    failure = next(failures(facts.pods), None)
    return None if failure is None else Problem(conditions.WORKERS_FAILING, failure)


def failures(pods: Iterable[PodFacts]) -> Iterator[str]:
    """Pods that cannot run, or whose container died a short while ago, each in a sentence."""
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
    """Retry workers that cannot run: nothing is lost, but what waits is not tried again."""
    failure = next(failures(facts.retry_pods), None)
    return None if failure is None else Problem(conditions.RETRY_WORKERS_FAILING, failure)


def _unread(facts: ConsumerGroupFacts) -> Problem | None:
    """Records that came to wait after retries had ended: a worker that was cut off, or somebody's own tools."""
    observed = facts.observed_group
    waiting = observed.retry.waiting if observed is not None and observed.retry is not None else None
    if facts.retry is None or not facts.retry.ended or not waiting:
        return None
    return Problem(
        conditions.RETRY_NOT_CONFIGURED,
        "records wait in retry topics and nobody reads them, as spec.retry was removed: give the group a RetryPolicy "
        "to have them handled, or delete the topics",
    )


def needs_watching(facts: ConsumerGroupFacts) -> bool:
    """Whether the workers are to be asked soon again although nothing else may happen: records wait for them, which
    would stand still without any other sign, or what they say is no good news."""
    if facts.scale.replicas == 0 and not facts.retry_pods:
        return False
    if worker_problem(facts) is not None or next(failures(facts.all_pods), None) is not None:
        return True
    if any(worker.stuck or worker.breaker_open for worker in facts.workers):
        return True
    observed, lag = facts.observed_group, facts.view.lag
    if observed is None or lag is None:
        return False  # the observer requeues the group when that changes
    retry = observed.retry
    if facts.retry_pods and retry is not None and (retry.due_lag != 0 or not retry.counted):
        return True
    return not lag.complete or lag.total != 0


def worker_problem(facts: ConsumerGroupFacts) -> Problem | None:
    """Dispatcher that run and say that they cannot work."""
    for worker in sorted(facts.workers, key=lambda worker: worker.pod):
        if worker.error_reason:
            return Problem(
                conditions.WORKER_REPORTS_ERROR,
                f"worker {worker.pod} reports {worker.error_reason}: {worker.error_message}",
            )
        if worker.ended_reason:
            since = "" if worker.ended_since is None else f" since {times.to_text(worker.ended_since)}"
            return Problem(
                conditions.WORKER_REPORTS_ERROR,
                f"worker {worker.pod} ends its sessions{since} and begins them again: "
                f"{worker.ended_reason}: {worker.ended_message}",
            )
    return None


CHAIN: Final[tuple[Callable[[ConsumerGroupFacts], Problem | None], ...]] = (
    _spec,
    _refusal,
    _cluster,
    _topics,
    _revision,
    _pods,
    worker_problem,
    _late,
    _policy,
    _retry_pods,
    _unread,
)


def topics_problem(facts: ConsumerGroupFacts) -> Problem | None:
    """The first topic problem that is known for sure: topics that nobody has asked for yet are no problem."""
    if facts.observation is None or not facts.observation.reachable:
        return None
    topics = facts.observation.topics
    sources = facts.view.source_topics
    needed = (*(sources or ()), *facts.group.spec.handler.outputs)
    bad = {name: topics[name].error for name in needed if name in topics and topics[name].error}
    missing = [name for name, error in bad.items() if error == conditions.TOPIC_NOT_FOUND]
    if missing:
        return Problem(
            conditions.TOPIC_NOT_FOUND,
            f"not on the cluster: {name_some(missing)}; source and output topics are yours to create",
        )
    if sources == ():
        return Problem(
            conditions.TOPIC_NOT_FOUND,
            f"no topic on the cluster matches spec.topicPattern {facts.group.spec.topic_pattern!r} yet; "
            "the workers wait for one",
        )
    for name, error in bad.items():
        return Problem(str(error), f"topic {name} cannot be used: {error}")
    return facts.topic_problem
