"""Patterns, cooperative rebalances and users' own assignors, in workers on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.broker.workers import Fleet, Kafka, counted
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

RANDOM_ASSIGNOR = '''
import random

from fleet_consumer.assignors import Assignment


class RandomAssignor:
    """Deals every partition to a member that chance picks, among those that want its topic."""

    name = "random"

    def assign(self, cluster, subscriptions):
        chosen = {member: {} for member in subscriptions}
        for topic, count in cluster.partitions.items():
            wanting = [member for member, each in subscriptions.items() if topic in each.topics]
            for number in range(count if wanting else 0):
                chosen[random.choice(wanting)].setdefault(topic, []).append(number)
        return {member: Assignment(partitions) for member, partitions in chosen.items()}


def handle(record):
    from fleet_consumer import Produce

    return Produce(OUTPUT, b"x", key=f"{record.partition}-{record.offset}")
'''


@pytest.fixture
def kafka(broker: KafkaBroker) -> Kafka:
    return Kafka(broker.bootstrap)


def test_m13_assignor_of_the_handlers_own_module_shares_the_partitions(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "random", partitions=12)
    (tmp_path / "mine.py").write_text(RANDOM_ASSIGNOR.replace("OUTPUT", repr(fleet.output)))
    changes: dict[str, Any] = {
        "handler__python__callable": "mine:handle",
        "handler__decode__value": "Bytes",
        "consumer__assignors": ["mine:RandomAssignor"],
    }
    fleet.send_many(600)
    with fleet.worker(0, **changes) as first, fleet.worker(1, **changes) as second:

        def shared() -> bool:
            members = [each.member() for each in (first, second)]
            owned = [set(each["assignment"].get(fleet.source, [])) for each in members]
            assert [each["assignor"] for each in members] == ["random", "random"]
            assert members[0]["generation"] == members[1]["generation"]
            assert owned[0] | owned[1] == set(range(12))
            assert not owned[0] & owned[1]
            return True

        eventually(shared, what="chance to have dealt every partition once")
        fleet.wait_committed()
        assert first.terminate() == 0
        assert second.terminate() == 0
    assert set(fleet.origins_done()) == set(fleet.origins_in())


def test_pattern_takes_in_topics_that_appear_later_from_their_beginning(kafka: Kafka, tmp_path: Path) -> None:
    fleet = Fleet(kafka, tmp_path, "pattern.one", partitions=2)
    kafka.create("pattern.two", "other.pattern", partitions=2)
    kafka.produce("pattern.two", [b'{"do": "ok"}'] * 10)
    kafka.produce("other.pattern", [b'{"do": "ok"}'] * 10)
    fleet.send(*({"do": "ok"} for _ in range(10)))
    # Outputs and failed records have names that match too: the first is ordinary, the second never does.
    with fleet.worker(
        topics=[],
        topicPattern=r"pattern\.(one|two|three)|_fleet.*",
        consumer__autoOffsetReset="Earliest",
        consumer__properties={"metadata.max.age.ms": "1000"},
    ) as worker:
        eventually(lambda: len(kafka.read(fleet.output)) == 20, what="both topics to be handled")
        assert set(worker.member()["assignment"]) == {"pattern.one", "pattern.two"}
        kafka.create("pattern.three", partitions=2)
        kafka.produce("pattern.three", [b'{"do": "ok"}'] * 10)
        eventually(lambda: len(kafka.read(fleet.output)) == 30, what="the new topic to be handled")
        assert set(worker.member()["assignment"]) == {"pattern.one", "pattern.three", "pattern.two"}
        assert worker.terminate() == 0


@pytest.mark.parametrize("concurrency", [1, 4])
def test_cooperative_members_keep_working_while_a_third_joins_and_leaves(
    kafka: Kafka, tmp_path: Path, concurrency: int
) -> None:
    fleet = Fleet(kafka, tmp_path, f"cooperative-{concurrency}", partitions=12)
    fleet.send_many(6000)
    changes: dict[str, Any] = {
        "consumer__assignors": ["cooperative-sticky"],
        "consumer__staticMembership": False,
        "consumer__maxPollRecords": 50,
        # A busy machine must not cost the membership here: lost records are repeated, and none may be.
        "consumer__sessionTimeoutSeconds": 45,
        "handler__concurrency": concurrency,
    }
    with fleet.worker(0, **changes) as first, fleet.worker(1, **changes) as second:
        eventually(
            lambda: len(first.member()["assignment"].get(fleet.source, [])) == 6,
            what="two to share",
        )
        with fleet.worker(2, **changes) as third:
            eventually(
                lambda: len(third.member()["assignment"].get(fleet.source, [])) == 4,
                what="three to share",
            )
            assert third.terminate() == 0
        fleet.wait_committed(90)
        assert [each.member()["assignor"] for each in (first, second)] == ["cooperative-sticky"] * 2
        lines = [each for one in (first, second) for each in one.lines() if each["message"] == "partitions revoked"]
        assert first.terminate() == 0
        assert second.terminate() == 0
    assert counted(fleet.origins_done()) == dict.fromkeys(fleet.origins_in(), 1)
    assert lines, "somebody gave partitions to the third"
    assert all(len(line["partitions"]) <= 6 for line in lines), "nobody gave up more than what moved"
