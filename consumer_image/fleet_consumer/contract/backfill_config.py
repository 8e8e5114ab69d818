"""backfill.json: the settings of one Backfill, parsed strictly. All attempts of a Backfill use the same settings.

`worker` is the content of the group's worker.json, so handler, decoding and brokers are the same as in a worker.
"""

from collections.abc import Mapping
from typing import Any, Final

from fleet_consumer.contract import fields
from fleet_consumer.contract.patterns import Pattern
from fleet_consumer.contract.pod import BACKFILL_FILE
from fleet_consumer.contract.section import Section, SettingsInvalid, load_json
from fleet_consumer.contract.worker_config import PythonSource, WorkerConfig
from fleet_consumer.contract.worker_config import parse_config as parse_worker

VERSION: Final = 1
RUN_ID: Final = r"[A-Za-z0-9-]{1,64}"
"""Pattern of run ids; run ids in headers must match it, too."""
TIME_MAX: Final = 2**53
"""Maximum accepted time in epoch milliseconds; larger numbers are mistakes."""
PROGRESS_S: Final = 900
ORDERINGS: Final = ("Partition", "None")
ON_ERROR: Final = ("Fail", "Skip", "FailedTopic")
LIVE: Final = "Live"
CANDIDATE: Final = "Candidate"
BOTH: Final = "Both"
PASSES: Final = (BOTH, LIVE, CANDIDATE)
"""Passes of a comparison. BOTH calls both handlers; if the handlers have different images, LIVE and CANDIDATE call one
each."""


def _headers(section: Section, name: str) -> Mapping[str, str]:
    headers = section.pop(name)
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise SettingsInvalid(section.at(name), "must map header names to strings")
    return headers


@fields.settings
class BackfillFilter:
    """Selects records within the ranges. Conditions that are None or empty select all records.

    `key` may match anywhere in the record's key (decoded as UTF-8); records without a key never match. A record must
    have all `headers` with exactly these values. `from_ms` (inclusive) and `to_ms` (exclusive) bound the record's
    timestamp.
    """

    headers: Mapping[str, str] = fields.read_by(_headers, name="headerEquals")
    key: Pattern | None = fields.pattern(name="keyRegex", null=True, default=None)
    from_ms: int | None = fields.integer(0, TIME_MAX, name="fromTime", null=True, default=None)
    to_ms: int | None = fields.integer(0, TIME_MAX, name="toTime", null=True, default=None)


@fields.settings
class ColumnConfig:
    """A column of the sink's table. `source` names the part of the output or of its input record that fills the column.
    `field` is a path in the output's value (default: `name`)."""

    name: str = fields.text(r"[A-Za-z_][A-Za-z0-9_]*")
    type: str = fields.text(r"string|int|bigint|double|boolean|timestamp|date|decimal\(\d{1,2},\d{1,2}\)")
    source: str = fields.choice("Value", "Key", "Topic", "Partition", "Offset", "Timestamp", name="from")
    field: str | None = fields.text(null=True)
    required: bool = fields.boolean()


@fields.settings
class TableConfig:
    """The sink's table. `path` is a folder or an object store's URI; `name` is an Iceberg table's name with its
    catalog. If `columns` is None, the table has the same columns as the files of a Parquet sink."""

    format: str = fields.choice("Parquet", "Delta", "Iceberg")
    path: str = fields.text()
    name: str | None = fields.text(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+", null=True)
    mode: str = fields.choice("Append", "Replace")
    partition_by: tuple[str, ...] = fields.strings()
    columns: tuple[ColumnConfig, ...] | None = fields.listed(ColumnConfig, null=True)


@fields.settings
class SinkConfig:
    """Destination of returned records; if all fields are None, the records are only counted. `parquet` is a folder or
    an object store's URI; files are written to a subfolder named after the Backfill's id."""

    topic: str | None = fields.text(null=True, default=None)
    parquet: str | None = fields.text(null=True, default=None)
    table: TableConfig | None = fields.nested(TableConfig, null=True, later=None, default=None)

    @property
    def folder(self) -> str | None:
        """The folder or URI of a sink with files; None for other sinks."""
        return self.parquet if self.table is None else self.table.path


def _sink(section: Section) -> SinkConfig:
    sink = fields.parse(SinkConfig, section)
    if sum(place is not None for place in (sink.topic, sink.parquet, sink.table)) > 1:
        raise SettingsInvalid(section.path, "must have at most one of `topic`, `parquet` and `table`")
    return sink


@fields.settings
class CompareConfig:
    """A comparison with a second handler, the candidate, which handles the same records. Differences in `ignore_fields`
    (paths in JSON values) and `ignore_headers` (header names) are ignored."""

    candidate: PythonSource = fields.nested(PythonSource)
    ignore_fields: tuple[str, ...] = fields.strings()
    ignore_headers: tuple[str, ...] = fields.strings(later=())
    handlers: str = fields.choice(*PASSES)


def _ranges(section: Section, name: str) -> Mapping[int, tuple[int, int]]:
    found = fields.by_partition(section, name, "their first and end offsets", "[first, end]", is_range)
    return {partition: (first, end) for partition, (first, end) in found}


def is_range(bounds: object) -> bool:
    return (
        isinstance(bounds, list)
        and len(bounds) == 2
        and all(type(offset) is int for offset in bounds)
        and 0 <= bounds[0] <= bounds[1]
    )


@fields.settings
class BackfillConfig:
    """One Backfill, identified by `id`. `ranges` maps partitions to their first offset and their end (exclusive).

    - `cluster_id` and `topic_id` identify the log to which the offsets belong. An id is None if the brokers have no
      such id, or if it was unknown when the ranges were resolved.
    - A slice has at most `slice_records` offsets and lasts at most about `slice_seconds`.
    - `ledger` and `control` are ConfigMaps in `namespace`. `event_log` enables Spark's event log.
    - The operator stops a driver without progress for `progress_seconds`, so each handler call must be shorter.
    - A `dry_run` covers only a sample, so `ranges` has only the first offsets of the requested ranges. `sampled_from`
      is the number of offsets in the requested ranges.
    """

    id: str = fields.text(RUN_ID)
    name: str = fields.text()
    namespace: str = fields.text()
    worker: WorkerConfig = fields.read_by(lambda section, name: parse_worker(section.pop(name)))
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
    """Parse a settings file. Raises SettingsInvalid, also if the file cannot be read."""
    return parse_config(load_json(path))


def parse_config(document: Any) -> BackfillConfig:
    """Parse the content of a backfill.json. Raises SettingsInvalid for the first invalid field."""
    config = fields.parse_file(BackfillConfig, document, BACKFILL_FILE, VERSION)
    if config.compare is not None and config.worker.handler.python is None:
        problem = "is missing, but a comparison needs a Python handler"
        raise SettingsInvalid(f"{BACKFILL_FILE}.worker.handler.python", problem)
    return config
