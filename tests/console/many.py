"""Thousands of fleets for the console, a few of them with a problem, and one with everything that a page can show."""

from __future__ import annotations

import math
from typing import Any, Final

from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.times import to_text
from tests.unit.console.bodies import NOW, backfill, condition, fleet, observation

FLEETS: Final = 5_000
TEAMS: Final = 50
STAR: Final = ("team-0", "orders")
"""Namespace and name of the fleet with everything."""


def many_fleets(count: int = FLEETS) -> list[dict[str, Any]]:
    """Fleets of many teams: one in 100 is not ready, one in 20 has failed records."""
    return [star(), *(one(number) for number in range(1, count))]


def one(number: int) -> dict[str, Any]:
    lag = 0 if number % 3 else 1 << (number % 20)
    status: dict[str, Any] = {"lagApproximate": lag, "behindText": "~2m" if lag else "0s", "retry": {"failed": 0}}
    if number % 20 == 0:
        status["retry"] = {"failed": number % 7 + 1, "waiting": 16}
    if number % 100 == 0:
        verdicts = [
            condition("Ready", "False", "PodsNotReady", "1 of 3 workers is not ready: see its log"),
            condition("Degraded", "True", "BreakerOpen", "2 workers pause: most records fail with ConnectionError"),
        ]
        status |= {"conditions": verdicts, "readyReplicas": 1, "state": "PreparingRebalance"}
    return fleet(f"fleet-{number:04}", f"team-{number % TEAMS}", **status)


def star(wanted: int = 6) -> dict[str, Any]:
    members = [
        {
            "id": f"m{number}",
            "instanceId": f"i{number}",
            "pod": f"orders-fleet-{number}",
            "host": f"/10.0.0.{number}",
            "partitions": [{"topic": "orders", "ranges": str(number)}],
            "partitionCount": 1,
            "state": "Active",
        }
        for number in range(wanted)
    ]
    return fleet(
        STAR[1],
        STAR[0],
        targetReplicas=wanted,
        readyReplicas=max(1, wanted - 1),
        memberCount=wanted,
        members=members,
        assignor="cooperative-weighted",
        coordinator={"id": 3, "host": "kafka-3:9092"},
        limit="MaxReplicas" if wanted >= 6 else "None",
        scaling={
            "arrivalPerSecond": str(100 + 90 * wanted),
            "perReplicaPerSecond": "110",
            "rawReplicas": f"{wanted - 0.4:.1f}",
            "usefulReplicas": wanted,
            "decision": "Grow",
            "reason": f"{100 + 90 * wanted} records arrive each second, and a worker handles 110",
            "at": to_text(NOW),
            "lastStep": {"from": wanted - 1, "to": wanted, "at": to_text(NOW - 60), "reason": "more records arrive"},
        },
        conditions=[
            condition("Ready", "False", "PodsNotReady", "5 of 6 workers are ready: the sixth pod starts"),
            condition("Degraded", "True", "BreakerOpen", "1 worker pauses: most records fail with TimeoutError"),
            condition("LagKnown", "True", "AsExpected"),
        ],
        transitions=[
            {
                "from": "Stable",
                "to": "PreparingRebalance",
                "at": to_text(NOW - 90),
                "cause": "orders-fleet-5: joined",
                "inferred": False,
            },
            {
                "from": "PreparingRebalance",
                "to": "Stable",
                "at": to_text(NOW - 88),
                "cause": "all members have joined",
                "inferred": True,
                "generation": 12,
            },
        ],
        retry={
            "waiting": 64,
            "failed": 12,
            "policyRevision": "standard@1a2b3c4d5e",
            "nextDueAt": to_text(NOW + 120),
            "safeUntil": to_text(NOW + 86_400),
            "failedReasons": [
                {"reason": "Exhausted", "errorClass": "TimeoutError", "records": 8},
                {"reason": "Fatal", "errorClass": "ValueError", "records": 4},
            ],
        },
    )


def star_observation() -> ClusterObservation:
    return observation(STAR[1], STAR[0])


def star_backfills() -> list[dict[str, Any]]:
    running = {
        "progressText": "62 %, slice 4 of 7",
        "offsetsCovered": 620,
        "ratePerSecond": 5400,
        "startedAt": to_text(NOW - 600),
        "estimatedEnd": to_text(NOW + 300),
        "records": {"in": 610, "out": 598, "failed": 12},
        "conditions": [condition("Ready", "True", "ReadyToRun"), condition("Complete", "False", "Running")],
    }
    done = {"phase": "Succeeded", "offsetsCovered": 1000, "finishedAt": to_text(NOW - 3600), "progressText": "100 %"}
    return [
        backfill("reprocess-may", of=STAR[1], namespace=STAR[0], **running),
        backfill("compare", of=STAR[1], namespace=STAR[0], **done),
    ]


def load_of(step: int) -> int:
    """A number of workers that follows a wave, for a plot with a history."""
    return 3 + round(3 * math.sin(step / 4) ** 2)
