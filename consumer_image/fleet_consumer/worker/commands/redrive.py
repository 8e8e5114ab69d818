"""`fleet-consumer redrive`: one run of a Redrive, as its Job starts it."""

from __future__ import annotations

import argparse
import signal
import threading

from fleet_consumer.contract.pod import EXIT_OK, EXIT_SETTINGS, EXIT_SURROUNDINGS, REDRIVE_CONFIG


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--config", default=REDRIVE_CONFIG, metavar="FILE", help="default: %(default)s")


def run(options: argparse.Namespace) -> int:
    """Run the command until it is done, or SIGTERM or SIGINT; returns its exit code."""
    from fleet_consumer.contract.section import SettingsInvalid
    from fleet_consumer.group.errors import ConsumerError
    from fleet_consumer.librdkafka.producer import ProduceFailed
    from fleet_consumer.librdkafka.settings import SettingsRefused
    from fleet_consumer.redrive.job import Stopped
    from fleet_consumer.worker.config.settings import CredentialsUnreadable
    from fleet_consumer.worker.lifecycle.termination import report_result

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        result: dict[str, object] = {"ok": True, **run_file(options.config, stop)}
        code = EXIT_OK
    except SettingsInvalid as error:
        result, code = _problem(error), EXIT_SETTINGS
    except (ConsumerError, ProduceFailed, SettingsRefused, CredentialsUnreadable, Stopped) as error:
        result, code = _problem(error), EXIT_SURROUNDINGS
    report_result(result)
    return code


def run_file(path: str, stop: threading.Event) -> dict[str, object]:
    """Run what a file asks for until it is done or `stop` is set; returns its counts. Raises the errors that `run`
    reports."""
    from fleet_consumer.clock import SystemClock
    from fleet_consumer.contract.naming import redrive_group
    from fleet_consumer.contract.redrive_config import load_config
    from fleet_consumer.librdkafka.bounded import BoundedReader
    from fleet_consumer.librdkafka.producer import RecordProducer
    from fleet_consumer.librdkafka.settings import connection_config, consumer_config
    from fleet_consumer.redrive.job import Run
    from fleet_consumer.worker import logs
    from fleet_consumer.worker.config.settings import connection_settings

    config = load_config(path)
    with logs.logging_as(config.log):
        connection = connection_settings(config.brokers, f"fleet-redrive-{config.name}")
        group = redrive_group(config.group_id, config.id)
        producer = RecordProducer(connection_config(connection), message_max_bytes=config.max_message_bytes)
        with BoundedReader(consumer_config(connection, group, "read_uncommitted", {})) as reader:
            return dict(Run(config, reader, producer, stop, SystemClock()).run().counts)


def _problem(error: Exception) -> dict[str, object]:
    return {"ok": False, "reason": str(getattr(error, "reason", type(error).__name__)), "message": str(error)}
