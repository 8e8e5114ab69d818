"""The observed Kafka state of a ConsumerGroup for one plan, and the subscription to observations of it. Pure."""

from dataclasses import dataclass, replace

from fleet_consumer.contract import naming
from fleet_operator.observe.subscriptions import GroupSubscription, retry_subscription
from fleet_operator.planning.fleet.parts import RETRY
from fleet_operator.planning.observation import ClusterObservation, last_known
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.retry.published_policies import plan_intent
from fleet_operator.planning.retry.topics import GroupView, view_group
from fleet_operator.planning.topic_pattern import usable_pattern
from fleet_operator.reconcilers.consumergroup.gather import Gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """The observed Kafka state of a group.

    - `intent`: the wanted retries; None for a group that has no retries and never had any.
    - `view`: the view on which actions are based.
    - `shown`: the view on which the status is based. It keeps the last values during one or two failed observations.
    """

    intent: RetryIntent | None
    view: GroupView
    shown: GroupView

    @property
    def briefly_unknown(self) -> bool:
        """True if the load is unknown now, but was known at one of the last observations."""
        lag, shown = self.view.lag, self.shown.lag
        return (lag is None or not lag.complete) and shown is not None and shown.complete


def view_kafka(gathered: Gathered) -> Views:
    observation, intent = gathered.observation, _plan_intent(gathered)
    shown_observation = last_known(observation, gathered.group.group_id)
    view = _view(gathered, observation, intent)
    shown = view if shown_observation is observation else _view(gathered, shown_observation, intent)
    return Views(intent=intent, view=view, shown=shown)


def _view(gathered: Gathered, observation: ClusterObservation | None, intent: RetryIntent | None) -> GroupView:
    return view_group(gathered.group, observation, intent, own_cluster=not gathered.cluster_changed)


def _plan_intent(gathered: Gathered) -> RetryIntent | None:
    """The wanted retries. `ended` is set if retries were removed, and no worker reads or writes retry topics any
    more."""
    seen = gathered.observed_group
    predecessors = seen.retry.found_delays if seen is not None and seen.retry is not None else None
    intent = plan_intent(gathered.group, gathered.policy, gathered.published, predecessors)
    if intent is None or not intent.ending or gathered.parts[RETRY].body is not None or gathered.feeds_retries:
        return intent
    return replace(intent, ended=True)


def subscription_of(gathered: Gathered, intent: RetryIntent | None, *, asleep: bool) -> GroupSubscription:
    """The group's subscription with the observer: its Kafka groups, topics and retry flow.

    `asleep`: the fleet is scaled by load and has no workers now.
    """
    group = gathered.group
    delays = (*intent.delays, *intent.drained_delays) if intent is not None else ()
    discover = gathered.older is None and gathered.published is None
    flow = retry_subscription(group.group_id, delays, discover=discover) if delays else None
    return GroupSubscription(
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
