"""Backfills for the tests of the CRDs: a small good one, and one with every field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.api.crd_objects import JsonObject, changed


def backfill(changes: Mapping[str, Any] | None = None) -> JsonObject:
    """A good Backfill, changed; see `changed`."""
    body = {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "Backfill",
        "metadata": {"name": "again"},
        "spec": {"groupRef": {"name": "orders"}, "range": {"last": {"seconds": 86400}}, "sink": {"none": {}}},
    }
    return changed(body, changes or {})


def full_backfill() -> JsonObject:
    """Every field of a Backfill set (of exclusive ones one) to something else than its default."""
    size = {"memory": "1Gi", "memoryOverhead": "512Mi", "cores": 2, "coreRequest": 1, "coreLimit": 2}
    spot = {"nodeSelector": {"pool": "spot"}, "tolerations": [{"key": "spot"}], "priorityClassName": "batch"}
    claim = {"persistentVolumeClaim": {"claimName": "results"}}
    return backfill(
        {
            "spec.source": {"topic": "orders", "partitions": [0, 3]},
            "spec.range": {
                "time": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z", "lateSeconds": 0},
                "sample": "0.5%",
                "expired": "Ignore",
            },
            "spec.filter": {"keyRegex": "^a", "headerEquals": {"region": "north"}},
            "spec.ordering": "None",
            "spec.slice": {"maxRecords": 20000, "maxSeconds": 30},
            "spec.rate": {"recordsPerSecond": 1000},
            "spec.guard": {"maxLiveBehindSeconds": 60},
            "spec.onError": "FailedTopic",
            "spec.compare": {
                "callable": "shop.orders:handle_next",
                "configMapRef": {"name": "next"},
                "ignoreFields": ["handledAt"],
                "ignoreHeaders": ["trace"],
            },
            "spec.sink": {"parquet": {"path": "backfills/again", "volume": claim}, "secretRef": {"name": "store"}},
            "spec.parallelism": 4,
            "spec.dryRun": True,
            "spec.suspend": True,
            "spec.retry": 2,
            "spec.ttlSecondsAfterFinished": 86400,
            "spec.deadlines": {"startSeconds": 600, "progressSeconds": 1800},
            "spec.spark": {
                "image": "registry.example/shop-spark:1",
                "imagePullPolicy": "Always",
                "driver": size,
                "executor": size,
                "dynamicAllocation": {"minExecutors": 2},
                "ui": True,
                "eventLog": True,
                "placement": spot,
                "sparkConf": {"spark.sql.parquet.compression.codec": "zstd"},
            },
        }
    )
