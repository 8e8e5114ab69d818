"""`fleet-consumer reset`: sets the committed offsets of a group without members to the start, the end or a time."""

import argparse
import sys
from collections.abc import Iterable, Mapping

from fleet_consumer.clock import SystemClock
from fleet_consumer.consumer.consumer import Consumer
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
            absent = absent_group(brokers, options.group, options.timeout)
            said = f"{absent}. For a new group," if absent else f"group {options.group!r} has committed nothing;"
            raise TopicMissing(f"{said} name its topics with --topic")
        partitions = _partitions(group.consumer, topics, options.timeout)
        targets = _targets(group.consumer, partitions, options.to, at_ms, options.timeout)
        for line in lines(before, targets):
            print(line)
        if options.dry_run:
            print("nothing was changed (--dry-run)", file=sys.stderr)
        else:
            # The commit carries no worker's metadata, so the workers begin a new replay epoch. Failures in the new
            # epoch do not count as duplicates of earlier failures.
            group.commit({part: OffsetAndMetadata(offset) for part, offset in targets.items()}, before)
            print(f"the offsets of {len(targets)} partitions are committed", file=sys.stderr)
    return EXIT_OK


def target_of(text: str, now_ms: int) -> int | None:
    """Parse the value of `--to` to epoch milliseconds; None for `earliest` and `latest`. Raises SettingsInvalid."""
    return None if text in (EARLIEST, LATEST) else time_of(text, "--to", now_ms)


def _partitions(consumer: Consumer, topics: Iterable[str], timeout_s: float) -> list[TopicPartition]:
    found = []
    for topic in topics:
        of = consumer.partitions_for(topic, timeout_s)
        if not of:
            raise TopicMissing(f"topic {topic!r} does not exist; name the topics to reset with --topic")
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
    return [
        f"{part.name}  {before[part].offset if part in before else '-'} -> {offset}"
        for part, offset in sorted(targets.items())
    ]
