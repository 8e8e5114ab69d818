"""Command line of `fleet-consumer`: the options of all commands, and their conversion to the contract's types.

This module imports no slow modules, so `--help` and errors in the options are printed without delay.
"""

import argparse
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fleet_consumer.contract.brokers import MECHANISMS, Brokers, parse_brokers
from fleet_consumer.contract.log import FORMATS, LEVELS
from fleet_consumer.contract.pod import REDRIVE_CONFIG, WORKER_CONFIG
from fleet_consumer.contract.section import Section, SettingsInvalid
from fleet_consumer.distribution import own_version
from fleet_consumer.worker.config.role import Role

if TYPE_CHECKING:
    from fleet_consumer.contract.redrive_config import Filter

BY: Final = ("reason", "class", "hour")
"""Groupings that `failed count --by` accepts."""
NONE: Final = "-"
"""Placeholder for a missing reason or error class, in output and in options."""

FAILED_EXAMPLES: Final = """\
examples:
  # how many records failed, by reason and error class
  fleet-consumer failed count --group orders --bootstrap localhost:9092

  # the records of the last two hours that failed with one class of error
  fleet-consumer failed list --group orders --bootstrap localhost:9092 --from 2h --error-class ConnectionError

  # one record with all headers, key and value
  fleet-consumer failed show 3:1841 --group orders --bootstrap localhost:9092

Exit codes: 0 done, 20 invalid options or file, 21 a problem of brokers, credentials, permissions, topic or record.
"""

REDRIVE_EXAMPLES: Final = """\
examples:
  # how many records would be put back
  fleet-consumer redrive --group orders --bootstrap localhost:9092 --error-class ConnectionError --dry-run

  # put them back, 50 records per second
  fleet-consumer redrive --group orders --bootstrap localhost:9092 --error-class ConnectionError --rate 50

  # a single record, named as in the output of `fleet-consumer failed list`
  fleet-consumer redrive --group orders --bootstrap localhost:9092 --record 3:1841

The group's retry workers handle the records: those of its fleet, or `fleet-consumer run --local` with --retry or
--retry-policy. No record is put back twice, so the same command can be run again, even after it was stopped. Run only
one redrive of a group at a time. The last line of standard output is a JSON object with ok, selected, moved, guarded,
movedBefore, failedAgain, refused and redrivenTo, or after an error with ok, reason and message. Exit codes: 0 done, 20
invalid options or file, 21 stopped, or a problem of brokers, credentials, permissions or topics. After 21, run the
command again to continue.
"""

RESET_EXAMPLES: Final = """\
examples:
  # print the new offsets without committing them
  fleet-consumer reset --group orders --bootstrap localhost:9092 --to earliest --dry-run

  # handle every record of the last two hours again
  fleet-consumer reset --group orders --bootstrap localhost:9092 --to 2h

Prints a line for each partition: its name, the previous committed offset (- if there is none), and the new offset. The
group must have no members: end a local run with Ctrl-C. Every record from the new offsets on is handled again, with new
retries. Retries that are already pending are not cancelled. Exit codes: 0 done, 20 invalid options, 21 the group has
members, or a problem of brokers, credentials, permissions or topics.
"""

SKIP_EXAMPLES: Final = """\
example:
  fleet-consumer skip orders-3:1734 --group orders --bootstrap localhost:9092

Writes the record to the failed topic with kr-reason: skipped, and then commits the next offset; `fleet-consumer redrive
--reason skipped` puts it back. The group must have no members: end a local run with Ctrl-C, and start it again
afterwards. Only the next record of a partition can be skipped, so that no earlier record is lost. If a
record stops the group repeatedly, this record is always the next. Records of aborted transactions are ignored, at any
isolation level. For a record of a retry topic, the offset is committed for the retry workers' group. Exit codes: 0
done, 20 invalid options, 21 the group has members, another record is next, or a problem of brokers, credentials,
permissions or topics.
"""

