"""Redrive (`krd`): moves failed records of a ConsumerGroup to its redrive topic. Only this group handles them again."""

from typing import Annotated, Final, Literal

from pydantic import Field

from fleet_operator.api.v1alpha1.model import Model, Offset, PartitionNumber, RunResource, RunSpec

NAME_CHARACTERS_MAX: Final = 40
"""Maximum length of a Redrive's name. The names of its Job's pods have a suffix, and at most 63 characters."""

FailureWord = Literal["Exhausted", "Fatal", "Timeout", "Undecodable", "Breaker", "Poison", "Skipped", "Manual"]


class Filter(Model):
    """Selects failed records. A record must match all criteria that are set. Times are in RFC 3339; `to_time` is
    exclusive."""

    reasons: Annotated[tuple[FailureWord, ...], Field(min_length=1, max_length=16)] = ()
    error_regex: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    key_regex: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    from_time: str | None = None
    to_time: str | None = None


class Place(Model):
    """Position of one record in the failed topic."""

    partition: PartitionNumber
    offset: Offset


class Rate(Model):
    records_per_second: Annotated[int, Field(ge=1, le=1_000_000)]


class RedriveSpec(RunSpec):
    suspend: bool = False
    filter: Filter | None = None
    records: Annotated[tuple[Place, ...], Field(min_length=1, max_length=1000)] | None = None
    rate: Rate | None = None
    max_records: Annotated[int, Field(ge=1, le=1_000_000_000_000)] | None = None
    max_redrives: Annotated[int, Field(ge=1, le=100)] = 3


class Redrive(RunResource):
    spec: RedriveSpec

    @property
    def rate(self) -> int | None:
        return self.spec.rate.records_per_second if self.spec.rate else None
