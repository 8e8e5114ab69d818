"""Errors of a consumer: one class for each case that callers may handle differently.

After a `ConsumerError` the consumer goes on. A `FatalConsumerError` ends it: every later call raises the same one,
except `close`. Each carries `reason`, by default its class name, for conditions and metrics, and a message that names
the object, what was seen and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple

from fleet_consumer.record import TopicPartition


class Refusal(NamedTuple):
    """A broker's refusal of one partition's commit, in its words. `lasting`: the same commit is refused again until
    somebody changes something."""

    words: str
    lasting: bool


class ConsumerError(Exception):
    """Base class of all errors of `Consumer`. The consumer can still be used.

    Of a commit, `not_committed` has the partitions whose offsets are not stored, with the broker's refusal where it
    gave one; all others of the commit are stored. None: that is not known of any.
    """

    reason: ClassVar[str] = "ConsumerError"
    not_committed: Mapping[TopicPartition, Refusal | None] | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "reason" not in vars(cls):
            cls.reason = cls.__name__


class FatalConsumerError(ConsumerError):
    """Base class of errors that end a consumer: close it, fix the cause, make a new one."""


class FencedInstance(FatalConsumerError):
    """Another consumer has joined with the same `group_instance_id` (KIP-345)."""


class InconsistentProtocol(FatalConsumerError):
    """The group shares no assignor with this consumer, or is not a consumer group at all."""


class InvalidSessionTimeout(FatalConsumerError):
    """The session timeout is outside the broker's `group.min/max.session.timeout.ms`."""


class InvalidGroupId(FatalConsumerError):
    """The broker refuses the group id."""


class GroupFull(FatalConsumerError):
    """The group has `group.max.size` members."""


class GroupAuthorizationFailed(FatalConsumerError):
    """The principal lacks Read on the group."""


class AuthenticationFailed(FatalConsumerError):
    """A broker, or the token endpoint, refused the credentials. Not fatal with `retry_authentication`."""


class TlsFailed(AuthenticationFailed):
    """The TLS handshake failed: a certificate is not trusted, on either side, or a file cannot be used."""


class UnsupportedByCoordinator(FatalConsumerError):
    """The coordinator is too old for a setting, such as `group_instance_id` before Kafka 2.3."""


class UnexpectedAnswer(FatalConsumerError):
    """The coordinator answered an error that the protocol does not allow here; retries would only hide it."""


class TopicAuthorizationFailed(ConsumerError):
    """The principal lacks Read or Describe on a topic."""


class TopicMissing(ConsumerError):
    """A subscribed topic does not exist (yet); it is looked up again until it does."""


class AssignorFailed(ConsumerError):
    """The assignor raised, or broke its contract, while this member led a rebalance; the rebalance is tried again."""


class CoordinatorUnavailable(ConsumerError):
    """The group has no coordinator now, or it is still loading the group; retried until it answers."""


class PollTimedOut(ConsumerError):
    """`poll` was not called within `max_poll_interval_ms`, so this member gave up its membership; polling rejoins."""


class CommitFailed(ConsumerError):
    """The offsets were not committed: another member may own the partitions. Do not repeat the commit."""


class RebalanceInProgress(ConsumerError):
    """The offsets were not committed because the group is rebalancing; poll, then commit what is still owned."""


class RetriableCommitFailed(ConsumerError):
    """The offsets were not committed, or the outcome is unknown; commit the same or later offsets again."""


class CommitRefused(ConsumerError):
    """The broker refused the content of the commit (metadata too large, topic not allowed or unknown)."""


class TopicDeleted(CommitRefused):
    """The topic was deleted after its records were read, and the positions were not committed: they are not valid in a
    new topic of the same name, which is read from its beginning. Do not repeat the commit."""


class OffsetLookupFailed(ConsumerError):
    """Committed offsets, or the first or last offset of a partition, could not be read."""


class MetadataLookupFailed(ConsumerError):
    """Topics and their partitions could not be read from the brokers."""


class NoOffsetForPartition(ConsumerError):
    """A partition has no usable offset and the reset policy is `none`; seek it, or commit an offset for it."""

    def __init__(self, message: str, partitions: Iterable[TopicPartition]) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)


class GroupMetadataUnknown(ConsumerError):
    """The linked librdkafka writes group metadata, which transactions need, in an unknown format."""


class NotAssigned(ConsumerError):
    """The call names a partition that this consumer does not own now."""


class NotSubscribed(ConsumerError):
    """The call needs a subscription or assigned partitions."""


class SubscriptionConflict(ConsumerError):
    """`subscribe` and `assign` exclude each other; call `unsubscribe` in between."""


class GroupIdMissing(ConsumerError):
    """The call needs a group, and the settings have no `group_id`."""


class ConsumerClosed(ConsumerError):
    """The consumer was closed."""


class ForkedConsumer(ConsumerError):
    """This process is a fork of the consumer's, without its threads; make a new consumer here."""


class ConcurrentUse(ConsumerError):
    """Two threads used the consumer at once; only `wakeup` and `membership` are for any thread."""


class DataPlaneFailed(ConsumerError):
    """librdkafka reported an error about the records of one partition, or of all."""


class DataUnreadable(DataPlaneFailed):
    """A batch of a partition cannot be read: wrong checksum, unknown codec or format, damaged. Nothing behind it is
    handed out; it is tried again until it can be read or is passed by."""


class RecordsExpired(DataPlaneFailed):
    """Records that were to be read are gone from the log: retention or a deletion removed them."""

    reason = "RangeExpired"


class InternalFailure(FatalConsumerError):
    """A bug ended one of the consumer's threads; the log has the traceback."""
