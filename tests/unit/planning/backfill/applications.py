"""Settings and applications of Backfills, as the operator makes them, for the planners' tests."""

from __future__ import annotations

import json
from typing import Any

from fleet_operator.api.v1alpha1 import Backfill, ConsumerGroup, KafkaCluster
from fleet_operator.planning.backfill import manifests
from fleet_operator.planning.backfill.manifests import SourceFiles, backfill_config
from fleet_operator.planning.fleet.worker_config import worker_config
from tests.unit.planning import builders
from tests.unit.planning.backfill.things import RANGE, backfill

MOUNTED = {"python": {"callable": "shop:handle", "configMapRef": {"name": "source"}}}


def worker(**spec: Any) -> dict[str, Any]:
    group = builders.consumer_group(handler=MOUNTED, **spec)
    return worker_config(group, builders.kafka_cluster()) | {"revision": "r1"}


def rendered(body: Backfill, handlers: str = "Both") -> dict[str, Any]:
    """The settings as they are mounted."""
    config_map = manifests.settings(body, backfill_config(body, RANGE, worker(), handlers))
    document: dict[str, Any] = json.loads(config_map["data"]["backfill.json"])
    return document


FILES = SourceFiles(handler=("shop.py",))


def launched(
    body: Backfill | None = None,
    *,
    group: ConsumerGroup | None = None,
    cluster: KafkaCluster | None = None,
    files: SourceFiles = FILES,
) -> dict[str, Any]:
    """The application."""
    body = body or backfill({"attempts": 2})
    return manifests.application(
        body,
        group or builders.consumer_group(handler=MOUNTED),
        cluster or builders.kafka_cluster(),
        files,
        image="spark:1",
    )


def container(template: Any) -> dict[str, Any]:
    (found,) = template["spec"]["containers"]
    return dict(found)


def volumes(template: Any) -> dict[str, dict[str, Any]]:
    return {volume["name"]: volume for volume in template["spec"]["volumes"]}
