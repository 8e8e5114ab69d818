"""Topics and partitions for tests, visible to every client once the call returns."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from tests.support.waiting import eventually

TIMEOUT_S = 240.0


BUSY = (
    KafkaError._TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.INVALID_REPLICATION_FACTOR,  # the only broker has missed heartbeats and is fenced for a moment
)
"""Errors of a broker on a busy machine; a retry creates the topic."""


def make_topics(admin: AdminClient, wanted: Sequence[NewTopic]) -> None:
    """Create topics with unique names, and wait until each of their partitions has a leader.

    The controller answers once it has stored the topic; a broker learns of it a moment later. Until then a consumer
    gets UNKNOWN_TOPIC_OR_PARTITION.
    """
    names = [each.topic for each in wanted]

    def made() -> bool:
        for future in admin.create_topics(list(wanted)).values():
            _await(future)
        return True

    eventually(made, timeout_s=TIMEOUT_S, what=f"topics {names}")
    _wait_leaders(admin, {each.topic: each.num_partitions for each in wanted})


def add_partitions(admin: AdminClient, topic: str, partitions: int) -> None:
    """Add partitions up to this number, and wait until each has a leader.

    Until then a producer refuses records for the new ones: `_UNKNOWN_PARTITION`.
    """
    for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        future.result(TIMEOUT_S)
    _wait_leaders(admin, {topic: partitions})


def _wait_leaders(admin: AdminClient, wanted: Mapping[str, int]) -> None:
    """Wait until a broker reports these topics with so many partitions, each with a leader."""

    def led() -> bool:
        topics = admin.list_topics(timeout=10).topics
        missing = wanted.keys() - topics.keys()
        assert not missing, f"unknown yet: {missing}"
        leaders = {name: [part.leader for part in topics[name].partitions.values()] for name in wanted}
        assert all(len(found) >= wanted[name] and min(found) >= 0 for name, found in leaders.items()), leaders
        return True

    eventually(led, timeout_s=TIMEOUT_S, what=f"leaders of {sorted(wanted)}")


def _await(made: Future[None]) -> None:
    """Wait until a topic is created; one that exists was created by an earlier try, whose response was late."""
    try:
        made.result(TIMEOUT_S)
    except KafkaException as error:
        code = error.args[0].code()
        if code in BUSY:
            raise AssertionError(str(error)) from error
        if code != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
