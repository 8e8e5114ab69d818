"""What a reconcile makes of what it gathered, where more than one planner has a say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.clients.kinds import JsonObject
from fleet_operator.planning.pod_template import RETRY_VOLUME
from fleet_operator.planning.retry_publication import plan_intent
from fleet_operator.reconcilers.deciding import make_plan
from fleet_operator.reconcilers.gathering import Gathered
from tests.unit.planning.builders import IMAGE, NOW, kafka_cluster
from tests.unit.planning.test_retry_plan import GROUP, cluster
from tests.unit.planning.test_retry_publication import OLD

WITH_RETRIES = {"volumes": [{"name": RETRY_VOLUME}]}


def gathered(**changes: Any) -> Gathered:
    """A new group with retries whose topics are as they should be."""
    found = Gathered(
        body={"metadata": {"name": "orders", "namespace": "shop"}, "spec": {"clusterRef": {"name": "main"}}},
        group=GROUP,
        cluster=kafka_cluster(status={"clusterId": "cluster-a"}),
        observation=cluster(),
        handler_files=None,
        older=None,
        stateful_set=None,
        workers=(),
        checks=(),
        config_maps=(),
        accounts=(),
        retry=plan_intent(GROUP, OLD, None),
    )
    return replace(found, **changes)


def test_another_cluster_is_not_believed_to_have_the_groups_topics() -> None:
    plan = make_plan(gathered(), NOW, image=IMAGE)
    assert plan.retry is not None
    assert plan.retry.publication is not None
    other = gathered(cluster=kafka_cluster(status={"clusterId": "cluster-b"}))
    plan = make_plan(other, NOW, image=IMAGE)
    assert plan.retry is not None
    assert (plan.retry.publication, plan.retry.scale.replicas) == (None, 0)
    assert (gathered().on_its_cluster, other.on_its_cluster) == (True, False)


@pytest.mark.parametrize(
    ("changes", "feeds"),
    [
        ({}, False),
        ({"redrives": ("mended",)}, True),
        ({"workers": ({"spec": {}},)}, False),
        ({"workers": ({"spec": WITH_RETRIES},)}, True),
        ({"stateful_set": {"spec": {"template": {"spec": WITH_RETRIES}}}}, True),
    ],
)
def test_who_may_still_write_to_retry_topics(changes: dict[str, JsonObject], feeds: bool) -> None:
    """Pods of a revision that knows retries, and whoever would make such pods, as well as Redrives."""
    assert gathered(**changes).feeds_retries is feeds
