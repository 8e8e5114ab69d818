"""Command line of `fleet-consumer`: the options of all its commands, and what they say in the words of the contract.

Imports nothing heavy, so that `--help` and a refused option answer at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
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
"""Names by which `failed count` counts."""
NONE: Final = "-"
"""The name of a reason or class that a record does not have, as it is shown and selected."""

FAILED_EXAMPLES: Final = """\
examples:
  # what was given up on, and why
  fleet-consumer failed count --group orders --bootstrap localhost:9092

  # the records of the last two hours that failed with one class of error
  fleet-consumer failed list --group orders --bootstrap localhost:9092 --from 2h --error-class ConnectionError

  # one of them with all of its headers, key and value
  fleet-consumer failed show 3:1841 --group orders --bootstrap localhost:9092

Exit codes: 0 done, 20 the options or the file must be mended, 21 brokers, credentials, rights, topic or record.
"""

REDRIVE_EXAMPLES: Final = """\
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

RESET_EXAMPLES: Final = """\
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

SKIP_EXAMPLES: Final = """\
example:
  fleet-consumer skip orders-3:1734 --group orders --bootstrap localhost:9092

Writes the record to the failed topic with kr-reason: skipped, and then commits the offset behind it; `fleet-consumer
redrive --reason skipped` puts it back. The group must have no members: end a local run with Ctrl-C, and start it again
afterwards. Only the next record of a partition can be skipped, so that nothing before it is lost; one that stops the
group again and again is that. Records of aborted transactions do not count, whatever the group reads. A place in a
retry topic is skipped for the group's retry worker. Exit codes: 0 done, 20 the options must be corrected, 21 members in
the group, another record, brokers, credentials, rights or topics.
"""

LOCAL_EXAMPLES: Final = """\
examples:
  # handle(record) of handler.py for each record of a topic, from the last committed offset
  fleet-consumer run --local handler.py --topic orders --bootstrap localhost:9092

  # a batch handler that writes to orders-done, only new records, four partitions at once
  fleet-consumer run --local handler.py:handle_batch --topic orders --bootstrap localhost:9092 \\
      --output orders-done --from latest --concurrency 4

  # every topic that matches, values decoded as JSON, under a group of your own
  fleet-consumer run --local handler.py --topic-pattern 'orders\\..*' --bootstrap localhost:9092 \\
      --group anna-tries --decode-value Json

  # a handler behind HTTP that already runs on this machine
  fleet-consumer run --local http://localhost:8000/records --topic orders --bootstrap localhost:9092

  # failed records are retried after 5, 5 and 30 seconds by a second process
  fleet-consumer run --local handler.py --topic orders --bootstrap localhost:9092 --retry 5s,5s,30s

  # failed records are retried by the RetryPolicy in a manifest file, with its rules and its budget
  fleet-consumer run --local handler.py --topic orders --bootstrap localhost:9092 --retry-policy fleet.yaml

Records that fail for good are written to _fleet.<group>.failed. Missing topics of the group (_fleet.<group>.*) are
created. Ctrl-C stops in order; the same command continues, also with waiting records.
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
        help="main reads the source topics, retry the group's retry and redrive topics (default: %(default)s)",
    )
    _add_local_options(run)
    check = commands.add_parser(
        "check",
        help="try settings, handler, brokers and topics, and say what is wrong",
        description="Try settings, handler, brokers and topics without joining the group. The last line of standard "
        "output is a JSON object {ok, reason, message}. Exit codes: 0 all is well, 20 the settings or the handler must "
        "be mended, 21 the surroundings (brokers, credentials, topics).",
    )
    _add_offsets_options(commands.add_parser("offsets", help="show what a group has committed"))
    failed = with_examples(
        "failed",
        help="look into a group's failed records",
        description="Look into a group's failed topic. Joins no group, commits nothing, changes nothing.",
        epilog=FAILED_EXAMPLES,
    )
    _add_failed_options(failed)
    redrive = with_examples(
        "redrive",
        help="put failed records back for their group, once each",
        description="Write the selected records of a group's failed topic to its redrive topic, which its retry "
        "workers read at once. The records stay in the failed topic.",
        epilog=REDRIVE_EXAMPLES,
    )
    _add_redrive_options(redrive)
    reset = with_examples(
        "reset",
        help="set the commits of a group without members",
        description="Set the commits of a group without members to the start, the end, or a time.",
        epilog=RESET_EXAMPLES,
    )
    _add_reset_options(reset)
    skip = with_examples(
        "skip",
        help="set the next record of a group without members aside",
        description="Set the next record of a partition aside in the failed topic, without handling it.",
        epilog=SKIP_EXAMPLES,
    )
    _add_skip_options(skip)
    for command in (run, check):
        command.add_argument("--config", default=WORKER_CONFIG, metavar="FILE", help="default: %(default)s")
    return root


