"""Requests to the coordinator, a given broker or any broker, and lookups for the user's calls.

The lookups are flows for committed offsets, offsets by time, end offsets and topics. They have no timeout, retry
temporary failures (except `end_offsets`, which makes one attempt), and raise all other errors.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fleet_consumer.coordinator.flows import Ask, AskAll, Flow, Pause, Where
from fleet_consumer.coordinator.lookups import RETRY_MAX_S, RETRY_S, Attempt, Start, try_committed, try_offsets
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.messages import Address, Channel, Send
from fleet_consumer.group.metadata import PartitionInfo, partition_infos, topics_request
from fleet_consumer.group.timing import SLOW_RETRY_S, Backoff
from fleet_consumer.net import AuthenticationFailed, BrokerAddress, Call, NetError, NetworkClient, TlsFailed
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode, describe, is_retriable
from fleet_consumer.wire.topics import LATEST, MetadataResponse

DIRECTORY_LANE = "directory"
"""Name of the separate connection for requests that any broker can answer. A slow broker must not delay heartbeats."""
DIRECTORY_TIMEOUT_S = 10.0
"""Timeout in seconds of a request that any broker can answer. After a timeout, the next request goes to another
broker."""

OnAnswer = Callable[[Any], None]
"""A callback for a response or a NetError."""


class Directory:
    """The addresses of brokers, keyed by node id. Requests that any broker can answer go to the same broker until it
    fails.

    Bootstrap addresses always remain candidates, so that the cluster is found again after all its addresses have
    changed.
    """

    def __init__(self, bootstrap: tuple[BrokerAddress, ...]) -> None:
        self._bootstrap = bootstrap
        self._brokers: dict[int, BrokerAddress] = {}
        self._next = 0

    def anyone(self) -> BrokerAddress:
        candidates = self._candidates()
        return candidates[self._next % len(candidates)]

    def skip_failed(self, address: BrokerAddress) -> None:
        """Switch to the next broker. Does nothing if `address` is no longer in use."""
        if self.anyone() == address:
            self._next += 1

    def learn(self, response: MetadataResponse) -> None:
        """Store the brokers of a response. An empty list, which a broker may return during its startup, is ignored."""
        if response.brokers:
            current = self.anyone()
            self._brokers = {broker.node_id: BrokerAddress(broker.host, broker.port) for broker in response.brokers}
            candidates = self._candidates()
            self._next = candidates.index(current) if current in candidates else 0

    def broker(self, node_id: int) -> BrokerAddress | None:
        return self._brokers.get(node_id)

    def _candidates(self) -> list[BrokerAddress]:
        return list(dict.fromkeys((*self._brokers.values(), *self._bootstrap)))


class Requests:
    """One member's requests in flight. Only the coordinator thread may use this object."""

    def __init__(self, client: NetworkClient, bootstrap: tuple[BrokerAddress, ...]) -> None:
        self._client = client
        self._directory = Directory(bootstrap)
        self._calls: list[tuple[Call[Any], OnAnswer]] = []

    def send(self, action: Send, on_answer: OnAnswer) -> None:
        if action.address is None:
            self._ask_anyone(action.request, on_answer)
        else:
            address = BrokerAddress(*action.address)
            call = self._client.send(address, action.request, lane=action.channel.value, timeout_s=action.timeout_s)
            self._calls.append((call, on_answer))

    def ask(self, ask: Ask, coordinator: Address | None, on_answer: OnAnswer) -> bool:
        """Send a flow's request. Returns False if the target's address is unknown."""
        if ask.where is Where.ANY:
            self._ask_anyone(ask.request, on_answer)
            return True
        known = None if coordinator is None else BrokerAddress(*coordinator)
        address = self._directory.broker(ask.where) if isinstance(ask.where, int) else known
        if address is None:
            return False
        self._calls.append((self._client.send(address, ask.request), on_answer))
        return True

    def disconnect(self, address: Address) -> None:
        for channel in Channel:
            self._client.disconnect(BrokerAddress(*address), lane=channel.value)

    def take_ended(self) -> list[tuple[Call[Any], OnAnswer]]:
        ended = [entry for entry in self._calls if entry[0].done]
        if ended:
            self._calls = [entry for entry in self._calls if not entry[0].done]
        return ended

    def _ask_anyone(self, request: Any, on_answer: OnAnswer) -> None:
        address = self._directory.anyone()
        call = self._client.send(address, request, lane=DIRECTORY_LANE, timeout_s=DIRECTORY_TIMEOUT_S)

        def on_done(answer: Any) -> None:
            if isinstance(answer, NetError):
                self._directory.skip_failed(address)
            elif isinstance(answer, MetadataResponse):
                self._directory.learn(answer)
                if any(topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in answer.topics):
                    # Another broker may know the topic.
                    self._directory.skip_failed(address)
            on_answer(answer)

        self._calls.append((call, on_done))