LOCAL_EXAMPLES: Final = """\
examples:
  # handle(record) of handler.py for each record of a topic, from the last committed offset
  fleet-consumer run --local handler.py --topic orders --bootstrap localhost:9092

  # a batch handler that writes to orders-done, only new records, four calls at a time
  fleet-consumer run --local handler.py:handle_batch --topic orders --bootstrap localhost:9092 \\
      --output orders-done --from latest --concurrency 4

  # all topics that match, values decoded as JSON, with another group id
  fleet-consumer run --local handler.py --topic-pattern 'orders\\..*' --bootstrap localhost:9092 \\
      --group anna-tries --decode-value Json

  # an HTTP handler that already runs on this machine
  fleet-consumer run --local http://localhost:8000/records --topic orders --bootstrap localhost:9092

  # a second process retries failed records after 5, 5 and 30 seconds
  fleet-consumer run --local handler.py --topic orders --bootstrap localhost:9092 --retry 5s,5s,30s

  # retries according to the RetryPolicy in a manifest file, with its rules and budget
  fleet-consumer run --local handler.py --topic orders --bootstrap localhost:9092 --retry-policy fleet.yaml

Records that fail permanently are written to _fleet.<group>.failed. Missing topics of the group (_fleet.<group>.*) are
created. Ctrl-C stops the run cleanly. The same command then continues the run, including records that wait for a retry.
"""


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="fleet-consumer", description="A worker of a Consumer Fleet.")
    root.add_argument("--version", action="version", version=f"fleet-consumer {own_version()}")
    commands = root.add_subparsers(dest="command", required=True)
    with_examples = partial(commands.add_parser, formatter_class=argparse.RawDescriptionHelpFormatter)
    run = with_examples(
        "run",
        help="consume until SIGTERM",
        description="Consume until SIGTERM or Ctrl-C. Exit codes: 0 drained, 20 settings or handler unusable, "
        "21 brokers or topics unusable (--local only), 75 handler hung.",
        epilog=LOCAL_EXAMPLES,
    )
    run.add_argument(
        "--role",
        choices=[role.value for role in Role],
        default=Role.MAIN.value,
        help="main: read the source topics; retry: read the retry and redrive topics (default: %(default)s)",
    )
    _add_local_options(run)
    check = commands.add_parser(
        "check",
        help="check settings, handler, brokers and topics, and report the first problem",
        description="Check settings, handler, brokers and topics without joining the group. The last line of standard "
        "output is a JSON object {ok, reason, message}. Exit codes: 0 passed, 20 invalid settings or handler, "
        "21 a problem of brokers, credentials or topics.",
    )
    _add_offsets_options(commands.add_parser("offsets", help="show a group's committed offsets"))
    failed = with_examples(
        "failed",
        help="inspect a group's failed records",
        description="Inspect a group's failed topic without joining, committing or changing anything.",
        epilog=FAILED_EXAMPLES,
    )
    _add_failed_options(failed)
    redrive = with_examples(
        "redrive",
        help="send failed records to their group again, once each",
        description="Copy the selected records of a group's failed topic to the group's redrive topic. The group's "
        "retry workers handle the copies immediately. The records also stay in the failed topic.",
        epilog=REDRIVE_EXAMPLES,
    )
    _add_redrive_options(redrive)
    reset = with_examples(
        "reset",
        help="set the committed offsets of a group without members",
        description="Set the committed offsets of a group without members to the start, the end, or a time.",
        epilog=RESET_EXAMPLES,
    )
    _add_reset_options(reset)
    skip = with_examples(
        "skip",
        help="move the next record of a group without members to the failed topic",
        description="Move the next record of a partition to the failed topic, without handling it.",
        epilog=SKIP_EXAMPLES,
    )
    _add_skip_options(skip)
    for command in (run, check):
        command.add_argument(
            "--config", default=WORKER_CONFIG, metavar="FILE", help="settings file (default: %(default)s)"
        )
    return root


def _add_failed_options(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True)
    for name, help_text in (
        ("list", "one line for each failed record"),
        ("show", "one failed record with all headers, key and value"),
        ("count", "the number of failed records by reason, error class or hour"),
    ):
        part = parts.add_parser(name, help=help_text, description=f"Print {help_text}. Changes nothing.")
        if name == "show":
            part.add_argument("place", metavar="PARTITION:OFFSET", help="place of the record, as `list` prints it")
        else:
            _add_selection_options(part.add_argument_group("records"))
        if name == "list":
            part.add_argument("--limit", type=_positive, metavar="N", help="print at most N records")
        if name == "count":
            part.add_argument(
                "--by",
                choices=BY,
                action="append",
                help="group the counts by this value; may be repeated (default: reason and class)",
            )
        part.add_argument("--json", action="store_true", help="print one JSON object on each line")
        part.add_argument("--group", metavar="ID", help="the consumer group of the failed topic _fleet.<group>.failed")
        _add_topic_option(part)
        part.add_argument(
            "--config",
            metavar="FILE",
            help="read brokers, group and topic from this worker.json or redrive.json; excludes --bootstrap",
        )
        _add_timeout_option(part, _positive)
        _add_connection_options(part.add_argument_group("brokers"))


