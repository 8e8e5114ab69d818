"""The observation of a group, from the answers of a poll and the observation before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Final

from fleet_operator.observe import aggregation
from fleet_operator.observe.aggregation import NOT_OBSERVED, STABLE, GroupFacts, Offsets
from fleet_operator.observe.flow import FlowMemory, Spans
from fleet_operator.observe.interests import GroupInterest
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

GROUP_DOUBT_SECONDS: Final = 15.0
"""For so long a group that cannot be asked is only in doubt, and so is the end of a log: a coordinator or a leader that
moves to another broker takes that."""
DENSE_SECONDS: Final = 25.0
SPARSE_SECONDS: Final = 15.0
"""Age from which on samples are thinned, and the longest time between two of those."""
SAMPLES_SECONDS: Final = 90.0
SLOW_SAMPLES_SECONDS: Final = 900.0
SLOW_SPARSE_SECONDS: Final = 60.0
FEW_RECORDS: Final = 20
"""The window of a group in which fewer records arrive within the usual one, and its spacing: of few records a rate is
chance."""
SAMPLES_GAP_SECONDS: Final = 30.0
"""Length of the samples of a group's progress, and the longest time between two of them: records that arrive after a
longer one had been waiting at their producers, and are no rate."""

TRANSITIONS_MAX: Final = 10
NAMED_MAX: Final = 4
"""The members that one transition names: a group of any size may come or go at once."""

Members = tuple[MemberObservation, ...]


def observe_group(
    interest: GroupInterest,
    last: GroupObservation | None,
    facts: Mapping[str, GroupFacts],
    flow: FlowMemory,
    topics: Mapping[str, TopicObservation],
    spans: Spans,
    now: float,
) -> GroupObservation:
    """The main group, and with it its flow: one of them may be known while the other is not.

    `last` is the newest observation, perhaps of a state poll; `spans` are those of the flow, `now` is epoch seconds.
    """
    group = aggregate_group(facts[interest.group_id], last, now)
    if group.failed_records is None and interest.failed_topic:
        flow.ask_starts(interest.failed_topic)
    retry = None
    if interest.retry is not None:
        retry = flow.aggregate(interest, facts[interest.retry.group_id], topics, spans, now)
    return replace(group, samples=extend_samples(group, last) if interest.scaled else (), retry=retry)


def count_failed(facts: GroupFacts) -> tuple[int, int] | tuple[None, None]:
    """Records in the failed topic, and the sum of its ends.

    Without one of its partitions the sum would hide failures. So would a start beyond the end: starts are asked for
    less often, and that one is of a topic that was recreated since.
    """
    ends, starts = facts.failed.ends, facts.failed.starts
    whole = len(ends) == facts.failed_partitions > 0 and ends.keys() <= starts.keys()
    if not whole or any(starts[key] > end for key, end in ends.items()):
        return None, None
    total = sum(ends.values())
    return total - sum(starts[key] for key in ends), total


def aggregate_group(facts: GroupFacts, last: GroupObservation | None, now: float) -> GroupObservation:
    """The group as of this poll; one that could not be asked keeps its last known values and says why.

    Before version 6 a broker describes an unknown group as Dead without an error, since then with GROUP_ID_NOT_FOUND;
    both mean that the group does not exist (yet), which is Dead.
    """
    error, described = facts.failure, facts.described
    if error is not None or described is None or facts.committed is None:
        failed = unobserved(facts.group_id, last, error or NOT_OBSERVED, now)
        told = aggregation.may_read(described)
        return failed if told is None else replace(failed, may_read=told)
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
    """The samples of a group's progress with that of this poll; none is added by a poll that could not ask."""
    known = last.samples if last is not None else ()
    if group.error is not None:
        return known
    now = group.observed_at
    if known and not 0.0 <= now - known[-1].at <= SAMPLES_GAP_SECONDS:
        known = ()  # nobody polled for a while, or the clock was set back
    before = known[-1] if known else None
    newest = ProgressSample(
        now,
        KeptOffsets(group.committed, before.committed if before is not None else None),
        KeptOffsets(group.end_offsets, before.end_offsets if before is not None else None),
    )
    reach = SAMPLES_SECONDS if _arrived(known, newest) >= FEW_RECORDS else SLOW_SAMPLES_SECONDS
    # Of the samples beyond the window one is kept, so that what is left covers all of it.
    first = max((place for place, sample in enumerate(known) if now - sample.at >= reach), default=0)
    return (*_thinned(known[first:], now), newest)


