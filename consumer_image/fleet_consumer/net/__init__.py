"""Connections to brokers: TCP, TLS, SASL, version negotiation, pipelining, timeouts, and broker addresses.

One thread owns a `NetworkClient`. The package does not depend on group membership; for groups it only looks up
coordinators.
"""

from fleet_consumer.contract.brokers import TlsSettings
from fleet_consumer.net.addresses import BrokerAddress, parse_address, parse_addresses
from fleet_consumer.net.client import Coordinator, NetworkClient
from fleet_consumer.net.errors import (
    AllBrokersUnreachable,
    AnotherCluster,
    AuthenticationFailed,
    ConnectFailed,
    Disconnected,
    MalformedResponse,
    NetError,
    NoBrokersListed,
    RequestTimedOut,
    TlsFailed,
    TokenUnavailable,
    UnsupportedByBroker,
    listed,
)
from fleet_consumer.net.oauth import OAuthSettings, OAuthToken
from fleet_consumer.net.session import Call
from fleet_consumer.net.settings import ConnectionSettings, SaslSettings
from fleet_consumer.net.tls_files import FileWatch, authorities, chain
from fleet_consumer.net.tokens import TokenSource
from fleet_consumer.wire.errors import KafkaError

__all__ = [
    "AllBrokersUnreachable",
    "AnotherCluster",
    "AuthenticationFailed",
    "BrokerAddress",
    "Call",
    "ConnectFailed",
    "ConnectionSettings",
    "Coordinator",
    "Disconnected",
    "FileWatch",
    "KafkaError",
    "MalformedResponse",
    "NetError",
    "NetworkClient",
    "NoBrokersListed",
    "OAuthSettings",
    "OAuthToken",
    "RequestTimedOut",
    "SaslSettings",
    "TlsFailed",
    "TlsSettings",
    "TokenSource",
    "TokenUnavailable",
    "UnsupportedByBroker",
    "authorities",
    "chain",
    "listed",
    "parse_address",
    "parse_addresses",
]
