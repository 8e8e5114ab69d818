"""`fleet-consumer failed` on a real broker: it shows the records, reports errors, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from fleet_consumer.contract import naming
from tests.broker.retry_fleet import MANAGED
from tests.broker.workers import COMMAND, Kafka
from tests.retries.redrives import FailedTopic, failed_record
from tests.support.kafka import KafkaBroker
from tests.support.odd_headers import send_with_odd_name
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

PAGE = Path(__file__).parents[2] / "docs" / "retries.md"
USER, PASSWORD = "viewer", "viewer-secret"
TRACEBACK = "Traceback (most recent call last):\n  File handler.py, line 3\nKeyError: 'x'"


def ask(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command; its exit code must be `code`."""
    done = subprocess.run(
        [COMMAND, "failed", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def lines(topic: FailedTopic, part: str, *arguments: object) -> list[str]:
    """The output of a part of the command about a topic."""
    where = ("--group", topic.group, "--bootstrap", topic.kafka.bootstrap)
    return ask(part, *arguments, *where).stdout.splitlines()


def objects(topic: FailedTopic, part: str, *arguments: object) -> list[dict[str, Any]]:
    """The same as objects."""
    return [json.loads(line) for line in lines(topic, part, "--json", *arguments)]


@pytest.fixture
def topic(kafka: Kafka, tmp_path: Path) -> FailedTopic:
    return FailedTopic(kafka, tmp_path)


def test_list_shows_each_record_once_with_its_headers(topic: FailedTopic) -> None:
    topic.write(range(20))
    found = objects(topic, "list")
    assert sorted(each["origin"] for each in found) == sorted(f"flights:{n % 7}:{n}" for n in range(20))
    places = {(each["partition"], each["offset"]) for each in found}
    assert places == {(each.partition, each.offset) for each in topic.kafka.read(topic.failed)}
    first = found[0]
    assert {name: first[name] for name in ("reason", "errorClass", "errorMessage", "attempt", "damagedHeaders")} == {
        "reason": "exhausted",
        "errorClass": "ValueError",
        "errorMessage": "cancelled",
        "attempt": 6,
        "damagedHeaders": False,
    }
    printed = lines(topic, "list")
    assert len(printed) == 20
    wanted = re.compile(r"\d+:\d+  \d{4}-.*Z  flights:\d:\d+  exhausted  ValueError  cancelled")
    assert [line for line in printed if not wanted.fullmatch(line)] == []
    assert len(lines(topic, "list", "--limit", 7)) == 7


def test_filters_and_counts_agree(topic: FailedTopic) -> None:
    topic.write(range(10))
    topic.write(range(10, 15), reason="timeout", error_class="Timeout")
    topic.write(range(15, 18), reason="fatal", error_class="shop.errors.Broken")
    assert objects(topic, "count") == [
        {"reason": "exhausted", "class": "ValueError", "count": 10},
        {"reason": "timeout", "class": "Timeout", "count": 5},
        {"reason": "fatal", "class": "shop.errors.Broken", "count": 3},
    ]
    assert lines(topic, "count", "--by", "reason")[-1].split() == ["18", "in", "all"]
    assert len(lines(topic, "list", "--reason", "timeout", "--reason", "Fatal")) == 8, "in the words of objects too"
    assert objects(topic, "count", "--by", "class", "--error-class", "Broken") == [
        {"class": "shop.errors.Broken", "count": 3}
    ]
    assert sum(row["count"] for row in objects(topic, "count", "--by", "hour")) == 18


def test_window_of_time_is_that_of_the_broker(topic: FailedTopic) -> None:
    topic.write(range(5))
    border = max(each["timestamp"] for each in objects(topic, "list")) + 1

    def later_record() -> bool:
        topic.write([5])
        return bool(newest(topic) > border)

    eventually(later_record, what="a later record")
    at = iso(border)
    later = objects(topic, "list", "--from", at)
    assert later
    assert all(each["timestamp"] >= border for each in later)
    earlier = objects(topic, "list", "--to", at)
    assert len(earlier) >= 5
    assert len(earlier) + len(later) == len(objects(topic, "list"))
    assert len(objects(topic, "list", "--from", "1h")) == len(objects(topic, "list"))
    assert objects(topic, "list", "--from", "2999-01-01") == []


def newest(topic: FailedTopic) -> int:
    return max(int(each["timestamp"]) for each in objects(topic, "list"))


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def test_show_prints_the_complete_record_with_its_traceback(topic: FailedTopic) -> None:
    value = b"x" * 300_000
    topic.write_records(
        [failed_record(topic.group, 3, value=value, partition=2, error_traceback=TRACEBACK.encode())],
    )
    page = lines(topic, "show", "2:0")
    assert page[0] == f"record    {topic.failed} 2:0"
    assert "    KeyError: 'x'" in page
    assert "  traceparent: 00-3" in page
    assert page[-1] == "  " + value.decode()
    (whole,) = objects(topic, "show", "2:0")
    assert (whole["key"], whole["value"]) == ({"text": "key-3"}, {"text": value.decode()})
    assert {"name": "kr-error-traceback", "text": TRACEBACK} in whole["headers"]


def test_damaged_and_foreign_records_are_shown_next_to_the_others(topic: FailedTopic) -> None:
    topic.write_records(
        [
            {"key": None, "value": None, "partition": 0},
            failed_record(topic.group, 1, partition=0, origin_offset="nowhere", error_message=b"\xff\x1b[31m"),
        ]
    )
    send_with_odd_name(topic.kafka.bootstrap, topic.failed, b"odd")
    found = objects(topic, "list")
    assert len(found) == 3
    assert all(each["damagedHeaders"] and each["origin"] is None for each in found)
    assert "\\x1b[31m" in "\n".join(lines(topic, "list"))
    assert [row["count"] for row in objects(topic, "count", "--by", "reason")] == [2, 1]


def test_missing_record_is_reported_with_the_existing_offsets(topic: FailedTopic) -> None:
    topic.write_records([failed_record(topic.group, 1, partition=0)])
    where = ("--group", topic.group, "--bootstrap", topic.kafka.bootstrap)
    assert "has no record at offset 1; it holds offsets 0 to 0" in ask("show", "0:1", *where, code=21).stderr
    assert "has no record at offset 0; it is empty" in ask("show", "1:0", *where, code=21).stderr
    assert "has no partition 9" in ask("show", "9:0", *where, code=21).stderr
    assert "write two numbers" in ask("show", "first", *where, code=20).stderr


def test_missing_topic_and_brokers_are_reported(kafka: Kafka) -> None:
    missing = ask("list", "--group", "nobody", "--bootstrap", kafka.bootstrap, code=21).stderr
    assert "TopicMissing: topic _fleet.nobody.failed does not exist" in missing
    assert "Kafka has no group 'nobody'" in missing, "a wrong name is told from a group without failed records"
    away = ask("count", "--group", "g", "--bootstrap", "127.0.0.1:9", "--timeout", 2, code=21).stderr
    assert "DataPlaneFailed: topic _fleet.g.failed" in away
    assert "onnection refused" in away
    assert "--group: is missing" in ask("list", "--bootstrap", "127.0.0.1:9", code=20).stderr
    assert (
        "is not a time" in ask("list", "--group", "g", "--bootstrap", "127.0.0.1:9", "--from", "noon", code=20).stderr
    )


def test_nothing_is_told_from_a_wrong_name(topic: FailedTopic) -> None:
    kafka, group = topic.kafka, f"group-{topic.group}"
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic.failed, 0, 0)], asynchronous=False)
    consumer.close()
    where = ("--bootstrap", kafka.bootstrap)
    unknown = ask("count", "--group", group, *where, code=21)
    assert (unknown.stdout, "name it with --topic" in unknown.stderr) == ("", True), "they may fail to another topic"
    wrong = ask("count", "--group", group[:-1], *where, code=21).stderr
    assert f"'{group}'" in wrong, "the name that was meant"
    ours = ("--topic", topic.failed, *where)
    assert "is empty: it holds no failed record" in ask("list", *ours).stderr
    topic.write(range(3))
    assert ask("list", *ours).stderr == ""
    mistyped = ask("list", "--reason", "exausted", *ours)
    assert (mistyped.stdout, "their reasons: exhausted; " in mistyped.stderr) == ("", True)
    assert "classes: ValueError" in ask("count", "--error-class", "KeyError", *ours).stderr
    assert "none of the 3 records" in ask("list", "--from", "2100-01-01T00:00:00Z", *ours).stderr
    kafka.create(f"plain-{topic.group}", partitions=1)
    kafka.produce(f"plain-{topic.group}", [b"an order"])
    assert "check that it is a failed topic" in ask("count", "--topic", f"plain-{topic.group}", *where).stderr


