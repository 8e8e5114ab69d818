"""Which policy revisions a group's workers are told of, and when one of them may be forgotten.

A revision is published when every topic that it needs is there: a record must never be on its way to a topic that is
not. It stays while a record that names it may wait somewhere, and leaves when all topics of its delays were seen
drained at one look, some time after another revision took its place, or when the brokers must have thrown away the
last such record. A record that names a forgotten revision follows the current one, and workers count it: nothing is
lost by a mistake here.

The delays of forgotten revisions are drained as well before the retry workers stop reading their topics; so are those
that an earlier object of the same group left on the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import (
    HEADERS_BYTES_MAX,
    RETENTION_FACTOR,
    RETENTION_SECONDS_MIN,
    SOURCE_BYTES_DEFAULT,
)
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning.observation import RetryObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import PolicyRevision, RetryIntent, delays_of
from fleet_operator.planning.retry.records import Published, sort_delays

SUPERSEDED_S: Final = 120.0
"""How long workers may go on with an older file before a drained topic proves anything: kubelets renew mounted files
within a minute or two."""

REVISIONS_MAX: Final = 20
"""How many revisions are told of at once; a policy that is edited every minute must not fill the ConfigMap."""


def plan_intent(
    group: ConsumerGroup,
    wanted: PolicyRevision | Problem | None,
    published: Published | None,
    predecessors: tuple[str, ...] | None = (),
) -> RetryIntent | None:
    """What a group's retries should be; None for a group that has none and never had.

    `wanted` is the policy's content, or why there is none; None when the spec asks for no retries. `predecessors` are
    the delays of the group's topics on the cluster, None while nobody knows; they matter only to a group that remembers
    nothing.
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
    draining = published.draining if published else predecessors or ()
    delays = sort_delays({*delays_of((*known, *((found,) if found else ()))), *draining})
    return RetryIntent(
        policy=retry.policy_ref.name,
        wanted=found,
        known=known,
        current=published.current if published else None,
        delays=delays,
        drained_delays=tuple(delay for delay in published.leaving if delay not in delays) if published else (),
        predecessors=() if published else predecessors,
        problem=wanted if isinstance(wanted, Problem) else None,
    )


def next_publication(
    group: ConsumerGroup,
    intent: RetryIntent,
    published: Published | None,
    *,
    topics_ready: bool,
    partitions: int | None,
    seen: RetryObservation | None,
    now: float,
    reached: bool = True,
) -> Published | None:
    """What workers should be told now; None as long as there is nothing to tell.

    `topics_ready` speaks of all topics of `intent.delays`; `partitions` is what they have, None where that is unknown;
    `seen` is the newest look at the retry flow, None where it could not be looked at. `now` in epoch seconds. `reached`
    says whether all workers that write to the flow are ready: while one is cut off, it may go on by an older file.
    """
    wanted = intent.wanted
    measured = _bytes(seen, published) if topics_ready or published is None else published.max_message_bytes
    if published is None:
        if wanted is None or not topics_ready or partitions is None or intent.predecessors is None:
            return None
        return Published(
            policy=intent.policy,
            current=wanted.hash,
            known=(replace(wanted, superseded_at=None),),
            draining=tuple(delay for delay in intent.predecessors if delay not in wanted.sequence),
            partitions=partitions,
            max_message_bytes=measured,
            published_at=now,
        )
    if intent.ending:
        return replace(published, ending_since=published.ending_since or now)
    found = replace(published, ending_since=None, max_message_bytes=measured)
    if partitions is not None:
        found = replace(found, partitions=partitions)
    if wanted is not None and topics_ready:
        found = _take_up(found, intent.policy, wanted, now)
    found = _forget(group, found, seen if reached else None, now)
    return found if found.file == published.file else replace(found, published_at=now)


