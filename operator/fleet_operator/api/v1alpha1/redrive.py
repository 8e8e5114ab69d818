"""Redrive (`krd`): puts failed records of a ConsumerGroup back to be handled again, by this group only."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from fleet_operator.api.v1alpha1.model import Model, Offset, PartitionNumber, RunResource, RunSpec

NAME_CHARACTERS_MAX: Final = 40
"""Longest name of a Redrive, so that the names of its Job's pods stay within 63 characters."""

FailureWord = Literal["Exhausted", "Fatal", "Timeout", "Undecodable", "Breaker", "Poison", "Skipped", "Manual"]


class Filter(Model):
    """Choice of failed records; all given criteria must hold. Times are RFC 3339, the end exclusive."""

    reasons: Annotated[tuple[FailureWord, ...], Field(min_length=1, max_length=16)] = ()
    error_regex: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    key_regex: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    from_time: str | None = None
    to_time: str | None = None


class Place(Model):
    """One record's place in the failed topic."""

    partition: PartitionNumber
    offset: Offset


class Rate(Model):
    """Rate at which records are put back."""

    records_per_second: Annotated[int, Field(ge=1, le=1_000_000)]


class RedriveSpec(RunSpec):
    """The records to put back, and the rate."""

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
        """Records in a second, at most; None without a limit."""
        return self.spec.rate.records_per_second if self.spec.rate else None
