"""redrive.json: the settings of one redrive run, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.contract.brokers import Brokers, parse_brokers
from fleet_consumer.contract.log import LogConfig, parse_log
from fleet_consumer.contract.patterns import Pattern
from fleet_consumer.contract.pod import REDRIVE_FILE
from fleet_consumer.contract.section import Section, SettingsInvalid, load_json
from fleet_consumer.contract.worker_config import producer_properties

VERSION: Final = 1
"""Version of the file format."""
TIME_MAX: Final = 2**53
"""Largest time in epoch milliseconds; a larger number is a mistake."""
COUNTS: Final = {
    "selected": "selected",
    "moved": "moved",
    "guarded": "guarded",
    "movedBefore": "moved_before",
    "failedAgain": "failed_again",
}
"""Counts of a run: names in commit metadata, in the run's last line and in the status, with their fields."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Selection of failed records; empty and None select all.

    `error_classes` name a class in full, or by what follows the last dot. `error` is searched in "class: message",
    `key` in the key as UTF-8; a record without a key matches no `key`.
    `from_ms` (inclusive) and `to_ms` (exclusive) bound the append time in the failed topic. `places` are offsets of
    the failed topic by partition.
    """

    reasons: frozenset[str] = frozenset()
    error_classes: tuple[str, ...] = ()
    error: Pattern | None = None
    key: Pattern | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    places: Mapping[int, frozenset[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveConfig:
    """One run, identified by `id`. `partitions` is the redrive topic's count, `max_message_bytes` its size limit.

    `records_per_second` and `max_records` None are unlimited. Records that were redriven `max_redrives` times before
    are skipped.
    """

    id: str
    name: str
    namespace: str
    group_id: str
    brokers: Brokers
    filter: Filter
    records_per_second: int | None
    max_records: int | None
    dry_run: bool
    max_redrives: int
    partitions: int
    max_message_bytes: int
    producer_properties: Mapping[str, str]
    log: LogConfig


def load_config(path: str) -> RedriveConfig:
    """Settings of a file. Raises SettingsInvalid, also if it cannot be read."""
    return parse_config(load_json(path))


def parse_config(document: Any) -> RedriveConfig:
    """Settings of a parsed redrive.json. Raises SettingsInvalid for the first bad field found."""
    section = Section(document, REDRIVE_FILE)
    section.integer("version", VERSION, VERSION)
    config = RedriveConfig(
        # Readers of headers take no other characters in an id.
        id=section.text("id", pattern=r"[A-Za-z0-9-]{1,64}"),
        name=section.text("name"),
        namespace=section.text("namespace"),
        group_id=section.text("groupId"),
        brokers=section.read("connection", parse_brokers),
        filter=section.read("filter", _filter),
        records_per_second=section.optional_integer("recordsPerSecond", 1),
        max_records=section.optional_integer("maxRecords", 1),
        dry_run=section.boolean("dryRun"),
        max_redrives=section.integer("maxRedrives", 1),
        partitions=section.integer("partitions", 1),
        max_message_bytes=section.integer("maxMessageBytes", 1),
        producer_properties=producer_properties(section),
        log=section.read("log", parse_log),
    )
    section.end()
    return config


def _filter(section: Section) -> Filter:
    return Filter(
        reasons=frozenset(section.texts("reasons")),
        error=section.optional_pattern("errorRegex"),
        key=section.optional_pattern("keyRegex"),
        from_ms=section.optional_integer("fromTime", 0, TIME_MAX),
        to_ms=section.optional_integer("toTime", 0, TIME_MAX),
        places=_places(section),
    )


def _places(section: Section) -> Mapping[int, frozenset[int]] | None:
    if not section.has("records"):
        return None
    named = section.take("records")
    if not isinstance(named, list) or not named:
        raise SettingsInvalid(section.at("records"), "must be a list of records by partition and offset")
    places: dict[int, set[int]] = {}
    for place, each in enumerate(named):
        one = Section(each, section.at(f"records[{place}]"))
        places.setdefault(one.integer("partition", 0), set()).add(one.integer("offset", 0))
        one.end()
    return {partition: frozenset(offsets) for partition, offsets in places.items()}
