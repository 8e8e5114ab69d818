"""`status.transitions`: the last changes of a Kafka group's state, with the cause of each.

The observer's history is merged into the status, which is the record: an entry is known again by its state and time, so
none is added twice, and a history that a new process begins continues the entries that are there.

Causes come from three sources. Some moves have one cause by the protocol. Members that came or went are one that is
deduced. A worker knows its own: it reports from which generation to which it joined, and why; entries carry the
generation that they completed, counted from the last one known, so that no clocks are compared.
"""

from __future__ import annotations

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
"""The CRD's limit."""
REPORT_SECONDS: Final = 300.0
"""Time after which no worker is expected to say more about a transition. A generation needs an observation and an older
report; on a busy machine either may come minutes late."""

PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
EMPTY: Final = "Empty"
DEAD: Final = "Dead"
BEGINNINGS: Final = frozenset({STABLE, EMPTY, DEAD})
"""States between rebalances."""

BY_PROTOCOL: Final = {
    (PREPARING, COMPLETING): "all members have joined",
    (COMPLETING, STABLE): "the leader has assigned the partitions",
    (PREPARING, EMPTY): "no member is left",
}
"""Moves of the coordinator that have one cause."""
BY_OUTCOME: Final = {
    PREPARING: "a member joined again",
    COMPLETING: "all members have joined",
    STABLE: "the leader has assigned the partitions",
    EMPTY: "no member is left",
    DEAD: "the group was deleted, or its offsets have expired",
}
"""Deduced causes, where no member came or went, by the state that was reached."""
UNSEEN: Final = "while the group was not observed"
FIRST: Final = "first observation"

Entry = dict[str, Any]
NameOf = Callable[[MemberName], str]


def project_transitions(
    previous: Mapping[str, Any], observed: GroupObservation, workers: Sequence[WorkerObservation], name_of: NameOf
) -> list[Entry]:
    """The entries, oldest first. `workers` are the reports of the main workers."""
    entries = [dict(entry) for entry in previous.get("transitions") or ()]
    entries = _merge(entries, observed.transitions, name_of)
    entries = _number(entries, observed, workers)
    _attribute(entries, workers)
    return entries[-TRANSITIONS_MAX:]


def since(entries: Sequence[Mapping[str, Any]], state: str) -> str | None:
    """The time at which the group came to its state; None where the entries do not say."""
    if not entries or entries[-1]["to"] != state:
        return None
    at = times.from_text(entries[-1]["at"])
    return None if at is None else times.to_text(at)


def awaits_report(entries: Sequence[Mapping[str, Any]], workers: Sequence[WorkerObservation], now: float) -> bool:
    """True if workers may yet say which generation the group has reached: idle groups have to be asked.

    Workers that have answered at all count, also from before they joined.
    """
    if not entries or entries[-1]["to"] != STABLE or "generation" in entries[-1]:
        return False
    at = times.from_text(entries[-1]["at"])
    return bool(workers) and at is not None and abs(now - at) < REPORT_SECONDS


# The observer's history.


def _merge(entries: list[Entry], history: Sequence[GroupTransition], name_of: NameOf) -> list[Entry]:
    """The entries with what the observer has seen since the newest of them that it knows."""
    known = {(entry["to"], entry["at"]) for entry in entries}
    places = [place for place, seen in enumerate(history) if (seen.after, times.to_milli_text(seen.at)) in known]
    for seen in history[places[-1] + 1 if places else 0 :]:
        before = entries[-1]["to"] if entries else UNKNOWN_STATE
        if seen.before != UNKNOWN_STATE:
            entries.append(_entry(seen, seen.before, name_of))
        elif before != seen.after:
            entries.append(_entry(seen, before, name_of))
    return entries


def _entry(seen: GroupTransition, before: str, name_of: NameOf) -> Entry:
    cause, inferred = _deduce(seen, before, name_of)
    return {
        "from": before,
        "to": seen.after,
        "at": times.to_milli_text(seen.at),
        "cause": shorten(cause),
        "inferred": inferred,
    }


def _deduce(seen: GroupTransition, before: str, name_of: NameOf) -> tuple[str, bool]:
    """The cause, as far as the observation shows it, and whether it was deduced."""
    if seen.before == UNKNOWN_STATE:
        return (FIRST, False) if before == UNKNOWN_STATE else (UNSEEN, True)
    came, went = (
        f"{name_some([name_of(name) for name in names], count)} {verb}" if count else ""
        for names, count, verb in ((seen.joined, seen.joined_count, "joined"), (seen.left, seen.left_count, "left"))
    )
    members = "; ".join(part for part in (came, went) if part)
    protocol = BY_PROTOCOL.get((seen.before, seen.after))
    if protocol is not None and not members:
        return protocol, False
    if seen.before == seen.after:
        return members or "partitions were assigned again", True
    return members or BY_OUTCOME.get(seen.after, ""), True


# Generations and causes that workers report.


def _number(entries: list[Entry], observed: GroupObservation, workers: Sequence[WorkerObservation]) -> list[Entry]:
    """Give entries that reached Stable their generation; add one for rebalances that no observation shows.

    Generations are counted from the newest that an entry carries. Reports that are newer than the observation prove
    nothing: the next observation may show the rebalance that they tell of.
    """
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
        # Nothing to count from: a group that was deleted begins again at 1. So the report must be of this generation.
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
    missed: Entry = {
        "from": STABLE,
        "to": STABLE,
        "at": times.to_milli_text(observed.observed_at),
        "cause": f"generation {before} to {generation}",
        "inferred": True,
        "generation": generation,
    }
    return [*entries, missed]


def _attribute(entries: list[Entry], workers: Sequence[WorkerObservation]) -> None:
    """Replace deduced causes by those that workers report for the generation that a rebalance led to.

    The cause belongs to the entry with which the rebalance began.
    """
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
    """The workers' own reasons to join in the generations after `before` up to `generation`, or to leave those that
    these followed. Without a generation those of workers that are on their way from the one before into the next."""

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
    """Note a reported cause. Reports come one after the other, and go with their workers: none takes one back."""
    reported = sorted(set(causes))
    if not reported:
        return
    more = len(reported) - NAMED_MAX
    cause = shorten("; ".join(reported[:NAMED_MAX]) + (f"; and {more} more" if more > 0 else ""))
    if entry["inferred"] or len(cause) > len(entry["cause"]):
        entry["cause"], entry["inferred"] = cause, False
