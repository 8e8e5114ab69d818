"""OffsetReset (`kor`): sets the committed offsets of a ConsumerGroup once."""

from typing import Annotated, Literal

from pydantic import Field

from fleet_operator.api.v1alpha1.model import PartitionOffset, RunResource, RunSpec, TopicName


class OffsetResetSpec(RunSpec):
    """The new offsets, and `not_after`, the latest time at which the reset may begin. Times are in RFC 3339."""

    to: Literal["Earliest", "Latest", "Time", "Offsets"]
    time: Annotated[str, Field(max_length=64)] | None = None
    topics: Annotated[tuple[TopicName, ...], Field(min_length=1, max_length=100)] | None = None
    offsets: Annotated[tuple[PartitionOffset, ...], Field(min_length=1, max_length=5000)] | None = None
    not_after: Annotated[str, Field(max_length=64)] | None = None


class OffsetReset(RunResource):
    spec: OffsetResetSpec
