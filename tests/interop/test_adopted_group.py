"""A Kafka group made by a Java application, taken over by a fleet at its offsets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.broker.workers import Fleet, Kafka
from tests.support.foreign import java_member
from tests.support.kafka_cluster import KafkaCluster
from tests.support.waiting import eventually

PARTITIONS = 4
EACH = 300


@pytest.mark.parametrize("java_assignors", [("range",), ("cooperative-sticky",)])
def test_fleet_goes_on_exactly_where_java_ended(
    cluster: KafkaCluster, tmp_path: Path, java_assignors: tuple[str, ...]
) -> None:
    """Java's member leaves in the middle; every record is handled once, by one of the two."""
    kafka = Kafka(cluster.bootstrap.partition(",")[0])
    name = f"adopted-{java_assignors[0]}"
    fleet = Fleet(kafka, tmp_path, name, partitions=PARTITIONS)
    fleet.send_many(EACH)
    java = java_member(tmp_path, cluster.bootstrap, name, fleet.source, assignors=java_assignors)
    by_java = Counter[tuple[int, int]]()

    def some_done() -> bool:
        return sum(kafka.committed(name, fleet.source).values()) >= EACH

    eventually(some_done, timeout_s=240, what="Java to have committed what there is")
    java.stop()
    for row in java.rows():
        if row[0] == "h":
            by_java.update((row[1], offset) for offset in range(row[3], row[4] + 1))
    handed_over = kafka.committed(name, fleet.source)
    assert by_java == Counter((number, offset) for number, end in handed_over.items() for offset in range(end))
    fleet.send_many(EACH)
    with fleet.worker(consumer__assignors=["cooperative-sticky"]) as worker:
        fleet.wait_committed()
        assert worker.terminate() == 0
    done = Counter(fleet.origins_done())
    assert not done & by_java, "nothing is handled again"
    assert done + by_java == Counter(fleet.origins_in()), "nothing is skipped"
    assert max((done + by_java).values()) == 1


def test_fleet_and_java_share_a_group_whose_assignor_both_know(cluster: KafkaCluster, tmp_path: Path) -> None:
    """The hand-over without a pause: both are members for a while, and every record is handled."""
    kafka = Kafka(cluster.bootstrap.partition(",")[0])
    fleet = Fleet(kafka, tmp_path, "adopted-live", partitions=PARTITIONS)
    java = java_member(tmp_path, cluster.bootstrap, "adopted-live", fleet.source, assignors=("range",))
    fleet.send_many(EACH)
    eventually(
        lambda: sum(kafka.committed("adopted-live", fleet.source).values()) >= EACH, timeout_s=240, what="Java to work"
    )
    with fleet.worker(consumer__assignors=["range"]) as worker:
        worker.wait_ready()
        fleet.send_many(EACH)
        fleet.wait_committed()
        java.stop()
        fleet.send_many(EACH)
        fleet.wait_committed()
        assert worker.terminate() == 0
    by_java = {(row[1], offset) for row in java.rows() if row[0] == "h" for offset in range(row[3], row[4] + 1)}
    done = set(fleet.origins_done())
    assert done | by_java == set(fleet.origins_in())
    assert len(done) > EACH, "the fleet has a share of the second, and all of the third part"
