"""Reset of a group's committed offsets as a state machine. Pure.

    Pending -> StandingDown <-> Committing -> Succeeded
       |            |               |
     Failed     Cancelled         Failed; the message says what was changed

Every phase is remembered before the step that it allows is taken: workers are stopped once `StandingDown` is on record,
offsets are committed once `Committing` is on record with the offsets of before, and workers start once `Succeeded` is.
A process that dies between two of them is continued by the next one: a commit of the recorded offsets may be repeated.

Nothing is stopped for a reset that cannot be done, nor while other programs are in the group. Once workers are stopped,
an outside error keeps them so and is shown, for they could not work either; they start again, at the offsets of before,
when the OffsetReset is deleted. After a commit that changed something they start only at the new offsets. Nothing is
committed over what another program committed since the offsets were read: they are read again, once it has left. But
where a process may have set them before that, and has died, the reset ends: what was before stands in its record only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from fleet_consumer.contract.patterns import Pattern
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.offsetreset import OffsetReset
from fleet_operator.planning import times
from fleet_operator.planning.offsets.records import ResetPhase, ResetRecord
from fleet_operator.planning.offsets.targets import GroupOffsets, find_targets
from fleet_operator.planning.problem import Problem, Refused, name_some

EMPTY_STATES: Final = frozenset({"Empty", "Dead"})
LASTING: Final = frozenset({conditions.AUTHORIZATION_FAILED, conditions.TOPIC_NOT_FOUND})
"""Brokers' refusals that do not pass by themselves. For any other, such as a coordinator that moves, no commit is left
half done."""


class ResetStep(StrEnum):
    READ = "read"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of the last step: in which phase it was taken, and what came of it.

    - `read`: of a read, `waited_s` seconds after the first one in this phase; `problem`: the error that ended the step.
    - `committed`: all offsets were found committed afterwards. Else `refusals` are the brokers' reasons by partition,
      and `untouched` tells that all offsets were found as before.
    - `outdated`: nothing was tried, for another program has committed since the offsets of before were read.
    - `unsent`: no commit of these offsets can have been made so far, by any process.
    """

    phase: ResetPhase
    read: GroupOffsets | None = None
    waited_s: float = 0.0
    committed: bool = False
    untouched: bool = False
    outdated: bool = False
    unsent: bool = False
    refusals: Mapping[tuple[str, int], str] = field(default_factory=dict)
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetFacts:
    """The fleet, and its Kafka group as last read.

    - `obstacle`: the reason why nothing may be asked or changed in Kafka now.
    - `sources`: the source topics, None while unknown; `pattern`: that of the spec, None without a valid one.
    - `down`: the main StatefulSet wants no worker, or there is none.
    - `cluster_id`: the Kafka cluster that answers now.
    - `own_prefix`: beginning of the instance ids of our workers; `own_name`: of their client ids, before the ordinal.
    - `patience_s`: seconds in which workers that were stopped have left the Kafka group, or were removed from it.
    """

    obstacle: Problem | None = None
    sources: tuple[str, ...] | None = None
    pattern: Pattern | None = None
    down: bool = False
    cluster_id: str = ""
    own_prefix: str = ""
    own_name: str = ""
    patience_s: float = math.inf
    finding: Finding | None = None


Move = tuple[ResetRecord, ResetStep | None]
"""The record to be remembered, and the step in Kafka that it allows."""


def decide_reset(reset: OffsetReset, record: ResetRecord, facts: ResetFacts, now: float, *, abandoned: bool) -> Move:
    """The next step of a reset that has not ended; `now` in epoch seconds. `abandoned`: its object is being deleted, so
    a commit that cannot be made is given up."""
    if record.phase is ResetPhase.COMMITTING:
        return _commit(facts, record, now, abandoned=abandoned)
    advance = _standing_down if record.phase is ResetPhase.STANDING_DOWN else _pending
    return advance(facts, reset, record, now)


