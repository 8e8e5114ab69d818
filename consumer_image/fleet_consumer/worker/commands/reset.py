"""`fleet-consumer reset`: the commits of a group without members set to the start, the end or a time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping

from fleet_consumer.clock import SystemClock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.contract.brokers import Brokers
from fleet_consumer.contract.pod import EXIT_OK
from fleet_consumer.group.errors import TopicMissing
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.commands.empty_group import absent_group, empty_group
from fleet_consumer.worker.commands.options import brokers_of, time_of

EARLIEST, LATEST = "earliest", "latest"


def run(options: argparse.Namespace) -> int:
    at_ms = target_of(options.to, round(SystemClock().wall() * 1000))
    brokers = brokers_of(options)
    with empty_group(brokers, options.group, options.timeout) as group:
        before = group.committed()
        topics = dict.fromkeys(options.topic or sorted({part.topic for part in before}))
        if not topics:
            raise _nothing_committed(brokers, options.group, options.timeout)
        partitions = _partitions(group.consumer, topics, options.timeout)
        targets = _targets(group.consumer, partitions, options.to, at_ms, options.timeout)
        for line in lines(before, targets):
            print(line)
        if options.dry_run:
            print("nothing was changed (--dry-run)", file=sys.stderr)
        else:
            # Without a worker's mark in the metadata: workers begin a new reading, whose failures are no copies.
            group.commit({part: OffsetAndMetadata(offset) for part, offset in targets.items()}, before)
            print(f"the commits of {len(targets)} partitions are set", file=sys.stderr)
    return EXIT_OK


def target_of(text: str, now_ms: int) -> int | None:
    """The time of `--to` in milliseconds since the epoch; None for a word. Raises SettingsInvalid."""
    return None if text in (EARLIEST, LATEST) else time_of(text, "--to", now_ms)


def _nothing_committed(brokers: Brokers, group_id: str, timeout_s: float) -> Exception:
    absent = absent_group(brokers, group_id, timeout_s)
    if absent is not None:
        return TopicMissing(f"{absent}. For a new group name its topics with --topic")
    return TopicMissing(f"group {group_id!r} has committed nothing; name its topics with --topic")


def _partitions(consumer: Consumer, topics: Iterable[str], timeout_s: float) -> list[TopicPartition]:
    found = []
    for topic in topics:
        of = consumer.partitions_for(topic, timeout_s)
        if not of:
            raise TopicMissing(f"topic {topic!r} does not exist; name those to be set with --topic")
        found += [TopicPartition(topic, each.partition) for each in of]
    return found


def _targets(
    consumer: Consumer, partitions: list[TopicPartition], to: str, at_ms: int | None, timeout_s: float
) -> dict[TopicPartition, int]:
    if to == EARLIEST:
        return consumer.beginning_offsets(partitions, timeout_s)
    ends = consumer.end_offsets(partitions, timeout_s)
    if at_ms is None:
        return ends
    found = consumer.offsets_for_times(dict.fromkeys(partitions, at_ms), timeout_s)
    return {part: ends[part] if (record := found[part]) is None else record.offset for part in partitions}


def lines(before: Mapping[TopicPartition, OffsetAndMetadata], targets: Mapping[TopicPartition, int]) -> list[str]:
    """A line for each partition, with the commits before and after."""
    return [
        f"{part.name}  {before[part].offset if part in before else '-'} -> {offset}"
        for part, offset in sorted(targets.items())
    ]
