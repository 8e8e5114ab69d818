"""Policy revisions published to a group's workers, and the removal of revisions and delays.

A revision is published when all topics that it needs exist, because no record may be sent to a missing topic. A
revision is removed when no waiting record can name it. This is known in two cases:

- An observation shows that the topics of all its delays are drained. The observation must be made at least SUPERSEDED_S
  seconds after the revision was superseded.
- So much time has passed that brokers must have deleted the last record that names the revision.

Nothing is removed while a main worker is not ready: its node may be disconnected, so the worker may still use an older
file. A premature removal loses no record. A record that names a removed revision follows the current revision, and
workers count such records. If the group's state is lost, its superseded revisions count as superseded from the next
plan on, and are removed later.

If no revision uses a delay, workers drain the delay's topic. This includes topics that an earlier ConsumerGroup with
the same `groupId` left on the cluster. If the spec wants topics deleted, workers stop reading the drained topic, and
then the operator deletes it. If the spec wants topics kept, retry workers read the topic until somebody deletes it.

If workers stopped reading a kept topic, no member of the Stable group would subscribe to it, and brokers would delete
the group's commits for it (Kafka: `ClassicGroup.offsetExpirationCondition`). If a policy then used the delay again, all
records in the topic would be handled again.

No pod mounts the policy's own ConfigMaps (`<policy>-<hash>`). The operator reads these ConfigMaps for a new group whose
policy has just become unusable. Users can look up the hash from a record's header `kr-policy` in them.

Decision: docs/decisions/0017-policy-revisions.md.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
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
"""For this many seconds after a change, workers may still use an older file, because kubelets need a minute or two to
update mounted files. If an observation in this time shows drained topics, it does not count."""

REVISIONS_MAX: Final = 20
"""Maximum number of published revisions. Without this limit, a policy that is edited every minute would fill the
ConfigMap."""

DRAINED_MAX: Final = 2 * DELAYS_MAX
"""Maximum number of drained delays whose topics are still read. A policy may use any number of different delays over
time. The partitions of each topic cost time in every poll, in every rebalance and in the retry workers."""


def plan_intent(
    group: ConsumerGroup,
    wanted: PolicyRevision | Problem | None,
    published: Published | None,
    predecessors: tuple[str, ...] | None = (),
) -> RetryIntent | None:
    """Return the retries that a group should have; None for a group that never had retries. `wanted`: the policy's
    present content, or its problem; None if the spec wants no retries. `predecessors`: delays whose retry topics an
    earlier ConsumerGroup left on the cluster, None while unknown. They are ignored once policies are published."""
    retry = group.spec.retry
    if retry is not None:
        policy = retry.policy_ref.name
    elif published is not None:
        policy, wanted = published.policy, None
    else:
        return None
    found = wanted if isinstance(wanted, PolicyRevision) else None
    known = published.known if published else ()
    retiring = published.retiring if published else dict.fromkeys(predecessors or (), DelayState.DRAINING)
    in_use = delays_of((*known, found) if found else known)
    leaving = {delay for delay, state in retiring.items() if state is DelayState.LEAVING}
    return RetryIntent(
        policy=policy,
        wanted=found,
        known=known,
        current=published.current if published else None,
        delays=sort_delays({*in_use, *retiring.keys() - leaving}),
        drained_delays=sort_delays(leaving.difference(in_use)),
        searched=published is not None or predecessors is not None,
        problem=wanted if isinstance(wanted, Problem) else None,
        ending=retry is None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFacts:
    """State of the retry topics, on which the published policies depend.

    - `topics_ready`: all topics of `RetryIntent.delays` exist as wanted.
    - `partitions`: the smallest partition count of these topics; None while unknown.
    - `seen`: the newest observation of the topics; None without one.
    - `reached`: False while a worker that writes to these topics is not ready. Its node may be disconnected, so the
      worker may use an older file.
    """

    topics_ready: bool
    partitions: int | None
    seen: RetryObservation | None
    reached: bool = True


def next_published(
    group: ConsumerGroup, intent: RetryIntent, published: Published | None, flow: FlowFacts, now: float
) -> Published | None:
    """Return the policies to publish next; None while nothing can be published."""
    if published is None:
        return _first(intent, flow, now)
    published = replace(published, known=_dated(published.known, published.current, now))
    if intent.ending:
        return replace(published, ending_since=published.ending_since or now)
    found = replace(published, ending_since=None)
    if flow.topics_ready:
        found = replace(found, max_message_bytes=_max_message_bytes(flow.seen, published.max_message_bytes))
    if flow.partitions is not None:
        found = replace(found, partitions=flow.partitions)
    if intent.wanted is not None and flow.topics_ready:
        found = _take_up(found, intent.policy, intent.wanted, now)
    found = _prune(group, found, flow.seen if flow.reached else None, now)
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


def _dated(known: Iterable[PolicyRevision], current: str, now: float) -> tuple[PolicyRevision, ...]:
    """Set a missing `superseded_at` to `now`, except in the current revision. It is missing if the revision has just
    been superseded, or if the group's state was lost."""
    return tuple(
        each if each.superseded_at is not None or each.hash == current else replace(each, superseded_at=now)
        for each in known
    )


