"""`status.transitions`: the last changes of a Kafka group's state, with the cause of each.

The observer's history is merged into the status, so the entries survive a restart of the operator. An entry is
identified by its new state and its time. So no entry is added twice, and a new process continues the existing entries.

Causes have three sources. Some transitions have only one possible cause in the protocol. If members joined or left, the
cause is deduced from these changes. Workers report the causes of their own rejoins, with the generations that they left
and joined.

An entry has the generation that its rebalance completed. Generations are counted from the last known generation, so
clocks are not compared. A rebalance that was not observed is inferred only from a missing generation, and only from
reports that are older than the observation.

Decision: docs/decisions/0047-state-history.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from fleet_operator.api.v1alpha1.conditions import shorten
from fleet_operator.planning import times
from fleet_operator.planning.observation import (
    UNKNOWN_STATE,
    GroupObservation,
    GroupTransition,
    MemberName,
    WorkerObservation,
)
from fleet_operator.planning.problem import NAMED_MAX, name_some
from fleet_operator.planning.status.members import STABLE

TRANSITIONS_MAX: Final = 10
"""Maximum number of entries, as in the CRD."""
REPORT_SECONDS: Final = 300.0
"""Workers are asked about a transition for this many seconds after it. To determine a generation, the operator needs an
observation and an older report. On a busy machine, both may be minutes late."""

PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
EMPTY: Final = "Empty"
DEAD: Final = "Dead"
BEGINNINGS: Final = frozenset({STABLE, EMPTY, DEAD})
"""States of a group outside of rebalances."""

BY_PROTOCOL: Final = {
    (PREPARING, COMPLETING): "all members have joined",
    (COMPLETING, STABLE): "the leader has assigned the partitions",
    (PREPARING, EMPTY): "no member is left",
}
"""Causes of transitions with only one possible cause, keyed by the old and the new state."""
BY_OUTCOME: Final = {
    PREPARING: "a member joined again",
    COMPLETING: "all members have joined",
    STABLE: "the leader has assigned the partitions",
    EMPTY: "no member is left",
    DEAD: "the group was deleted, or its offsets have expired",
}
"""Deduced causes, keyed by the new state. They are used if no member joined or left."""
UNSEEN: Final = "while the group was not observed"
FIRST: Final = "first observation"

Entry = dict[str, Any]
NameOf = Callable[[MemberName], str]


def project_transitions(
    previous: Mapping[str, Any], observed: GroupObservation, workers: Sequence[WorkerObservation], name_of: NameOf
) -> list[Entry]:
    """Return the entries, the oldest first. `workers`: the reports of the main workers."""
    entries = [dict(entry) for entry in previous.get("transitions") or ()]
    entries = _merge(entries, observed.transitions, name_of)
    entries = _number(entries, observed, workers)
    _attribute(entries, workers)
    return entries[-TRANSITIONS_MAX:]


def since(entries: Sequence[Mapping[str, Any]], state: str) -> str | None:
    """Return the time at which the group entered `state`; None if the newest entry has another state."""
    if not entries or entries[-1]["to"] != state:
        return None
    at = times.from_text(entries[-1]["at"])
    return None if at is None else times.to_text(at)


def awaits_report(entries: Sequence[Mapping[str, Any]], workers: Sequence[WorkerObservation], now: float) -> bool:
    """True if a worker may still report the generation that the group has reached. This may be a worker that has not
    answered since it joined. The workers must then be asked even if the group is idle."""
    if not entries or entries[-1]["to"] != STABLE or "generation" in entries[-1]:
        return False
    at = times.from_text(entries[-1]["at"])
    return bool(workers) and at is not None and abs(now - at) < REPORT_SECONDS


# The observer's history.


def _merge(entries: list[Entry], history: Sequence[GroupTransition], name_of: NameOf) -> list[Entry]:
    """Append the transitions in the observer's history that are newer than the recorded entries."""
    known = {(entry["to"], entry["at"]) for entry in entries}
    places = [place for place, seen in enumerate(history) if (seen.after, times.to_milli_text(seen.at)) in known]
    for seen in history[places[-1] + 1 if places else 0 :]:
        known_before = seen.before != UNKNOWN_STATE
        before = seen.before if known_before else entries[-1]["to"] if entries else UNKNOWN_STATE
        if known_before or before != seen.after:
            entries.append(_entry(seen, before, name_of))
    return entries


def _entry(seen: GroupTransition, before: str, name_of: NameOf) -> Entry:
    cause, inferred = _deduce(seen, before, name_of)
    at = times.to_milli_text(seen.at)
    return {"from": before, "to": seen.after, "at": at, "cause": shorten(cause), "inferred": inferred}


