"""Reset of a group's committed offsets as a state machine. Pure.

    Pending -> StoppingWorkers <-> Committing -> Succeeded
       |            |               |
     Failed     Cancelled         Failed; the message says what was changed

Every phase is stored before the step that this phase allows:

- Workers are stopped once `StoppingWorkers` is stored.
- Offsets are committed once `Committing` is stored together with the previous offsets.
- Workers are started once `Succeeded` is stored.

If the operator process dies in between, the next process continues, and may commit the recorded offsets again.

Workers are not stopped for a reset that cannot be done, or while other programs are members of the group. Once workers
are stopped, they stay stopped during an error of Kafka or the network, because they could not work anyway. The error is
reported. If the OffsetReset is deleted during such an error, the workers start again at the previous offsets. After a
commit that changed an offset, the workers start only at the new offsets.

If another program committed after the offsets were read, its commits are not overwritten. The offsets are read again
once this program has left the group. But if an earlier operator process may already have committed for this reset, the
reset fails. The record of the reset is then kept, because the previous offsets are stored nowhere else.

The metadata of a commit proves that this reset made the commit. Equal offsets prove nothing, because another program
may also commit the end offset of an idle partition.

Decision: docs/decisions/0037-declared-offsets.md.
"""

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
"""Permanent broker errors. After any other error, such as a moved coordinator, the commit is repeated until all offsets
are committed."""


