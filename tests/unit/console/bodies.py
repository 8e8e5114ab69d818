"""ConsumerGroups, Backfills and observations for the console's tests, as the caches have them."""

from __future__ import annotations

from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.planning.observation import (
    ClusterObservation,
    GroupObservation,
    ManagedTopic,
    MemberObservation,
    RetryObservation,
    TopicObservation,
)

NOW: Final = 1_800_000_000.0


def condition(kind: str, status: str, reason: str, message: str = "as it should be") -> dict[str, Any]:
    at = "2027-01-15T07:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def fleet(name: str = "orders", namespace: str = "shop", **status: Any) -> dict[str, Any]:
    """A ready ConsumerGroup with retries and scaling."""
    base: dict[str, Any] = {
        "groupId": f"{namespace}.{name}",
        "image": "worker:1",
        "state": "Stable",
        "memberCount": 2,
        "readyReplicas": 2,
        "targetReplicas": 2,
        "lagApproximate": 2048,
        "behindText": "~5m",
        "limit": "None",
        "conditions": [condition("Degraded", "False", "AsExpected"), condition("Ready", "True", "FleetReady")],
        "members": [
            {
                "id": f"m{number}",
                "instanceId": f"i{number}",
                "pod": f"{name}-fleet-{number}",
                "host": "/10.0.0.7",
                "partitions": [{"topic": "orders", "ranges": str(number)}],
                "partitionCount": 1,
                "state": "Active",
            }
            for number in range(2)
        ],
        "transitions": [
            {"from": "Unknown", "to": "Stable", "at": "2027-01-15T07:00:00.000Z", "cause": "first", "inferred": False}
        ],
        "retry": {
            "waiting": 64,
            "failed": 3,
            "failedReasons": [{"reason": "Exhausted", "errorClass": "ValueError", "records": 2}],
        },
        "scaling": {"arrivalPerSecond": "120", "rawReplicas": "1.7", "decision": "Keep", "reason": "enough workers"},
    }
    return {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"namespace": namespace, "name": name, "uid": f"uid-{name}", "resourceVersion": "7"},
        "spec": {
            "clusterRef": {"name": "main"},
            "topics": ["orders"],
            "handler": {},
            "retry": {"policyRef": {"name": "standard"}},
            "scaling": {"minReplicas": 1, "maxReplicas": 6},
        },
        "status": base | status,
    }


def backfill(name: str = "again", of: str = "orders", namespace: str = "shop", **status: Any) -> dict[str, Any]:
    base = {"phase": "Running", "topic": "orders", "offsetsTotal": 1000, "offsetsCovered": 250, "attempts": 1}
    metadata = {"namespace": namespace, "name": name, "uid": f"uid-{name}", "resourceVersion": "3"}
    return {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "Backfill",
        "metadata": metadata,
        "spec": {"groupRef": {"name": of}},
        "status": base | status,
    }


def member(number: int) -> MemberObservation:
    return MemberObservation(
        member_id=f"m{number}",
        instance_id=f"i{number}",
        client_id="c",
        host="/10.0.0.7",
        partitions={"orders": (number,)},
    )


def observation(name: str = "orders", namespace: str = "shop", **fields: Any) -> ClusterObservation:
    """Partition 0 has a lag of 60 records, partition 1 none; of the retry topics, 5m is late and 1h empty."""
    group_id = f"{namespace}.{name}"
    retry_topics = {
        naming.retry_topic(group_id, "5m"): ManagedTopic(partitions=1, waiting=40, oldest_at=NOW - 360),
        naming.retry_topic(group_id, "1h"): ManagedTopic(partitions=1, waiting=0),
        naming.redrive_topic(group_id): ManagedTopic(partitions=1, waiting=5, oldest_at=NOW - 1),
    }
    retry = RetryObservation(observed_at=NOW, waiting=45, due_lag=12, topics=retry_topics)
    group = GroupObservation(
        group_id=group_id,
        observed_at=NOW,
        state="Stable",
        members=(member(0), member(1)),
        committed={("orders", 0): 40, ("orders", 1): 7},
        end_offsets={("orders", 0): 100, ("orders", 1): 7},
        log_starts={("orders", 0): 0, ("orders", 1): 0},
        retry=retry,
        **fields,
    )
    topics = {"orders": TopicObservation(partitions=2)}
    return ClusterObservation(observed_at=NOW, reachable=True, groups={group_id: group}, topics=topics)
