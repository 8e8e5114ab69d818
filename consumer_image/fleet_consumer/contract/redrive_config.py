"""redrive.json: the settings of one redrive run, parsed strictly."""

from collections.abc import Mapping
from typing import Any, Final

from fleet_consumer.contract import fields
from fleet_consumer.contract.backfill_config import RUN_ID, TIME_MAX
from fleet_consumer.contract.brokers import Brokers
from fleet_consumer.contract.log import LogConfig
from fleet_consumer.contract.patterns import Pattern
from fleet_consumer.contract.pod import REDRIVE_FILE
from fleet_consumer.contract.section import Section, SettingsInvalid, load_json
from fleet_consumer.contract.worker_config import producer_properties

VERSION: Final = 1
COUNTS: Final = {
    "selected": "selected",
    "moved": "moved",
    "guarded": "guarded",
    "movedBefore": "moved_before",
    "failedAgain": "failed_again",
}
"""Maps the names of counts (in commit metadata, the last output line and status) to fields of `RedriveProgress`."""


def _places(section: Section, name: str) -> Mapping[int, frozenset[int]]:
    named = section.pop(name)
    if not isinstance(named, list) or not named:
        raise SettingsInvalid(section.at(name), "must be a list of records, each with `partition` and `offset`")
    places: dict[int, set[int]] = {}
    for place, each in enumerate(named):
        one = Section(each, section.at(f"{name}[{place}]"))
        places.setdefault(one.integer("partition", 0), set()).add(one.integer("offset", 0))
        one.end()
    return {partition: frozenset(offsets) for partition, offsets in places.items()}


@fields.settings
class Filter:
    """Selects failed records. Conditions that are empty or None select all records.

    `error_classes` are full class names, or the part after the last dot. `error` may match anywhere in "class:
    message", `key` anywhere in the record's key (decoded as UTF-8); records without a key never match a `key`.
    `from_ms` (inclusive) and `to_ms` (exclusive) bound the append time in the failed topic. `places` maps partitions of
    the failed topic to offsets; None selects all offsets.
    """

    reasons: frozenset[str] = fields.read_by(
        lambda section, name: frozenset(section.strings(name)), default=frozenset()
    )
    error_classes: tuple[str, ...] = ()
    error: Pattern | None = fields.pattern(name="errorRegex", null=True, default=None)
    key: Pattern | None = fields.pattern(name="keyRegex", null=True, default=None)
    from_ms: int | None = fields.integer(0, TIME_MAX, name="fromTime", null=True, default=None)
    to_ms: int | None = fields.integer(0, TIME_MAX, name="toTime", null=True, default=None)
    places: Mapping[int, frozenset[int]] | None = fields.read_by(_places, name="records", later=None, default=None)


@fields.settings
class RedriveConfig:
    """One run, identified by `id`.

    `partitions` is the redrive topic's partition count, `max_message_bytes` its size limit. `records_per_second` and
    `max_records` are None if unlimited. Records that were already redriven `max_redrives` times are skipped.
    """

    id: str = fields.text(RUN_ID)
    name: str = fields.text()
    namespace: str = fields.text()
    group_id: str = fields.text()
    brokers: Brokers = fields.nested(Brokers, name="connection")
    filter: Filter = fields.nested(Filter)
    records_per_second: int | None = fields.integer(1, null=True)
    max_records: int | None = fields.integer(1, null=True)
    dry_run: bool = fields.boolean()
    max_redrives: int = fields.integer(1)
    partitions: int = fields.integer(1)
    max_message_bytes: int = fields.integer(1)
    producer_properties: Mapping[str, str] = fields.nested(producer_properties, name="producer", later={})
    log: LogConfig = fields.nested(LogConfig)


def load_config(path: str) -> RedriveConfig:
    """Parse a settings file. Raises SettingsInvalid if it is invalid or cannot be read."""
    return parse_config(load_json(path))


def parse_config(document: Any) -> RedriveConfig:
    """Parse the content of a redrive.json. Raises SettingsInvalid for the first invalid field."""
    return fields.parse_file(RedriveConfig, document, REDRIVE_FILE, VERSION)
