"""`fleet-consumer redrive`: failed records put back, by a Redrive's Job with its file, or by hand with options."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fleet_consumer.contract.pod import EXIT_OK, REDRIVE_CONFIG
from fleet_consumer.worker.commands.options import (
    add_connection_options,
    add_selection_options,
    add_topic_option,
    connection_of,
    filter_of,
    positive,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleet_consumer.contract.brokers import Brokers
    from fleet_consumer.contract.redrive_config import RedriveConfig

ASK_S: Final = 30.0
MAX_REDRIVES: Final = 3
"""As a Redrive's default."""

EXAMPLES: Final = """\
examples:
  # how many would be put back
  fleet-consumer redrive --group orders --bootstrap localhost:9092 --error-class ConnectionError --dry-run

  # put them back, 50 in a second
  fleet-consumer redrive --group orders --bootstrap localhost:9092 --error-class ConnectionError --rate 50

  # one record, as `fleet-consumer failed list` names it
  fleet-consumer redrive --group orders --bootstrap localhost:9092 --record 3:1841

The retry workers of the group handle what is put back: those of its fleet, or `fleet-consumer run --local` with --retry
or --retry-policy. Nothing is moved twice, so the same command may be run again, also after it was stopped; run one at a
time for a group. The last line of standard output is a JSON object: ok, selected, moved, guarded, movedBefore,
failedAgain, refused, redrivenTo; or ok, reason, message. Exit codes: 0 done, 20 the options or the file must be
corrected, 21 stopped, or an error outside: it continues when started again.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--group", metavar="ID", help="the consumer group whose failed records are put back")
    add_topic_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="only count the records")
    parser.add_argument("--rate", type=positive, metavar="N", help="records in a second (default: as fast as it goes)")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"in place of all other options: the redrive.json of a Redrive (without any option: {REDRIVE_CONFIG})",
    )
    records = parser.add_argument_group("records")
    add_selection_options(records)
    records.add_argument(
        "--record", metavar="PARTITION:OFFSET", action="append", default=[], help="only this record; may be repeated"
    )
    add_connection_options(parser.add_argument_group("brokers"))


def run(options: argparse.Namespace) -> int:
    """Run the command until it is done, or SIGTERM or SIGINT; returns its exit code."""
    from fleet_consumer.worker.commands.empty_group import reported
    from fleet_consumer.worker.lifecycle.termination import report_result

    def work() -> int:
        stop = threading.Event()
        counts = _run_by_hand(options, stop) if by_hand(options) else _run_job(options.config or REDRIVE_CONFIG, stop)
        report_result({"ok": True, **counts})
        return EXIT_OK

    return reported(work, lambda reason, message: report_result({"ok": False, "reason": reason, "message": message}))


def by_hand(options: argparse.Namespace) -> bool:
    """True if options say what to put back, and no file does. Raises SettingsInvalid for both."""
    from fleet_consumer.contract.section import SettingsInvalid

    given = sorted(name for name, value in vars(options).items() if value and name not in ("command", "config"))
    if given and options.config is not None:
        raise SettingsInvalid("--config", "stands beside other options; the file holds all settings of its run")
    return bool(given)


def _run_job(path: str, stop: threading.Event) -> Mapping[str, int]:
    _stop_on_signals(stop)
    return run_file(path, stop)


def run_file(path: str, stop: threading.Event) -> Mapping[str, int]:
    """Run what a file asks for until it is done or `stop` is set; returns its counts. Raises the errors that `run`
    reports."""
    from fleet_consumer.contract.naming import failed_topic
    from fleet_consumer.contract.redrive_config import load_config

    config = load_config(path)
    return _run(config, failed_topic(config.group_id), stop)


def _run_by_hand(options: argparse.Namespace, stop: threading.Event) -> Mapping[str, int]:
    from fleet_consumer.clock import SystemClock
    from fleet_consumer.contract.naming import failed_topic, redrive_topic
    from fleet_consumer.group.errors import TopicMissing
    from fleet_consumer.worker.commands.empty_group import without_topic

    config = config_of(options, round(SystemClock().wall() * 1000))
    failed, target = options.topic or failed_topic(config.group_id), redrive_topic(config.group_id)
    counted = _partitions(config.brokers, failed, target)
    if failed not in counted:
        raise without_topic(TopicMissing(f"topic {failed} does not exist"), config.brokers, failed, ASK_S)
    if target not in counted:
        raise TopicMissing(
            f"topic {target} does not exist, so nobody would read what is put back: give the fleet spec.retry, or run "
            f"`fleet-consumer run --local … --group {config.group_id} --retry 5s` once"
        )
    _stop_on_signals(stop)
    counts = _run(replace(config, partitions=counted[target]), failed, stop)
    print(summary(config, counts), file=sys.stderr)
    return counts


def config_of(options: argparse.Namespace, now_ms: int) -> RedriveConfig:
    """The settings of a run by hand, with an id of its own. Raises SettingsInvalid."""
    from fleet_consumer.contract.brokers import parse_brokers
    from fleet_consumer.contract.log import LogConfig
    from fleet_consumer.contract.managed_topics import HEADERS_BYTES_MAX
    from fleet_consumer.contract.redrive_config import RedriveConfig
    from fleet_consumer.contract.section import Section, SettingsInvalid

    if not options.group:
        raise SettingsInvalid("--group", "is missing; name the group whose failed records are put back")
    return RedriveConfig(
        id=str(uuid.uuid4()),
        name="by-hand",
        namespace="local",
        group_id=options.group,
        brokers=parse_brokers(Section(connection_of(options), "")),
        filter=filter_of(options, now_ms, options.record),
        records_per_second=options.rate,
        max_records=None,
        dry_run=options.dry_run,
        max_redrives=MAX_REDRIVES,
        partitions=1,
        # Any managed topic takes batches of this size, so that none is refused as a whole.
        max_message_bytes=HEADERS_BYTES_MAX,
        producer_properties={},
        log=LogConfig(format="Text"),
    )


def _partitions(brokers: Brokers, *topics: str) -> dict[str, int]:
    """The partition counts of the topics that exist. Raises NetError, DataPlaneFailed."""
    from fleet_consumer.group.errors import DataPlaneFailed
    from fleet_consumer.net import NetworkClient
    from fleet_consumer.wire.errors import ErrorCode, describe
    from fleet_consumer.worker.config.settings import connection_settings

    client = NetworkClient(connection_settings(brokers, "fleet-consumer-redrive"))
    try:
        answer = client.metadata(topics, timeout_s=ASK_S)
    finally:
        client.close()
    found = {}
    for topic in answer.topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        if topic.error_code:
            raise DataPlaneFailed(f"topic {topic.name}: {describe(topic.error_code)}")
        found[topic.name or ""] = len(topic.partitions)
    return found


def _stop_on_signals(stop: threading.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


def _run(config: RedriveConfig, topic: str, stop: threading.Event) -> Mapping[str, int]:
    from fleet_consumer.clock import SystemClock
    from fleet_consumer.contract.naming import redrive_group
    from fleet_consumer.librdkafka.bounded import BoundedReader
    from fleet_consumer.librdkafka.producer import RecordProducer
    from fleet_consumer.librdkafka.settings import consumer_config, producer_config
    from fleet_consumer.redrive.job import Run
    from fleet_consumer.worker import logs
    from fleet_consumer.worker.config.settings import connection_settings

    with logs.logging_as(config.log):
        connection = connection_settings(config.brokers, f"fleet-redrive-{config.name}")
        group = redrive_group(config.group_id, config.id)
        settings = producer_config(connection, config.producer_properties)
        producer = RecordProducer(settings, message_max_bytes=config.max_message_bytes)
        with BoundedReader(consumer_config(connection, group, "read_uncommitted", {})) as reader:
            return Run(config, topic, reader, producer, stop, SystemClock()).run().counts


def summary(config: RedriveConfig, counts: Mapping[str, int]) -> str:
    """The counts of a run in one line for people."""
    selected = f"{counts['selected']} records would be" if config.dry_run else f"{counts['moved']} records"
    others = (
        (counts["movedBefore"], "put back before"),
        (counts["guarded"], f"put back {config.max_redrives} times already, and left alone"),
        (counts["refused"], "too large for the redrive topic, as logged above"),
    )
    words = [f"{selected} put back", *(f"{count} {what}" for count, what in others if count)]
    if not counts["selected"] and len(words) == 1:
        words.append("`fleet-consumer failed count` with the same options shows what there is")
    elif counts["moved"]:
        words.append(f"the retry workers of group {config.group_id!r} handle them")
    return "; ".join(words)