def _pending(facts: ResetFacts, reset: OffsetReset, record: ResetRecord, now: float) -> Move:
    """Input is checked while the fleet runs: it stands down only for a reset that can be done."""
    read = _read_of(facts, record)
    if not isinstance(read, GroupOffsets):
        return _waiting(record, read[0]), read[1]
    assert facts.sources is not None, "nothing is read before the sources are known"
    targets = find_targets(reset.spec, facts.sources, read, facts.pattern)
    if isinstance(targets, Refused):
        return ended(record, ResetPhase.FAILED, targets.problem, now), None
    if isinstance(targets, Problem):
        return _waiting(record, targets), ResetStep.READ
    if reset.spec.dry_run:
        done = replace(record, previous=targets.previous, offsets=targets.offsets)
        return ended(done, ResetPhase.SUCCEEDED, Problem("", targets.note), now), None
    foreign = _foreign(facts, read)
    if foreign is not None:
        return _waiting(record, foreign), ResetStep.READ
    message = "the main workers are being stopped"
    return replace(record, phase=ResetPhase.STANDING_DOWN, reason=conditions.STOPPING_WORKERS, message=message), None


def _standing_down(facts: ResetFacts, reset: OffsetReset, record: ResetRecord, now: float) -> Move:
    """Workers are stopped; offsets count from when nobody is left in the group."""
    if not facts.down and facts.obstacle is None:
        return record, None
    read = _read_of(facts, record)
    if not isinstance(read, GroupOffsets):
        return _waiting(record, read[0]) if read[0] is not None else record, read[1]
    assert facts.sources is not None, "nothing is read before the sources are known"
    if read.members or read.state not in EMPTY_STATES:
        return _waiting(record, _foreign(facts, read) or _leaving(facts, read, record)), ResetStep.READ
    targets = find_targets(reset.spec, facts.sources, read, facts.pattern)
    if isinstance(targets, Refused):
        return ended(record, ResetPhase.FAILED, targets.problem, now), None
    if isinstance(targets, Problem):
        return _waiting(record, targets), ResetStep.READ
    ids = {topic: read.topic_ids[topic] for topic, _ in targets.offsets if topic in read.topic_ids}
    decided = replace(record, previous=targets.previous, offsets=targets.offsets, note=targets.note)
    decided = replace(decided, cluster_id=read.cluster_id, topic_ids=ids)
    return _with(replace(decided, phase=ResetPhase.COMMITTING), Problem("", targets.note)), None


def _commit(facts: ResetFacts, record: ResetRecord, now: float, *, abandoned: bool) -> Move:
    """The recorded offsets are committed, also for an object that is being deleted."""
    finding = _finding(facts, record)
    if finding is not None and finding.outdated:
        return _overtaken(record, now, unsent=finding.unsent), None
    if facts.obstacle is not None:
        return _with(record, facts.obstacle), None
    if record.cluster_id and facts.cluster_id != record.cluster_id:
        message = "another Kafka cluster was accepted since the offsets were read: they are read there"
        return _read_again(record, Problem(conditions.STOPPING_WORKERS, message)), None
    if finding is None:
        return record, ResetStep.COMMIT
    if finding.committed:
        return ended(record, ResetPhase.SUCCEEDED, Problem("", record.note), now), None
    problem = finding.problem or _refusal(finding)
    forbidden = set(finding.refusals.values()) == {conditions.AUTHORIZATION_FAILED}
    if finding.untouched and forbidden:
        message = (
            f"{problem.message}; nothing was changed: let the KafkaCluster's user read the group and its topics, and "
            "make another OffsetReset"
        )
        return ended(record, ResetPhase.FAILED, Problem(problem.reason, message), now), None
    others = _given_up(finding) if abandoned else None
    if others is not None:
        message = f"{problem.message}; the OffsetReset was deleted, and {others}"
        return ended(record, ResetPhase.FAILED, Problem(problem.reason, message), now), None
    return _with(record, problem), ResetStep.COMMIT


def _given_up(finding: Finding) -> str | None:
    """Words for what a commit that is given up has changed; None for one that has to be finished."""
    if finding.refusals and finding.untouched:
        return "nothing was changed"
    if finding.refusals:
        return "the other partitions are set" if LASTING.issuperset(finding.refusals.values()) else None
    if finding.problem is not None and finding.problem.reason in LASTING:
        return "it could not be read whether anything was changed"
    return None


