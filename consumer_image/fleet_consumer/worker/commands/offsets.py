"""`fleet-consumer offsets`: prints a group's committed offsets, one JSON object for each partition.

The offsets come from the coordinator, or with `--from-topic` from the topic `__consumer_offsets`. The command does not
join the group or commit.
"""

import argparse
import json
import sys
from typing import Any

from fleet_consumer.consumer.consumer import Consumer, ConsumerSettings
from fleet_consumer.consumer.offsets_topic import read_group
from fleet_consumer.contract.pod import EXIT_OK, EXIT_SURROUNDINGS
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.group.errors import ConsumerError
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.commands.empty_group import absent_group
from fleet_consumer.worker.commands.options import brokers_of
from fleet_consumer.worker.config.settings import CredentialsUnreadable, connection_settings


def run(options: argparse.Namespace) -> int:
    try:
        brokers = brokers_of(options)
        connection = connection_settings(brokers, "fleet-consumer-offsets")
        rows = (_from_topic if options.from_topic else _from_coordinator)(connection, options.group, options.timeout)
    except (ConsumerError, SettingsInvalid, CredentialsUnreadable, ValueError) as error:
        print(f"{getattr(error, 'reason', type(error).__name__)}: {error}", file=sys.stderr)
        return EXIT_SURROUNDINGS
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))
    if not rows:
        absent = absent_group(brokers, options.group, options.timeout)
        if absent is not None:
            print(f"GroupMissing: {absent}", file=sys.stderr)
            return EXIT_SURROUNDINGS
        print(f"group {options.group!r} has no committed offset", file=sys.stderr)
    return EXIT_OK


def _from_coordinator(connection: Any, group: str, timeout_s: float) -> list[dict[str, Any]]:
    with Consumer(ConsumerSettings(connection=connection, group_id=group)) as consumer:
        found = consumer.committed(None, timeout_s)
    return [_row(part, entry) for part, entry in sorted(found.items()) if entry is not None]


def _from_topic(connection: Any, group: str, timeout_s: float) -> list[dict[str, Any]]:
    stored = read_group(connection, group, timeout_s)
    return [
        _row(part, value) | {"commitTimestamp": value.commit_timestamp}
        for part, value in sorted(stored.offsets.items())
    ]


def _row(part: TopicPartition, entry: Any) -> dict[str, Any]:
    return {**part._asdict(), "offset": entry.offset, "leaderEpoch": entry.leader_epoch, "metadata": entry.metadata}
