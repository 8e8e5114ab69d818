"""Connection settings of a Kafka cluster: addresses, TLS, SASL, timeouts."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.brokers import MECHANISMS, OAUTHBEARER, TlsSettings
from fleet_consumer.net.addresses import BrokerAddress, parse_addresses
from fleet_consumer.net.oauth import OAuthSettings, OAuthToken
from fleet_consumer.net.tokens import TokenSource, ask_for_token


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """Credentials for one of `MECHANISMS`. No secret appears in errors or in `repr`.

    `username` and `password` are for PLAIN and SCRAM. OAUTHBEARER needs either `oauth`, whose endpoint issues tokens,
    or `token_callback`. The callback is called on a separate thread whenever a token is needed; it may block, and may
    raise any exception. `login_callback` returns the current user name and password (for `oauth`, the client id and
    client secret). It is called before each login, on any thread, and must not block or raise an exception.

    All clients made from this object, including librdkafka's, share the token source `tokens`. Raises ValueError for
    settings that contradict each other.
    """

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    oauth: OAuthSettings | None = None
    token_callback: Callable[[], OAuthToken] | None = None
    login_callback: Callable[[], tuple[str, str]] | None = field(default=None, repr=False, compare=False)
    tokens: TokenSource | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"SASL mechanism {self.mechanism!r} is not one of {', '.join(MECHANISMS)}")
        sources = (self.oauth is not None) + (self.token_callback is not None)
        if self.mechanism != OAUTHBEARER:
            if sources or not self.username:
                raise ValueError(f"SASL mechanism {self.mechanism} needs username and password, and uses no tokens")
            return
        if sources != 1 or self.username or self.password:
            raise ValueError("SASL mechanism OAUTHBEARER needs either oauth or token_callback, and no username")
        get = self.token_callback
        if self.oauth is not None:
            get = partial(_ask_with, self.oauth, self.login_callback)
        assert get is not None
        object.__setattr__(self, "tokens", TokenSource(get))

    def current(self) -> "SaslSettings":
        """Return these settings with the current user name and password."""
        if self.login_callback is None or self.oauth is not None:
            return self
        username, password = self.login_callback()
        return replace(self, username=username, password=password)

    @property
    def identity(self) -> str:
        """The name of the user or client in error messages."""
        if self.mechanism != OAUTHBEARER:
            return f"user {self.username!r}"
        return f"client {self.oauth.client_id!r}" if self.oauth is not None else "the holder of the callback's token"


def _ask_with(oauth: OAuthSettings, login: Callable[[], tuple[str, str]] | None) -> OAuthToken:
    if login is not None:
        client_id, client_secret = login()
        oauth = replace(oauth, client_id=client_id, client_secret=client_secret)
    return ask_for_token(oauth, SystemClock())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Connection settings of a cluster. Times are in milliseconds; names and defaults follow Kafka's own clients.

    `bootstrap_servers` are addresses, "host:port" or another form that Java's clients accept. One address that answers
    is enough. `request_timeout_ms` is the default timeout of a request; `connect_timeout_ms` covers name lookup, TCP,
    TLS and SASL together. After a failure, an address is not tried for `reconnect_backoff_ms`; this time doubles with
    every further failure, up to `reconnect_backoff_max_ms`. A connection that has been unused for
    `connections_max_idle_ms` is closed. The default of this setting is so short that the connection is closed before
    its peer closes it. By default, brokers close idle connections after ten minutes, load balancers after four or less.
    Raises ValueError, which names the setting, for invalid values.
    """

    bootstrap_servers: tuple[str, ...]
    client_id: str
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    reconnect_backoff_ms: int = 100
    reconnect_backoff_max_ms: int = 2_000
    connections_max_idle_ms: int = 180_000

    def __post_init__(self) -> None:
        given: object = self.bootstrap_servers
        if isinstance(given, str):  # a string would be iterated character by character
            raise ValueError(f"bootstrap_servers is a string, {given!r}; give a tuple of host:port")
        parse_addresses(self.bootstrap_servers)
        if self.connections_max_idle_ms < 1:
            raise ValueError(f"connections_max_idle_ms is {self.connections_max_idle_ms}; it must be at least 1")

    @property
    def bootstrap_addresses(self) -> tuple[BrokerAddress, ...]:
        return parse_addresses(self.bootstrap_servers)

    @property
    def bootstrap_text(self) -> str:
        """The addresses for librdkafka and Java clients. With TLS, trailing dots are removed, because names in
        certificates have none."""
        found = self.bootstrap_addresses
        return ",".join(str(each if self.tls is None else each._replace(host=each.host.rstrip("."))) for each in found)
