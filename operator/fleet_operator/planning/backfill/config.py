"""Rendering of backfill.json, a driver's settings; `fleet_consumer.contract.backfill_config` parses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet_consumer.contract import naming
from fleet_consumer.contract.backfill_config import VERSION
from fleet_consumer.contract.pod import CANDIDATE_DIRECTORY, SINK_DIRECTORY
from fleet_operator.api.v1alpha1.backfill import Backfill, Compare, Sink
from fleet_operator.planning.backfill.ranges import ResolvedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """The handler to run and its source. `worker` is worker.json of the revision whose handler it is.

    Files are None where an image has the source.
    """

    worker: Mapping[str, Any]
    handler_files: Mapping[str, str] | None = None
    candidate_files: Mapping[str, str] | None = None


def backfill_config(
    backfill: Backfill, resolved: ResolvedRange, worker: Mapping[str, Any], handlers: str
) -> dict[str, Any]:
    """The content of backfill.json for one pass. Times are epoch milliseconds."""
    spec, metadata = backfill.spec, backfill.metadata
    chosen = spec.filter
    return {
        "version": VERSION,
        "id": metadata.uid,
        "name": metadata.name,
        "namespace": metadata.namespace,
        "worker": dict(worker),
        "topic": resolved.topic,
        "ranges": {str(partition): list(bounds) for partition, bounds in resolved.ranges.items()},
        "filter": {
            "keyRegex": chosen.key_regex if chosen else None,
            "headerEquals": dict(chosen.header_equals) if chosen else {},
            "fromTime": resolved.from_ms,
            "toTime": resolved.to_ms,
        },
        "ordering": spec.ordering,
        "sliceRecords": spec.slice.max_records,
        "sliceSeconds": spec.slice.max_seconds,
        "onError": spec.on_error,
        "parallelism": spec.parallelism,
        "sink": _sink(spec.sink),
        "compare": _compare(spec.compare, handlers) if spec.compare is not None else None,
        "ledger": naming.backfill_ledger(metadata.name),
        "control": naming.backfill_control(metadata.name),
    }


def for_attempt(config: Mapping[str, Any], connection: Mapping[str, Any], handlers: str) -> dict[str, Any]:
    """The settings of an earlier attempt for the next one: the brokers may have another address, the pass be another.

    Nothing else follows the ConsumerGroup: records of one Backfill are handled alike.
    """
    renewed = {**config, "worker": {**config["worker"], "connection": dict(connection)}}
    if config.get("compare") is not None:
        renewed["compare"] = {**config["compare"], "handlers": handlers}
    return renewed


def _sink(sink: Sink) -> dict[str, str | None]:
    path = None
    if sink.parquet is not None:
        path = f"{SINK_DIRECTORY}/{sink.parquet.path}" if sink.parquet.volume is not None else sink.parquet.path
    return {"topic": sink.topic.name if sink.topic is not None else None, "parquet": path}


def _compare(compare: Compare, handlers: str) -> dict[str, Any]:
    path = CANDIDATE_DIRECTORY if compare.config_map_ref is not None else None
    return {
        "candidate": {"callable": compare.callable, "path": path},
        "ignoreFields": list(compare.ignore_fields),
        "handlers": handlers,
    }
