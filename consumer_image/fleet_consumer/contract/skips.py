"""skip.json: the records that a group's workers pass by, as the operator publishes them for running workers.

A record is named by the topic, partition and offset at which it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from fleet_consumer.contract.section import Section, SettingsInvalid

VERSION: Final = 1
"""Version of the file format."""
RECORDS_MAX: Final = 100
"""Most records of one file; the CRD's bound."""


class Place(NamedTuple):
    """The place at which a record is read."""

    topic: str
    partition: int
    offset: int


class PassedBy(NamedTuple):
    """The time at which a worker passed a place by (wall clock, seconds). `last_offset` is set where it was not one
    record, but data that could not be read, up to this offset."""

    at: float
    last_offset: int | None = None


class SkipsInvalid(Exception):
    """The content of a skip.json cannot be used."""

    reason = "SkipFileInvalid"


def render_skips(uid: str, places: Iterable[Place]) -> dict[str, Any]:
    """The JSON object of a skip.json, in a fixed order; `uid` is that of the ConsumerGroup."""
    return {"version": VERSION, "uid": uid, "records": [place._asdict() for place in sorted(places)]}


def parse_skips(document: Any, uid: str) -> frozenset[Place]:
    """The places of a parsed skip.json. Raises SkipsInvalid for the first bad field found, and for a list of another
    ConsumerGroup: one of the same name may have left its list behind."""
    try:
        return _places(Section(document, "skip.json"), uid)
    except SettingsInvalid as error:
        raise SkipsInvalid(str(error)) from error


def _places(section: Section, uid: str) -> frozenset[Place]:
    section.integer("version", VERSION, VERSION)
    if section.text("uid") != uid:
        raise SettingsInvalid(section.at("uid"), f"is not {uid}: the list is of another ConsumerGroup")
    found, path = section.take("records"), section.at("records")
    if not isinstance(found, list) or len(found) > RECORDS_MAX:
        raise SettingsInvalid(path, f"must be a list of at most {RECORDS_MAX} records")
    section.end()
    places = []
    for index, each in enumerate(found):
        record = Section(each, f"{path}[{index}]")
        places.append(Place(record.text("topic"), record.integer("partition", 0), record.integer("offset", 0)))
        record.end()
    return frozenset(places)
