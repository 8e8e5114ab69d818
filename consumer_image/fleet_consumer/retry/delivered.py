"""A record as it comes from a managed topic: with its origin's coordinates, and the place where it was read beside.

Handlers see the same record in every delivery: topic, partition, offset, timestamp, key, value and headers are those
of its first one, so that idempotency keys, event times and forwarded headers hold. Main workers never come here, so
that their records stay as cheap as they are.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from fleet_consumer.record import Delivery, Record
from fleet_consumer.retry.headers import Story, first_story, foreign_headers


@dataclass(slots=True)
class RetriedRecord(Record):
    """A `Record` with its origin's coordinates. `delivery` is where it was read; `story` is what its headers told."""

    delivery: Delivery = field(kw_only=True)
    story: Story = field(kw_only=True)


@dataclass(slots=True)
class SourceRecord(Record):
    """A `Record` of a source topic that has failed, with what is known of its reading besides."""

    story: Story = field(kw_only=True)


def retried(record: Record, story: Story) -> RetriedRecord:
    """`record`, which was read from a managed topic, as it is handed to a handler.

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
    """What is known of a record's way, whichever topic it was read from."""
    return record.story if isinstance(record, (RetriedRecord, SourceRecord)) else first_story(record)


def with_story(record: Record, story: Story) -> Record:
    """The same record with another story; its handler must not be given it, for it may be of another class."""
    if isinstance(record, (RetriedRecord, SourceRecord)):
        return dataclasses.replace(record, story=story)
    values = (getattr(record, each.name) for each in dataclasses.fields(Record))
    return SourceRecord(*values, story=story)
