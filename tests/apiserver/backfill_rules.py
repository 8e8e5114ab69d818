"""Backfills that the API server refuses, for test_crd_rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.api.backfill_objects import backfill
from tests.unit.api.crd_objects import REMOVED, JsonObject

TIME = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
CLAIM = {"persistentVolumeClaim": {"claimName": "results"}}
CANDIDATE = {"callable": "shop:next"}


def of_offsets(first: int, end: int, partition: int = 0) -> JsonObject:
    return backfill({"spec.range": {"offsets": [{"partition": partition, "from": first, "to": end}]}})


def parquet(path: str, **more: Any) -> JsonObject:
    return backfill({"spec.sink": {"parquet": {"path": path, **more}}})


def table(path: str, **more: Any) -> JsonObject:
    return backfill({"spec.sink": {"table": {"format": "Delta", "path": path, **more}}})


def conf(name: str) -> JsonObject:
    return backfill({"spec.spark": {"sparkConf": {"spark.sql.shuffle.partitions": "8", name: "x"}}})


BACKFILL_RULES: list[tuple[str, JsonObject, str]] = [
    ("a Backfill with a long name", backfill({"metadata.name": "a" * 41}), "metadata.name must be a DNS label of at"),
    ("a range of two sorts", backfill({"spec.range.time": TIME}), "spec.range must have exactly one of"),
    ("a range of none", backfill({"spec.range": {}}), "spec.range must have exactly one of"),
    (
        "a range of no time",
        backfill({"spec.range": {"time": {"from": TIME["from"], "to": TIME["from"]}}}),
        "spec.range.time.from must be before spec.range.time.to",
    ),
    ("offsets that end before", of_offsets(10, 9), "spec.range.offsets[].from must not be greater than"),
    (
        "partitions of the source and of the range",
        backfill(
            {"spec.source": {"partitions": [0]}, "spec.range": {"offsets": [{"partition": 0, "from": 5, "to": 9}]}}
        ),
        "spec.source.partitions cannot be used with spec.range.offsets",
    ),
    (
        "failed records as the source",
        backfill({"spec.source": {"topic": "_fleet.orders.failed"}}),
        "spec.source.topic must not be a topic that",
    ),
    (
        "commits as the source",
        backfill({"spec.source": {"topic": "__consumer_offsets"}}),
        "spec.source.topic must not be a topic that",
    ),
    (
        "a key pattern that is none",
        backfill({"spec.filter": {"keyRegex": "("}}),
        "spec.filter.keyRegex must be a regular",
    ),
    ("two sinks", backfill({"spec.sink.topic": {"name": "x"}}), "spec.sink must have exactly one of"),
    ("no sink", backfill({"spec.sink": {}}), "spec.sink must have exactly one of"),
    (
        "a sink in a retry topic",
        backfill({"spec.sink": {"topic": {"name": "_fleet.orders.retry.5m"}}}),
        "spec.sink.topic.name must not be a topic that",
    ),
    ("files in the pod", parquet("file:///tmp/x"), "path without a volume"),
    ("a path without a volume", parquet("results"), "path without a volume"),
    ("a path from the root", parquet("/results", volume=CLAIM), "path with a volume"),
    ("a path that leaves the volume", parquet("a/../../b", volume=CLAIM), "path with a volume"),
    ("a path that ends outside", parquet("..", volume=CLAIM), "path with a volume"),
    ("a URI with a volume", parquet("s3a://b/c", volume=CLAIM), "path with a volume"),
    ("no volume at all", parquet("results", volume={}), "must have exactly one of"),
    (
        "a comparison that writes",
        backfill({"spec.compare": CANDIDATE | {"configMapRef": {"name": "x"}}, "spec.sink": {"topic": {"name": "x"}}}),
        "spec.sink.topic and spec.sink.table cannot be used with spec.compare",
    ),
    ("a table without a path", table("results"), "path without a volume"),
    ("a table outside of its volume", table("../x", volume=CLAIM), "path with a volume"),
    ("an Iceberg table without a name", table("s3a://b/c", format="Iceberg"), "name is the table's name in a catalog"),
    ("a Delta table with a name", table("s3a://b/c", name="lake.a.b"), "name is the table's name in a catalog"),
    ("Parquet that replaces", table("s3a://b/c", format="Parquet", mode="Replace"), "mode Replace is for Delta"),
    (
        "a Parquet table with the column of its folders",
        table("s3a://b/c", format="Parquet", columns=[{"name": "Slice", "type": "int"}]),
        "a Parquet table cannot have a column slice",
    ),
    (
        "columns that differ in case alone",
        table("s3a://b/c", columns=[{"name": "a", "type": "int"}, {"name": "A", "type": "int", "field": "b"}]),
        "names of columns must differ by more than upper and lower case",
    ),
    (
        "a table divided by what it has not",
        table("s3a://b/c", columns=[{"name": "a", "type": "int"}], partitionBy=["b"]),
        "partitionBy must name columns",
    ),
    (
        "a table divided without columns",
        table("s3a://b/c", partitionBy=["b"]),
        "partitionBy must name columns",
    ),
    (
        "a field of what is no value",
        table("s3a://b/c", columns=[{"name": "a", "type": "int", "from": "Offset", "field": "x"}]),
        "field is a path in the value",
    ),
    (
        "credentials for a topic",
        backfill({"spec.sink": {"topic": {"name": "x"}, "secretRef": {"name": "s"}}}),
        "spec.sink.secretRef is for",
    ),
    ("an event log without a place", backfill({"spec.spark": {"eventLog": True}}), "spec.spark.eventLog needs"),
    (
        "two images without files",
        backfill({"spec.compare": CANDIDATE | {"image": "next:1"}}),
        "spec.compare.image needs spec.sink.parquet",
    ),
    (
        "a candidate of nowhere",
        backfill({"spec.compare": CANDIDATE}),
        "spec.compare must have callable and exactly one",
    ),
    (
        "a live handler compared with itself and another",
        backfill({"spec.compare": CANDIDATE | {"self": True, "configMapRef": {"name": "x"}}}),
        "or self true and none of them",
    ),
    ("no candidate at all", backfill({"spec.compare": {}}), "spec.compare must have callable"),
    (
        "a candidate of two places",
        backfill(
            {
                "spec.compare": CANDIDATE | {"image": "next:1", "configMapRef": {"name": "x"}},
                "spec.sink": {"parquet": {"path": "s3a://b/c"}},
            }
        ),
        "spec.compare must have callable and exactly one of",
    ),
    *(
        (
            f"{size} as the {field} of the {role}",
            backfill({"spec.spark": {role: {field: size}}}),
            words,
        )
        for role in ("driver", "executor")
        for field, words, sizes in (
            ("memory", "must be a quantity from 466Mi to 1Ti", ("512m", "2g", "465Mi", "2Ti", 512)),
            ("memoryOverhead", "must be a quantity from 1Mi to 1Ti", ("256m", "512MB", "1023Ki", "2Ti", 256)),
            ("coreRequest", "must be a quantity from 1m to 1000", ("0", "-1", "1.5cores", "1001", 0)),
        )
        for size in sizes
    ),
    *(
        (f"the setting {name}", conf(name), "spec.spark.sparkConf must not set")
        for name in (
            "spark.kubernetes.namespace",
            "spark.kubernetes.authenticate.driver.serviceAccountName",
            "spark.kubernetes.driver.volumes.hostPath.x.mount.path",
            "spark.kubernetes.file.upload.path",
            "spark.submit.deployMode",
            "spark.jars",
            "spark.jars.packages",
            "spark.files",
            "spark.archives",
            "spark.plugins",
            "spark.extraListeners",
            "spark.sql.extensions",
            "spark.speculation",
            "spark.master",
            "spark.driver.extraJavaOptions",
            "spark.executor.extraClassPath",
            "spark.executor.instances",
            "spark.hadoop.hadoop.security.credential.provider.path",
            "spark.task.cpus",
            "spark.ui.enabled",
            "kubernetes.master",
            "xspark.network.timeout",
        )
    ),
]

BACKFILL_SCHEMA: list[tuple[str, JsonObject, str]] = [
    ("a Backfill of no group", backfill({"spec.groupRef": REMOVED}), "spec.groupRef"),
    ("a Backfill of no range", backfill({"spec.range": REMOVED}), "spec.range"),
    ("a Backfill without a sink", backfill({"spec.sink": REMOVED}), "spec.sink"),
    ("a time in words", backfill({"spec.range": {"time": {"from": "yesterday", "to": "now"}}}), "spec.range.time.from"),
    *(
        (
            f"{sample} as a sample",
            backfill({"spec.range": {"last": {"seconds": 9}, "sample": sample}}),
            "spec.range.sample",
        )
        for sample in ("0%", "100%", "0.0%", "all", 0, -1)
    ),
    (
        "a float as the type of a column",
        table("s3a://b/c", columns=[{"name": "a", "type": "float"}]),
        "columns[0].type",
    ),
    ("no seconds", backfill({"spec.range": {"last": {"seconds": 0}}}), "spec.range.last.seconds"),
    ("an offset below zero", of_offsets(-1, 9), "spec.range.offsets[0].from"),
    ("a partition below zero", of_offsets(5, 9, partition=-1), "spec.range.offsets[0].partition"),
    (
        "offsets without an end",
        backfill({"spec.range": {"offsets": [{"partition": 0, "from": 5}]}}),
        "spec.range.offsets[0].to",
    ),
    (
        "a partition named twice",
        backfill({"spec.range": {"offsets": [{"partition": 0, "from": 5, "to": end} for end in (7, 9)]}}),
        "spec.range.offsets[1]",
    ),
    ("a claim without a name", parquet("x", volume={"persistentVolumeClaim": {}}), "claimName"),
    ("an unknown answer to errors", backfill({"spec.onError": "Retry"}), "spec.onError"),
    ("no tasks", backfill({"spec.parallelism": 0}), "spec.parallelism"),
    (
        "memory that is a share of a number",
        backfill({"spec.spark": {"driver": {"memory": 512.5}}}),
        "spec.spark.driver.memory",
    ),
    ("a deadline of no time", backfill({"spec.deadlines": {"startSeconds": 1}}), "spec.deadlines.startSeconds"),
]

BACKFILL_ACCEPTED: list[tuple[str, JsonObject]] = [
    ("a Backfill of a day", backfill()),
    ("a Delta table with a column slice", table("s3a://b/c", columns=[{"name": "slice", "type": "int"}])),
    *(
        (f"{size} as the {field}", backfill({"spec.spark": {"driver": {field: size}, "executor": {field: size}}}))
        for field, sizes in (
            ("memory", ("466Mi", "1.5Gi", "2G", "1e9", "1Ti", 536_870_912)),
            ("memoryOverhead", ("1Mi", "1.5Gi", 268_435_456)),
            ("coreRequest", ("1m", "500m", "0.5", "1", 2, "1k")),
        )
        for size in sizes
    ),
]

BACKFILL_IMMUTABLE: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
    ("another group", {}, {"spec.groupRef": {"name": "other"}}),
    ("another range", {}, {"spec.range": {"last": {"seconds": 5}}}),
    ("expired records taken", {}, {"spec.range": {"last": {"seconds": 86400}, "expired": "Ignore"}}),
    ("a source added", {}, {"spec.source": {"topic": "orders"}}),
    ("a source taken away", {"spec.source": {"topic": "orders"}}, {"spec.source": REMOVED}),
    ("a filter added", {}, {"spec.filter": {"keyRegex": "a"}}),
    ("another order", {}, {"spec.ordering": "None"}),
    ("other slices", {}, {"spec.slice": {"maxRecords": 5}}),
    ("another answer to errors", {}, {"spec.onError": "Skip"}),
    ("a comparison added", {}, {"spec.compare": CANDIDATE | {"configMapRef": {"name": "x"}}}),
    ("another sink", {}, {"spec.sink": {"topic": {"name": "x"}}}),
    ("more tasks", {}, {"spec.parallelism": 3}),
    ("a dry run made real", {"spec.dryRun": True}, {"spec.dryRun": False}),
    ("other deadlines", {}, {"spec.deadlines": {"startSeconds": 60}}),
    ("another image", {}, {"spec.spark": {"image": "x:1"}}),
]
BACKFILL_IMMUTABLE_WORDS = "spec is immutable except suspend, retry, rate, guard and ttlSecondsAfterFinished"
RETRY_WORDS = "spec.retry can only be raised"
