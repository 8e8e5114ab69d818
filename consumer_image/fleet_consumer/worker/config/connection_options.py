"""Command-line options of the connection to the brokers. Imports nothing heavy."""

from __future__ import annotations

import argparse
from typing import Any

from fleet_consumer.contract.brokers import MECHANISMS
from fleet_consumer.contract.section import SettingsInvalid


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