def _add_failed_options(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True)
    for name, help_text in (
        ("list", "one line for each failed record"),
        ("show", "one failed record with all of its headers, key and value"),
        ("count", "how many failed, by reason, error class or hour"),
    ):
        part = parts.add_parser(name, help=help_text, description=f"Print {help_text}. Changes nothing.")
        if name == "show":
            part.add_argument("place", metavar="PARTITION:OFFSET", help="as `list` prints it")
        else:
            _add_selection_options(part.add_argument_group("records"))
        if name == "list":
            part.add_argument("--limit", type=_positive, metavar="N", help="stop after so many")
        if name == "count":
            part.add_argument(
                "--by", choices=BY, action="append", help="may be repeated (default: --by reason --by class)"
            )
        part.add_argument("--json", action="store_true", help="one JSON object on each line")
        part.add_argument(
            "--group", metavar="ID", help="the consumer group whose failed topic it is, _fleet.<group>.failed"
        )
        _add_topic_option(part)
        part.add_argument(
            "--config",
            metavar="FILE",
            help="in place of --bootstrap: a worker.json or redrive.json, with its brokers, its group and its topic",
        )
        part.add_argument(
            "--timeout",
            type=_positive,
            default=30,
            metavar="SECONDS",
            help="how long brokers may give no answer and no record (default: %(default)g)",
        )
        _add_connection_options(part.add_argument_group("brokers"))


def _add_redrive_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--group", metavar="ID", help="the consumer group whose failed records are put back")
    _add_topic_option(parser)
    parser.add_argument("--dry-run", action="store_true", help="only count the records")
    parser.add_argument("--rate", type=_positive, metavar="N", help="records in a second (default: as fast as it goes)")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"in place of all other options: the redrive.json of a Redrive (without any option: {REDRIVE_CONFIG})",
    )
    records = parser.add_argument_group("records")
    _add_selection_options(records)
    records.add_argument(
        "--record", metavar="PARTITION:OFFSET", action="append", default=[], help="only this record; may be repeated"
    )
    _add_connection_options(parser.add_argument_group("brokers"))


def _add_reset_options(parser: argparse.ArgumentParser) -> None:
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
    _add_broker_options(parser)


def _add_skip_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="TOPIC-PARTITION:OFFSET", help="where the record is read, such as orders-3:17")
    parser.add_argument("--group", required=True, metavar="ID", help="the consumer group")
    _add_topic_option(parser)
    _add_broker_options(parser)


def _add_broker_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", type=_positive, default=30, metavar="SECONDS", help="default: %(default)g")
    _add_connection_options(parser.add_argument_group("brokers"))


def _add_offsets_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--group", required=True, metavar="ID", help="the consumer group")
    parser.add_argument(
        "--from-topic",
        action="store_true",
        help="read __consumer_offsets instead of asking the coordinator; adds commit times, needs Read on that topic",
    )
    _add_connection_options(parser.add_argument_group("brokers"))
    parser.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="default: %(default)g")


def _add_local_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--local",
        metavar="HANDLER",
        help="run on this machine: FILE.py, FILE.py:callable (default: handle, or handle_batch if there is no handle), "
        "package.module:callable of the working directory, or the http:// address of a handler that runs here",
    )
    group = parser.add_argument_group("with --local")
    _add_connection_options(group)
    group.add_argument("--topic", metavar="TOPIC", action="append", default=[], help="a topic; may be repeated")
    group.add_argument("--topic-pattern", metavar="REGEX", help="in place of --topic: all topics whose names match")
    group.add_argument("--group", metavar="ID", help="consumer group (default: local.<you>.<handler>)")
    group.add_argument(
        "--from",
        dest="start",
        choices=("earliest", "latest"),
        default="earliest",
        help="where a group without commits begins (default: earliest)",
    )
    group.add_argument(
        "--output", metavar="TOPIC", action="append", default=[], help="a topic the handler may write to"
    )
    group.add_argument(
        "--failed-topic", metavar="TOPIC", help="topic of failed records (default: _fleet.<group>.failed)"
    )
    group.add_argument("--retry", metavar="DELAY,…", help="retry after these delays, such as 5s,5s,30s")
    group.add_argument(
        "--retry-policy", metavar="FILE", help="in place of --retry: a manifest file with one RetryPolicy"
    )
    group.add_argument("--concurrency", metavar="N", type=int, default=1, help="handler calls at once (default: 1)")
    group.add_argument("--timeout", metavar="SECONDS", type=int, default=60, help="for one call (default: 60)")
    for field in ("key", "value"):
        group.add_argument(
            f"--decode-{field}", choices=("Bytes", "String", "Json"), default="Bytes", help="default: Bytes"
        )
    group.add_argument("--log-level", choices=LEVELS, default="Info", help="default: %(default)s")
    group.add_argument(
        "--log-format", choices=FORMATS, default="Text", help="Json as in a cluster (default: %(default)s)"
    )
    group.add_argument("--assignor", metavar="NAME", action="append", help="default: cooperative-sticky")
    group.add_argument("--batch", action="store_true", help="send batches to a handler behind HTTP")


