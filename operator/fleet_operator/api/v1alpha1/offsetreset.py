"""OffsetReset (`kor`): sets the committed offsets of a ConsumerGroup once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fleet_operator.api.v1alpha1.model import INT32_MAX, JSON_INTEGER_MAX, Model, RunResource, RunSpec, TopicName


class PartitionOffset(Model):
    """The next offset to read of a partition."""

    topic: TopicName
    partition: Annotated[int, Field(ge=0, le=INT32_MAX)]
    offset: Annotated[int, Field(ge=0, le=JSON_INTEGER_MAX)]


class OffsetResetSpec(RunSpec):
    """The new offsets, and until when the reset may begin. Times are RFC 3339."""

    to: Literal["Earliest", "Latest", "Time", "Offsets"]
    time: Annotated[str, Field(max_length=64)] | None = None
    topics: Annotated[tuple[TopicName, ...], Field(min_length=1, max_length=100)] | None = None
    offsets: Annotated[tuple[PartitionOffset, ...], Field(min_length=1, max_length=5000)] | None = None
    not_after: Annotated[str, Field(max_length=64)] | None = None


class OffsetReset(RunResource):
    spec: OffsetResetSpec
