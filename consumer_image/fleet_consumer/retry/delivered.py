"""Records from managed topics, with their origin's coordinates beside the place of delivery.

Handlers see the same record in every delivery: topic, partition, offset, timestamp, key, value and headers are those of
the first one, so that idempotency keys, event times and forwarded headers stay valid. Records of main workers never
pass through here and stay as cheap as they are.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from fleet_consumer.record import Delivery, Record
from fleet_consumer.retry.headers import Story, first_story, foreign_headers


@dataclass(slots=True)
class RetriedRecord(Record):
    """A `Record` with its origin's coordinates. `delivery` is where it was read; `story` comes from its headers."""

    delivery: Delivery = field(kw_only=True)
    story: Story = field(kw_only=True)


@dataclass(slots=True)
class SourceRecord(Record):
    """A failed `Record` of a source topic, with its reading."""

    story: Story = field(kw_only=True)


def retried(record: Record, story: Story) -> RetriedRecord:
    """The record as handed to a handler, from one read from a managed topic.

    `leader_epoch` stays that of the partition that was read, because it goes with the offset that is committed there.
    """
    origin = story.origin
    return RetriedRecord(
        origin.topic,
        origin.partition,
        origin.offset,
        origin.timestamp,
        record.key,
        record.value,
        foreign_headers(record.headers),
        record.leader_epoch,
        story.attempt,
        story.first_failed_at,
        delivery=Delivery(record.topic, record.partition, record.offset, record.timestamp, story.attempt),
        story=story,
    )


def story_of(record: Record) -> Story:
    """A record's story, whichever topic it was read from."""
    return record.story if isinstance(record, (RetriedRecord, SourceRecord)) else first_story(record)


def with_story(record: Record, story: Story) -> Record:
    """The record with another story. Its class may change, so it must not be passed to a handler."""
    if isinstance(record, (RetriedRecord, SourceRecord)):
        return dataclasses.replace(record, story=story)
    values = (getattr(record, each.name) for each in dataclasses.fields(Record))
    return SourceRecord(*values, story=story)
