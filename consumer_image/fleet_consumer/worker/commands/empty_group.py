"""Helpers of the commands for engineers: commits for a group without members, hints about group ids, error output."""

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Final

from fleet_consumer.consumer.consumer import Consumer, ConsumerSettings
from fleet_consumer.contract.brokers import Brokers
from fleet_consumer.contract.naming import RESERVED_PREFIX, failed_topic
from fleet_consumer.contract.pod import EXIT_INTERRUPTED, EXIT_SETTINGS, EXIT_SURROUNDINGS
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.group.errors import CommitFailed, ConsumerError, TopicMissing
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka.producer import ProduceFailed
from fleet_consumer.librdkafka.settings import PropertyNotAllowed, SettingsRefused
from fleet_consumer.net import ConnectionSettings, KafkaError, NetError, NetworkClient
from fleet_consumer.record import TopicPartition
from fleet_consumer.redrive.job import Stopped
from fleet_consumer.wire.groups import DescribeGroupsRequest, ListGroupsRequest
from fleet_consumer.worker.config.settings import CredentialsUnreadable, connection_settings

SIMILAR_MAX = 3


def known_groups(brokers: Brokers, timeout_s: float) -> set[str] | None:
    """Return the ids of all groups that the principal may describe; None if any broker does not list its groups."""
    try:
        with closing(NetworkClient(connection_settings(brokers, "fleet-consumer-groups"))) as client:
            client.metadata(timeout_s=timeout_s)
            addresses = client.brokers.values()
            answers = [client.call(address, ListGroupsRequest(), timeout_s=timeout_s) for address in addresses]
    except NetError:
        return None
    if any(answer.error_code for answer in answers):
        return None
    return {group.group_id for answer in answers for group in answer.groups}


def absent_group(brokers: Brokers, group_id: str, timeout_s: float) -> str | None:
    """Return a message that the group does not exist, with similar group ids.

    Returns None if the group exists, or if the brokers do not list their groups.
    """
    known = known_groups(brokers, timeout_s)
    if known is None or group_id in known:
        return None
    similar = difflib.get_close_matches(group_id, known, n=SIMILAR_MAX)
    named = f", such as {', '.join(map(repr, similar))}" if similar else ""
    return f"Kafka has no group {group_id!r}, or it is not visible to this user; visible groups: {len(known)}{named}"


def without_topic(missing: TopicMissing, brokers: Brokers, topic: str, timeout_s: float) -> TopicMissing:
    """Return the error for a missing failed topic. If the topic has a default name, the error gives possible causes:
    the group id is wrong, or the group uses another failed topic."""
    group = topic.removeprefix(RESERVED_PREFIX).removesuffix(".failed")
    if failed_topic(group) != topic:
        return missing
    none = (
        "a group without failed records may have no failed topic; if the group uses another topic, name it with --topic"
    )
    return TopicMissing(f"{missing}. {absent_group(brokers, group, timeout_s) or none}")


EMPTY_STATES: Final = frozenset({"Empty", "Dead"})
NAMED_MEMBERS: Final = 3
ADVICE: Final = (
    "stop them and try again: Ctrl-C ends a local run cleanly; for a fleet use spec.offsets of its ConsumerGroup"
)

OF_OPTIONS: Final = (SettingsInvalid, PropertyNotAllowed)
PROBLEMS: Final = (ConsumerError, CredentialsUnreadable, KafkaError, NetError, ProduceFailed, SettingsRefused, Stopped)
"""Errors that are reported with EXIT_SURROUNDINGS, because the command's options are not their cause."""


class GroupInUse(ConsumerError):
    """The group has members. Changing its committed offsets now could repeat or skip records."""


class OffsetsOvertaken(ConsumerError):
    """Another program committed after the offsets were read."""


def _tell(reason: str, message: str) -> None:
    print(f"{reason}: {message}", file=sys.stderr)


def reported(run: Callable[[], int], tell: Callable[[str, str], None] = _tell) -> int:
    """Run a command and return its exit code. Expected errors are reported with `tell(reason, message)`."""
    try:
        return run()
    except (*OF_OPTIONS, *PROBLEMS) as error:
        tell(str(getattr(error, "reason", type(error).__name__)), str(error))
        return EXIT_SETTINGS if isinstance(error, OF_OPTIONS) else EXIT_SURROUNDINGS
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


class EmptyGroup:
    """A group without members. All methods may raise ConsumerError."""

    def __init__(self, consumer: Consumer, group_id: str, timeout_s: float) -> None:
        self.consumer = consumer
        self._group_id = group_id
        self._timeout_s = timeout_s

    def committed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        found = self.consumer.committed(None, self._timeout_s)
        return {part: entry for part, entry in found.items() if entry is not None}

    def commit(
        self, wanted: Mapping[TopicPartition, OffsetAndMetadata], before: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Replace the commits `before` by `wanted`, and verify the result.

        Raises OffsetsOvertaken, or GroupInUse if the coordinator refuses the commit because a member has joined.
        """
        if _of(self.committed(), wanted) != _of(before, wanted):
            raise OffsetsOvertaken(
                f"group {self._group_id!r} has committed since the check, so nothing was set; try again"
            )
        self.consumer.assign(wanted)
        try:
            self.consumer.commit(wanted, self._timeout_s)
        except CommitFailed as failed:
            raise GroupInUse(f"members have joined group {self._group_id!r} since the check; {ADVICE}") from failed
        if _of(self.committed(), wanted) != {part: entry.offset for part, entry in wanted.items()}:
            raise OffsetsOvertaken(
                f"the offsets of group {self._group_id!r} were set, then changed by another program; check them"
            )


def _of(
    committed: Mapping[TopicPartition, OffsetAndMetadata], wanted: Mapping[TopicPartition, OffsetAndMetadata]
) -> dict[TopicPartition, int]:
    return {part: committed[part].offset for part in wanted if part in committed}


@contextmanager
def empty_group(brokers: Brokers, group_id: str, timeout_s: float) -> Iterator[EmptyGroup]:
    """Connect to a group that has no members. Raises GroupInUse if it has members, NetError and KafkaError."""
    connection = connection_settings(brokers, "fleet-consumer-offsets")
    _check_empty(connection, group_id, timeout_s)
    with Consumer(ConsumerSettings(connection=connection, group_id=group_id)) as consumer:
        yield EmptyGroup(consumer, group_id, timeout_s)


def _check_empty(connection: ConnectionSettings, group_id: str, timeout_s: float) -> None:
    with closing(NetworkClient(connection)) as client:
        coordinator = client.find_coordinators([group_id], timeout_s=timeout_s)[group_id]
        if isinstance(coordinator, KafkaError):
            raise coordinator
        request = DescribeGroupsRequest(groups=(group_id,))
        (group,) = client.call(coordinator.address, request, timeout_s=timeout_s).groups
    if group.error_code:
        raise KafkaError(group.error_code, f"group {group_id!r}")
    names = sorted({member.group_instance_id or member.client_id for member in group.members})
    if names or group.group_state not in EMPTY_STATES:
        more = f" and {len(names) - NAMED_MEMBERS} more" if len(names) > NAMED_MEMBERS else ""
        members = f" with the members {', '.join(names[:NAMED_MEMBERS])}{more}" if names else ""
        raise GroupInUse(f"group {group_id!r} is {group.group_state}{members}; {ADVICE}")
