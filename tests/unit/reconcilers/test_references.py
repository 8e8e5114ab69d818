"""References to KafkaClusters: an object that cannot be read is not one that does not exist."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet_operator.api.v1alpha1 import KafkaCluster
from fleet_operator.planning.problem import Problem
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.references import read_cluster

HEAD: dict[str, Any] = {"name": "main", "namespace": "shop"}


def read(body: dict[str, Any] | None) -> KafkaCluster | Problem:
    store = SimpleNamespace(get=lambda kind, key: body)
    states = SimpleNamespace(read=lambda body, model: model())
    return read_cluster(cast(Context, SimpleNamespace(store=store, states=states)), ("shop", "main"))


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        (None, "ClusterNotFound", "KafkaCluster 'main' is not in namespace 'shop': create it there"),
        ({"metadata": {**HEAD, "deletionTimestamp": "2026"}, "spec": {}}, "ClusterNotFound", "create it there"),
        (
            {"metadata": HEAD, "spec": {"bootstrapServers": []}},
            "ClusterInvalid",
            "correct the field that its condition Ready names",
        ),
    ],
)
def test_unusable_cluster_is_reported_by_its_own_reason(body: dict[str, Any] | None, reason: str, words: str) -> None:
    problem = read(body)
    assert isinstance(problem, Problem)
    assert problem.reason == reason
    assert words in problem.message


def test_good_cluster_is_read() -> None:
    cluster = read({"metadata": HEAD, "spec": {"bootstrapServers": ["kafka:9092"]}})
    assert isinstance(cluster, KafkaCluster)
