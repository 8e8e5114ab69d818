"""A Redrive and another Kafka cluster: the records that it was to move are not there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.clients.kinds import CONFIG_MAP, KAFKA_CLUSTER, OPERATOR_STATE
from fleet_operator.reconcilers.states import state_name
from tests.unit.planning import builders
from tests.unit.reconcilers.redrive.world import TOPICS, World, run

CLUSTER = (KAFKA_CLUSTER.kind, "shop", "main")
STATE = (OPERATOR_STATE.kind, "shop", state_name(KAFKA_CLUSTER, "main"))


async def begin(world: World, **spec: Any) -> None:
    """A Redrive at work on cluster A."""
    world.keep(KAFKA_CLUSTER, "main", {"cluster_id": "cluster-a"})
    observe(world, "a")
    world.redrive(**spec)
    await reconcile_often(world)
    assert world.status()["phase"] == "Running"


async def reconcile_often(world: World, count: int = 3) -> None:
    for _ in range(count):
        await world.reconcile()
        world.controller()


def observe(world: World, letter: str, *, identified: bool = True) -> None:
    """The brokers of this cluster answer; each cluster has other failed records."""
    connection = builders.kafka_cluster(bootstrapServers=brokers(letter)).spec.connection
    topics = {name: replace(topic, topic_id=f"{letter}-{name}") for name, topic in TOPICS.items()}
    seen = builders.observation(topics=topics, cluster_id=f"cluster-{letter}", connection=connection)
    world.sight.seen = replace(seen, identified=identified)


def brokers(letter: str) -> list[str]:
    return ["kafka:9092"] if letter == "a" else [f"kafka-{letter}:9092"]


def edit(world: World, letter: str) -> None:
    """The KafkaCluster is pointed to another cluster."""
    world.put(KAFKA_CLUSTER, "main", {"bootstrapServers": brokers(letter)})
    observe(world, letter)


def delete(world: World) -> None:
    for address in (CLUSTER, STATE):
        del world.kube.objects[address]


def make_again(world: World, letter: str) -> None:
    """The KafkaCluster is made again, for this cluster."""
    edit(world, letter)
    world.kube.objects[CLUSTER]["metadata"]["uid"] = "uid-of-another"
    world.keep(KAFKA_CLUSTER, "main", {"cluster_id": f"cluster-{letter}"})
    world.kube.objects[STATE]["metadata"] |= {"uid": "uid-of-another-state"}
    world.kube.objects[STATE]["metadata"]["ownerReferences"][0]["uid"] = "uid-of-another"


def assert_ended(world: World) -> None:
    assert (world.status()["phase"], world.jobs()) == ("Failed", [])
    ready = world.status()["conditions"][0]
    assert ready["reason"] == "RangeLost"
    assert "create another Redrive" in ready["message"]


@pytest.mark.parametrize("edited_first", [True, False])
@pytest.mark.parametrize("spec", [{}, {"suspend": True}, {"rate": {"recordsPerSecond": 7}}])
def test_redrive_ends_once_another_cluster_is_accepted(edited_first: bool, spec: dict[str, Any]) -> None:
    async def life(world: World) -> None:
        await begin(world)
        if edited_first:
            edit(world, "b")
            await reconcile_often(world)
            assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Paused", True)
        delete(world)
        await reconcile_often(world)
        world.redrive(**spec)
        make_again(world, "b")
        await reconcile_often(world)
        assert_ended(world)
        assert "clusterId" not in world.status()
        assert world.pods_made == 1

    run(life)


def test_redrive_goes_on_when_its_cluster_answers_again() -> None:
    async def life(world: World) -> None:
        await begin(world)
        edit(world, "b")
        await reconcile_often(world)
        assert world.status()["phase"] == "Paused"
        edit(world, "a")
        await reconcile_often(world)
        assert (world.status()["phase"], world.pods_made) == ("Running", 2)

    run(life)


def test_next_job_has_the_connection_of_its_time() -> None:
    async def life(world: World) -> None:
        await begin(world)
        world.redrive(suspend=True)
        await reconcile_often(world)
        world.put(KAFKA_CLUSTER, "main", {"bootstrapServers": ["moved:9092"]})
        connection = builders.kafka_cluster(bootstrapServers=["moved:9092"]).spec.connection
        assert world.sight.seen is not None
        world.sight.seen = replace(world.sight.seen, connection=connection)
        world.redrive()
        await reconcile_often(world)
        assert world.pods_made == 2
        assert "moved:9092" in (world.get(CONFIG_MAP) or {})["data"]["redrive.json"]

    run(life)


def test_next_job_waits_until_the_cluster_is_known() -> None:
    async def life(world: World) -> None:
        await begin(world)
        world.redrive(suspend=True)
        await reconcile_often(world)
        delete(world)
        make_again(world, "b")
        observe(world, "b", identified=False)
        world.redrive()
        await reconcile_often(world)
        assert world.status()["conditions"][0]["reason"] == "NotYetObserved"
        assert world.pods_made == 1
        observe(world, "b")
        await reconcile_often(world)
        assert_ended(world)

    run(life)


def test_redrive_begun_by_an_earlier_version_goes_on() -> None:
    async def life(world: World) -> None:
        await begin(world)
        facts = world.kube.objects[OPERATOR_STATE.kind, "shop", "fixed.redrive"]["data"]["facts"]
        assert facts.pop("clusterId") == "cluster-a"
        world.start()
        world.redrive(suspend=True)
        await reconcile_often(world)
        world.redrive()
        await reconcile_often(world)
        assert (world.status()["phase"], world.pods_made) == ("Running", 2)
        facts = world.kube.objects[OPERATOR_STATE.kind, "shop", "fixed.redrive"]["data"]["facts"]
        assert facts["clusterId"] == "cluster-a", "it is recorded late"

    run(life)


@pytest.mark.parametrize(("records", "phase"), [([{"partition": 0, "offset": 4}], "Failed"), (None, "Running")])
def test_named_records_are_lost_with_their_topic(records: list[dict[str, int]] | None, phase: str) -> None:
    async def life(world: World) -> None:
        await begin(world, **({"records": records} if records else {}))
        assert world.sight.seen is not None
        topics = {name: replace(topic, topic_id=f"new-{name}") for name, topic in TOPICS.items()}
        world.sight.seen = replace(world.sight.seen, topics=topics)
        await reconcile_often(world)
        assert world.status()["phase"] == phase
        if records:
            assert_ended(world)

    run(life)
