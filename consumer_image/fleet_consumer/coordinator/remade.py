"""Detection of topics that were deleted and made anew under the same name, and of elections.

A topic made anew has another id and begins at offset 0 again, so offsets of the former topic are not valid in it. One
broker's response is not enough: a broker that lags still knows the former topic, or does not know the latest election.
All brokers must agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from fleet_consumer.coordinator.flows import Ask, AskAll, Flow, Pause, Where
from fleet_consumer.coordinator.lookups import Attempt
from fleet_consumer.group.metadata import topics_request
from fleet_consumer.net import NetError
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.schema import ZERO_UUID
from fleet_consumer.wire.topics import MetadataResponse, MetadataResponsePartition


@dataclass(frozen=True, slots=True)
class LogsSeen:
    """Topic ids and leader epochs of some partitions, and the partitions of topics made anew."""

    ids: Mapping[TopicPartition, UUID] = field(default_factory=dict)
    remade: frozenset[TopicPartition] = frozenset()
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)


def see_ids(partitions: Iterable[TopicPartition]) -> Flow[dict[TopicPartition, UUID]]:
    """Read the topic ids of partitions, as far as one broker knows them."""
    parts = tuple(partitions)
    (metadata,) = yield AskAll((Ask(Where.ANY, topics_request(part.topic for part in parts)),))
    return {} if isinstance(metadata, NetError) else _ids(metadata, parts)


def see_logs(known: Mapping[TopicPartition, UUID | None], *, delay_s: float) -> Flow[LogsSeen]:
    """Read ids and epochs after `delay_s`; `known` has the ids under which partitions are read, None for unknown ones.

    A topic counts as made anew only if every broker has its other id. It is left out while one does not answer.
    """
    yield Pause(delay_s)
    (metadata,) = yield AskAll((Ask(Where.ANY, topics_request(part.topic for part in known)),))
    if isinstance(metadata, NetError):
        return LogsSeen()
    ids = _ids(metadata, known)
    others = frozenset(part for part, id_ in ids.items() if known[part] not in (None, id_))
    remade = others
    if others:
        views = [_ids(view, others) for view in (yield from _ask_everybody(others, Attempt()))]
        remade = frozenset(part for part in others if views and all(view.get(part) == ids[part] for view in views))
    doubtful = others - remade
    epochs = {part: each.leader_epoch for part, each in _partitions(metadata).items() if part in known}
    return LogsSeen(
        {part: id_ for part, id_ in ids.items() if part not in doubtful},
        remade,
        {part: epoch for part, epoch in epochs.items() if part not in doubtful},
    )


def try_remade(epochs: Mapping[TopicPartition, int]) -> Flow[Attempt[None]]:
    """Find partitions whose leader epoch is below an earlier one: epochs of one topic never go back.

    The leader of each has answered that it does not know the epoch.
    """
    attempt: Attempt[None] = Attempt()
    views = yield from _ask_everybody(tuple(epochs), attempt)
    if views:
        known = [_partitions(view) for view in views]
        for part, epoch in epochs.items():
            seen = [partitions[part].leader_epoch for partitions in known if part in partitions]
            if len(seen) == len(known) and max(seen) < epoch:
                attempt.found[part] = None
            else:
                attempt.waiting[part] = f"its leader does not know epoch {epoch}, of which records were read"
    attempt.settle(epochs)
    return attempt


def _ask_everybody(partitions: Iterable[TopicPartition], attempt: Attempt[None]) -> Flow[list[MetadataResponse]]:
    """Read the Metadata of each broker; empty if one of them does not answer."""
    request = topics_request(part.topic for part in partitions)
    (metadata,) = yield AskAll((Ask(Where.ANY, request),))
    views = [metadata]
    if not isinstance(metadata, NetError):
        views = yield AskAll(tuple(Ask(broker.node_id, request) for broker in metadata.brokers))
    for view in views:
        if isinstance(view, NetError):
            attempt.unanswered(partitions, view)
            return []
    return views


def _partitions(view: MetadataResponse) -> dict[TopicPartition, MetadataResponsePartition]:
    return {
        TopicPartition(topic.name or "", part.partition_index): part
        for topic in view.topics
        for part in topic.partitions
    }


def _ids(view: MetadataResponse, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, UUID]:
    topics = {topic.name: topic.topic_id for topic in view.topics if topic.topic_id != ZERO_UUID}
    return {part: topics[part.topic] for part in partitions if part.topic in topics}
