"""`fleet-consumer failed`: inspects a group's failed topic without joining the group, committing or writing."""

import argparse
import io
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.brokers import Brokers
from fleet_consumer.contract.naming import failed_topic
from fleet_consumer.contract.pod import EXIT_OK
from fleet_consumer.contract.redrive_config import parse_config as parse_redrive
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import parse_config as parse_worker
from fleet_consumer.worker.commands.failed_records import Counts, FailedRecord, FailedTopic, open_topic
from fleet_consumer.worker.commands.options import brokers_of, filter_of, place_of

PROGRESS_S: Final = 5.0
"""Seconds between two progress messages."""


def run(options: argparse.Namespace) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escape characters that the terminal's character set lacks, instead of ending the list with an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    clock = SystemClock()
    now_ms = round(clock.wall() * 1000)
    where = _where(options)
    if options.part == "show":
        place = place_of(options.place)
        with open_topic(*where, options.timeout, clock) as topic:
            failed = topic.one(*place)
        for line in [json.dumps(failed.whole())] if options.json else failed.page():
            print(line)
        sys.stdout.flush()
        return EXIT_OK
    wanted = filter_of(options, now_ms)
    show = _print_list if options.part == "list" else _print_counts
    # `closing` ends the generator of records before the connection of its topic is closed.
    with open_topic(*where, options.timeout, clock) as topic, closing(topic.records(wanted)) as records:
        show(_with_progress(topic, records), options)
    sys.stdout.flush()
    return EXIT_OK


def _where(options: argparse.Namespace) -> tuple[Brokers, str]:
    """Return the brokers and the failed topic, from the options or the file. Raises SettingsInvalid."""
    named = options.topic or (failed_topic(options.group) if options.group else None)
    if options.config is not None:
        if options.bootstrap:
            raise SettingsInvalid("--config", "cannot be combined with --bootstrap; give one of the two")
        brokers, topic = _from_file(options.config)
        return brokers, named or topic
    if named is None:
        raise SettingsInvalid("--group", "is missing; name the group whose failed records are shown")
    return brokers_of(options), named


def _from_file(path: str) -> tuple[Brokers, str]:
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        raise SettingsInvalid("--config", f"cannot read {path}: {error}") from error
    if isinstance(document, dict) and "maxRedrives" in document:
        redrive = parse_redrive(document)
        return redrive.brokers, failed_topic(redrive.group_id)
    worker = parse_worker(document)
    return worker.brokers, worker.failed_topic


def _with_progress(topic: FailedTopic, found: Iterator[FailedRecord | None]) -> Iterator[FailedRecord]:
    """Yield the found records, and print progress messages.

    `found` also yields None after each batch and after each wait without records. A final message is printed if no
    record was found, or if no record of the topic has a failure reason.
    """
    none = True
    for failed in found:
        if failed is not None:
            none = False
            yield failed
        if topic.progress_due(PROGRESS_S):
            print(f"{topic.scanned} of about {topic.total} records read", file=sys.stderr, flush=True)
    said = topic.describe_nothing() if none else topic.describe_strange()
    if said:
        print(said, file=sys.stderr)


def _print_list(found: Iterator[FailedRecord], options: argparse.Namespace) -> None:
    left = options.limit
    for failed in found:
        print(json.dumps(failed.summary()) if options.json else failed.line())
        if left is not None and (left := left - 1) == 0:
            return


def _print_counts(found: Iterator[FailedRecord], options: argparse.Namespace) -> None:
    counts = Counts(tuple(dict.fromkeys(options.by or ("reason", "class"))))
    for failed in found:
        counts.add(failed)
    for names, count in counts.rows():
        print(json.dumps(counts.row(names, count)) if options.json else counts.line(names, count))
    if not options.json:
        print(f"{counts.total:>9}  in all")