def _take_up(published: Published, policy: str, wanted: PolicyRevision, now: float) -> Published:
    """The wanted revision becomes the current one; one that was current before may come back."""
    others = tuple(
        replace(revision, superseded_at=now) if revision.superseded_at is None else revision
        for revision in published.known
        if revision.hash != wanted.hash
    )
    known = (*others, replace(wanted, superseded_at=None))
    living = delays_of(known)
    return replace(
        published,
        policy=policy,
        current=wanted.hash,
        known=known,
        draining=tuple(delay for delay in published.draining if delay not in living),
        leaving=tuple(delay for delay in published.leaving if delay not in living),
    )


def _forget(group: ConsumerGroup, published: Published, seen: RetryObservation | None, now: float) -> Published:
    """Revisions that nothing names any more leave; so do delays, in two steps: first unread, then gone."""
    drained = _drained_delays(group, seen)
    kept = [
        revision
        for revision in published.known
        if revision.hash == published.current or not _may_leave(group, revision, drained, seen, now)
    ]
    kept = _newest(kept, published.current)
    living = set(delays_of(kept))
    loose = {*published.draining, *delays_of(published.known)} - living
    unread = loose & drained
    leaving = {*published.leaving, *(unread if group.spec.deletion.retry_topics != "Keep" else ())} - living
    # Whoever wrote there once more: it is read again before anything is deleted.
    refilled = _refilled_delays(group, leaving, seen)
    return replace(
        published,
        known=tuple(kept),
        draining=sort_delays((loose - unread) | refilled),
        leaving=sort_delays(leaving - refilled - _missing_delays(group, leaving, seen)),
    )


def _may_leave(
    group: ConsumerGroup, revision: PolicyRevision, drained: set[str], seen: RetryObservation | None, now: float
) -> bool:
    """Whether no record can name a revision any more. Unknown is no: it stays."""
    since = revision.superseded_at
    if since is None:
        return False
    looked = seen is not None and seen.observed_at >= since + SUPERSEDED_S
    if looked and drained.issuperset(delays_of((revision,))):
        return True
    retry = group.spec.retry
    said = retry.topics.retention_seconds if retry else None
    retention = said or max(RETENTION_SECONDS_MIN, RETENTION_FACTOR * revision.total_seconds)
    return now >= since + len(revision.sequence) * retention


def _newest(revisions: list[PolicyRevision], current: str) -> list[PolicyRevision]:
    """At most so many, the current one and those that were superseded last; in a fixed order."""
    by_age = sorted(revisions, key=lambda r: (r.hash == current, r.superseded_at or 0.0, r.hash))
    return by_age[-REVISIONS_MAX:]


def _drained_delays(group: ConsumerGroup, seen: RetryObservation | None) -> set[str]:
    """The delays whose topics were seen to hold nothing that waits."""
    if seen is None:
        return set()
    prefix = naming.retry_topic(group.group_id, "")
    return {topic.removeprefix(prefix) for topic in seen.drained_topics if topic.startswith(prefix)}


def _refilled_delays(group: ConsumerGroup, delays: Iterable[str], seen: RetryObservation | None) -> set[str]:
    """The delays whose topics are known to hold records that wait."""
    topics = seen.topics if seen is not None else {}
    found = {delay: topics.get(naming.retry_topic(group.group_id, delay)) for delay in delays}
    return {delay for delay, topic in found.items() if topic is not None and topic.waiting}


def _missing_delays(group: ConsumerGroup, delays: Iterable[str], seen: RetryObservation | None) -> set[str]:
    """The delays whose topics are known not to exist (any more)."""
    if seen is None:
        return set()
    found = {delay: seen.topics.get(naming.retry_topic(group.group_id, delay)) for delay in delays}
    return {delay for delay, topic in found.items() if topic and topic.error == conditions.TOPIC_NOT_FOUND}


def _bytes(seen: RetryObservation | None, published: Published | None) -> int:
    """What workers may write: the sources' limit, and room for a hop's headers.

    Never lowered, as the topics' own limits are not: what was let in under a higher one must be able to hop on.
    """
    source = seen.source_max_message_bytes if seen is not None else None
    told = published.max_message_bytes if published is not None else 0
    if source is not None:
        return max(source + HEADERS_BYTES_MAX, told)
    return told or SOURCE_BYTES_DEFAULT + HEADERS_BYTES_MAX
