"""`fleet-consumer redrive`, `reset` and `skip` with a group's name and its brokers, on a real broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from fleet_consumer.consumer.consumer import Consumer, ConsumerSettings
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import TopicPartition
from tests.broker.test_consumer_ends import Transactions
from tests.broker.workers import COMMAND, Kafka
from tests.retries.redrives import FailedTopic
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually


def ask(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command; its exit code must be `code`."""
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def commit(kafka: Kafka, group: str, topic: str, offsets: dict[int, int], metadata: str = "") -> None:
    """Commit for a group without members, as a stopped worker has left it. By our own client: confluent-kafka's ends
    the metadata with a zero byte, so that no worker would know its replay epoch in it."""
    connection = ConnectionSettings(bootstrap_servers=(kafka.bootstrap,), client_id="tests")
    with Consumer(ConsumerSettings(connection=connection, group_id=group)) as consumer:
        entries = {
            TopicPartition(topic, number): OffsetAndMetadata(offset, -1, metadata) for number, offset in offsets.items()
        }
        consumer.assign(entries)
        consumer.commit(entries)


@contextmanager
def member(kafka: Kafka, group: str, topic: str) -> Iterator[None]:
    """A member of the group."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "client.id": "somebody"}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([topic])

    def assigned() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    try:
        eventually(assigned, what="the membership")
        yield
    finally:
        consumer.close()


@pytest.fixture
def topic(kafka: Kafka, tmp_path: Path) -> FailedTopic:
    return FailedTopic(kafka, tmp_path)


def where(topic: FailedTopic) -> tuple[str, ...]:
    return ("--group", topic.group, "--bootstrap", topic.kafka.bootstrap)


def redrive(topic: FailedTopic, *words: str) -> tuple[dict[str, Any], str]:
    """The result of a run by hand, and its words for people."""
    done = ask("redrive", *where(topic), *words)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_selected_records_are_put_back_once_however_often_the_command_runs(topic: FailedTopic) -> None:
    topic.write(range(10))
    topic.write(range(10, 14), reason="timeout", error_class="shop.errors.Slow")
    counted, said = redrive(topic, "--error-class", "Slow", "--dry-run")
    assert (counted["selected"], counted["moved"], topic.moved_numbers()) == (4, 0, [])
    assert "4 records would be put back" in said
    moved, said = redrive(topic, "--error-class", "Slow", "--reason", "Timeout", "--rate", "100")
    assert (moved["ok"], moved["moved"], topic.moved_numbers()) == (True, 4, [10, 11, 12, 13])
    assert "4 records put back" in said
    again, said = redrive(topic, "--from", "1h")
    assert (again["moved"], again["movedBefore"], topic.moved_numbers()) == (10, 4, list(range(14)))
    nothing, said = redrive(topic)
    assert (nothing["selected"], nothing["movedBefore"]) == (0, 14)
    assert "0 records put back; 14 put back before" in said


def test_single_record_is_put_back_to_the_partition_of_its_key(topic: FailedTopic) -> None:
    topic.write(range(3), partition=2)
    assert redrive(topic, "--record", "2:1")[0]["moved"] == 1
    assert topic.moved_numbers() == [1]
    topic.write([7], key=topic.moved()[0].key, partition=0)
    assert redrive(topic, "--record", "0:0")[0]["moved"] == 1
    assert len({each.partition for each in topic.moved()}) == 1


def test_redrive_tells_nothing_to_do_from_a_wrong_name(topic: FailedTopic) -> None:
    _, said = redrive(topic)
    assert "`fleet-consumer failed count` with the same options" in said
    kafka, healthy = topic.kafka, f"healthy-{topic.group}"
    commit(kafka, healthy, topic.group, {0: 0})
    other = json.loads(ask("redrive", "--group", healthy, "--bootstrap", kafka.bootstrap, code=21).stdout)
    assert (other["ok"], other["reason"]) == (False, "TopicMissing")
    assert "name it with --topic" in other["message"], "its records may fail to another topic"
    wrong = ask("redrive", "--group", healthy[:-1], "--bootstrap", kafka.bootstrap, code=21)
    assert f"'{healthy}'" in json.loads(wrong.stdout)["message"], "the name that was meant"
    kafka.create(f"_fleet.{healthy}.failed", partitions=1)
    unread = ask("redrive", "--group", healthy, "--bootstrap", kafka.bootstrap, code=21)
    assert "nobody would read the records" in json.loads(unread.stdout)["message"]
    nowhere = json.loads(ask("redrive", *where(topic), "--record", "99:1", code=20).stdout)
    assert f"record 99:1: topic {topic.failed} has no partition 99; it has 4" in nowhere["message"]


def test_failed_topic_of_another_name_is_named(topic: FailedTopic) -> None:
    kafka, source, other = topic.kafka, topic.group, f"broken-{topic.group}"
    kafka.create(other, partitions=2)
    kafka.produce(source, [b'{"n": 1}'], partition=1)
    commit(kafka, topic.group, source, {1: 0})
    ask("skip", f"{source}-1:0", *where(topic), "--topic", other)
    assert (kafka.read(topic.failed), len(kafka.read(other))) == ([], 1)
    counted = ask("failed", "count", *where(topic), "--topic", other, "--by", "reason").stdout
    assert counted.split() == ["1", "skipped", "1", "in", "all"]
    assert redrive(topic, "--topic", other)[0]["moved"] == 1
    assert topic.moved_numbers() == [1]


def test_commits_are_reset_to_the_start_the_end_and_a_time(topic: FailedTopic) -> None:
    kafka, group, source = topic.kafka, topic.group, topic.group
    for number in range(2):
        kafka.produce(source, [b"v"] * 5, partition=number)
    commit(kafka, group, source, {0: 3, 1: 4})
    tried = ask("reset", *where(topic), "--to", "earliest", "--dry-run")
    assert tried.stdout.splitlines()[:3] == [f"{source}-0  3 -> 0", f"{source}-1  4 -> 0", f"{source}-2  - -> 0"]
    assert "nothing was changed" in tried.stderr
    assert kafka.committed(group, source) == {0: 3, 1: 4}
    for to, offsets in (
        ("earliest", {0: 0, 1: 0, 2: 0, 3: 0}),
        ("latest", {0: 5, 1: 5, 2: 0, 3: 0}),
        ("1h", {0: 0, 1: 0, 2: 0, 3: 0}),
        ("2999-01-01", {0: 5, 1: 5, 2: 0, 3: 0}),
    ):
        assert "4 partitions are committed" in ask("reset", *where(topic), "--to", to, "--topic", source).stderr
        assert kafka.committed(group, source) == offsets, to


def test_reset_refuses_members_a_wrong_name_and_a_topic_that_is_missing(topic: FailedTopic) -> None:
    kafka, group, source = topic.kafka, topic.group, topic.group
    commit(kafka, group, source, {0: 0})
    with member(kafka, group, source):
        refused = ask("reset", *where(topic), "--to", "latest", code=21).stderr
        assert "GroupInUse" in refused
        assert "with the members somebody" in refused
        assert "Ctrl-C" in refused
        assert "GroupInUse" in ask("skip", f"{source}-0:0", *where(topic), code=21).stderr
    assert kafka.committed(group, source) == {0: 0}
    wrong = ask("reset", "--group", group + "x", "--bootstrap", kafka.bootstrap, "--to", "latest", code=21).stderr
    assert f"'{group}'" in wrong
    missing = ask("reset", *where(topic), "--to", "latest", "--topic", "nowhere", code=21).stderr
    assert "topic 'nowhere' does not exist" in missing


def test_next_record_is_set_aside_in_the_failed_topic_and_can_be_put_back(topic: FailedTopic) -> None:
    kafka, group, source = topic.kafka, topic.group, topic.group
    kafka.produce(source, [b'{"n": %d}' % number for number in range(5)], partition=1)
    commit(kafka, group, source, {1: 2}, "fleet-replay-epoch=2;id=0123456789abcdef")
    other = ask("skip", f"{source}-1:3", *where(topic), code=21).stderr
    assert "next record in" in other
    assert "is at offset 2, not 3" in other
    assert kafka.committed(group, source) == {1: 2}
    ask("skip", f"{source}-1:2", *where(topic))
    assert kafka.committed(group, source) == {1: 3}
    (aside,) = kafka.read(topic.failed)
    headers = dict(aside.headers)
    assert (aside.value, headers["kr-reason"], headers["kr-origin-offset"]) == (b'{"n": 2}', b"skipped", b"2")
    assert headers["trace"] == b"t-3"
    assert redrive(topic, "--reason", "skipped")[0]["moved"] == 1
    (row,) = ask("offsets", *where(topic)).stdout.splitlines()
    assert json.loads(row)["metadata"] == "fleet-replay-epoch=3;id=0123456789abcdef", "the replay epoch goes on"
    ask("skip", f"{topic.redrive}-{topic.moved()[0].partition}:0", *where(topic))
    assert len(kafka.read(topic.failed)) == 2
    wrong = ask("skip", f"{source}-1:5", "--group", group + "x", "--bootstrap", kafka.bootstrap, code=21).stderr
    assert f"'{group}'" in wrong, "the name that was meant"


def test_record_of_an_aborted_transaction_is_not_set_aside(broker: KafkaBroker, topic: FailedTopic) -> None:
    kafka, group, source = topic.kafka, topic.group, topic.group
    transactions = Transactions(broker, source)
    transactions.write(2, value=b"void", commit=False)  # offsets 0 and 1, and the marker at 2
    transactions.write(1, value=b"good")
    eventually(lambda: kafka.end_offsets(source)[0] == 5, what="the marker of the second transaction")
    commit(kafka, group, source, {0: 0})
    refused = ask("skip", f"{source}-0:0", *where(topic), code=21).stderr
    assert "is at offset 3, not 0" in refused
    assert "its transaction was aborted" in refused
    assert (kafka.read(topic.failed), kafka.committed(group, source)) == ([], {0: 0})
    ask("skip", f"{source}-0:3", *where(topic))
    assert [each.value for each in kafka.read(topic.failed)] == [b"good"]
    assert kafka.committed(group, source) == {0: 4}
    transactions.write(1, value=b"void", commit=False)
    assert "has no next record for the group" in ask("skip", f"{source}-0:5", *where(topic), code=21).stderr