def _deduce(seen: GroupTransition, before: str, name_of: NameOf) -> tuple[str, bool]:
    """Return the cause of a transition, and True if the cause is only deduced."""
    if seen.before == UNKNOWN_STATE:
        return (FIRST, False) if before == UNKNOWN_STATE else (UNSEEN, True)
    moves = ((seen.joined, seen.joined_count, "joined"), (seen.left, seen.left_count, "left"))
    told = (f"{name_some([name_of(name) for name in names], count)} {verb}" for names, count, verb in moves if count)
    members = "; ".join(told)
    protocol = BY_PROTOCOL.get((seen.before, seen.after))
    if protocol is not None and not members:
        return protocol, False
    if seen.before == seen.after:
        return members or "partitions were assigned again", True
    return members or BY_OUTCOME.get(seen.after, ""), True


# Generations and causes that workers report.


def _number(entries: list[Entry], observed: GroupObservation, workers: Sequence[WorkerObservation]) -> list[Entry]:
    """Set the generation of entries that reached Stable, and add an entry for a rebalance that no observation shows.
    Generations are counted from the newest generation in an entry. Reports newer than the observation are ignored,
    because the next observation may show their rebalance."""
    if observed.state != STABLE or not entries or entries[-1]["to"] != STABLE:
        return entries
    members = {member.member_id for member in observed.members}
    known = [
        worker
        for worker in workers
        if worker.member_id in members
        and worker.state == STABLE
        and worker.generation >= 0
        and worker.heard_at <= observed.observed_at
    ]
    base = max((place for place, entry in enumerate(entries) if "generation" in entry), default=-1)
    unnumbered = [entry for entry in entries[base + 1 :] if entry["to"] == STABLE]
    if base < 0 or any(entry["to"] in (EMPTY, DEAD) for entry in entries[base + 1 :]):
        # There is no earlier generation from which to count, because a recreated group starts at 1. So only reports
        # that are newer than the entry are used.
        at = times.from_text(unnumbered[-1]["at"]) if unnumbered else None
        fresh = [worker.generation for worker in known if at is not None and worker.heard_at >= at]
        if fresh:
            unnumbered[-1]["generation"] = max(fresh)
        return entries
    before, generation = entries[base]["generation"], max((worker.generation for worker in known), default=-1)
    if generation <= before:
        return entries
    if unnumbered:
        unnumbered[min(generation - before, len(unnumbered)) - 1]["generation"] = generation
        return entries
    cause, seen_at = f"generation {before} to {generation}", times.to_milli_text(observed.observed_at)
    missed: Entry = {"from": STABLE, "to": STABLE, "at": seen_at, "cause": cause, "inferred": True}
    return [*entries, missed | {"generation": generation}]


def _attribute(entries: list[Entry], workers: Sequence[WorkerObservation]) -> None:
    """Replace deduced causes with reported causes. A reported cause belongs to the entry that started the rebalance."""
    began, before = 0, -1
    for place, entry in enumerate(entries):
        generation = entry.get("generation")
        if generation is not None and entries[began]["from"] in BEGINNINGS:
            _report(entries[began], _causes(workers, before if before >= 0 else generation - 1, generation))
        if entry["to"] in BEGINNINGS:
            began, before = place + 1, -1 if generation is None else generation
    if before >= 0 and began < len(entries):
        _report(entries[began], _causes(workers, before, None))


def _causes(workers: Iterable[WorkerObservation], before: int, generation: int | None) -> list[str]:
    """Return the causes that workers report for the rebalance from generation `before` to `generation`.

    A worker's cause belongs to this rebalance if the worker joined a generation after `before` and not after
    `generation`. It also belongs to it if the worker left `before`, or a generation between `before` and `generation`.

    If `generation` is None, the rebalance is not complete. The causes then come from workers that left `before` or had
    no generation, and that have not joined a new generation."""

    def fits(joined: int, left: int) -> bool:
        if generation is None:
            return joined < 0 and left in (-1, before)
        return before < joined <= generation or before <= left < generation

    return [
        f"{worker.pod}: {rejoin.reason}"
        for worker in workers
        for rejoin in worker.rejoins
        if rejoin.own and fits(rejoin.generation, rejoin.before)
    ]


def _report(entry: Entry, causes: Iterable[str]) -> None:
    """Record reported causes. A cause is kept even if later reports do not have it, because a worker that was removed
    sends no more reports."""
    reported = sorted(set(causes))
    if not reported:
        return
    more = len(reported) - NAMED_MAX
    cause = shorten("; ".join(reported[:NAMED_MAX]) + (f"; and {more} more" if more > 0 else ""))
    if entry["inferred"] or len(cause) > len(entry["cause"]):
        entry["cause"], entry["inferred"] = cause, False
