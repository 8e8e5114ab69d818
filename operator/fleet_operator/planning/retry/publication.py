"""Publication of policy revisions to a group's workers, and the end of each revision and delay.

A revision is published when all topics that it needs exist: no record may be sent to a missing topic. It stays while a
record that names it may wait. It leaves some time after another revision superseded it, when one observation showed
all topics of its delays drained, or when the brokers must have deleted the last such record by retention. A record
that names a forgotten revision follows the current one, and workers count it: a mistake here loses nothing.

A delay that no revision uses is drained. So are delays that an earlier object of the same Kafka group left on the
cluster. Where the spec wants topics deleted, the drained one is then left unread, and deleted. Where it wants them
kept, retry workers read it until somebody deletes it: brokers delete the commits of a topic that no member of a Stable
group subscribes to (Kafka: `ClassicGroup.offsetExpirationCondition`), and a delay that came back later would have
everything in its topic handled again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.contract import managed_topics, naming
from fleet_consumer.contract.policies import DELAYS_MAX
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.observation import ManagedTopic, RetryObservation
from fleet_operator.planning.problem import Problem, name_some
from fleet_operator.planning.retry.intent import DelayState, PolicyRevision, RetryIntent, delays_of, sort_delays
from fleet_operator.planning.retry.records import Published
from fleet_operator.planning.retry.retention import is_kept

SUPERSEDED_S: Final = 120.0
"""Longest use of an older file by workers, so that a drained topic proves nothing: kubelets renew mounted files
within a minute or two."""

REVISIONS_MAX: Final = 20
"""Most revisions published at once: a policy that is edited every minute must not fill the ConfigMap."""

DRAINED_MAX: Final = 2 * DELAYS_MAX
"""Most drained delays whose topics stay read: each costs partitions in every look, in every rebalance and in the retry
workers, and a policy can have any number of delays one after the other."""


def plan_intent(
    group: ConsumerGroup,
    wanted: PolicyRevision | Problem | None,
    published: Published | None,
    predecessors: tuple[str, ...] | None = (),
) -> RetryIntent | None:
    """Wanted retries of a group; None for one that has none and never had.

    `wanted` is the policy's content, or the problem with it; None when the spec asks for no retries. `predecessors` are
    the delays of the group's topics on the cluster, None while unknown; they count only before the first publication.
    """
    retry = group.spec.retry
    if retry is None:
        if published is None:
            return None
        return RetryIntent(
            policy=published.policy,
            known=published.known,
            current=published.current,
            delays=published.delays,
            drained_delays=published.leaving,
            ending=True,
        )
    found = wanted if isinstance(wanted, PolicyRevision) else None
    known = published.known if published else ()
    retiring = published.retiring if published else dict.fromkeys(predecessors or (), DelayState.DRAINING)
    in_use = delays_of((*known, found) if found else known)
    leaving = {delay for delay, state in retiring.items() if state is DelayState.LEAVING}
    return RetryIntent(
        policy=retry.policy_ref.name,
        wanted=found,
        known=known,
        current=published.current if published else None,
        delays=sort_delays({*in_use, *retiring.keys() - leaving}),
        drained_delays=sort_delays(leaving.difference(in_use)),
        searched=published is not None or predecessors is not None,
        problem=wanted if isinstance(wanted, Problem) else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFacts:
    """The retry flow as a publication depends on it.

    `topics_ready` is about all topics of `RetryIntent.delays`; `partitions` is their number, None while unknown; `seen`
    is the newest observation, None where there is none. `reached` is False while a worker that writes to the flow is
    not ready: one that is cut off may use an older file.
    """

    topics_ready: bool
    partitions: int | None
    seen: RetryObservation | None
    reached: bool = True


def next_publication(
    group: ConsumerGroup, intent: RetryIntent, published: Published | None, flow: FlowFacts, now: float
) -> Published | None:
    """The publication for what was found; None as long as there is nothing to publish. `now` in epoch seconds."""
    if published is None:
        return _first(intent, flow, now)
    published = _dated(published, now)
    if intent.ending:
        return replace(published, ending_since=published.ending_since or now)
    found = replace(published, ending_since=None)
    if flow.topics_ready:
        found = replace(found, max_message_bytes=_max_message_bytes(flow.seen, published.max_message_bytes))
    if flow.partitions is not None:
        found = replace(found, partitions=flow.partitions)
    if intent.wanted is not None and flow.topics_ready:
        found = _take_up(found, intent.policy, intent.wanted, now)
    found = _forget(group, found, flow.seen if flow.reached else None, now)
    return found if found.file == published.file else replace(found, published_at=now)


def _first(intent: RetryIntent, flow: FlowFacts, now: float) -> Published | None:
    wanted = intent.wanted
    if wanted is None or not flow.topics_ready or flow.partitions is None or not intent.searched:
        return None
    left = (delay for delay in intent.delays if delay not in wanted.sequence)
    return Published(
        policy=intent.policy,
        current=wanted.hash,
        known=(replace(wanted, superseded_at=None),),
        retiring=dict.fromkeys(left, DelayState.DRAINING),
        partitions=flow.partitions,
        max_message_bytes=_max_message_bytes(flow.seen, 0),
        published_at=now,
    )


def _dated(published: Published, now: float) -> Published:
    """The publication with a time for each revision that was superseded: from now on, where the state was lost."""
    known = (
        each if each.superseded_at is not None or each.hash == published.current else replace(each, superseded_at=now)
        for each in published.known
    )
    return replace(published, known=tuple(known))


def _take_up(published: Published, policy: str, wanted: PolicyRevision, now: float) -> Published:
    """Make the wanted revision the current one; a superseded revision may become current again."""
    others = tuple(
        replace(revision, superseded_at=now) if revision.superseded_at is None else revision
        for revision in published.known
        if revision.hash != wanted.hash
    )
    known = (*others, replace(wanted, superseded_at=None))
    in_use = delays_of(known)
    retiring = {delay: state for delay, state in published.retiring.items() if delay not in in_use}
    return replace(published, policy=policy, current=wanted.hash, known=known, retiring=retiring)


def _forget(group: ConsumerGroup, published: Published, seen: RetryObservation | None, now: float) -> Published:
    """Drop revisions that no record names any more, and move delays that no revision uses one state on."""
    topics = _topics_by_delay(group, seen)
    kept = [
        revision
        for revision in published.known
        if revision.hash == published.current or not _may_leave(group, revision, topics, seen, now)
    ]
    # A fixed order: the current one is last, after those that were superseded last.
    kept.sort(key=lambda r: (r.hash == published.current, r.superseded_at or 0.0, r.hash))
    kept = kept[-REVISIONS_MAX:]
    keep_topics = group.spec.deletion.retry_topics == "Keep"
    unused = {delay: state for delay, state in published.states.items() if delay not in delays_of(kept)}
    moved = {delay: _next_state(state, topics.get(delay), keep_topic=keep_topics) for delay, state in unused.items()}
    retiring = {delay: state for delay, state in moved.items() if state is not None}
    drained = tuple(_drained(published.drained, retiring, topics)) if keep_topics else ()
    unread = _surplus(drained, topics)
    return replace(
        published,
        known=tuple(kept),
        retiring={delay: state for delay, state in retiring.items() if delay not in unread},
        drained=tuple(delay for delay in drained if delay not in unread),
    )


def _next_state(state: DelayState, topic: ManagedTopic | None, *, keep_topic: bool) -> DelayState | None:
    """State of a delay that no revision uses; None for one to forget.

    A topic that is to be deleted is left unread first and deleted later. One that was written to in between is read
    again before anything is deleted. A topic that is kept stays read as long as it is there.
    """
    gone = topic is not None and topic.error == conditions.TOPIC_NOT_FOUND
    if state is DelayState.LEAVING and not keep_topic:
        if topic is not None and topic.waiting:
            return DelayState.DRAINING
        return None if gone else DelayState.LEAVING
    if topic is None or topic.waiting != 0:
        return DelayState.DRAINING
    if gone:
        return None
    return DelayState.DRAINING if keep_topic else DelayState.LEAVING


def _drained(
    before: Collection[str], retiring: Mapping[str, DelayState], topics: Mapping[str, ManagedTopic]
) -> Iterator[str]:
    """The draining delays in whose topics nothing waits, longest first: those of before, unless something waits by now,
    then those that are known to be drained since."""
    waiting = {delay: topics[delay].waiting if delay in topics else None for delay in sort_delays(retiring)}
    yield from (delay for delay in before if delay in retiring and not waiting[delay])
    yield from (delay for delay, count in waiting.items() if count == 0 and delay not in before)


def _surplus(drained: Collection[str], topics: Mapping[str, ManagedTopic]) -> frozenset[str]:
    """The drained delays beyond DRAINED_MAX, the longest drained ones of those in which nothing waits now."""
    empty = [delay for delay in drained if delay in topics and topics[delay].waiting == 0]
    return frozenset(empty[: max(len(drained) - DRAINED_MAX, 0)])


def tell_of_kept(group_id: str, before: Published, after: Published, seen: RetryObservation | None) -> list[str]:
    """Notes for the user about kept topics of drained delays: those that are his to delete now, and those that are left
    unread. `seen` is the observation that `after` rests on."""
    notes, topics = [], seen.topics if seen is not None else {}
    new = [naming.retry_topic(group_id, delay) for delay in sort_delays(set(after.drained) - set(before.drained))]
    if new:
        what = "no record waits there and no revision of the policy uses them"
        notes.append(f"{name_some(new)}: {what}; workers read them until you delete them")
    left = (naming.retry_topic(group_id, delay) for delay in before.drained if delay not in after.states)
    unread = [name for name in left if name in topics and topics[name].error != conditions.TOPIC_NOT_FOUND]
    if unread:
        why = f"no worker reads them any more, as {DRAINED_MAX} other topics of drained delays are read"
        remedy = "delete them, or all their records are handled again when their delays are used again"
        notes.append(f"{name_some(unread)}: {why}; {remedy}")
    return notes


def _may_leave(
    group: ConsumerGroup,
    revision: PolicyRevision,
    topics: Mapping[str, ManagedTopic],
    seen: RetryObservation | None,
    now: float,
) -> bool:
    """True if no record can name a revision any more; False while unknown."""
    since = revision.superseded_at
    if since is None:
        return False
    drained = all(delay in topics and topics[delay].waiting == 0 for delay in revision.sequence)
    if drained and seen is not None and seen.observed_at >= since + SUPERSEDED_S:
        return True
    retention = group.spec.managed_topics.retention_seconds or max(
        managed_topics.RETENTION_SECONDS_MIN, managed_topics.RETENTION_FACTOR * revision.total_seconds
    )
    kept = any(delay not in topics or is_kept(topics[delay]) for delay in revision.sequence)
    return not kept and now >= since + len(revision.sequence) * retention


def _topics_by_delay(group: ConsumerGroup, seen: RetryObservation | None) -> dict[str, ManagedTopic]:
    prefix = naming.retry_topic(group.group_id, "")
    topics = seen.topics if seen is not None else {}
    return {name.removeprefix(prefix): topic for name, topic in topics.items() if name.startswith(prefix)}


def _max_message_bytes(seen: RetryObservation | None, published: int) -> int:
    """Size limit of records that workers write: the source topics' limit, and room for the headers of a hop.

    Never lowered, like the topics' own limits: a record written under a higher limit must be able to hop on.
    """
    source = seen.source_max_message_bytes if seen is not None else None
    if source is not None:
        return max(source + managed_topics.HEADERS_BYTES_MAX, published)
    return published or managed_topics.SOURCE_BYTES_DEFAULT + managed_topics.HEADERS_BYTES_MAX