def _add_connection_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--bootstrap", metavar="HOST:PORT[,…]", action="append", default=[], help="brokers; may be given several times"
    )
    group.add_argument("--tls-ca", metavar="FILE", help="use TLS, and trust this certificate authority")
    group.add_argument("--tls-cert", metavar="FILE", help="client certificate, with --tls-key")
    group.add_argument("--tls-key", metavar="FILE", help="key of the client certificate")
    group.add_argument("--sasl", metavar="MECHANISM", choices=MECHANISMS, help=f"one of {', '.join(MECHANISMS)}")
    group.add_argument(
        "--credentials",
        metavar="FOLDER",
        help="with --sasl: holds the files username and password, for OAUTHBEARER clientId and clientSecret",
    )
    group.add_argument("--token-endpoint", metavar="URL", help="with OAUTHBEARER: address of the token endpoint")
    group.add_argument("--token-scope", metavar="SCOPE", help="with OAUTHBEARER: scope of the tokens")


def _add_selection_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--reason", action="append", default=[], help="only these reasons, such as exhausted")
    group.add_argument(
        "--error-class",
        action="append",
        default=[],
        metavar="CLASS",
        help="only errors of these classes, by full name or by what follows the last dot",
    )
    group.add_argument("--from", dest="start", metavar="TIME", help="2026-11-21T08:00:00Z, or 2h for two hours ago")
    group.add_argument("--to", dest="end", metavar="TIME", help="likewise; exclusive")


def _add_topic_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="TOPIC", help="the failed topic (default: that of the group)")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def connection_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options as the `connection` of worker.json. Raises SettingsInvalid without a broker."""
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


def filter_of(options: argparse.Namespace, now_ms: int, places: Iterable[str] = ()) -> Filter:
    """The selection of the options, of `places` only where there are any. Raises SettingsInvalid."""
    from fleet_consumer.contract.redrive_config import Filter

    named = (options.reason, options.error_class)
    reasons, classes = (["" if name == NONE else name for name in names] for names in named)
    chosen: dict[int, set[int]] = {}
    for text in places:
        partition, offset = place_of(text)
        chosen.setdefault(partition, set()).add(offset)
    return Filter(
        # In lower case too: status.retry.failedReasons has them in CamelCase.
        reasons=frozenset({*reasons, *map(str.lower, reasons)}),
        error_classes=tuple(classes),
        from_ms=time_of(options.start, "--from", now_ms),
        to_ms=time_of(options.end, "--to", now_ms),
        places={partition: frozenset(offsets) for partition, offsets in chosen.items()} or None,
    )


def time_of(text: str | None, option: str, now_ms: int) -> int | None:
    """Milliseconds since the epoch: a moment, in UTC where it names no zone, or a delay before now."""
    from fleet_consumer.contract.naming import parse_delay

    if text is None:
        return None
    try:
        return now_ms - parse_delay(text) * 1000
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            advice = "is no time; write 2026-11-21T08:00:00Z, or 30s, 5m, 2h or 7d for that long ago"
            raise SettingsInvalid(option, f"{text!r} {advice}") from None
    # Brokers take negative times for something else than times.
    return max(0, round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))


def place_of(text: str) -> tuple[int, int]:
    """Partition and offset of a record in the failed topic. Raises SettingsInvalid."""
    partition, _, offset = text.partition(":")
    if not all(part.isdecimal() and part.isascii() and len(part) <= 18 for part in (partition, offset)):
        raise SettingsInvalid("PARTITION:OFFSET", f"is {text!r}; write two numbers, such as 3:1841")
    return int(partition), int(offset)
