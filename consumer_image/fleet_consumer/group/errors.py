"""What a consumer's user can be told: one class for each thing that he can react to in his own way.

Two kinds, as the group protocol has two: errors after which the consumer goes on (`ConsumerError`), and errors after
which this consumer object is finished (`FatalConsumerError`: every later call raises the same one, except `close`).
Each carries `reason`, a CamelCase word for conditions and metrics, and a message that names the object, what was
seen and what to do. Nothing here may know a socket or a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from fleet_consumer.record import TopicPartition


class ConsumerError(Exception):
    """Root of what `Consumer` raises; raise one of its subclasses. The consumer can still be used."""

    reason: ClassVar[str] = "ConsumerError"


class FatalConsumerError(ConsumerError):
    """Root of what ends a consumer: close it, mend the cause, make a new one."""

    reason: ClassVar[str] = "FatalConsumerError"


class FencedInstance(FatalConsumerError):
    """Another consumer has joined with the same `group_instance_id` (KIP-345)."""

    reason = "FencedInstance"


class InconsistentProtocol(FatalConsumerError):
    """The group shares no assignor with this consumer, or is not a consumer group at all."""

    reason = "InconsistentProtocol"


class InvalidSessionTimeout(FatalConsumerError):
    """The session timeout is outside the broker's `group.min/max.session.timeout.ms`."""

    reason = "InvalidSessionTimeout"


class InvalidGroupId(FatalConsumerError):
    """The broker does not take this group id."""

    reason = "InvalidGroupId"


class GroupFull(FatalConsumerError):
    """The group has `group.max.size` members."""

    reason = "GroupFull"


class GroupAuthorizationFailed(FatalConsumerError):
    """The principal lacks Read on the group."""

    reason = "GroupAuthorizationFailed"


class AuthenticationFailed(FatalConsumerError):
    """A broker, or the token endpoint, refused the credentials. With `retry_authentication` they are tried again."""

    reason = "AuthenticationFailed"


class TlsFailed(AuthenticationFailed):
    """No TLS with a broker: a certificate that is not trusted, on either side, or files that cannot be used."""

    reason = "TlsFailed"


class UnsupportedByCoordinator(FatalConsumerError):
    """The coordinator is too old for what was asked, such as a `group_instance_id` before Kafka 2.3."""

    reason = "UnsupportedByCoordinator"


class UnexpectedAnswer(FatalConsumerError):
    """The coordinator answered what the protocol does not foresee here; repeating it blindly would hide it."""

    reason = "UnexpectedAnswer"


class TopicAuthorizationFailed(ConsumerError):
    """The principal lacks Read or Describe on a topic."""

    reason = "TopicAuthorizationFailed"


class TopicMissing(ConsumerError):
    """A subscribed topic does not exist (yet); the consumer keeps looking for it."""

    reason = "TopicMissing"


class AssignorFailed(ConsumerError):
    """The assignor raised, or broke its contract, while this member led a rebalance; the rebalance is tried again."""

    reason = "AssignorFailed"


class CoordinatorUnavailable(ConsumerError):
    """The group has no coordinator just now, or it is still loading the group; it is asked again and again."""

    reason = "CoordinatorUnavailable"


class PollTimedOut(ConsumerError):
    """`poll` was not called within `max_poll_interval_ms`, so this member gave up its membership; polling rejoins."""

    reason = "PollTimedOut"


class CommitFailed(ConsumerError):
    """The offsets were not committed: the partitions may belong to another member by now. Do not repeat the commit."""

    reason = "CommitFailed"


class RebalanceInProgress(ConsumerError):
    """The offsets were not committed because the group is rebalancing; poll, and commit what is still owned."""

    reason = "RebalanceInProgress"


class RetriableCommitFailed(ConsumerError):
    """The offsets were not committed, or nobody knows; the same or later offsets may be committed again."""

    reason = "RetriableCommitFailed"


class CommitRefused(ConsumerError):
    """The broker refused what was in the commit (metadata too large, topic not allowed or unknown)."""

    reason = "CommitRefused"


class TopicDeleted(CommitRefused):
    """The topic of which the records were read is gone, though one of its name may exist again: its positions mean
    nothing there and were not committed. Nothing is to be repeated; the new topic is read from its beginning."""

    reason = "TopicDeleted"


class OffsetLookupFailed(ConsumerError):
    """Committed offsets, or the first or last offset of a partition, could not be read."""

    reason = "OffsetLookupFailed"


class MetadataLookupFailed(ConsumerError):
    """Topics and their partitions could not be read from the brokers."""

    reason = "MetadataLookupFailed"


class NoOffsetForPartition(ConsumerError):
    """A partition has no usable offset and the reset policy is `none`; seek it, or commit an offset for it."""

    reason = "NoOffsetForPartition"

    def __init__(self, message: str, partitions: Iterable[TopicPartition]) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)


class GroupMetadataUnknown(ConsumerError):
    """The linked librdkafka writes group metadata in a format that is not known here; transactions need them."""

    reason = "GroupMetadataUnknown"


class NotAssigned(ConsumerError):
    """The call names a partition that this consumer does not own now."""

    reason = "NotAssigned"


class NotSubscribed(ConsumerError):
    """The call needs a subscription, or partitions that were assigned, first."""

    reason = "NotSubscribed"


class SubscriptionConflict(ConsumerError):
    """`subscribe` and `assign` exclude each other; call `unsubscribe` before the other one."""

    reason = "SubscriptionConflict"


class GroupIdMissing(ConsumerError):
    """The call needs a group, and the settings have no `group_id`."""

    reason = "GroupIdMissing"


class ConsumerClosed(ConsumerError):
    """The consumer was closed."""

    reason = "ConsumerClosed"


class ForkedConsumer(ConsumerError):
    """This process is a fork of the one that made the consumer, and has none of its threads; make a new one here."""

    reason = "ForkedConsumer"


class ConcurrentUse(ConsumerError):
    """Two threads were inside the consumer at once; all its methods but `wakeup` and `membership` belong to one."""

    reason = "ConcurrentUse"


class DataPlaneFailed(ConsumerError):
    """librdkafka reported an error that concerns the records of a partition, or all of them."""

    reason = "DataPlaneFailed"


class InternalFailure(FatalConsumerError):
    """A bug of ours ended one of the consumer's threads; the log has the stack."""

    reason = "InternalFailure"