def _add_redrive_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--group", metavar="ID", help="the consumer group whose failed records are put back")
    _add_topic_option(parser)
    add("--dry-run", action="store_true", help="only count the records")
    add("--rate", type=_positive, metavar="N", help="records per second (default: no limit)")
    add(
        "--config",
        metavar="FILE",
        help=f"read all settings from this redrive.json; excludes other options (without any option: {REDRIVE_CONFIG})",
    )
    records = parser.add_argument_group("records")
    _add_selection_options(records)
    records.add_argument(
        "--record", metavar="PARTITION:OFFSET", action="append", default=[], help="select this record; may be repeated"
    )
    _add_connection_options(parser.add_argument_group("brokers"))


def _add_reset_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--group", required=True, metavar="ID", help="the consumer group")
    add(
        "--to",
        required=True,
        metavar="WHERE",
        help="new position: earliest, latest, or a time (2026-11-21T08:00:00Z, or 2h for two hours ago). A time"
        " selects the first record at or after it, or the end if there is no such record",
    )
    add(
        "--topic",
        metavar="TOPIC",
        action="append",
        default=[],
        help="reset only this topic; may be repeated (default: all topics with committed offsets)",
    )
    add("--dry-run", action="store_true", help="print the new offsets without committing them")
    _add_broker_options(parser)


def _add_skip_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="TOPIC-PARTITION:OFFSET", help="the record, such as orders-3:17")
    parser.add_argument("--group", required=True, metavar="ID", help="the consumer group")
    _add_topic_option(parser)
    _add_broker_options(parser)


def _add_broker_options(parser: argparse.ArgumentParser) -> None:
    _add_timeout_option(parser, _positive)
    _add_connection_options(parser.add_argument_group("brokers"))


def _add_timeout_option(parser: argparse.ArgumentParser, kind: Callable[[str], float]) -> None:
    help_text = "longest wait for a response of the brokers (default: %(default)g)"
    parser.add_argument("--timeout", type=kind, default=kind("30"), metavar="SECONDS", help=help_text)


def _add_offsets_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--group", required=True, metavar="ID", help="the consumer group")
    add(
        "--from-topic",
        action="store_true",
        help="read the topic __consumer_offsets, not the coordinator; adds commit times, needs Read on the topic",
    )
    _add_connection_options(parser.add_argument_group("brokers"))
    _add_timeout_option(parser, float)


def _add_local_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--local",
        metavar="HANDLER",
        help="run on this machine: FILE.py, FILE.py:callable (default: handle, or handle_batch if there is no handle), "
        "package.module:callable from the working directory, or the http:// address of a handler on this machine",
    )
    group = parser.add_argument_group("with --local")
    add = group.add_argument
    _add_connection_options(group)
    add("--topic", metavar="TOPIC", action="append", default=[], help="topic to consume; may be repeated")
    add("--topic-pattern", metavar="REGEX", help="consume all topics whose names match, instead of --topic")
    add("--group", metavar="ID", help="consumer group (default: local.<you>.<handler>)")
    add(
        "--from",
        dest="start",
        choices=("earliest", "latest"),
        default="earliest",
        help="starting position of a group without committed offsets (default: earliest)",
    )
    add(
        "--output",
        metavar="TOPIC",
        action="append",
        default=[],
        help="topic for the handler's outputs; may be repeated",
    )
    add("--failed-topic", metavar="TOPIC", help="topic of failed records (default: _fleet.<group>.failed)")
    add("--retry", metavar="DELAY,…", help="retry failed records after these delays, such as 5s,5s,30s")
    add("--retry-policy", metavar="FILE", help="manifest file with one RetryPolicy, instead of --retry")
    add("--concurrency", metavar="N", type=int, default=1, help="number of concurrent handler calls (default: 1)")
    add("--timeout", metavar="SECONDS", type=int, default=60, help="time limit of one handler call (default: 60)")
    for field in ("key", "value"):
        add(
            f"--decode-{field}",
            choices=("Bytes", "String", "Json"),
            default="Bytes",
            help=f"format in which the handler gets the {field} (default: Bytes)",
        )
    add("--log-level", choices=LEVELS, default="Info", help="least severe level that is logged (default: %(default)s)")
    add(
        "--log-format",
        choices=FORMATS,
        default="Text",
        help="format of the log lines; a fleet's workers log as Json (default: %(default)s)",
    )
    add("--assignor", metavar="NAME", action="append", help="assignor; may be repeated (default: cooperative-sticky)")
    add("--batch", action="store_true", help="send batches to an HTTP handler")


