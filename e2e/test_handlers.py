"""Handlers of every form, and groups of every kind, in real pods."""

from __future__ import annotations

import copy
import secrets
from typing import Any

import pytest
import yaml

from e2e.cluster import PATIENCE_S, ROOT, conditions, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import FlightFleet, handler_config_map, owned_partitions

HTTP_EXAMPLE = ROOT / "examples" / "http"

RANDOM = """
import asyncio
import random

from fleet_consumer import Produce
from fleet_consumer.assignors import Assignment


class RandomAssignor:
    name = "random"

    def assign(self, cluster, subscriptions):
        chosen = {member: {} for member in subscriptions}
        members = sorted(subscriptions)
        for topic, count in cluster.partitions.items():
            for number in range(count):
                chosen[random.choice(members)].setdefault(topic, []).append(number)
        return {member: Assignment(partitions) for member, partitions in chosen.items()}


async def handle(record):
    await asyncio.sleep(0.01)
    return Produce("OUTPUT", record.value.upper())
"""


def objects(fleet: FlightFleet) -> tuple[dict[str, Any], dict[str, Any]]:
    """KafkaCluster and ConsumerGroup of the example, as copies."""
    _, kafka, group = copy.deepcopy(fleet.manifests())
    group["spec"]["handler"] = {"outputs": [fleet.output]}
    return kafka, group


def wait_values(fleet: FlightFleet, topic: str, wanted: set[str]) -> None:
    def probe() -> bool:
        found = fleet.inside("read", "--topic", topic)["values"]
        assert set(found) == wanted, found
        return True

    eventually(probe, timeout_s=PATIENCE_S, what=f"{topic} holds {sorted(wanted)}")


@pytest.mark.together
def test_http_handler_serves_its_worker_as_a_native_sidecar(fleets: Fleets) -> None:
    """The example: a small server of the standard library, on the port that the worker would otherwise use."""
    with fleets.named("served") as fleet:
        kafka, group = yaml.safe_load_all((HTTP_EXAMPLE / "fleet.yaml").read_text())
        group["metadata"]["name"], group["spec"]["topics"] = fleet.name, [fleet.source]
        group["spec"]["handler"]["outputs"] = [fleet.output]
        (handler,) = group["spec"]["template"]["spec"]["containers"]
        handler |= {"image": fleet.consumer_image, "env": [{"name": "OUTPUT", "value": fleet.output}]}
        server = handler_config_map("orders-server", "server.py", (HTTP_EXAMPLE / "server.py").read_text())
        fleet.cluster.apply([server, kafka, group], namespace=fleet.namespace)
        status = fleet.wait_stable(members=2)
        assert status["assignor"] == "cooperative-sticky"
        pod = fleet.cluster.get("pod", "served-fleet-0", namespace=fleet.namespace) or {}
        assert [each["name"] for each in pod["spec"]["containers"]] == ["worker"]
        assert [each["name"] for each in pod["spec"]["initContainers"]] == ["handler"]
        fleet.inside("write", "--topic", fleet.source, stdin=b"one tea\n   \ntwo teas\n")
        wait_values(fleet, fleet.output, {"ONE TEA", "TWO TEAS"})
        wait_values(fleet, fleet.failed, {"   "})
        # The operator reaches the worker on another port: only a worker reports the generation.
        eventually(
            lambda: fleet.group()["status"].get("generation"), timeout_s=240, what="a worker to report its generation"
        )


@pytest.mark.together
def test_m13_random_assignor_of_a_config_map_runs_in_pods(fleets: Fleets) -> None:
    """M13, with an asynchronous handler from the same source."""
    with fleets.named("random") as fleet:
        kafka, group = objects(fleet)
        group["spec"]["handler"] |= {
            "python": {"callable": "mine:handle", "configMapRef": {"name": "mine"}},
            "concurrency": 8,
        }
        group["spec"]["consumer"] = {"classic": {"assignors": ["mine:RandomAssignor"]}}
        fleet.cluster.apply(
            [handler_config_map("mine", "mine.py", RANDOM.replace("OUTPUT", fleet.output)), kafka, group],
            namespace=fleet.namespace,
        )
        status = fleet.wait_stable(members=2)
        assert status["assignor"] == "random"
        assert owned_partitions(status) == list(range(12))
        fleet.inside("write", "--topic", fleet.source, stdin=b"one tea\ntwo teas\n")
        wait_values(fleet, fleet.output, {"ONE TEA", "TWO TEAS"})


@pytest.mark.together
def test_pattern_takes_in_a_topic_that_appears_later(fleets: Fleets) -> None:
    """Status counts matching topics, managed topics never match, and the new one is read from its beginning."""
    with fleets.named("patterned") as fleet:
        kafka, group = objects(fleet)
        late = f"patterned-{secrets.token_hex(4)}"  # a cluster that was kept has topics of earlier runs
        del group["spec"]["topics"]
        group["spec"]["topicPattern"] = rf"patterned|{late}|_fleet\..*"
        group["spec"]["handler"] |= {
            "python": {"callable": "mine:handle", "configMapRef": {"name": "mine"}},
            "concurrency": 8,
        }
        group["spec"]["consumer"] = {"properties": {"metadata.max.age.ms": "2000"}}
        fleet.cluster.apply(
            [handler_config_map("mine", "mine.py", RANDOM.replace("OUTPUT", fleet.output)), kafka, group],
            namespace=fleet.namespace,
        )
        status = fleet.wait_stable(members=2)
        assert (status["assignor"], status["partitions"]) == ("cooperative-sticky", 12)
        fleet.inside("write", "--topic", "patterned", stdin=b"one tea\n")
        wait_values(fleet, fleet.output, {"ONE TEA"})
        fleet.inside("create-topics", "--partitions", "3", late)
        fleet.inside("write", "--topic", late, stdin=b"two teas\n")
        wait_values(fleet, fleet.output, {"ONE TEA", "TWO TEAS"})

        def counted() -> bool:
            found = fleet.group()
            assert found["status"].get("partitions") == 15, found["status"]
            assert conditions(found)["TopicsReady"]["status"] == "True", conditions(found)["TopicsReady"]
            return True

        eventually(counted, timeout_s=PATIENCE_S, what="its partitions to be counted")
