"""backfill.json: the settings of one Backfill, read strictly; the same for all of its attempts.

`worker` is the group's worker.json, so that the handler, its decoding and the brokers mean the same as in a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fleet_consumer.contract import fields
from fleet_consumer.contract.patterns import Pattern
from fleet_consumer.contract.pod import BACKFILL_FILE
from fleet_consumer.contract.section import Section, SettingsInvalid, load_json
from fleet_consumer.contract.worker_config import PythonSource, WorkerConfig
from fleet_consumer.contract.worker_config import parse_config as parse_worker

VERSION: Final = 1
"""Version of the file format."""
RUN_ID: Final = r"[A-Za-z0-9-]{1,64}"
"""Ids of runs: readers of headers take no other characters in one."""
TIME_MAX: Final = 2**53
"""Largest time in epoch milliseconds; a larger number is a mistake."""
PROGRESS_S: Final = 900
ORDERINGS: Final = ("Partition", "None")
ON_ERROR: Final = ("Fail", "Skip", "FailedTopic")
LIVE: Final = "Live"
CANDIDATE: Final = "Candidate"
BOTH: Final = "Both"
PASSES: Final = (BOTH, LIVE, CANDIDATE)
"""Handlers that a driver of a comparison calls: both side by side, or one of them where their images differ."""


def _headers(section: Section, name: str) -> Mapping[str, str]:
    headers = section.take(name)
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise SettingsInvalid(section.at(name), "must map names of headers to texts")
    return headers


@fields.settings
class BackfillFilter:
    """Selection of records within the ranges; None and empty select all.

    `key` is searched in the key as UTF-8; a record without a key matches none. Each of `headers` must be among the
    record's headers with exactly this value in UTF-8. `from_ms` (inclusive) and `to_ms` (exclusive) bound the record's
    timestamp.
    """

    headers: Mapping[str, str] = fields.read_by(_headers, name="headerEquals")
    key: Pattern | None = fields.pattern(name="keyRegex", null=True, default=None)
    from_ms: int | None = fields.integer(0, TIME_MAX, name="fromTime", null=True, default=None)
    to_ms: int | None = fields.integer(0, TIME_MAX, name="toTime", null=True, default=None)


@fields.settings
class ColumnConfig:
    """A column of a table. `source` is a part of the output or of the record that it answers; `field` is a path in the
    value, the name of the column where it is None."""

    name: str = fields.text(r"[A-Za-z_][A-Za-z0-9_]*")
    type: str = fields.text(r"string|int|bigint|double|boolean|timestamp|date|decimal\(\d{1,2},\d{1,2}\)")
    source: str = fields.choice("Value", "Key", "Topic", "Partition", "Offset", "Timestamp", name="from")
    field: str | None = fields.text(null=True)
    required: bool = fields.boolean()


@fields.settings
class TableConfig:
    """A table. `path` is a folder or an object store's URI; `name` is an Iceberg table's in its catalog. With `columns`
    None it has those of the rows in a folder of Parquet."""

    format: str = fields.choice("Parquet", "Delta", "Iceberg")
    path: str = fields.text()
    name: str | None = fields.text(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+", null=True)
    mode: str = fields.choice("Append", "Replace")
    partition_by: tuple[str, ...] = fields.texts()
    columns: tuple[ColumnConfig, ...] | None = fields.listed(ColumnConfig, null=True)


@fields.settings
class SinkConfig:
    """The place of returned records; with all None they are counted only.

    `topic` is the name of a topic. `parquet` is a folder or an object store's URI, in which the Backfill's id names a
    folder of its own.
    """

    topic: str | None = fields.text(null=True, default=None)
    parquet: str | None = fields.text(null=True, default=None)
    table: TableConfig | None = fields.nested(TableConfig, null=True, later=None, default=None)

    @property
    def folder(self) -> str | None:
        """The folder or URI of a sink that writes files."""
        return self.parquet if self.table is None else self.table.path


def _sink(section: Section) -> SinkConfig:
    sink = fields.parse(SinkConfig, section)
    if sum(place is not None for place in (sink.topic, sink.parquet, sink.table)) > 1:
        raise SettingsInvalid(section.path, "must have one of `topic`, `parquet` and `table`")
    return sink


@fields.settings
class CompareConfig:
    """A second handler over the same records. What may differ: `ignore_fields` of JSON values, by their paths, and
    `ignore_headers`, by their names."""

    candidate: PythonSource = fields.nested(PythonSource)
    ignore_fields: tuple[str, ...] = fields.texts()
    ignore_headers: tuple[str, ...] = fields.texts(later=())
    handlers: str = fields.choice(*PASSES)


def _ranges(section: Section, name: str) -> Mapping[int, tuple[int, int]]:
    found = fields.by_partition(section, name, "their first and end offsets", "[first, end]", is_range)
    return {partition: (first, end) for partition, (first, end) in found}


def is_range(bounds: object) -> bool:
    """True for `[first, end]`."""
    return (
        isinstance(bounds, list)
        and len(bounds) == 2
        and all(type(offset) is int for offset in bounds)
        and 0 <= bounds[0] <= bounds[1]
    )


@fields.settings
class BackfillConfig:
    """One Backfill, identified by `id`. `ranges` are offsets by partition: the first, and the end (exclusive).

    `cluster_id` and `topic_id` tell whose offsets these are; None for ranges that were resolved without them, and where
    brokers have no such ids. A slice has at most `slice_records` offsets and lasts about `slice_seconds` at most.
    `ledger` and `control` name ConfigMaps in `namespace`. The operator ends a driver without progress for
    `progress_seconds`, so no call of the handler may take as long. `event_log` asks for Spark's event log. A `dry_run`
    is one of a sample: its ranges are the beginnings of ranges with `sampled_from` offsets in all.
    """

    id: str = fields.text(RUN_ID)
    name: str = fields.text()
    namespace: str = fields.text()
    worker: WorkerConfig = fields.read_by(lambda section, name: parse_worker(section.take(name)))
    topic: str = fields.text()
    ranges: Mapping[int, tuple[int, int]] = fields.read_by(_ranges)
    filter: BackfillFilter = fields.nested(BackfillFilter)
    ordering: str = fields.choice(*ORDERINGS)
    slice_records: int = fields.integer(1)
    slice_seconds: int = fields.integer(1)
    on_error: str = fields.choice(*ON_ERROR)
    parallelism: int = fields.integer(1)
    sink: SinkConfig = fields.nested(_sink)
    compare: CompareConfig | None = fields.nested(CompareConfig, null=True)
    ledger: str = fields.text()
    control: str = fields.text()
    progress_seconds: int = fields.integer(1, later=PROGRESS_S)
    cluster_id: str | None = fields.text(later=None)
    topic_id: str | None = fields.text(later=None)
    event_log: bool = fields.boolean(later=False)
    dry_run: bool = fields.boolean(later=False)
    sampled_from: int | None = fields.integer(later=None)


def load_config(path: str) -> BackfillConfig:
    """Settings of a file. Raises SettingsInvalid, also if it cannot be read."""
    return parse_config(load_json(path))


def parse_config(document: Any) -> BackfillConfig:
    """Settings of a parsed backfill.json. Raises SettingsInvalid for the first bad field found."""
    config = fields.parse_file(BackfillConfig, document, BACKFILL_FILE, VERSION)
    if config.compare is not None and config.worker.handler.python is None:
        problem = "is missing: a comparison calls Python handlers only"
        raise SettingsInvalid(f"{BACKFILL_FILE}.worker.handler.python", problem)
    return config
