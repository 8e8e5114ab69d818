"""`fleet-consumer reset`: the commits of a group without members set to the start, the end or a time."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from fleet_consumer.contract.pod import EXIT_OK
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.commands.options import add_connection_options, connection_of, positive, time_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fleet_consumer.consumer.consumer import Consumer
    from fleet_consumer.contract.brokers import Brokers
    from fleet_consumer.group.membership import OffsetAndMetadata

EARLIEST, LATEST = "earliest", "latest"

EXAMPLES: Final = """\
examples:
  # what would be set
  fleet-consumer reset --group orders --bootstrap localhost:9092 --to earliest --dry-run

  # every record of the last two hours again
  fleet-consumer reset --group orders --bootstrap localhost:9092 --to 2h

Prints a line for each partition: topic and partition, the commit of before (- without one), and the new one. The group
must have no members: end a local run with Ctrl-C. Every record from the new commits on is handled again, and failing
ones are retried again; records that wait for a retry are handled as well. Exit codes: 0 done, 20 the options must be
corrected, 21 members in the group, brokers, credentials, rights or topics.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--group", required=True, metavar="ID", help="the consumer group")
    parser.add_argument(
        "--to",
        required=True,
        metavar="WHERE",
        help="earliest, latest, or a time: 2026-11-21T08:00:00Z, or 2h for two hours ago; the next record is the first "
        "of this time or later, and where there is none, the end",
    )
    parser.add_argument(
        "--topic",
        metavar="TOPIC",
        action="append",
        default=[],
        help="only this topic; may be repeated (default: all in which the group has committed)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be set")
    parser.add_argument("--timeout", type=positive, default=30, metavar="SECONDS", help="default: %(default)g")
    add_connection_options(parser.add_argument_group("brokers"))


def run(options: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from fleet_consumer.worker.commands.empty_group import reported

    return reported(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from fleet_consumer.clock import SystemClock
    from fleet_consumer.contract.brokers import parse_brokers
    from fleet_consumer.contract.section import Section
    from fleet_consumer.group.membership import OffsetAndMetadata
    from fleet_consumer.worker.commands.empty_group import empty_group

    at_ms = target_of(options.to, round(SystemClock().wall() * 1000))
    brokers = parse_brokers(Section(connection_of(options), ""))
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
    from fleet_consumer.group.errors import TopicMissing
    from fleet_consumer.worker.commands.empty_group import absent_group

    absent = absent_group(brokers, group_id, timeout_s)
    if absent is not None:
        return TopicMissing(f"{absent}. For a new group name its topics with --topic")
    return TopicMissing(f"group {group_id!r} has committed nothing; name its topics with --topic")


def _partitions(consumer: Consumer, topics: Iterable[str], timeout_s: float) -> list[TopicPartition]:
    from fleet_consumer.group.errors import TopicMissing

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
        f"{part.topic}-{part.partition}  {before[part].offset if part in before else '-'} -> {offset}"
        for part, offset in sorted(targets.items())
    ]
