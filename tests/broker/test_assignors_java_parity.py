"""Range and round robin against Kafka's own, on the same random clusters: they must not differ in one partition."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

from e2e.local_cluster.jars import ensure_kafka_jars
from e2e.local_cluster.kafka_node import find_java
from fleet_consumer.assignors import ClusterView, Subscription, load

CLUSTERS = 10_000
ORACLE = Path(__file__).parent / "JavaAssignors.java"
ODD_NAMES = ("～", "\U0001f600", "é", "_")


def random_cluster(chance: random.Random) -> dict[str, Any]:
    topics = {f"t{number}": chance.randint(0, 9) for number in range(chance.randint(0, 6))}
    names = {f"{chance.choice(['c', 'd', *ODD_NAMES])}{chance.randint(0, 99)}" for _ in range(chance.randint(1, 12))}
    same = chance.random() < 0.5
    wanted = sorted([*topics, "missing"])
    common = chance.sample(wanted, chance.randint(0, len(wanted)))
    return {
        "assignor": chance.choice(["range", "roundrobin"]),
        "partitions": topics,
        "members": {
            name: {
                "topics": common if same else chance.sample(wanted, chance.randint(0, len(wanted))),
                "instance": f"i{chance.randint(0, 9)}-{name}" if chance.random() < 0.4 else None,
            }
            for name in sorted(names)
        },
    }


def test_range_and_roundrobin_plan_as_java_does() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    questions = [random_cluster(chance) for _ in range(CLUSTERS)]
    oracle = subprocess.run(
        [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", f"{ensure_kafka_jars()}/*", str(ORACLE)],
        input="".join(json.dumps(question, ensure_ascii=False) + "\n" for question in questions).encode(),
        capture_output=True,
        check=False,
    )
    assert oracle.returncode == 0, oracle.stderr.decode()
    answers = oracle.stdout.decode().splitlines()
    assert len(answers) == CLUSTERS
    for question, answer in zip(questions, answers, strict=True):
        plans = load(question["assignor"]).assign(
            ClusterView(partitions=question["partitions"]),
            {
                name: Subscription(topics=member["topics"], instance_id=member["instance"])
                for name, member in question["members"].items()
            },
        )
        assert {name: plan.partitions for name, plan in plans.items()} == json.loads(answer), question