T = TypeVar("T")

UNKNOWN_TIMES = 5
"""Number of responses without a topic after which the topic counts as missing. A lagging broker may not know it yet."""


def fetch_committed(
    group_id: str, partitions: tuple[TopicPartition, ...] | None
) -> Flow[dict[TopicPartition, OffsetAndMetadata | None]]:
    """Repeat `lookups.try_committed` until all offsets are found. Raises GroupAuthorizationFailed,
    TopicAuthorizationFailed, OffsetLookupFailed."""
    return (yield from _until_found(partitions, lambda missing: try_committed(group_id, missing)))


def list_offsets(times: Mapping[TopicPartition, int], *, read_committed: bool) -> Flow[dict[TopicPartition, Start]]:
    """Repeat `lookups.try_offsets` until all offsets are found. Raises TopicAuthorizationFailed, OffsetLookupFailed."""

    def attempt(missing: tuple[TopicPartition, ...] | None) -> Flow[Attempt[Start]]:
        return try_offsets({part: times[part] for part in missing or ()}, read_committed=read_committed)

    return (yield from _until_found(tuple(times), attempt))


def _until_found(
    partitions: tuple[TopicPartition, ...] | None,
    attempt: Callable[[tuple[TopicPartition, ...] | None], Flow[Attempt[T]]],
) -> Flow[dict[TopicPartition, T]]:
    """Repeat `attempt` for partitions without a result until none remain. If `partitions` is None, `attempt` gets None
    each time, for all partitions of the group."""
    found: dict[TopicPartition, T] = {}
    backoff = Backoff(RETRY_S, RETRY_MAX_S, lambda: 1.0)
    missing = partitions
    while missing is None or missing:
        outcome = yield from attempt(missing)
        for refused in outcome.refused.values():
            raise refused
        found |= outcome.found
        if not outcome.waiting and not outcome.failure:
            break
        if partitions is not None:
            missing = tuple(part for part in partitions if part not in found)
        yield Pause(max(outcome.patience_s, backoff.next()))
    return found


def end_offsets(partitions: tuple[TopicPartition, ...], *, read_committed: bool) -> Flow[dict[TopicPartition, int]]:
    """Read the end offsets of partitions, or their last stable offsets if `read_committed`, in one attempt. Partitions
    whose leader did not answer are left out."""
    ends = yield from try_offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    return {part: start.offset for part, start in ends.found.items() if start.offset >= 0}


def describe_topics(names: Iterable[str] | None) -> Flow[dict[str, tuple[PartitionInfo, ...]]]:
    """Read the partitions of these topics (None: of all topics that the principal may describe). Topics that do not
    exist are left out. Raises TopicAuthorizationFailed for a named topic, MetadataLookupFailed."""
    request = topics_request(names)
    unknown = 0
    while True:
        (answer,) = yield AskAll((Ask(Where.ANY, request),))
        if isinstance(answer, NetError):
            yield Pause(SLOW_RETRY_S if isinstance(answer, (AuthenticationFailed, TlsFailed)) else RETRY_S)
            continue
        if names is None:
            return partition_infos(answer)
        failures = {topic.name or "": topic.error_code for topic in answer.topics if not topic.partitions}
        failures = {name: code for name, code in failures.items() if code != ErrorCode.NONE}
        _raise_final(failures)
        unknown += 1
        missing = all(code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for code in failures.values())
        if not failures or (missing and unknown >= UNKNOWN_TIMES):
            return partition_infos(answer)
        yield Pause(RETRY_S)


def _raise_final(failures: dict[str, int]) -> None:
    denied = sorted(name for name, code in failures.items() if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if denied:
        seen = f"topic {', '.join(denied)}: not authorized"
        raise errors.TopicAuthorizationFailed(f"{seen}; allow the principal Describe on the topic")
    for name, code in failures.items():
        if not is_retriable(code):
            seen = f"topic {name!r}: Metadata returned {describe(code)}"
            raise errors.MetadataLookupFailed(f"{seen}; see the broker's log")
