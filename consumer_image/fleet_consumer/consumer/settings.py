"""The settings of a consumer, and their conversion to the settings of its group membership.

The defaults are those of Kafka 4's Java consumer; the docstring of `ConsumerSettings` gives a reason for each
difference.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fleet_consumer.assignors import Assignor
from fleet_consumer.contract.worker_config import PAUSED_BYTES_MAX
from fleet_consumer.coordinator.starts import ResetPolicy
from fleet_consumer.group.membership import GroupSettings
from fleet_consumer.librdkafka.settings import check_properties
from fleet_consumer.net import ConnectionSettings

DEFAULT_TIMEOUT_S = 60.0
"""Default timeout of blocking calls in seconds, as Java's `default.api.timeout.ms`."""
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
DEFAULT_ASSIGNORS = ("range", "cooperative-sticky")
POSITIVE = (
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "max_poll_interval_ms",
    "max_poll_records",
    "paused_bytes_max",
    "statistics_interval_ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """All settings of a consumer. Times are in milliseconds.

    `group_id`: None for a consumer that only uses `assign` and neither joins a group nor commits.

    `assignors`: names for `fleet_consumer.assignors.load`, or assignor objects (never shared by consumers), in order of
    preference. If all assignors are cooperative, members keep their partitions during rebalances. `group_instance_id`
    makes the member static (KIP-345). `client_rack` is the rack of the member, for rack-aware assignors and fetches
    from a near replica (KIP-392, KIP-881). `auto_offset_reset`: `earliest`, `latest`, `none` or `by_duration:PT1H`
    (KIP-1106), for partitions without a committed offset. The default is `earliest`, because Java's `latest` skips
    records written before the first commit. Under every policy, partitions that appear after the first assignment start
    at the beginning. If the position or committed offset is below the log's start, reading continues at the log's
    start. `auto_commit_interval_ms`: by default None, unlike in Java. The caller then commits, because an automatic
    commit of unhandled records would lose them. With a number, `poll`, revocations and `close` commit the positions
    reached by earlier polls. `retry_authentication`: if True, a refused login or failed TLS handshake is retried every
    ten seconds, so that credentials can be renewed; only `membership().error` reports the failure. If False, as in
    Java, `poll` raises AuthenticationFailed after the first failure, and the consumer can only be closed.
    `paused_bytes_max` limits the memory of all records held back for paused partitions: keys, values, headers and their
    Python objects. librdkafka's own prefetching (`queued.max.messages.kbytes`) is not included. `rebalance_timeout_ms`:
    None means `max_poll_interval_ms`, as in Java. `properties` are further librdkafka properties;
    `librdkafka.settings.ALLOWED_PROPERTIES` lists the allowed ones. `on_statistics` gets librdkafka's statistics, a
    JSON string, every `statistics_interval_ms`, on any thread of the consumer. It must return quickly; its exceptions
    are logged. `debug` lists librdkafka's debug contexts (such as `"fetch,broker"`); `log_level` is a syslog level (7
    for debug lines). librdkafka's log lines go to the logger `fleet_consumer.librdkafka.settings`. Raises ValueError,
    which names the setting, for invalid values.
    """

    connection: ConnectionSettings
    group_id: str | None = None
    assignors: tuple[str | Assignor, ...] = DEFAULT_ASSIGNORS
    group_instance_id: str | None = None
    client_rack: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    auto_offset_reset: str = "earliest"
    auto_commit_interval_ms: int | None = None
    isolation_level: str = "read_uncommitted"
    rebalance_timeout_ms: int | None = None
    metadata_max_age_ms: int = 300_000
    retry_authentication: bool = False
    paused_bytes_max: int = PAUSED_BYTES_MAX
    properties: Mapping[str, str] = field(default_factory=dict)
    on_statistics: Callable[[str], object] | None = None
    statistics_interval_ms: int = 60_000
    debug: str = ""
    log_level: int = 6

    def __post_init__(self) -> None:
        if self.group_id == "":
            raise ValueError("group_id is empty; leave it out for a consumer that only uses assign")
        if self.group_id is None and (self.group_instance_id or self.auto_commit_interval_ms):
            raise ValueError("group_instance_id and auto_commit_interval_ms need a group_id")
        given: object = self.assignors
        if isinstance(given, str):
            raise ValueError(f"assignors is a string, {given!r}; give a tuple of names")
        if not self.assignors:
            raise ValueError(f"assignors is empty; the default is {DEFAULT_ASSIGNORS}")
        ResetPolicy.parse(self.auto_offset_reset)
        if self.isolation_level not in ISOLATION_LEVELS:
            raise ValueError(f"isolation_level is {self.isolation_level!r}; use {' or '.join(ISOLATION_LEVELS)}")
        for name in POSITIVE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.auto_commit_interval_ms is not None and self.auto_commit_interval_ms < 1:
            raise ValueError(f"auto_commit_interval_ms is {self.auto_commit_interval_ms}; use at least 1, or None")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below session_timeout_ms "
                f"({self.session_timeout_ms}), usually a third of it or less"
            )
        if self.client_rack is not None and "client.rack" in self.properties:
            raise ValueError("client.rack is set in properties and in client_rack; set only client_rack")
        check_properties(self.properties)

    @property
    def title(self) -> str:
        """The consumer's name in logs and thread names."""
        return self.group_id or "no-group"

    @property
    def read_committed(self) -> bool:
        return self.isolation_level == "read_committed"

    @property
    def reset_policy(self) -> ResetPolicy:
        return ResetPolicy.parse(self.auto_offset_reset)

    @property
    def rebalance_timeout_s(self) -> float:
        chosen = self.rebalance_timeout_ms
        return (self.max_poll_interval_ms if chosen is None else chosen) / 1000

    @property
    def data_plane_properties(self) -> dict[str, str]:
        """The librdkafka properties other than those of the connection."""
        return {**self.properties, **({} if self.client_rack is None else {"client.rack": self.client_rack})}


def group_settings(settings: ConsumerSettings) -> GroupSettings:
    return GroupSettings(
        group_id=settings.group_id or "",
        instance_id=settings.group_instance_id,
        session_timeout_s=settings.session_timeout_ms / 1000,
        heartbeat_interval_s=settings.heartbeat_interval_ms / 1000,
        max_poll_interval_s=settings.max_poll_interval_ms / 1000,
        rebalance_timeout_s=settings.rebalance_timeout_s,
        request_timeout_s=settings.connection.request_timeout_ms / 1000,
        metadata_max_age_s=settings.metadata_max_age_ms / 1000,
        retry_authentication=settings.retry_authentication,
        rack=settings.client_rack or settings.properties.get("client.rack"),
    )
