"""skip.json: the records that a group's workers skip, identified by the topic, partition and offset from which they are
read.

The list has the uid of its ConsumerGroup, so workers ignore the list of an earlier ConsumerGroup with the same name.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from fleet_consumer.contract.section import Section, SettingsInvalid

VERSION: Final = 1
RECORDS_MAX: Final = 100
"""Maximum number of records in a file; the CRD has the same limit."""


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int


class PassedBy(NamedTuple):
    """A worker's report that it skipped a record, or unreadable data up to `last_offset`, at `at` (wall-clock
    seconds)."""

    at: float
    last_offset: int | None = None


class SkipsInvalid(Exception):
    reason = "SkipFileInvalid"


def render_skips(uid: str, places: Iterable[Place]) -> dict[str, Any]:
    """Return the JSON object of a skip.json, with the records sorted; `uid` is the ConsumerGroup's."""
    return {"version": VERSION, "uid": uid, "records": [place._asdict() for place in sorted(places)]}


def parse_skips(document: Any, uid: str) -> frozenset[Place]:
    """Return the record coordinates in a skip.json. Raises SkipsInvalid, also if the file has another ConsumerGroup's
    uid."""
    try:
        return _places(Section(document, "skip.json"), uid)
    except SettingsInvalid as error:
        raise SkipsInvalid(str(error)) from error


def _places(section: Section, uid: str) -> frozenset[Place]:
    section.integer("version", VERSION, VERSION)
    if section.text("uid") != uid:
        raise SettingsInvalid(section.at("uid"), f"is not {uid}: the list belongs to another ConsumerGroup")
    found, path = section.pop("records"), section.at("records")
    if not isinstance(found, list) or len(found) > RECORDS_MAX:
        raise SettingsInvalid(path, f"must be a list of at most {RECORDS_MAX} records")
    section.end()
    places = []
    for index, each in enumerate(found):
        record = Section(each, f"{path}[{index}]")
        places.append(Place(record.text("topic"), record.integer("partition", 0), record.integer("offset", 0)))
        record.end()
    return frozenset(places)
