"""Builds the observation of a group from the answers of a poll and the previous observation."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Final

from fleet_operator.observe import aggregation
from fleet_operator.observe.aggregation import NOT_OBSERVED, STABLE, GroupFacts, Offsets
from fleet_operator.observe.flow import FlowMemory, Spans
from fleet_operator.observe.subscriptions import GroupSubscription
from fleet_operator.planning.kept_offsets import KeptOffsets
from fleet_operator.planning.observation import (
    UNKNOWN_STATE,
    GroupObservation,
    GroupTransition,
    MemberName,
    MemberObservation,
    MissingEnd,
    ProgressSample,
    TopicObservation,
)

GROUP_UNCONFIRMED_SECONDS: Final = 15.0
"""Time in seconds for which a failure to observe a group or a log end counts as unconfirmed, because the coordinator or
leader may be moving to another broker."""
DENSE_SECONDS: Final = 25.0
SPARSE_SECONDS: Final = 15.0
"""Age in seconds up to which all samples are kept (DENSE_SECONDS). Of older samples, about one per SPARSE_SECONDS is
kept."""
SAMPLES_SECONDS: Final = 90.0
SLOW_SAMPLES_SECONDS: Final = 900.0
SLOW_SPARSE_SECONDS: Final = 60.0
FEW_RECORDS: Final = 20
"""Samples are normally kept for SAMPLES_SECONDS. If fewer than FEW_RECORDS records arrive for a group in this time, a
rate would be unreliable. Then samples are kept for SLOW_SAMPLES_SECONDS; of those older than SAMPLES_SECONDS, about one
per SLOW_SPARSE_SECONDS is kept."""
SAMPLES_GAP_SECONDS: Final = 30.0
"""Longest time in seconds between two samples. After a longer gap, the earlier samples are dropped. Records that arrive
after an outage may have waited at their producers, so a rate cannot be computed from their number."""

TRANSITIONS_MAX: Final = 10
NAMED_MAX: Final = 4
"""Largest number of members that one transition names, because any number of members may join or leave together."""

Members = tuple[MemberObservation, ...]


def observe_group(
    subscription: GroupSubscription,
    last: GroupObservation | None,
    facts: Mapping[str, GroupFacts],
    flow: FlowMemory,
    topics: Mapping[str, TopicObservation],
    spans: Spans,
    now: float,
) -> GroupObservation:
    """Build the observation of a main group and its retry flow. Either may be known while the other is unknown.

    `last`: the newest observation, perhaps from a state poll; `spans`: offsets of the retry flow; `now`: epoch seconds.
    """
    group = aggregate_group(facts[subscription.group_id], last, now)
    if group.failed_records is None and subscription.failed_topic:
        flow.ask_starts(subscription.failed_topic)
    retry = None
    if subscription.retry is not None:
        retry = flow.aggregate(subscription, facts[subscription.retry.group_id], topics, spans, now)
    return replace(group, samples=extend_samples(group, last) if subscription.scaled else (), retry=retry)


def count_failed(facts: GroupFacts) -> tuple[int, int] | tuple[None, None]:
    """The number of records in the failed topic, and the sum of its end offsets.

    Both are None if an offset is missing. They are also None if a partition's log start offset is beyond its end
    offset, because the sum would be too low. This happens after the topic was recreated, because start offsets are read
    less often than end offsets.
    """
    ends, starts = facts.failed.ends, facts.failed.starts
    whole = len(ends) == facts.failed_partitions > 0 and ends.keys() <= starts.keys()
    if not whole or any(starts[key] > end for key, end in ends.items()):
        return None, None
    total = sum(ends.values())
    return total - sum(starts[key] for key in ends), total


def aggregate_group(facts: GroupFacts, last: GroupObservation | None, now: float) -> GroupObservation:
    """Build the main group's observation from this poll or, after an error, from the last known values and the error.

    DescribeGroups describes a missing group as Dead: before version 6 without an error, since version 6 with
    GROUP_ID_NOT_FOUND. Both mean that the group does not exist (yet).
    """
    error, described = facts.failure, facts.described
    if error is not None or described is None or facts.committed is None:
        failed = unobserved(facts.group_id, last, error or NOT_OBSERVED, now)
        may_read = aggregation.may_read(described)
        return failed if may_read is None else replace(failed, may_read=may_read)
    state, members = aggregation.mirror(described)
    failed_records, failed_end = count_failed(facts)
    return GroupObservation(
        group_id=facts.group_id,
        observed_at=now,
        state=state,
        assignor=described.protocol_data,
        coordinator_id=facts.coordinator_id,
        members=members,
        transitions=extend_transitions(last, state, members, now),
        committed=facts.committed,
        end_offsets=facts.log.ends,
        log_starts=facts.log.starts,
        missing_ends=missing_ends(facts.log.ends, last, now),
        beyond_end=beyond_end(facts, last),
        end_history=facts.log.history,
        open_transactions=facts.log.transactions,
        failed_records=failed_records,
        failed_end=failed_end,
        may_read=aggregation.may_read(described),
    )


def extend_samples(group: GroupObservation, last: GroupObservation | None) -> tuple[ProgressSample, ...]:
    """Add a sample of the group's progress, unless the poll failed."""
    known = last.samples if last is not None else ()
    if group.error is not None:
        return known
    now = group.observed_at
    if known and not 0.0 <= now - known[-1].at <= SAMPLES_GAP_SECONDS:
        known = ()  # there was a gap between polls, or the clock was set back
    before = known[-1] if known else None
    newest = ProgressSample(
        now,
        KeptOffsets(group.committed, before.committed if before is not None else None),
        KeptOffsets(group.end_offsets, before.end_offsets if before is not None else None),
    )
    reach = SAMPLES_SECONDS if _arrived(known, newest) >= FEW_RECORDS else SLOW_SAMPLES_SECONDS
    # One sample from before the window is kept, so that the samples span the whole window.
    first = max((place for place, sample in enumerate(known) if now - sample.at >= reach), default=0)
    return (*_thinned(known[first:], now), newest)


