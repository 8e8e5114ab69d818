"""Kafka groups by name, and change of the commits of one that has no members, by hand."""

from __future__ import annotations

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
    """All groups that the principal may describe; None where a broker does not tell its own."""
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
    """The sentence for a group that Kafka does not have, with the names that are most like its own; None where it has
    it, or a broker does not tell its own."""
    known = known_groups(brokers, timeout_s)
    if known is None or group_id in known:
        return None
    similar = difflib.get_close_matches(group_id, known, n=SIMILAR_MAX)
    named = f" such as {', '.join(map(repr, similar))}" if similar else ""
    return f"Kafka has no group {group_id!r} that these credentials may see; it has {len(known)} others{named}"


def without_topic(missing: TopicMissing, brokers: Brokers, topic: str, timeout_s: float) -> TopicMissing:
    """The error of a failed topic that is missing: the default one also where the group's name is wrong, or its workers
    write to another."""
    group = topic.removeprefix(RESERVED_PREFIX).removesuffix(".failed")
    if failed_topic(group) != topic:
        return missing
    none = "a group without failed records may have none; if they go to another topic, name it with --topic"
    return TopicMissing(f"{missing}. {absent_group(brokers, group, timeout_s) or none}")


EMPTY_STATES: Final = frozenset({"Empty", "Dead"})
NAMED_MEMBERS: Final = 3
ADVICE: Final = (
    "stop them and try again: Ctrl-C ends a local run in order; for a fleet there is spec.offsets of its ConsumerGroup"
)

PROBLEMS: Final = (ConsumerError, CredentialsUnreadable, KafkaError, NetError, ProduceFailed, SettingsRefused, Stopped)
"""Errors outside of a command by hand."""


class GroupInUse(ConsumerError):
    """The group has members, whose work a change of their commits would repeat or lose."""


class OffsetsOvertaken(ConsumerError):
    """Another program has committed since the offsets were read."""


def _tell(reason: str, message: str) -> None:
    print(f"{reason}: {message}", file=sys.stderr)


def reported(run: Callable[[], int], tell: Callable[[str, str], None] = _tell) -> int:
    """The exit code of a command by hand, whose error is told by its reason and message: in one line on standard error,
    where it has no other way."""
    problem: Exception
    try:
        return run()
    except (SettingsInvalid, PropertyNotAllowed) as error:
        code, problem = EXIT_SETTINGS, error
    except PROBLEMS as error:
        code, problem = EXIT_SURROUNDINGS, error
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    tell(str(getattr(problem, "reason", type(problem).__name__)), str(problem))
    return code


class EmptyGroup:
    """A group without members; every method raises ConsumerError."""

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
        """Commit in place of what was committed `before`, and read it again. Raises OffsetsOvertaken, and GroupInUse
        where the coordinator refuses the commit because a member has come."""
        if _of(self.committed(), wanted) != _of(before, wanted):
            raise OffsetsOvertaken(f"group {self._group_id!r} has committed meanwhile: nothing was set; try again")
        self.consumer.assign(wanted)
        try:
            self.consumer.commit(wanted, self._timeout_s)
        except CommitFailed as failed:
            raise GroupInUse(f"members have joined group {self._group_id!r} meanwhile; {ADVICE}") from failed
        if _of(self.committed(), wanted) != {part: entry.offset for part, entry in wanted.items()}:
            raise OffsetsOvertaken(f"group {self._group_id!r} has committed others since they were set; look at them")


def _of(
    committed: Mapping[TopicPartition, OffsetAndMetadata], wanted: Mapping[TopicPartition, OffsetAndMetadata]
) -> dict[TopicPartition, int]:
    return {part: committed[part].offset for part in wanted if part in committed}


@contextmanager
def empty_group(brokers: Brokers, group_id: str, timeout_s: float) -> Iterator[EmptyGroup]:
    """Connect. Raises GroupInUse for a group with members, NetError, KafkaError."""
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
