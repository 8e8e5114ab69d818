"""Revisions that a fleet may go back to, and those that nothing uses any more."""

from __future__ import annotations

from fleet_operator.planning.fleet.deadlines import MISSING, TROUBLE_S
from fleet_operator.planning.fleet.rollout_facts import FleetFacts, RevisionRecord, RolloutFacts
from fleet_operator.planning.state.fleet import RevisionState


def newest_good(facts: RolloutFacts, *, other_than: str | None = None) -> RevisionRecord | None:
    """The revision that was last seen working. A revision that is rolled out again counts only when confirmed again."""
    good = [r for r in facts.records.values() if r.state is RevisionState.GOOD and r.hash != other_than]
    return max(good, key=lambda record: (record.since or 0.0, record.hash == facts.wanted), default=None)


def good_since(facts: RolloutFacts, now: float) -> float:
    """The time for a revision that became good now: later than all others, also those marked by a leader whose clock
    was ahead. Otherwise the older one would stay the newest, and this one would be marked again and again."""
    newest = newest_good(facts, other_than=facts.wanted)
    return now if newest is None or newest.since is None else max(now, newest.since + 1.0)


def running_revision(facts: RolloutFacts) -> str | None:
    """The StatefulSet's revision, if its record can be used."""
    return facts.fleet.revision if facts.fleet and facts.fleet.revision in facts.records else None


def fallback(facts: RolloutFacts) -> str | None:
    """The revision to run while the wanted one may not: the last good one, else the present one."""
    good = newest_good(facts, other_than=facts.wanted)
    running = running_revision(facts)
    return good.hash if good and facts.fleet else running


def start_of_rest(facts: RolloutFacts, fleet: FleetFacts) -> str | None:
    """The good revision at which a fleet without pods starts before it changes to an unproven one, else None.

    A StatefulSet makes missing pods at its newest template, all at once; one by one it replaces only those that exist.
    Where pods of the good revision cannot be made either (a quota), the new one goes on without them.
    """
    leaving = sum(pod.deleting for pod in facts.pods)
    if fleet.replicas > 0 and fleet.observed and fleet.current_replicas > leaving:
        return None
    good = next((r for r in facts.records.values() if r.hash == fleet.revision), None)
    if good is None or good.state is not RevisionState.GOOD or facts.watched.seconds(MISSING) >= TROUBLE_S:
        return None
    return good.hash


def prunable(facts: RolloutFacts, target: str | None) -> tuple[str, ...]:
    """Unused revisions: not wanted, not running anywhere, not the fallback.

    Nothing is forgotten while it is unknown which revision is wanted, or which one the StatefulSet's controller has.
    """
    if facts.wanted is None or (facts.fleet is not None and not facts.fleet.observed):
        return ()
    good = newest_good(facts)
    older_good = newest_good(facts, other_than=facts.wanted)
    kept = {facts.wanted, target, *(pod.revision for pod in facts.pods)}
    kept |= {facts.fleet.revision} if facts.fleet else set()
    kept |= facts.used
    kept |= {record.hash for record in (good, older_good) if record}
    return tuple(sorted(set(facts.records) - kept))
