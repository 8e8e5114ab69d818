"""Offsets of logs: first, last and at times, asked of partitions' leaders. Runs on the observer's thread; blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fleet_consumer.net import BrokerAddress, KafkaError, NetworkClient
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.list_offsets import EARLIEST, LATEST
from fleet_consumer.wire.metadata import MetadataResponse
from fleet_operator.observe import batches, folding
from fleet_operator.observe.folding import Offsets
from fleet_operator.planning.backfill.ranges import RangeQuestion, TopicReading

CALL_SECONDS: Final = 10.0

Partition = tuple[str, int]


def read_topic(client: NetworkClient, question: RangeQuestion) -> TopicReading:
    """Partitions and offsets of a topic. Raises NetError and KafkaError.

    Ends are asked for before times: a record that arrives between the two is behind the end then, where a partition
    without a record of that time goes on. Readers of committed records ask for both ends, that of the log first: only
    open transactions are between them.
    """
    metadata = client.metadata((question.topic, *question.others), timeout_s=CALL_SECONDS)
    refused = next((t for t in metadata.topics if t.error_code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)), None)
    if refused is not None:
        raise KafkaError(refused.error_code, f"topic {refused.name!r}")
    known = {topic.name: len(topic.partitions) for topic in metadata.topics if not topic.error_code}
    unknown = tuple(topic for topic in question.others if topic not in known)
    if question.topic not in known:
        return TopicReading(partitions=None, unknown=unknown)
    led = by_leader(client, metadata, (question.topic,))
    highs = read_offsets(client, led, LATEST, read_committed=False) if question.read_committed else {}
    ends = read_offsets(client, led, LATEST, read_committed=question.read_committed)
    at_times = [
        {} if time_ms is None else read_times(client, led, time_ms, read_committed=question.read_committed)
        for time_ms in (question.from_ms, question.end_ms)
    ]
    starts = read_offsets(client, led, EARLIEST, read_committed=False)
    first, end = ({number: offset for (_, number), offset in found.items()} for found in at_times)
    return TopicReading(
        partitions=known[question.topic],
        starts={number: offset for (_, number), offset in starts.items()},
        ends={number: offset for (_, number), offset in ends.items()},
        first=first,
        end=end,
        highs={number: offset for (_, number), offset in highs.items()},
        unknown=unknown,
    )


def by_leader(
    client: NetworkClient, metadata: MetadataResponse, topics: tuple[str, ...]
) -> dict[BrokerAddress, list[Partition]]:
    """The partitions of these topics by the address of their leader; those without one are left out."""
    led = batches.leaders_of(metadata, topics)
    return {client.brokers[node]: partitions for node, partitions in led.items() if node in client.brokers}


def read_offsets(
    client: NetworkClient, led: Mapping[BrokerAddress, list[Partition]], timestamp: int, *, read_committed: bool
) -> Offsets:
    """First or last offsets; partitions that cannot be read are left out."""
    offsets: Offsets = {}
    for address, partitions in led.items():
        for request in batches.list_offsets_requests(partitions, timestamp, read_committed=read_committed):
            offsets |= folding.offsets(client.call(address, request, timeout_s=CALL_SECONDS))
    return offsets


def read_times(
    client: NetworkClient, led: Mapping[BrokerAddress, list[Partition]], time_ms: int, *, read_committed: bool
) -> dict[Partition, int | None]:
    """The first offsets at or after a time, None where all records are older."""
    found: dict[Partition, int | None] = {}
    for address, partitions in led.items():
        times = dict.fromkeys(partitions, time_ms)
        for request in batches.offsets_for_times_requests(times, read_committed=read_committed):
            answer = folding.found(client.call(address, request, timeout_s=CALL_SECONDS))
            found |= {key: None if record is None else record.offset for key, record in answer.items()}
    return found
