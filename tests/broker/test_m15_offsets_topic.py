"""M15: the content of `__consumer_offsets`, as our reader, the coordinator's API and Kafka's own tools show it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.consumer.offsets_topic import read_group
from fleet_consumer.contract.naming import coordinator_partition
from fleet_consumer.group.errors import TopicAuthorizationFailed
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.net import ConnectionSettings, SaslSettings
from fleet_consumer.wire.consumer_protocol import decode_assignment
from fleet_consumer.worker.cli import main
from tests.broker.members import create_topic, iterate, produce, settings, unique
from tests.support.kafka import KafkaBroker

FORMATTER = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"


def console_formatter(broker: KafkaBroker, group: str) -> list[dict[str, Any]]:
    """The group's offset records as Kafka's console consumer prints them, in the order of the log."""
    command = (
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", "__consumer_offsets", "--from-beginning"),
        *("--partition", str(coordinator_partition(group, 50)), "--formatter", FORMATTER),
    )
    # It ends after this time without a record, which on a busy machine may be before the first one.
    outputs = (broker.tool(*command, "--timeout-ms", str(timeout_ms)) for timeout_ms in (6_000, 60_000))
    text = next(each for each in outputs if "{" in each)
    # Objects follow one another without separators; log lines may surround them.
    records, rest = [], text[text.index("{") :]
    while rest.startswith("{"):
        record, end = json.JSONDecoder().raw_decode(rest)
        records.append(record)
        rest = rest[end:].lstrip()
    return [record for record in records if record["key"]["data"]["group"] == group]


@pytest.fixture
def committed_group(broker: KafkaBroker) -> tuple[str, str, int]:
    """A group that has committed twice, the last time with metadata; its topic, and the time before."""
    topic, group = create_topic(broker.bootstrap, 2), unique("group-ñ")
    produce(broker.bootstrap, topic, 2, 10)
    before = round(time.time() * 1000)
    with Consumer(settings(broker.bootstrap, group)) as consumer:
        consumer.subscribe([topic])
        list(iterate(consumer, 20))
        consumer.commit()
        epoch = consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        assert epoch is not None
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(7, epoch.leader_epoch, "at the café")})
    return group, topic, before


@pytest.mark.together
def test_m15_api_topic_and_kafkas_formatter_agree(broker: KafkaBroker, committed_group: tuple[str, str, int]) -> None:
    group, topic, before = committed_group
    connection = ConnectionSettings(bootstrap_servers=(broker.bootstrap,), client_id="m15")
    stored = read_group(connection, group, 60)
    with Consumer(settings(broker.bootstrap, group)) as consumer:
        api = consumer.committed(None, 30)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert {one, other} == api.keys() == stored.offsets.keys()
    for part, value in stored.offsets.items():
        assert api[part] == OffsetAndMetadata(value.offset, value.leader_epoch, value.metadata)
        assert value.leader_epoch >= 0
        assert before - 1_000 <= value.commit_timestamp <= round(time.time() * 1000) + 1_000
    assert (stored.offsets[one].offset, stored.offsets[one].metadata) == (7, "at the café")
    assert stored.partition == coordinator_partition(group, 50)

    last = {
        TopicPartition(record["key"]["data"]["topic"], record["key"]["data"]["partition"]): record["value"]
        for record in console_formatter(broker, group)
    }
    assert last.keys() == stored.offsets.keys()
    for part, value in stored.offsets.items():
        printed = last[part]["data"]
        ours = (value.offset, value.leader_epoch, value.metadata, value.commit_timestamp)
        assert (printed["offset"], printed["leaderEpoch"], printed["metadata"], printed["commitTimestamp"]) == ours

    described = broker.tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", broker.bootstrap, "--describe", "--group", group),
    )
    for part, value in stored.offsets.items():
        assert re.search(rf"{re.escape(topic)}\s+{part.partition}\s+{value.offset}\s+10\s", described), described


@pytest.mark.together
def test_m15_topic_shows_the_groups_last_generation(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    produce(broker.bootstrap, topic, 2, 1)
    connection = ConnectionSettings(bootstrap_servers=(broker.bootstrap,), client_id="m15")
    with Consumer(settings(broker.bootstrap, group)) as consumer:
        consumer.subscribe([topic])
        list(iterate(consumer, 2))
        picture = consumer.membership()
        running = read_group(connection, group, 60).group
        assert running is not None
        assert (running.protocol_type, running.generation) == ("consumer", picture.generation)
        assert (running.protocol, running.leader) == (picture.protocol, picture.member_id)
        (member,) = running.members
        assert (member.member_id, member.session_timeout) == (picture.member_id, 30_000)
        (share,) = decode_assignment(member.assignment).assigned_partitions
        assert (share.topic, sorted(share.partitions)) == (topic, [0, 1])


def test_m15_command_prints_both_views(
    broker: KafkaBroker, committed_group: tuple[str, str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    group, topic, _ = committed_group

    def rows(*more: str) -> list[dict[str, Any]]:
        assert main(["offsets", "--bootstrap", broker.bootstrap, "--group", group, *more]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    api, stored = rows(), rows("--from-topic")
    assert [{name: value for name, value in row.items() if name != "commitTimestamp"} for row in stored] == api
    assert [(row["topic"], row["partition"], row["offset"]) for row in api] == [(topic, 0, 7), (topic, 1, 10)]
    assert all(row["commitTimestamp"] > 0 for row in stored)
    assert main(["offsets", "--bootstrap", broker.bootstrap, "--group", f"{group}x"]) == 21
    told = capsys.readouterr()
    assert (told.out, f"no group '{group}x'" in told.err) == ("", True)
    assert f"'{group}'" in told.err, "the name that was meant"


def test_reading_the_topic_without_the_right_names_the_missing_right() -> None:
    authorized = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
        "group.min.session.timeout.ms": "1000",
    }
    with KafkaBroker(properties=authorized, sasl_users={"clerk": "secret"}) as guarded:
        topic, group = create_topic(guarded.bootstrap, 1), unique("group")
        produce(guarded.bootstrap, topic, 1, 1)
        with Consumer(settings(guarded.bootstrap, group)) as consumer:
            consumer.subscribe([topic])
            list(iterate(consumer, 1))
            consumer.commit()
        denied = AclBinding(
            ResourceType.TOPIC,
            "__consumer_offsets",
            ResourcePatternType.LITERAL,
            "User:clerk",
            "*",
            AclOperation.READ,
            AclPermissionType.DENY,
        )
        admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
        for done in admin.create_acls([denied]).values():
            done.result()
        clerk = SaslSettings(mechanism="PLAIN", username="clerk", password="secret")
        connection = ConnectionSettings(bootstrap_servers=(guarded.sasl_bootstrap,), client_id="m15", sasl=clerk)
        with pytest.raises(TopicAuthorizationFailed, match=r"__consumer_offsets.*allow the principal Read"):
            read_group(connection, group, 30)
        # The coordinator still reports them to the clerk.
        with Consumer(replace(settings(guarded.bootstrap, group), connection=connection)) as consumer:
            stored = consumer.committed(None, 30)
        assert [(part.topic, entry and entry.offset) for part, entry in stored.items()] == [(topic, 1)]
