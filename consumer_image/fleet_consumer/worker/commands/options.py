"""Options that several commands have: brokers, selection of failed records, times and places."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from fleet_consumer.contract.brokers import MECHANISMS
from fleet_consumer.contract.section import SettingsInvalid

if TYPE_CHECKING:
    from fleet_consumer.contract.redrive_config import Filter


def add_connection_options(group: argparse._ActionsContainer) -> None:
    """Add the options to a parser or an argument group."""
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


NONE: Final = "-"
"""The name of a reason or class that a record does not have, as it is shown and selected."""


def add_selection_options(group: argparse._ArgumentGroup) -> None:
    """Add the options that select failed records."""
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


def add_topic_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a failed topic."""
    parser.add_argument("--topic", metavar="TOPIC", help="the failed topic (default: that of the group)")


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


def positive(text: str) -> int:
    """A number of an option, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