class ResetStep(StrEnum):
    READ = "read"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of the last step in Kafka. `phase`: the phase in which the step was taken.

    - `read`: the offsets that the last read found; None without a read. `waited_s`: seconds from the first read in this
      phase to the last read.
    - `committed`: True if a read after the commit found all new offsets. `refusals`: otherwise, the brokers' errors,
      keyed by partition. `untouched`: True if that read found all previous offsets.
    - `outdated`: True if no commit was sent, because another program committed after the previous offsets were read, or
      because a topic was created again.
    - `unsent`: True if certainly no operator process has committed these offsets yet.
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
    """The fleet, and the last finding about its Kafka group.

    - `obstacle`: the reason why the operator must not send requests to Kafka for this group now.
    - `sources`: the source topics; None while unknown. `pattern`: the spec's topic pattern; None without a valid
      pattern.
    - `down`: the main StatefulSet has zero replicas in its spec, or does not exist.
    - `cluster_id`: the id of the Kafka cluster that answers now.
    - `own_prefix`: the start of the instance ids of the fleet's workers. `own_name`: the start of their client ids,
      before the ordinal.
    - `patience_s`: seconds after which no stopped worker should be in the Kafka group any more: either it has left the
      group, or its session has timed out.
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
"""The record to store, and the step in Kafka that this record allows; None for no step."""


def decide_reset(reset: OffsetReset, record: ResetRecord, facts: ResetFacts, now: float, *, abandoned: bool) -> Move:
    """Decide the next step. If `abandoned` (the OffsetReset is being deleted), a commit that cannot succeed is given
    up."""
    found = facts.finding
    finding = found if found is not None and found.phase is record.phase else None
    if record.phase is ResetPhase.COMMITTING:
        return _commit(facts, finding, record, now, abandoned=abandoned)
    return _prepare(facts, finding, reset, record, now)


def _prepare(facts: ResetFacts, finding: Finding | None, reset: OffsetReset, record: ResetRecord, now: float) -> Move:
    """Decide before the commit. In `Pending`, the new offsets are computed while the fleet runs, so that workers are
    stopped only for a reset that can be done. In `StoppingWorkers`, the new offsets are computed again once the group
    has no members."""
    stopping = record.phase is ResetPhase.STOPPING_WORKERS
    if facts.obstacle is not None:
        return _with(record, facts.obstacle), None
    if stopping and not facts.down:
        return record, None
    if facts.sources is None:
        message = "the source topics have not been observed yet"
        return _with(record, Problem(conditions.NOT_YET_OBSERVED, message)), None
    if finding is None or finding.read is None:
        failed = finding.problem if finding is not None else None
        return (record if failed is None else _with(record, failed)), ResetStep.READ
    read = finding.read
    if stopping and (read.members or read.state not in EMPTY_STATES):
        return _with(record, _foreign(facts, read) or _leaving(facts, read, finding.waited_s)), ResetStep.READ
    targets = find_targets(reset.spec, facts.sources, read, facts.pattern)
    if isinstance(targets, Refused):
        return ended(record, ResetPhase.FAILED, targets.problem, now), None
    if isinstance(targets, Problem):
        return _with(record, targets), ResetStep.READ
    decided = replace(record, previous=targets.previous, offsets=targets.offsets)
    if stopping:
        ids = {topic: read.topic_ids[topic] for topic, _ in targets.offsets if topic in read.topic_ids}
        decided = replace(decided, note=targets.note, cluster_id=read.cluster_id, topic_ids=ids)
        return _with(replace(decided, phase=ResetPhase.COMMITTING), Problem("", targets.note)), None
    if reset.spec.dry_run:
        return ended(decided, ResetPhase.SUCCEEDED, Problem("", targets.note), now), None
    foreign = _foreign(facts, read)
    if foreign is not None:
        return _with(record, foreign), ResetStep.READ
    message = "the main workers are being stopped"
    return replace(record, phase=ResetPhase.STOPPING_WORKERS, reason=conditions.STOPPING_WORKERS, message=message), None


def _commit(facts: ResetFacts, finding: Finding | None, record: ResetRecord, now: float, *, abandoned: bool) -> Move:
    """Commit the recorded offsets, even if the object is being deleted."""
    if finding is not None and finding.outdated:
        return _overtaken(record, now, unsent=finding.unsent), None
    if facts.obstacle is not None:
        return _with(record, facts.obstacle), None
    if record.cluster_id and facts.cluster_id != record.cluster_id:
        message = "after the offsets were read, another Kafka cluster was accepted: its offsets are read now"
        return _read_again(record, Problem(conditions.STOPPING_WORKERS, message)), None
    if finding is None:
        return record, ResetStep.COMMIT
    if finding.committed:
        return ended(record, ResetPhase.SUCCEEDED, Problem("", record.note), now), None
    problem = finding.problem or _refusal(finding)
    forbidden = set(finding.refusals.values()) == {conditions.AUTHORIZATION_FAILED}
    if finding.untouched and forbidden:
        message = (
            f"{problem.message}; nothing was changed: grant the KafkaCluster's user Read on the group and its topics, "
            "and create another OffsetReset"
        )
        return ended(record, ResetPhase.FAILED, Problem(problem.reason, message), now), None
    others = _given_up(finding) if abandoned else None
    if others is not None:
        message = f"{problem.message}; the OffsetReset was deleted, and {others}"
        return ended(record, ResetPhase.FAILED, Problem(problem.reason, message), now), None
    return _with(record, problem), ResetStep.COMMIT


def _given_up(finding: Finding) -> str | None:
    """If the commit may be given up, return a message that says which offsets were changed. None if the commit must be
    finished."""
    if finding.refusals and finding.untouched:
        return "nothing was changed"
    if finding.refusals:
        return "the other partitions are set" if LASTING.issuperset(finding.refusals.values()) else None
    if finding.problem is not None and finding.problem.reason in LASTING:
        return "it is unknown whether anything was changed"
    return None


def _overtaken(record: ResetRecord, now: float, *, unsent: bool) -> ResetRecord:
    """The record of a reset that must not commit, because another program committed or a topic was created again.

    If not `unsent`, an operator process that died may have committed for this reset. The reset then fails and is not
    repeated. Otherwise workers would handle records again that they have already handled since that commit."""
    happened = "another program has committed, or a topic was created again, since the offsets were read"
    if unsent:
        return _read_again(record, Problem(conditions.STOPPING_WORKERS, f"{happened}: the offsets are read again"))
    message = (
        f"{happened}, and an earlier operator process may have set the new offsets before that: nothing more is set; "
        "compare the group's offsets with status.previous and status.resolved"
    )
    return ended(record, ResetPhase.FAILED, Problem(conditions.OFFSETS_OVERTAKEN, message), now)


def _read_again(record: ResetRecord, problem: Problem) -> ResetRecord:
    """Return the record of a reset that has changed nothing. The record has no offsets, so they are read again."""
    return _with(ResetRecord(phase=ResetPhase.STOPPING_WORKERS, started_at=record.started_at), problem)


def _foreign(facts: ResetFacts, read: GroupOffsets) -> Problem | None:
    """Return a problem if other programs have members in the group; None without such members. The operator never
    removes these members."""
    if read.group_type and read.state not in EMPTY_STATES:
        message = (
            f"the Kafka group is {read.state} and has members of type {read.group_type!r}, which this operator version "
            "cannot list (group.protocol=consumer is KIP-848): stop them, because the operator does not remove them"
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
        f"members of other programs are in the Kafka group: {name_some(foreign)}; stop them, because the operator does "
        "not remove foreign members"
    )
    return Problem(conditions.FOREIGN_MEMBERS, message)


def _leaving(facts: ResetFacts, read: GroupOffsets, waited_s: float) -> Problem:
    """Return the problem that workers are still in the group. A worker that stays longer than `patience_s` hangs, or
    belongs to another fleet."""
    members = sorted(member.instance_id or member.client_id for member in read.members)
    state = f"the Kafka group is {read.state}" + (f" with the members {name_some(members)}" if members else "")
    if waited_s <= facts.patience_s:
        return Problem(conditions.STOPPING_WORKERS, f"{state}: workers are leaving it")
    message = (
        f"{state} more than {facts.patience_s:.0f} s after the main workers were stopped: look for pods that do not "
        "terminate, and for programs that run with these client ids"
    )
    return Problem(conditions.WORKERS_REMAIN, message)


def _refusal(finding: Finding) -> Problem:
    if not finding.refusals:
        message = "the brokers accepted the offsets, but returned other offsets afterwards: the reset commits again"
        return Problem(conditions.OFFSETS_OVERTAKEN, message)
    (topic, number), reason = min(finding.refusals.items())
    message = (
        f"the brokers refuse the offsets of {len(finding.refusals)} partitions, such as {topic}-{number}: {reason}"
    )
    return Problem(reason, message)


def _with(record: ResetRecord, problem: Problem) -> ResetRecord:
    """Record a problem. Reason and message are shortened, because names of foreign members may be long."""
    reason = problem.reason[: conditions.REASON_CHARACTERS_MAX]
    return replace(record, reason=reason, message=conditions.shorten(problem.message))


def ended(record: ResetRecord, phase: ResetPhase, problem: Problem, now: float) -> ResetRecord:
    return replace(_with(record, problem), phase=phase, note="", finished_at=times.to_text(now))
