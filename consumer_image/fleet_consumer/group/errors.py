"""Errors of a consumer: one class for each case that callers may handle differently.

After a `ConsumerError` the consumer continues. A `FatalConsumerError` ends the consumer: every later call except
`close` raises the same error. Each error has a `reason` for conditions and metrics, by default its class name. Its
message names the object, the observation and the remedy.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple

from fleet_consumer.record import TopicPartition


class Refusal(NamedTuple):
    """A broker's refusal to store the offset of one partition. `lasting` is True if retries fail until the content of
    the commit or the permissions change."""

    words: str
    lasting: bool


class ConsumerError(Exception):
    """Base class of all errors of `Consumer`. The consumer can still be used.

    After a failed commit, `not_committed` has the partitions whose offsets are not stored. Each is mapped to the
    broker's refusal, or to None if the broker has not refused it. The offsets of all other partitions are stored. If
    `not_committed` itself is None, the outcome is unknown for all partitions.
    """

    reason: ClassVar[str] = "ConsumerError"
    not_committed: Mapping[TopicPartition, Refusal | None] | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "reason" not in vars(cls):
            cls.reason = cls.__name__


class FatalConsumerError(ConsumerError):
    """Base class of errors that end a consumer: close it, fix the cause, create a new one."""


class FencedInstance(FatalConsumerError):
    """Another consumer has joined with the same `group_instance_id` (KIP-345)."""


class InconsistentProtocol(FatalConsumerError):
    """The group shares no assignor with this consumer, or is not a consumer group."""


class InvalidSessionTimeout(FatalConsumerError):
    """The session timeout is outside the broker's `group.min/max.session.timeout.ms`."""


class InvalidGroupId(FatalConsumerError):
    """The broker refuses the group id."""


class GroupFull(FatalConsumerError):
    """The group already has `group.max.size` members."""


class GroupAuthorizationFailed(FatalConsumerError):
    """The principal lacks Read on the group."""


class AuthenticationFailed(FatalConsumerError):
    """A broker or the token endpoint refused the credentials. This error ends the consumer unless
    `retry_authentication` is set; then the login is retried."""


class TlsFailed(AuthenticationFailed):
    """The TLS handshake failed: one side does not trust the other's certificate, or a file is unusable."""


class UnsupportedByCoordinator(FatalConsumerError):
    """The coordinator is too old for a setting, such as `group_instance_id` before Kafka 2.3."""


class UnexpectedAnswer(FatalConsumerError):
    """The coordinator returned an error that the protocol does not allow here; retries would only hide the error."""


class TopicAuthorizationFailed(ConsumerError):
    """The principal lacks Read or Describe on a topic."""


class TopicMissing(ConsumerError):
    """A subscribed topic does not exist (yet); the lookup is repeated until the topic exists."""


class AssignorFailed(ConsumerError):
    """This member led a rebalance, and the assignor raised or returned an invalid plan; the rebalance is retried."""


class CoordinatorUnavailable(ConsumerError):
    """The group currently has no coordinator, or the coordinator is still loading the group. The request is retried."""


class PollTimedOut(ConsumerError):
    """`poll` was not called within `max_poll_interval_ms`; the membership was given up until the next `poll`."""


class CommitFailed(ConsumerError):
    """The offsets were not committed, and another member may own the partitions now. Do not repeat the commit."""


class RebalanceInProgress(ConsumerError):
    """The group is rebalancing, so the offsets were not committed; poll, then commit the partitions still assigned."""


class RetriableCommitFailed(ConsumerError):
    """The offsets were not committed, or the outcome is unknown; commit the same or later offsets again."""


class CommitRefused(ConsumerError):
    """The broker refused the content of the commit (metadata too large, topic not allowed or unknown)."""


class TopicDeleted(CommitRefused):
    """The topic was deleted after its records were read. The positions were not committed, because a new topic of the
    same name is read from its beginning. Do not repeat the commit."""


class OffsetLookupFailed(ConsumerError):
    """Committed offsets, or the first or last offset of a partition, could not be read."""


class MetadataLookupFailed(ConsumerError):
    """Topics and their partitions could not be read from the brokers."""


class NoOffsetForPartition(ConsumerError):
    """A partition has no valid offset, and the reset policy is `none`; seek, or commit an offset for the partition."""

    def __init__(self, message: str, partitions: Iterable[TopicPartition]) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)


class GroupMetadataUnknown(ConsumerError):
    """The linked librdkafka uses an unknown format for the group metadata of transactions."""


class NotAssigned(ConsumerError):
    """The call names a partition that this consumer does not own."""


class NotSubscribed(ConsumerError):
    """The call needs a subscription or assigned partitions."""


class SubscriptionConflict(ConsumerError):
    """`subscribe` and `assign` are mutually exclusive; call `unsubscribe` in between."""


class GroupIdMissing(ConsumerError):
    """The call needs a group, but the settings have no `group_id`."""


class ConsumerClosed(ConsumerError):
    """The consumer was closed."""


class ForkedConsumer(ConsumerError):
    """This process was forked from the consumer's process, and has none of its threads. Create a new consumer here."""


class ConcurrentUse(ConsumerError):
    """Two threads used the consumer concurrently. Only methods documented as thread-safe may be called from any
    thread."""


class DataPlaneFailed(ConsumerError):
    """librdkafka reported an error about the records of one partition, or of all partitions."""


class DataUnreadable(DataPlaneFailed):
    """A batch of a partition is unreadable: damaged, with a wrong checksum, or in an unknown codec or format. Records
    after the batch are not returned. The read is retried until it succeeds or the batch is skipped."""


class RecordsExpired(DataPlaneFailed):
    """Retention or a deletion removed records from the log before they were read."""

    reason = "RangeExpired"


class InternalFailure(FatalConsumerError):
    """A bug ended one of the consumer's threads; the log has the traceback."""
