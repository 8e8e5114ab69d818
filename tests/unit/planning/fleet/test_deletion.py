"""Deletion of a group: everything possible is cleaned up, and nothing holds the object indefinitely."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.api.v1alpha1.consumergroup import Deletion
from fleet_operator.planning.fleet.deletion import (
    UNDO_S,
    DeletionFacts,
    DeletionPhase,
    decide_deletion,
    doomed_groups,
    doomed_topics,
    wants_finalizer,
)
from fleet_operator.planning.observation import RetryObservation
from tests.unit.planning.builders import NOW, consumer_group

TIMEOUT = 600
TOPICS = (
    "_fleet.orders.retry.5s",
    "_fleet.orders.retry.1h",
    "_fleet.orders.redrive",
    "_fleet.orders.failed",
    "_fleet.orders.retry.failed",  # of a group named `orders.retry`
    "_fleet.orders.retry.5s.failed",
    "_fleet.orders2.retry.5s",
    "orders",
)


def seen(waiting: int | None, at: float = NOW + 10) -> RetryObservation:
    return RetryObservation(observed_at=at, waiting=waiting, due_lag=waiting)


def facts(**changes: object) -> DeletionFacts:
    base = DeletionFacts(
        deletion=Deletion(retry_topics="Drain", timeout_seconds=TIMEOUT),
        deleted_at=NOW,
        cluster_known=True,
        reachable=True,
        owner=True,
        has_retries=True,
        can_drain=True,
        workers=0,
        retry_workers=1,
        seen=seen(3),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def phase(found: DeletionFacts, after_s: float = 20) -> DeletionPhase:
    return decide_deletion(found, NOW + after_s).phase


def test_drains_first_then_stops_then_deletes() -> None:
    assert phase(facts(workers=2, seen=seen(0))) is DeletionPhase.DRAIN, (
        "main workers may yet publish a record to a retry topic"
    )
    assert phase(facts()) is DeletionPhase.DRAIN
    assert phase(facts(seen=seen(0))) is DeletionPhase.STOP
    assert phase(facts(seen=seen(0), retry_workers=0)) is DeletionPhase.UNDO


def test_redrive_that_has_not_ended_is_waited_for() -> None:
    assert phase(facts(redrives=1, seen=seen(0))) is DeletionPhase.DRAIN
    assert phase(facts(redrives=1, retry_workers=0, can_drain=False)) is DeletionPhase.STOP
    assert phase(facts(redrives=1, retry_workers=0), TIMEOUT + UNDO_S) is DeletionPhase.LEAVE


def test_resources_taken_over_by_another_object_are_kept() -> None:
    step = decide_deletion(facts(heir="shop/orders-new", seen=seen(0), retry_workers=0), NOW + 20)
    assert step.phase is DeletionPhase.LEAVE
    assert "shop/orders-new" in step.given_up


@pytest.mark.parametrize("unknown", [None, seen(None), seen(0, at=NOW - 1)])
def test_topics_of_unknown_content_are_drained(unknown: RetryObservation | None) -> None:
    assert phase(facts(seen=unknown)) is DeletionPhase.DRAIN


def test_drain_ends_with_its_time() -> None:
    assert phase(facts(), TIMEOUT) is DeletionPhase.STOP
    assert phase(facts(retry_workers=0), TIMEOUT) is DeletionPhase.UNDO


@pytest.mark.parametrize(
    "changes",
    [{"can_drain": False}, {"has_retries": False}, {"deletion": Deletion(retry_topics="Delete")}],
)
def test_deletion_does_not_wait_without_draining(changes: dict[str, object]) -> None:
    assert phase(facts(**changes)) is DeletionPhase.STOP


def test_cluster_that_does_not_answer_is_waited_for_within_bounds() -> None:
    silent = facts(reachable=False, seen=None, retry_workers=0, can_drain=False)
    assert phase(silent) is DeletionPhase.STOP
    step = decide_deletion(silent, NOW + TIMEOUT + UNDO_S)
    assert (step.phase, step.given_up) == (DeletionPhase.LEAVE, "the Kafka cluster does not answer")


def test_without_a_kafka_cluster_nothing_is_waited_for() -> None:
    step = decide_deletion(facts(cluster_known=False), NOW)
    assert step.phase is DeletionPhase.LEAVE
    assert "KafkaCluster" in step.given_up


def test_resources_of_an_older_object_are_not_touched() -> None:
    assert decide_deletion(facts(owner=False), NOW).phase is DeletionPhase.LEAVE


def test_topics_of_a_fleet_that_was_orphaned_are_left_to_it() -> None:
    """Its workers go on writing to them."""
    step = decide_deletion(facts(orphaned=True, retry_workers=0, can_drain=False), NOW)
    assert step.phase is DeletionPhase.LEAVE
    assert "--cascade=orphan" in step.given_up


@given(
    st.builds(
        facts,
        cluster_known=st.booleans(),
        reachable=st.booleans(),
        owner=st.booleans(),
        has_retries=st.booleans(),
        can_drain=st.booleans(),
        workers=st.integers(0, 3),
        retry_workers=st.integers(0, 3),
        seen=st.none() | st.builds(seen, st.none() | st.integers(0, 5)),
    )
)
def test_every_deletion_ends(found: DeletionFacts) -> None:
    assert phase(found, TIMEOUT + UNDO_S) is DeletionPhase.LEAVE


def test_topics_of_this_group_only_and_as_many_as_asked_for() -> None:
    def doomed(policy: str) -> set[str]:
        return set(doomed_topics(consumer_group(deletion={"retryTopics": policy}), TOPICS))

    assert doomed("Keep") == set()
    assert doomed("Drain") == set(TOPICS[:3])
    assert doomed("Delete") == set(TOPICS[:4])


def test_nothing_is_deleted_while_it_is_not_known_who_takes_over() -> None:
    found = facts(retry_workers=0, can_drain=False)
    assert phase(found) is DeletionPhase.UNDO
    assert phase(replace(found, heir_unsure=True)) is DeletionPhase.STOP
    assert phase(replace(found, heir_unsure=True), TIMEOUT + UNDO_S) is DeletionPhase.LEAVE


def test_groups_are_deleted_only_on_request() -> None:
    assert doomed_groups(consumer_group(), had_retries=True) == ()
    group = consumer_group(deletion={"group": "Delete"})
    assert doomed_groups(group, had_retries=False) == ("orders",), "`orders.retry` may be another's main group"
    assert doomed_groups(group, had_retries=True) == ("orders", "orders.retry")


def test_finalizer_is_set_only_for_deletion_options() -> None:
    assert not wants_finalizer(Deletion())
    assert wants_finalizer(Deletion(group="Delete"))
    assert wants_finalizer(Deletion(retry_topics="Drain"))