def _arrived(known: tuple[ProgressSample, ...], newest: ProgressSample) -> int:
    """The number of records that arrived since the newest sample that is at least SAMPLES_SECONDS old; 0 without such a
    sample."""
    begin = next((sample for sample in reversed(known) if newest.at - sample.at >= SAMPLES_SECONDS), None)
    if begin is None:
        return 0
    ends = newest.end_offsets
    return sum(max(0, ends[key] - end) for key, end in begin.end_offsets.items() if key in ends)


def _thinned(samples: tuple[ProgressSample, ...], now: float) -> list[ProgressSample]:
    """Drop some of the older samples, because each sample has the offsets of all partitions."""
    kept: list[ProgressSample] = []
    for place, sample in enumerate(samples):
        following = samples[place + 1].at if place + 1 < len(samples) else now
        apart = SPARSE_SECONDS if now - sample.at <= SAMPLES_SECONDS + SPARSE_SECONDS else SLOW_SPARSE_SECONDS
        if now - sample.at <= DENSE_SECONDS or not kept or following - kept[-1].at > apart:
            kept.append(sample)
    return kept


def missing_ends(ends: Offsets, last: GroupObservation | None, now: float) -> dict[tuple[str, int], MissingEnd]:
    """The partitions whose log end could not be read, each with its last known offsets."""
    if last is None or (last.error is not None and not last.unconfirmed):
        return {}
    missing = {
        key: MissingEnd(now, end, last.log_starts.get(key)) for key, end in last.end_offsets.items() if key not in ends
    }
    earlier = {
        key: known._replace(since=min(known.since, now))
        for key, known in last.missing_ends.items()
        if key not in ends and now - known.since < GROUP_UNCONFIRMED_SECONDS
    }
    return missing | earlier


def unobserved(group_id: str, last: GroupObservation | None, error: str, now: float) -> GroupObservation:
    """The observation of a group after a failed poll: the group's last known values and the error."""
    known = last or GroupObservation(group_id=group_id, observed_at=now, error=NOT_OBSERVED)
    since = known.failing_since if known.error is not None else now
    since = min(since, now) if since is not None else None  # a time after `now` shows that the clock was set back
    unconfirmed = since is not None and now - since < GROUP_UNCONFIRMED_SECONDS
    return replace(known, error=error, failing_since=since, unconfirmed=unconfirmed)


def beyond_end(facts: GroupFacts, last: GroupObservation | None) -> frozenset[tuple[str, int]]:
    """The partitions whose present and previous commits are both beyond the log end. At the first observation, the
    present commit suffices."""
    committed, ends = facts.committed or {}, facts.log.ends
    old = last.committed if last is not None and last.transitions else committed
    return frozenset(
        key for key, offset in committed.items() if key in ends and min(offset, old.get(key, -1)) > ends[key]
    )


def extend_transitions(
    last: GroupObservation | None, state: str, members: Members, now: float, *, passed: str = ""
) -> tuple[GroupTransition, ...]:
    """Add the transitions that follow from a new observation by a poll or a state poll.

    The transitions are found here and not by comparing statuses: a status is not written for each observation, so short
    states would be missed. `passed` is a state that the broker reported just before `state`. Times are rounded to ms,
    as in the status.
    """
    at = round(now, 3)
    known = last.transitions if last is not None else ()
    if last is None or not known:
        return (GroupTransition(before=UNKNOWN_STATE, after=state, at=at),)
    path = [word for word, _ in groupby(word for word in (last.state, passed, state) if word)]
    if len(path) == 1:
        # If the members or assignments of a Stable group have changed, it has rebalanced since the last observation.
        unchanged = last.members is members or _assignments(last.members) == _assignments(members)
        if state != STABLE or unchanged:
            return known
        path = [STABLE, STABLE]
    joined, left = _missing(members, last.members), _missing(last.members, members)
    first = GroupTransition(
        before=path[0],
        after=path[1],
        at=at,
        joined=joined[:NAMED_MAX],
        left=left[:NAMED_MAX],
        joined_count=len(joined),
        left_count=len(left),
    )
    later = (GroupTransition(before=before, after=after, at=at) for before, after in pairwise(path[1:]))
    return (*known, first, *later)[-TRANSITIONS_MAX:]


def _assignments(members: Members) -> Mapping[str, Mapping[str, tuple[int, ...]]]:
    return {member.key: member.partitions for member in members}


def _missing(members: Iterable[MemberObservation], among: Members) -> tuple[MemberName, ...]:
    keys = {member.key for member in among}
    return tuple(
        MemberName(member.member_id, member.instance_id, member.client_id)
        for member in members
        if member.key not in keys
    )
