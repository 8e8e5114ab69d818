"""Every security protocol of a broker, as connection settings."""

from __future__ import annotations

from typing import Any

from fleet_consumer.net import ConnectionSettings, OAuthSettings, SaslSettings, TlsSettings
from tests.support.kafka import KafkaBroker
from tests.support.token_server import CLIENT_ID, CLIENT_SECRET, Asked, TokenServer, answer

USER, PASSWORD = "alice", "alice-secret"
WAYS = ("TLS", "mutual TLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The names of all security protocols; those of SASL mechanisms use TLS too."""


def token_server(broker: KafkaBroker, lifetime_s: float = 3600.0) -> TokenServer:
    """A token endpoint whose tokens the broker accepts."""

    def respond(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        return answer(broker.issuer.token(asked.client_id, lifetime_s=lifetime_s), lifetime_s)

    return TokenServer(respond)


def oauth(tokens: TokenServer, *, secret: str = CLIENT_SECRET) -> SaslSettings:
    """Credentials for that endpoint."""
    settings = OAuthSettings(token_endpoint=tokens.url, client_id=CLIENT_ID, client_secret=secret, scope="kafka")
    return SaslSettings(mechanism="OAUTHBEARER", oauth=settings)


def connection(broker: KafkaBroker, tokens: TokenServer, way: str, **changes: Any) -> ConnectionSettings:
    """Connection settings for one of `WAYS`."""
    pki = broker.pki
    tls, bootstrap, sasl = TlsSettings(ca_file=pki.ca_file), broker.sasl_tls_bootstrap, None
    if way == "TLS":
        bootstrap = broker.tls_bootstrap
    elif way == "mutual TLS":
        tls = TlsSettings(ca_file=pki.ca_file, cert_file=pki.cert_file, key_file=pki.key_file)
        bootstrap = broker.mutual_bootstrap
    elif way == "OAUTHBEARER":
        sasl = oauth(tokens)
    else:
        sasl = SaslSettings(mechanism=way, username=USER, password=PASSWORD)
    values: dict[str, Any] = {"bootstrap_servers": (bootstrap,), "client_id": "secured", "tls": tls, "sasl": sasl}
    return ConnectionSettings(**(values | changes))
