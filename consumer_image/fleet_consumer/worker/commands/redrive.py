"""`fleet-consumer redrive`: copies failed records to the redrive topic, where the retry workers handle them again.

The Job of a Redrive runs the command with a settings file. Engineers run it with options.
"""

import argparse
import signal
import sys
import threading
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.brokers import Brokers
from fleet_consumer.contract.log import LogConfig
from fleet_consumer.contract.managed_topics import HEADERS_BYTES_MAX
from fleet_consumer.contract.naming import failed_topic, redrive_group, redrive_topic
from fleet_consumer.contract.pod import EXIT_OK, REDRIVE_CONFIG
from fleet_consumer.contract.redrive_config import RedriveConfig, load_config
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.group.errors import DataPlaneFailed, TopicMissing
from fleet_consumer.librdkafka.bounded import BoundedReader
from fleet_consumer.librdkafka.producer import RecordProducer
from fleet_consumer.librdkafka.settings import consumer_config, producer_config
from fleet_consumer.net import NetworkClient
from fleet_consumer.redrive.job import Run
from fleet_consumer.wire.errors import ErrorCode, describe
from fleet_consumer.worker import logs
from fleet_consumer.worker.commands.empty_group import reported, without_topic
from fleet_consumer.worker.commands.options import brokers_of, filter_of
from fleet_consumer.worker.config.settings import connection_settings
from fleet_consumer.worker.lifecycle.termination import report_result

ASK_S: Final = 30.0
MAX_REDRIVES: Final = 3
"""Number of redrives after which a record stays in the failed topic. A Redrive has the same default."""


def run(options: argparse.Namespace) -> int:
    """Run the command until it is done, or until SIGTERM or SIGINT. Returns the exit code."""

    def work() -> int:
        stop = threading.Event()
        if by_hand(options):
            counts = _run_by_hand(options, stop)
        else:
            _stop_on_signals(stop)
            counts = run_file(options.config or REDRIVE_CONFIG, stop)
        report_result({"ok": True, **counts})
        return EXIT_OK

    return reported(work, lambda reason, message: report_result({"ok": False, "reason": reason, "message": message}))


def by_hand(options: argparse.Namespace) -> bool:
    """Return True if the settings are given as options, False if they are in a file. Raises SettingsInvalid if both
    are given."""
    given = sorted(name for name, value in vars(options).items() if value and name not in ("command", "config"))
    if given and options.config is not None:
        raise SettingsInvalid(
            "--config", "cannot be combined with other options; the file holds all settings of its run"
        )
    return bool(given)


def run_file(path: str, stop: threading.Event) -> Mapping[str, int]:
    """Run the redrive of a settings file until it is done or `stop` is set, and return its counts. Raises the errors
    that `run` reports."""
    config = load_config(path)
    return _run(config, failed_topic(config.group_id), stop)


def _run_by_hand(options: argparse.Namespace, stop: threading.Event) -> Mapping[str, int]:
    config = config_of(options, round(SystemClock().wall() * 1000))
    failed, target = options.topic or failed_topic(config.group_id), redrive_topic(config.group_id)
    counted = _partitions(config.brokers, failed, target)
    if failed not in counted:
        raise without_topic(TopicMissing(f"topic {failed} does not exist"), config.brokers, failed, ASK_S)
    if target not in counted:
        raise TopicMissing(
            f"topic {target} does not exist, so nobody would read the records: set spec.retry of the fleet, or run "
            f"`fleet-consumer run --local … --group {config.group_id} --retry 5s` once"
        )
    _stop_on_signals(stop)
    counts = _run(replace(config, partitions=counted[target]), failed, stop)
    print(summary(config, counts), file=sys.stderr)
    return counts


def config_of(options: argparse.Namespace, now_ms: int) -> RedriveConfig:
    """Build the settings of a redrive from the options, with a new random id. Raises SettingsInvalid."""
    if not options.group:
        raise SettingsInvalid("--group", "is missing; name the group whose failed records are put back")
    return RedriveConfig(
        id=str(uuid.uuid4()),
        name="by-hand",
        namespace="local",
        group_id=options.group,
        brokers=brokers_of(options),
        filter=filter_of(options, now_ms, options.record),
        records_per_second=options.rate,
        max_records=None,
        dry_run=options.dry_run,
        max_redrives=MAX_REDRIVES,
        partitions=1,
        # Every topic that the operator creates accepts batches of this size, so the broker refuses no whole batch.
        max_message_bytes=HEADERS_BYTES_MAX,
        producer_properties={},
        log=LogConfig(format="Text"),
    )


def _partitions(brokers: Brokers, *topics: str) -> dict[str, int]:
    """Return the partition count of each existing topic. Raises NetError, DataPlaneFailed."""
    with closing(NetworkClient(connection_settings(brokers, "fleet-consumer-redrive"))) as client:
        answer = client.metadata(topics, timeout_s=ASK_S)
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
    with logs.logging_as(config.log):
        connection = connection_settings(config.brokers, f"fleet-redrive-{config.name}")
        group = redrive_group(config.group_id, config.id)
        settings = producer_config(connection, config.producer_properties)
        producer = RecordProducer(settings, message_max_bytes=config.max_message_bytes)
        with BoundedReader(consumer_config(connection, group, "read_uncommitted", {})) as reader:
            return Run(config, topic, reader, producer, stop, SystemClock()).run()


def summary(config: RedriveConfig, counts: Mapping[str, int]) -> str:
    selected = f"{counts['selected']} records would be" if config.dry_run else f"{counts['moved']} records"
    others = (
        (counts["movedBefore"], "put back before"),
        (counts["guarded"], f"already put back {config.max_redrives} times, and left in the failed topic"),
        (counts["refused"], "too large for the redrive topic, as logged above"),
    )
    words = [f"{selected} put back", *(f"{count} {what}" for count, what in others if count)]
    if not counts["selected"] and len(words) == 1:
        words.append("`fleet-consumer failed count` with the same options shows the failed records")
    elif counts["moved"]:
        words.append(f"the retry workers of group {config.group_id!r} handle them")
    return "; ".join(words)