def test_settings_files_of_workers_and_runs_name_brokers_and_topic(topic: FailedTopic, tmp_path: Path) -> None:
    topic.write(range(3))
    file = tmp_path / "redrive.json"
    file.write_text(json.dumps(topic.settings()))
    assert len(ask("list", "--config", file).stdout.splitlines()) == 3
    file.write_text("{}")
    assert "SettingsInvalid" in ask("list", "--config", file, code=20).stderr


def test_reader_that_closes_the_pipe_ends_the_command_quietly(topic: FailedTopic) -> None:
    topic.write(range(3000))
    where = f"--group {topic.group} --bootstrap {topic.kafka.bootstrap}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {COMMAND} failed list {where} | head -n 2"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 2)


def test_inspection_leaves_no_group_and_no_commit(topic: FailedTopic) -> None:
    topic.write_records(failed_record(topic.group, number, partition=0) for number in range(5))
    admin = AdminClient({"bootstrap.servers": topic.kafka.bootstrap})
    ends = topic.kafka.end_offsets(topic.failed)
    for part in (("list",), ("count",), ("show", "0:0")):
        ask(*part, "--group", topic.group, "--bootstrap", topic.kafka.bootstrap)
    groups = {group.group_id for group in admin.list_consumer_groups().result(30).valid}
    assert topic.group not in groups
    assert not {group for group in groups if "failed" in group}
    assert topic.kafka.end_offsets(topic.failed) == ends