def _add_connection_options(group: argparse._ActionsContainer) -> None:
    add = group.add_argument
    add("--bootstrap", metavar="HOST:PORT[,…]", action="append", default=[], help="bootstrap brokers; may be repeated")
    add("--tls-ca", metavar="FILE", help="use TLS, and trust the certificate authority in this file")
    add("--tls-cert", metavar="FILE", help="client certificate, with --tls-key")
    add("--tls-key", metavar="FILE", help="private key of the client certificate")
    add("--sasl", metavar="MECHANISM", choices=MECHANISMS, help=f"SASL mechanism: one of {', '.join(MECHANISMS)}")
    add(
        "--credentials",
        metavar="FOLDER",
        help="with --sasl: folder with the files username and password (OAUTHBEARER: clientId and clientSecret)",
    )
    add("--token-endpoint", metavar="URL", help="with OAUTHBEARER: URL of the token endpoint")
    add("--token-scope", metavar="SCOPE", help="with OAUTHBEARER: scope of the tokens")


def _add_selection_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--reason", action="append", default=[], help="select only this reason, such as exhausted; may be repeated")
    add(
        "--error-class",
        action="append",
        default=[],
        metavar="CLASS",
        help="select only this error class, by its qualified name or the part after the last dot; may be repeated",
    )
    add(
        "--from",
        dest="start",
        metavar="TIME",
        help="select only records from this time on: 2026-11-21T08:00:00Z, or 2h for two hours ago",
    )
    add("--to", dest="end", metavar="TIME", help="select only records before this time, written as in --from")


def _add_topic_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="TOPIC", help="the failed topic (default: the group's)")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def connection_of(options: argparse.Namespace) -> dict[str, Any]:
    """Build the `connection` section of worker.json from the options. Raises SettingsInvalid without --bootstrap."""
    servers = [server for text in options.bootstrap for server in text.split(",") if server]
    if not servers:
        raise SettingsInvalid("--bootstrap", "is missing; name a broker as HOST:PORT")
    tls = {"caFile": options.tls_ca, "certFile": options.tls_cert, "keyFile": options.tls_key}
    oauth = {"tokenEndpoint": options.token_endpoint, "scope": options.token_scope}
    sasl = {
        "mechanism": options.sasl,
        "directory": options.credentials,
        "identity": None,
        "oauth": oauth if options.token_endpoint else None,
    }
    return {
        "bootstrapServers": servers,
        "tls": tls if any(tls.values()) else None,
        "sasl": sasl if options.sasl else None,
    }


def brokers_of(options: argparse.Namespace) -> Brokers:
    return parse_brokers(Section(connection_of(options), ""))


def filter_of(options: argparse.Namespace, now_ms: int, places: Iterable[str] = ()) -> "Filter":
    """Build the filter of records from the options and `places` (PARTITION:OFFSET). Raises SettingsInvalid."""
    from fleet_consumer.contract.redrive_config import Filter

    named = (options.reason, options.error_class)
    reasons, classes = (["" if name == NONE else name for name in names] for names in named)
    chosen: dict[int, set[int]] = {}
    for text in places:
        partition, offset = place_of(text)
        chosen.setdefault(partition, set()).add(offset)
    return Filter(
        # Headers contain reasons in lower case. CamelCase, as in status.retry.failedReasons, is accepted as well.
        reasons=frozenset({*reasons, *map(str.lower, reasons)}),
        error_classes=tuple(classes),
        from_ms=time_of(options.start, "--from", now_ms),
        to_ms=time_of(options.end, "--to", now_ms),
        places={partition: frozenset(offsets) for partition, offsets in chosen.items()} or None,
    )


def time_of(text: str | None, option: str, now_ms: int) -> int | None:
    """Parse a time (UTC if it names no zone) or a duration before now (`2h`), and return it in epoch milliseconds.

    Returns None if `text` is None. Raises SettingsInvalid.
    """
    from fleet_consumer.contract.naming import parse_delay

    if text is None:
        return None
    try:
        return now_ms - parse_delay(text) * 1000
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            advice = "is not a time; write 2026-11-21T08:00:00Z, or 30s, 5m, 2h or 7d for a time that long ago"
            raise SettingsInvalid(option, f"{text!r} {advice}") from None
    # Never negative, because negative timestamps have a special meaning in ListOffsets (-1 latest, -2 earliest).
    return max(0, round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))


def place_of(text: str) -> tuple[int, int]:
    """Parse PARTITION:OFFSET, the place of a record in the failed topic. Raises SettingsInvalid."""
    partition, _, offset = text.partition(":")
    if not all(part.isdecimal() and part.isascii() and len(part) <= 18 for part in (partition, offset)):
        raise SettingsInvalid("PARTITION:OFFSET", f"is {text!r}; write two numbers, such as 3:1841")
    return int(partition), int(offset)