def _take_up(published: Published, policy: str, wanted: PolicyRevision, now: float) -> Published:
    """Make the wanted revision current; a superseded revision may become current again."""
    others = (revision for revision in published.known if revision.hash != wanted.hash)
    known = _dated((*others, replace(wanted, superseded_at=None)), wanted.hash, now)
    in_use = delays_of(known)
    retiring = {delay: state for delay, state in published.retiring.items() if delay not in in_use}
    return replace(published, policy=policy, current=wanted.hash, known=known, retiring=retiring)


def _prune(group: ConsumerGroup, published: Published, seen: RetryObservation | None, now: float) -> Published:
    """Remove revisions that no waiting record can name, and advance the state of delays that no revision uses."""
    prefix, found = naming.retry_topic(group.group_id, ""), seen.topics if seen is not None else {}
    topics = {name.removeprefix(prefix): topic for name, topic in found.items() if name.startswith(prefix)}
    kept = [
        revision
        for revision in published.known
        if revision.hash == published.current or not _may_leave(group, revision, topics, seen, now)
    ]
    # The current revision is last, after the most recently superseded ones.
    kept.sort(key=lambda r: (r.hash == published.current, r.superseded_at or 0.0, r.hash))
    kept = kept[-REVISIONS_MAX:]
    keep_topics = group.spec.deletion.retry_topics == "Keep"
    unused = {delay: state for delay, state in published.states.items() if delay not in delays_of(kept)}
    moved = {delay: _next_state(state, topics.get(delay), keep_topic=keep_topics) for delay, state in unused.items()}
    retiring = {delay: state for delay, state in moved.items() if state is not None}
    drained = tuple(_drained(published.drained, retiring, topics)) if keep_topics else ()
    # If there are more than DRAINED_MAX drained delays, those drained for longest are dropped. A delay is dropped only
    # if the newest observation shows no waiting record in its topic.
    empty = [delay for delay in drained if delay in topics and topics[delay].waiting == 0]
    unread = frozenset(empty[: max(len(drained) - DRAINED_MAX, 0)])
    return replace(
        published,
        known=tuple(kept),
        retiring={delay: state for delay, state in retiring.items() if delay not in unread},
        drained=tuple(delay for delay in drained if delay not in unread),
    )


def _next_state(state: DelayState, topic: ManagedTopic | None, *, keep_topic: bool) -> DelayState | None:
    """Return the next state of a delay that no revision uses; None to forget the delay.

    Workers stop reading a topic before the topic is deleted. If a record is written to the topic after workers stopped,
    workers read the topic again until it is drained. Workers read a kept topic while it exists."""
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
    """Yield the draining delays whose topics have no waiting record, the longest drained first.

    First come the delays of `before`, but without those in whose topic a record is now known to wait. Then come the
    delays that the newest observation shows as drained for the first time."""
    waiting = {delay: topics[delay].waiting if delay in topics else None for delay in sort_delays(retiring)}
    yield from (delay for delay in before if delay in retiring and not waiting[delay])
    yield from (delay for delay, count in waiting.items() if count == 0 and delay not in before)


def report_kept(group_id: str, before: Published, after: Published, seen: RetryObservation | None) -> list[str]:
    """Return messages about kept topics of drained delays: topics that the user may delete now, and topics that workers
    no longer read. `seen` is the observation from which `after` was planned."""
    notes, topics = [], seen.topics if seen is not None else {}
    new = [naming.retry_topic(group_id, delay) for delay in sort_delays(set(after.drained) - set(before.drained))]
    if new:
        what = "no record waits in these topics, and no revision of the policy uses them"
        notes.append(f"{name_some(new)}: {what}; workers read the topics until you delete them")
    left = (naming.retry_topic(group_id, delay) for delay in before.drained if delay not in after.states)
    unread = [name for name in left if name in topics and topics[name].error != conditions.TOPIC_NOT_FOUND]
    if unread:
        most = f"workers read at most {DRAINED_MAX} topics of delays that no policy uses"
        why = f"no worker reads these topics now, because {most}"
        remedy = "delete them, or all their records are handled again when a policy uses their delays again"
        notes.append(f"{name_some(unread)}: {why}; {remedy}")
    return notes


def _may_leave(
    group: ConsumerGroup,
    revision: PolicyRevision,
    topics: Mapping[str, ManagedTopic],
    seen: RetryObservation | None,
    now: float,
) -> bool:
    """True if no waiting record can name the revision; False while unknown."""
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


def _max_message_bytes(seen: RetryObservation | None, published: int) -> int:
    """The size limit in bytes of records that workers write: the source topics' limit plus room for the headers of a
    retry publish. Like the topics' own limits, this limit is never lowered: a record written under a higher limit must
    fit into the next retry topic."""
    source = seen.source_max_message_bytes if seen is not None else None
    if source is not None:
        return max(source + managed_topics.HEADERS_BYTES_MAX, published)
    return published or managed_topics.SOURCE_BYTES_DEFAULT + managed_topics.HEADERS_BYTES_MAX
