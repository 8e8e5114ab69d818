"""`Consumer`: one member of one consumer group, with Java's semantics and Python's names.

It joins three parts, each with its own thread: the coordinator thread keeps the membership alive, the fetch thread
reads ahead, and the caller's thread polls. Here is only what binds them: which record may be handed out now, and
what the caller is told and when. Callbacks run on the caller's thread, inside `poll` and `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_consumer.fetch.records import Records
from fleet_consumer.group.membership import Membership, OffsetAndMetadata
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import TopicPartition

RebalanceCallback = Callable[[Sequence[TopicPartition]], None]
CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], Exception | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Everything that decides how a consumer behaves. Defaults are those of Kafka 4's Java consumer.

    Times are milliseconds. `assignors` are names for `fleet_consumer.assignors.load`, in order of preference.
    `group_instance_id` makes the member static (KIP-345). `auto_offset_reset` is `earliest`, `latest` or `none`, for
    partitions without a usable committed offset; partitions that appear after the first assignment start at the
    beginning whatever it says. `rebalance_timeout_ms` None means `max_poll_interval_ms`, as in Java.
    `properties` are further librdkafka settings, only those that `fetch.librdkafka.ALLOWED_PROPERTIES` lists.
    """

    connection: ConnectionSettings
    group_id: str
    assignors: tuple[str, ...] = ("range",)
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    auto_offset_reset: str = "earliest"
    isolation_level: str = "read_uncommitted"
    rebalance_timeout_ms: int | None = None
    metadata_max_age_ms: int = 300_000
    properties: Mapping[str, str] = field(default_factory=dict)


class Consumer:
    """A member of a consumer group. Making one starts nothing; `subscribe` does; `close` must be called.

    All methods belong to one thread, except `wakeup`, `membership` and `holds_session`, which any thread may call.
    Callbacks may call `commit`, `commit_async`, `committed`, `position`, `seek`, `pause`, `resume` and `assignment`, never
    `poll` or `close`. After a `FatalConsumerError` every call but `close` raises it again.
    """

    def __init__(self, settings: ConsumerSettings) -> None: ...

    def subscribe(
        self,
        topics: Iterable[str],
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group for these topics; a second call replaces the first. Returns at once, joining goes on behind.

        `on_revoked` gets partitions that still belong to this member until it returns: commit there.
        `on_lost` gets partitions that may belong to others already; without it `on_revoked` is called instead.
        `on_assigned` gets the new partitions, before any record of theirs is handed out: seek there.
        """

    def poll(self, timeout_s: float) -> Records:
        """Hand out at most `max_poll_records` records, as soon as any are there, after at most `timeout_s` seconds.

        Runs callbacks that are due. Moves positions past what it returns, commits nothing. Must be called again within
        `max_poll_interval_ms`. Returns empty-handed at once after `wakeup`. Raises what the background met:
        FatalConsumerError, AssignorFailed, NoOffsetForPartition, and what callbacks raise.
        """

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        """Commit and wait. Retries while that can help, at most `timeout_s` seconds.

        Raises CommitFailed (no longer ours: do not repeat), RebalanceInProgress, RetriableCommitFailed (time is up;
        unknown whether written), CommitRefused, FatalConsumerError.
        """

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None = None
    ) -> None:
        """Commit without waiting or retrying; `callback(offsets, error or None)` runs in a later poll, commit or close."""

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, None where there is none. Raises OffsetLookupFailed."""

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset that poll would hand out; None while it is being looked up. Raises NotAssigned."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`; nothing that was read ahead before comes out. Raises NotAssigned."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`; reassignment ends a pause. Raises NotAssigned."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End a pause. Raises NotAssigned."""

    def paused(self) -> frozenset[TopicPartition]:
        """What is paused now."""

    def assignment(self) -> frozenset[TopicPartition]:
        """What this member owns now, from the caller's view: what `on_assigned` gave and nothing has taken since."""

    def membership(self) -> Membership:
        """The membership as of now. Any thread."""

    def holds_session(self) -> bool:
        """Whether the last good heartbeat is younger than the session timeout; False: others may own our partitions.

        Cheap enough to ask before every record of a batch. Any thread.
        """

    def wakeup(self) -> None:
        """Make a `poll` that waits, or the next one, return at once. Any thread, also signal handlers."""

    def close(self, timeout_s: float = 30.0, leave: str = "default") -> None:
        """Revoke, then leave or remain, then stop all threads; at most about `timeout_s` seconds. Idempotent.

        `leave` (KIP-1092): `leave` tells the coordinator at once, also for a static member; `remain` lets the session
        time out; `default` is leave for dynamic and remain for static members. Commits nothing by itself: `on_revoked`
        is called first, as in a rebalance.
        """