def _arrived(known: tuple[ProgressSample, ...], newest: ProgressSample) -> int:
    """The number of records that have arrived within the usual window."""
    begin = next((sample for sample in reversed(known) if newest.at - sample.at >= SAMPLES_SECONDS), None)
    if begin is None:
        return 0
    ends = newest.end_offsets
    return sum(max(0, ends[key] - end) for key, end in begin.end_offsets.items() if key in ends)


def _thinned(samples: tuple[ProgressSample, ...], now: float) -> list[ProgressSample]:
    """Samples of which the older ones are far between: each holds the offsets of all partitions."""
    kept: list[ProgressSample] = []
    for place, sample in enumerate(samples):
        following = samples[place + 1].at if place + 1 < len(samples) else now
        apart = SPARSE_SECONDS if now - sample.at <= SAMPLES_SECONDS + SPARSE_SECONDS else SLOW_SPARSE_SECONDS
        if now - sample.at <= DENSE_SECONDS or not kept or following - kept[-1].at > apart:
            kept.append(sample)
    return kept


def missing_ends(ends: Offsets, last: GroupObservation | None, now: float) -> dict[tuple[str, int], MissingEnd]:
    """Partitions that did not answer, with what was known of them until a moment ago."""
    if last is None or (last.error is not None and not last.doubtful):
        return {}
    missing = {
        key: MissingEnd(now, end, last.log_starts.get(key)) for key, end in last.end_offsets.items() if key not in ends
    }
    earlier = {
        key: known
        for key, known in last.missing_ends.items()
        if key not in ends and now - known.since < GROUP_DOUBT_SECONDS
    }
    return missing | earlier


def unobserved(group_id: str, last: GroupObservation | None, error: str, now: float) -> GroupObservation:
    """The group after a poll that could not ask it."""
    known = last or GroupObservation(group_id=group_id, observed_at=now, error=NOT_OBSERVED)
    since = known.failing_since if known.error is not None else now
    doubtful = since is not None and now - since < GROUP_DOUBT_SECONDS
    return replace(known, error=error, failing_since=since, doubtful=doubtful)


def beyond_end(facts: GroupFacts, last: GroupObservation | None) -> frozenset[tuple[str, int]]:
    """Partitions whose log ends before an old commit; before the first observation any may be old."""
    committed, ends = facts.committed or {}, facts.log.ends
    old = last.committed if last is not None and last.transitions else committed
    return frozenset(
        key for key, offset in committed.items() if key in ends and min(offset, old.get(key, -1)) > ends[key]
    )


def extend_transitions(
    last: GroupObservation | None, state: str, members: Members, now: float, *, passed: str = ""
) -> tuple[GroupTransition, ...]:
    """The last transitions with those that follow from a new observation of the group, by a poll or a state poll.

    The history is kept where states are seen. A status is written later, and not for each observation: made there, the
    history would lack every state that came and went while an object waited for its turn.

    `passed` is a state that the broker reported just before this one. The observed time has milliseconds, as the status
    shows them.
    """
    at = round(now, 3)
    known = last.transitions if last is not None else ()
    if last is None or not known:
        return (GroupTransition(before=UNKNOWN_STATE, after=state, at=at),)
    path = [word for word, _ in groupby(word for word in (last.state, passed, state) if word)]
    if len(path) == 1:
        # Only a rebalance changes the members or the assignments of a group that was and is Stable.
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
