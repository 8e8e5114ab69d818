"""Where reading begins: at an offset that still stands, where a log was cut, or where the reset policy says.

A position is known by its offset and its leader epoch. Where the partition's leader says that the epoch ends before
the offset, the log was cut: an unclean election lost records that were read already, and other records may have their
offsets by now. Reading goes on at the end of the epoch, the last place up to which what was read is what is there; the
reset policy is for positions that retention has overtaken, and would repeat or skip records here.

One attempt at all partitions of an assignment. Those that cannot be answered for now do not hold up the others: they
come back as waiting or refused, and whoever asked tries again for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from fleet_consumer.coordinator.flows import Flow, Pause
from fleet_consumer.coordinator.lookups import Attempt, Start, try_committed, try_epoch_ends, try_offsets
from fleet_consumer.coordinator.remade import see_ids, try_remade
from fleet_consumer.coordinator.reset_policy import ResetPolicy
from fleet_consumer.group import errors
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.list_offsets import EARLIEST, LATEST


@dataclass(slots=True)
class Starts:
    """The outcome of one attempt.

    `found` may begin. Of these, `cut` has positions that their log no longer has, and `remade` the partitions whose
    log is another one altogether. `without` are those for which the policy `none` decides. `waiting` says why a
    partition cannot begin yet, `refused` what somebody has to mend first; both are to be asked for again.
    """

    found: dict[TopicPartition, Start] = field(default_factory=dict)
    without: tuple[TopicPartition, ...] = ()
    cut: dict[TopicPartition, int] = field(default_factory=dict)
    remade: set[TopicPartition] = field(default_factory=set)
    ids: dict[TopicPartition, UUID] = field(default_factory=dict)
    waiting: dict[TopicPartition, str] = field(default_factory=dict)
    refused: dict[TopicPartition, errors.ConsumerError] = field(default_factory=dict)
    patience_s: float = 0.0

    def put_off(self, attempt: Attempt[Any]) -> None:
        """Take over what an attempt has no answer for."""
        self.waiting |= attempt.waiting
        self.refused |= attempt.refused
        self.patience_s = max(self.patience_s, attempt.patience_s)


@dataclass(frozen=True, slots=True)
class StartRules:
    """What decides where partitions begin that have no offset of their own.

    Those that `appeared` after the first assignment begin at their beginning, whatever the policy. `now_ms` is the
    time of day, for a policy by duration.
    """

    policy: ResetPolicy
    read_committed: bool
    appeared: frozenset[TopicPartition] = frozenset()
    now_ms: int = 0

    def times(self, partitions: Iterable[TopicPartition]) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
        """What to ask the leaders for, and the partitions about which this policy says nothing."""
        times: dict[TopicPartition, int] = {}
        without: list[TopicPartition] = []
        for part in partitions:
            if part in self.appeared or self.policy == ResetPolicy.EARLIEST:
                times[part] = EARLIEST
            elif self.policy == ResetPolicy.LATEST:
                times[part] = LATEST
            elif self.policy.duration_ms is not None:
                times[part] = max(0, self.now_ms - self.policy.duration_ms)
            else:
                without.append(part)
        return times, without


def find_starts(
    group_id: str,
    partitions: tuple[TopicPartition, ...],
    rules: StartRules,
    *,
    lost: Mapping[TopicPartition, Start] | None = None,
    remade: frozenset[TopicPartition] = frozenset(),
    former: Mapping[TopicPartition, UUID] | None = None,
    use_committed: bool = True,
    delay_s: float = 0.0,
) -> Flow[Starts]:
    """Where to begin: at the committed offset if it stands, else (or not `use_committed`) by the rules.

    `lost` has positions that a broker did not have; they count in place of committed offsets. Of these, `remade` are of
    a topic that was made anew. `former` has the ids under which partitions were read before: what a topic made anew
    has and nobody committed an offset in is new, whatever the policy. `delay_s` keeps a lookup that failed before from
    being repeated hotly. Raises GroupAuthorizationFailed.
    """
    if delay_s:
        yield Pause(delay_s)
    starts = Starts(ids=(yield from see_ids(partitions)))
    positions = {part: start for part, start in (lost or {}).items() if part not in remade}
    starts.remade |= remade
    starts.cut |= {part: start.offset for part, start in (lost or {}).items() if part in remade}
    unplaced: list[TopicPartition] = []
    asked = tuple(part for part in partitions if part not in positions and part not in remade)
    if not use_committed:
        unplaced += asked
    elif asked:
        committed = yield from try_committed(group_id, asked)
        starts.put_off(committed)
        unplaced += [part for part, entry in committed.found.items() if entry is None]
        positions |= {part: Start(entry.offset, entry.leader_epoch) for part, entry in committed.found.items() if entry}
    standing = yield from _by_epoch(positions, starts)
    doubted = {part: start for part, start in standing.items() if part in (lost or {})}
    starts.found |= {part: start for part, start in standing.items() if part not in doubted}
    unplaced += yield from _by_range(doubted, starts)
    anew = frozenset(part for part, id_ in (former or {}).items() if starts.ids.get(part, id_) != id_)
    times, without = replace(rules, appeared=rules.appeared | anew).times(unplaced)
    starts.without = tuple(without)
    yield from _by_time(times | dict.fromkeys(starts.remade, EARLIEST), rules, starts)
    return starts


def _by_epoch(positions: Mapping[TopicPartition, Start], starts: Starts) -> Flow[dict[TopicPartition, Start]]:
    """Begin where logs were cut. Returns the positions against which their epoch says nothing."""
    epochs = {part: start.leader_epoch for part, start in positions.items() if start.leader_epoch >= 0}
    if not epochs:
        return dict(positions)
    ends = yield from try_epoch_ends(epochs)
    standing = {part: start for part, start in positions.items() if part not in epochs or part in ends.unsupported}
    ahead = {}
    for part, end in ends.found.items():
        position = positions[part]
        if end.offset < 0:
            ahead[part] = position.leader_epoch
        elif end.offset < position.offset and end.current == position.leader_epoch:
            # No leader loses what it has handed out in its own epoch, and another would have a later one.
            starts.remade.add(part)
            starts.cut[part] = position.offset
        elif end.offset < position.offset:
            starts.found[part], starts.cut[part] = Start(end.offset, end.leader_epoch), position.offset
        else:
            standing[part] = position
    for part in ends.unsupported:
        del ends.refused[part]
    starts.put_off(ends)
    if ahead:
        remade = yield from try_remade(ahead)
        starts.put_off(remade)
        starts.remade |= remade.found.keys()
        starts.cut |= {part: positions[part].offset for part in remade.found}
    return standing


def _by_range(positions: Mapping[TopicPartition, Start], starts: Starts) -> Flow[list[TopicPartition]]:
    """Go on at those positions that the log has, whatever its broker said a moment ago. Returns the others."""
    if not positions:
        return []
    first = yield from try_offsets(dict.fromkeys(positions, EARLIEST), read_committed=False)
    last = yield from try_offsets(dict.fromkeys(first.found, LATEST), read_committed=False)
    starts.put_off(first)
    starts.put_off(last)
    outside = []
    for part, end in last.found.items():
        position = positions[part]
        if first.found[part].offset <= position.offset <= end.offset:
            starts.found[part] = position
        elif position.offset > end.offset and position.leader_epoch >= 0:
            # Its epoch reaches this far: after an election the leader does not know yet how much may be read.
            starts.waiting[part] = f"its leader's end, {end.offset}, is still before the position, {position.offset}"
        else:
            outside.append(part)
    return outside


def _by_time(times: Mapping[TopicPartition, int], rules: StartRules, starts: Starts) -> Flow[None]:
    """Begin at these times; a partition that has nothing so young begins at its end."""
    asked = times
    while asked:
        listed = yield from try_offsets(asked, read_committed=rules.read_committed)
        starts.put_off(listed)
        starts.found |= {part: start for part, start in listed.found.items() if start.offset >= 0}
        asked = {part: LATEST for part, start in listed.found.items() if start.offset < 0 and asked[part] != LATEST}
