"""Backfills and their surroundings for the planners' tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet_consumer.contract.backfill_ledger import Ledger
from fleet_operator.api.v1alpha1 import Backfill
from fleet_operator.planning.backfill.parsing import BOTH, Progress
from fleet_operator.planning.backfill.phase import BackfillFacts
from fleet_operator.planning.backfill.ranges import ResolvedRange, TopicOffsets, range_status
from fleet_operator.planning.run import ReferencedGroup
from tests.unit.planning import builders

RANGE = ResolvedRange(topic="orders", ranges={0: (0, 10), 1: (5, 15)}, from_ms=1_000, to_ms=9_000)
RANGED = range_status(RANGE)


def backfill(status: dict[str, Any] | None = None, **spec: Any) -> Backfill:
    """A Backfill of group `orders` over the last minute."""
    wanted = {"groupRef": {"name": "orders"}, "range": {"last": {"seconds": 60}}, "sink": {"none": {}}, **spec}
    metadata = {"name": "again", "namespace": "shop", "uid": "b-1", "generation": 2}
    return Backfill.model_validate({"metadata": metadata, "spec": wanted, "status": status or {}})


def surroundings(**changes: Any) -> ReferencedGroup:
    """A group, its cluster and an observation that keep nothing from starting."""
    group, cluster = builders.consumer_group(), builders.kafka_cluster()
    return replace(ReferencedGroup(group=group, cluster=cluster, seen=builders.observation()), **changes)


def topic_offsets(**changes: Any) -> TopicOffsets:
    """A topic of two partitions with records 10 to 99, all of which are of the range's time from 20 on."""
    both = {0: 10, 1: 10}
    read = TopicOffsets(partitions=2, starts=both, ends={0: 100, 1: 100}, first={0: 20, 1: 20}, end={0: None, 1: 90})
    return replace(read, **changes)


def ledger(attempt: int = 1, **changes: Any) -> Ledger:
    """A ledger after one slice of the range."""
    done = Ledger(attempt=attempt, remaining={0: ((4, 10),), 1: ((5, 15),)}, slices_done=1, slices_left=3)
    return replace(done, **changes)


def progress(of: Ledger | None = None, passes: tuple[str, ...] = BOTH, covered: int = 4) -> Progress:
    return Progress(ledger=of, passes=passes, covered=covered, total=20 * len(passes))


def facts(status: dict[str, Any] | None = None, **changes: Any) -> BackfillFacts:
    """A Backfill whose first attempt has a number."""
    known = {**RANGED, "attempts": 1, **(status or {})}
    made = BackfillFacts(backfill=backfill(known), resolved=RANGE, progress=progress())
    return replace(made, **changes)
