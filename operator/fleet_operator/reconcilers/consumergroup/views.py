"""The Kafka side of a ConsumerGroup as one plan sees it, and what its observer is to look at. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet_consumer.contract import naming
from fleet_operator.observe.interests import GroupInterest, retry_interest
from fleet_operator.planning.fleet.parts import RETRY
from fleet_operator.planning.observation import ClusterObservation, believed
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.retry.publication import plan_intent
from fleet_operator.planning.retry.topics import GroupView, view_group
from fleet_operator.planning.topic_pattern import usable_pattern
from fleet_operator.reconcilers.consumergroup.gather import Gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """The Kafka side of a group.

    - `intent`: the wanted retries; None for a group that has none and never had.
    - `view`: what actions rest on.
    - `shown`: what the status shows, in which one or two failed observations do not appear.
    """

    intent: RetryIntent | None
    view: GroupView
    shown: GroupView

    @property
    def in_doubt(self) -> bool:
        """True if the load is unknown for a moment only."""
        lag, shown = self.view.lag, self.shown.lag
        return (lag is None or not lag.complete) and shown is not None and shown.complete


def view_kafka(gathered: Gathered) -> Views:
    observation, intent = gathered.observation, _plan_intent(gathered)
    believable = believed(observation, gathered.group.group_id)
    view = _view(gathered, observation, intent)
    shown = view if believable is observation else _view(gathered, believable, intent)
    return Views(intent=intent, view=view, shown=shown)


def _view(gathered: Gathered, observation: ClusterObservation | None, intent: RetryIntent | None) -> GroupView:
    return view_group(gathered.group, observation, intent, own_cluster=not gathered.cluster_changed)


def _plan_intent(gathered: Gathered) -> RetryIntent | None:
    """The wanted retries; `ended` once no worker is left that reads or writes."""
    observation = gathered.observation
    seen = observation.groups.get(gathered.group.group_id) if observation is not None else None
    predecessors = seen.retry.found_delays if seen is not None and seen.retry is not None else None
    intent = plan_intent(gathered.group, gathered.policy, gathered.published, predecessors)
    if intent is None or not intent.ending or gathered.parts[RETRY].body is not None or gathered.feeds_retries:
        return intent
    return replace(intent, ended=True)


def interest_of(gathered: Gathered, intent: RetryIntent | None, *, asleep: bool) -> GroupInterest:
    """Interest of the group for its observer: Kafka groups, topics, and the retry flow.

    `asleep`: the fleet is scaled by load, and to no workers now.
    """
    group = gathered.group
    delays = (*intent.delays, *intent.drained_delays) if intent is not None else ()
    discover = gathered.older is None and gathered.published is None
    flow = retry_interest(group.group_id, delays, discover=discover) if delays else None
    return GroupInterest(
        group_id=group.group_id,
        topics=group.source_topics,
        pattern=usable_pattern(group),
        other_topics=group.spec.handler.outputs,
        failed_topic=naming.failed_topic(group.group_id),
        read_committed=group.spec.consumer.isolation_level == "ReadCommitted",
        retry=flow,
        scaled=group.spec.scaling is not None,
        asleep=asleep,
        waits=gathered.stopped,
    )