def _overtaken(record: ResetRecord, now: float, *, unsent: bool) -> ResetRecord:
    """Another program has committed, or a topic was deleted and made again, and no commit of this reset is left. If one
    may have been made, by a process that died behind it, the reset was done, and what was handled since is not handled
    again."""
    happened = "another program has committed, or a topic was made again, since the offsets were read"
    if unsent:
        return _read_again(record, Problem(conditions.STOPPING_WORKERS, f"{happened}: they are read again"))
    message = (
        f"{happened}, and an operator that has ended meanwhile may have "
        "set them before: nothing more is set; compare the group's offsets with previous and resolved"
    )
    return ended(record, ResetPhase.FAILED, Problem(conditions.OFFSETS_OVERTAKEN, message), now)


def _read_again(record: ResetRecord, problem: Problem) -> ResetRecord:
    """The record of a reset of which nothing was changed, before its offsets were read."""
    begun = ResetRecord(phase=ResetPhase.STANDING_DOWN, started_at=record.started_at)
    return _with(begun, problem)


def _read_of(facts: ResetFacts, record: ResetRecord) -> GroupOffsets | tuple[Problem | None, ResetStep | None]:
    """The outcome of the read of this phase; else the problem in the way, and the step to take."""
    if facts.obstacle is not None:
        return facts.obstacle, None
    if facts.sources is None:
        return Problem(conditions.NOT_YET_OBSERVED, "the source topics have not been observed yet"), None
    finding = _finding(facts, record)
    if finding is None or finding.read is None:
        return (finding.problem if finding is not None else None), ResetStep.READ
    return finding.read


def _finding(facts: ResetFacts, record: ResetRecord) -> Finding | None:
    found = facts.finding
    return found if found is not None and found.phase is record.phase else None


def _foreign(facts: ResetFacts, read: GroupOffsets) -> Problem | None:
    """Members of other programs, which are never removed."""
    if read.group_type and read.state not in EMPTY_STATES:
        message = (
            f"the Kafka group is {read.state} with members of the type {read.group_type!r}, which this version cannot "
            "name (group.protocol=consumer is KIP-848); stop them, they are never removed"
        )
        return Problem(conditions.FOREIGN_MEMBERS, message)
    worker = re.compile(rf"{re.escape(facts.own_name)}-[0-9]+")
    foreign = sorted(
        member.instance_id or member.client_id
        for member in read.members
        if not (
            member.instance_id.startswith(facts.own_prefix)
            if member.instance_id
            else worker.fullmatch(member.client_id)
        )
    )
    if not foreign:
        return None
    message = (
        f"members of other programs are in the Kafka group: {name_some(foreign)}; stop them, they are never removed"
    )
    return Problem(conditions.FOREIGN_MEMBERS, message)


def _leaving(facts: ResetFacts, read: GroupOffsets, record: ResetRecord) -> Problem:
    """Our own workers are in the group still. One that does so for long does not end, or is none of this fleet's."""
    members = sorted(member.instance_id or member.client_id for member in read.members)
    state = f"the Kafka group is {read.state}" + (f" with the members {name_some(members)}" if members else "")
    finding = _finding(facts, record)
    if finding is None or finding.waited_s <= facts.patience_s:
        return Problem(conditions.STOPPING_WORKERS, f"{state}: workers are leaving it")
    message = (
        f"{state} more than {facts.patience_s:.0f} s after the main workers were stopped: look for pods that do not "
        "end, and for programs that run with these client ids"
    )
    return Problem(conditions.WORKERS_REMAIN, message)


def _refusal(finding: Finding) -> Problem:
    if not finding.refusals:
        message = "the brokers took the offsets, and had others afterwards: they are set again"
        return Problem(conditions.OFFSETS_OVERTAKEN, message)
    (topic, number), reason = min(finding.refusals.items())
    message = (
        f"the brokers refuse the offsets of {len(finding.refusals)} partitions, such as {topic}-{number}: {reason}"
    )
    return Problem(reason, message)


def _waiting(record: ResetRecord, problem: Problem | None) -> ResetRecord:
    return record if problem is None else _with(record, problem)


def _with(record: ResetRecord, problem: Problem) -> ResetRecord:
    """The record with a reason and a message, cut here: names of foreign members may be long."""
    reason = problem.reason[: conditions.REASON_CHARACTERS_MAX]
    return replace(record, reason=reason, message=conditions.shorten(problem.message))


def ended(record: ResetRecord, phase: ResetPhase, problem: Problem, now: float) -> ResetRecord:
    return replace(_with(record, problem), phase=phase, note="", finished_at=times.to_text(now))