def test_read_on_the_failed_topic_is_enough_and_its_lack_is_reported(tmp_path: Path) -> None:
    acls = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "username").write_text(USER)
    (credentials / "password").write_text(PASSWORD)
    with KafkaBroker(sasl_users={USER: PASSWORD}, properties=acls) as broker:
        kafka = Kafka(broker.bootstrap)
        failed = naming.failed_topic("orders")
        kafka.create(failed, partitions=1, config=MANAGED)
        producer = SureProducer({"bootstrap.servers": broker.bootstrap})
        producer.produce(failed, **failed_record("orders", 1))
        assert producer.flush(60) == 0
        where = ("--group", "orders", "--bootstrap", broker.sasl_bootstrap)
        login = ("--sasl", "SCRAM-SHA-256", "--credentials", credentials)
        denied = ask("list", *where, *login, code=21).stderr
        assert f"TopicAuthorizationFailed: topic {failed}: not authorized; allow the principal Read on it" in denied
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        right = AclBinding(
            ResourceType.TOPIC,
            failed,
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        for done in admin.create_acls([right]).values():
            done.result(60)
        acl_filter = AclBindingFilter(
            ResourceType.TOPIC,
            failed,
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        eventually(lambda: admin.describe_acls(acl_filter).result(30), what="the right to be known")
        assert len(ask("list", *where, *login).stdout.splitlines()) == 1
        (credentials / "password").write_text("wrong")
        refused = ask("list", *where, *login, "--timeout", 5, code=21).stderr
        assert "SASL" in refused


def test_documented_commands_run(kafka: Kafka) -> None:
    """As written, except the broker's address."""
    failed = naming.failed_topic("orders")
    kafka.create(failed, partitions=1, config=MANAGED)
    producer = SureProducer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(failed, **failed_record("orders", 1))
    assert producer.flush(60) == 0
    found = [line for line in PAGE.read_text().splitlines() if line.startswith("fleet-consumer failed ")]
    assert {line.split()[2] for line in found} == {"count", "list", "show"}
    for line in found:
        words = line.replace("localhost:9092", kafka.bootstrap).split()[2:]
        assert ask(*words).stdout or "--from 2026" in line, line


def test_terminal_of_a_narrow_character_set_ends_no_list(topic: FailedTopic) -> None:
    topic.write([1], error_message="Zürich – 東京", partition=0)
    where = ("--group", topic.group, "--bootstrap", topic.kafka.bootstrap)
    done = subprocess.run(
        [COMMAND, "failed", "list", *where],
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Z\\xfcrich" in done.stdout
