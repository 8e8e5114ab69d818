"""backfill.json: the settings of one Backfill, read strictly; the same for all of its attempts.

`worker` is the group's worker.json, so that the handler, its decoding and the brokers mean the same as in a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.contract.patterns import Pattern
from fleet_consumer.contract.pod import BACKFILL_FILE
from fleet_consumer.contract.section import Section, SettingsInvalid, load_json
from fleet_consumer.contract.worker_config import PythonSource, WorkerConfig
from fleet_consumer.contract.worker_config import parse_config as parse_worker

VERSION: Final = 1
"""Version of the file format."""
TIME_MAX: Final = 2**53
"""Largest time in epoch milliseconds; a larger number is a mistake."""
ORDERINGS: Final = ("Partition", "None")
ON_ERROR: Final = ("Fail", "Skip", "FailedTopic")
PASSES: Final = ("Both", "Live", "Candidate")
"""Handlers that a driver of a comparison calls: both side by side, or one of them where their images differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillFilter:
    """Selection of records within the ranges; None and empty select all.

    `key` is searched in the key as UTF-8; a record without a key matches none. Each of `headers` must be among the
    record's headers with exactly this value in UTF-8. `from_ms` (inclusive) and `to_ms` (exclusive) bound the record's
    timestamp.
    """

    key: Pattern | None = None
    headers: Mapping[str, str]
    from_ms: int | None = None
    to_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    """The place of returned records; both None: they are counted only.

    `topic` is the name of a topic. `parquet` is a folder or an object store's URI, in which the Backfill's id names a
    folder of its own.
    """

    topic: str | None = None
    parquet: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """A second handler over the same records. `ignore_fields` are names of fields of JSON values that may differ."""

    candidate: PythonSource
    ignore_fields: tuple[str, ...]
    handlers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillConfig:
    """One Backfill, identified by `id`. `ranges` are offsets by partition: the first, and the end (exclusive).

    `cluster_id` and `topic_id` tell whose offsets these are; None for ranges that were resolved without them, and where
    brokers have no such ids. A slice has at most `slice_records` offsets and lasts about `slice_seconds` at most.
    `ledger` and `control` name ConfigMaps in `namespace`.
    """

    id: str
    name: str
    namespace: str
    worker: WorkerConfig
    topic: str
    ranges: Mapping[int, tuple[int, int]]
    filter: BackfillFilter
    ordering: str
    slice_records: int
    slice_seconds: int
    on_error: str
    parallelism: int
    sink: SinkConfig
    compare: CompareConfig | None
    ledger: str
    control: str
    cluster_id: str | None = None
    topic_id: str | None = None


def load_config(path: str) -> BackfillConfig:
    """Settings of a file. Raises SettingsInvalid, also if it cannot be read."""
    return parse_config(load_json(path))


def parse_config(document: Any) -> BackfillConfig:
    """Settings of a parsed backfill.json. Raises SettingsInvalid for the first bad field found."""
    section = Section(document, BACKFILL_FILE)
    section.integer("version", VERSION, VERSION)
    config = BackfillConfig(
        # Readers of headers take no other characters in an id.
        id=section.text("id", pattern=r"[A-Za-z0-9-]{1,64}"),
        name=section.text("name"),
        namespace=section.text("namespace"),
        worker=parse_worker(section.take("worker")),
        topic=section.text("topic"),
        ranges=_ranges(section),
        filter=section.read("filter", _filter),
        ordering=section.choice("ordering", *ORDERINGS),
        slice_records=section.integer("sliceRecords", 1),
        slice_seconds=section.integer("sliceSeconds", 1),
        on_error=section.choice("onError", *ON_ERROR),
        parallelism=section.integer("parallelism", 1),
        sink=section.read("sink", _sink),
        compare=section.optional("compare", _compare),
        ledger=section.text("ledger"),
        control=section.text("control"),
        cluster_id=section.text("clusterId") if section.has("clusterId") else None,
        topic_id=section.text("topicId") if section.has("topicId") else None,
    )
    section.end()
    if config.worker.handler.python is None:
        raise SettingsInvalid(section.at("worker.handler.python"), "is missing: a Backfill calls Python handlers only")
    return config


def _ranges(section: Section) -> Mapping[int, tuple[int, int]]:
    found, path = section.take("ranges"), section.at("ranges")
    if not isinstance(found, dict):
        raise SettingsInvalid(path, "must map partitions to their first and end offsets")
    ranges = {}
    for partition, bounds in found.items():
        if not (partition.isascii() and partition.isdigit() and _is_range(bounds)):
            raise SettingsInvalid(path, f"has {partition!r}: {bounds!r}; write a partition and [first, end]")
        ranges[int(partition)] = (bounds[0], bounds[1])
    return ranges


def _is_range(bounds: object) -> bool:
    return (
        isinstance(bounds, list)
        and len(bounds) == 2
        and all(isinstance(offset, int) and not isinstance(offset, bool) for offset in bounds)
        and 0 <= bounds[0] <= bounds[1]
    )


def _filter(section: Section) -> BackfillFilter:
    headers = section.take("headerEquals")
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise SettingsInvalid(section.at("headerEquals"), "must map names of headers to texts")
    return BackfillFilter(
        key=section.optional_pattern("keyRegex"),
        headers=headers,
        from_ms=section.optional_integer("fromTime", 0, TIME_MAX),
        to_ms=section.optional_integer("toTime", 0, TIME_MAX),
    )


def _sink(section: Section) -> SinkConfig:
    sink = SinkConfig(topic=section.optional_text("topic"), parquet=section.optional_text("parquet"))
    if sink.topic is not None and sink.parquet is not None:
        raise SettingsInvalid(section.path, "must not have both `topic` and `parquet`")
    return sink


def _compare(section: Section) -> CompareConfig:
    return CompareConfig(
        candidate=section.read("candidate", _python),
        ignore_fields=section.texts("ignoreFields"),
        handlers=section.choice("handlers", *PASSES),
    )


def _python(section: Section) -> PythonSource:
    return PythonSource(
        callable=section.text("callable", pattern=r"[^:\s]+:[^:\s]+"), path=section.optional_text("path")
    )
