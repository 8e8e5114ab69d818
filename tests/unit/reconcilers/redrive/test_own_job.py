"""The Job of a Redrive is known by its name, whatever labels it and others have."""

from __future__ import annotations

import copy

import pytest

from fleet_operator.clients.kinds import JOB, POD, JsonObject
from fleet_operator.planning.labels import COMPONENT_LABEL, GROUP_LABEL, REDRIVE_LABEL
from tests.unit.reconcilers.redrive.world import World, run


async def begin(world: World) -> JsonObject:
    """A Redrive at work; its Job."""
    world.redrive()
    for _ in range(2):
        await world.reconcile()
        world.controller()
    (job,) = world.jobs()
    return job


def unlabel(world: World, monkeypatch: pytest.MonkeyPatch, job: JsonObject, *labels: str) -> None:
    """Somebody takes labels off a Job: a watch that selects by one of them reports it as deleted."""
    for label in labels:
        del job["metadata"]["labels"][label]
    world.kube.version += 1
    job["metadata"]["resourceVersion"] = str(world.kube.version)
    deliver = world.deliver

    def selected() -> None:
        deliver()
        if REDRIVE_LABEL in labels:
            world.store.cache(JOB).remove(("shop", "fixed-redrive"), job["metadata"]["uid"], world.kube.version)

    monkeypatch.setattr(world, "deliver", selected)


@pytest.mark.parametrize("labels", [(GROUP_LABEL,), (GROUP_LABEL, REDRIVE_LABEL)])
def test_run_whose_job_lost_its_labels_comes_to_its_end(
    monkeypatch: pytest.MonkeyPatch, labels: tuple[str, ...]
) -> None:
    async def life(world: World) -> None:
        unlabel(world, monkeypatch, await begin(world), *labels)
        await world.reconcile()
        assert world.status()["phase"] == "Running"
        world.redrive(suspend=True)
        await world.reconcile()
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Paused", True)
        world.controller()
        world.redrive()
        await world.reconcile()
        assert world.jobs() == []
        await world.reconcile()
        world.controller()
        world.finish()
        await world.reconcile()
        assert (world.status()["phase"], world.status()["moved"]) == ("Succeeded", 4)

    run(life)


def test_copy_of_the_job_ends_nothing() -> None:
    async def life(world: World) -> None:
        job = await begin(world)
        other = copy.deepcopy(job)
        other["metadata"] |= {"name": "aaa", "uid": "uid-of-aaa"}
        other["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        world.kube.objects = {(JOB.kind, "shop", "aaa"): other, **world.kube.objects}
        world.start()
        await world.reconcile()
        assert world.status()["phase"] == "Running"
        world.finish()
        await world.reconcile()
        assert world.status()["moved"] == 4

    run(life)


@pytest.mark.parametrize("named", ["ghost", "fixed"])
def test_pod_that_no_job_has_made_holds_up_nobody(named: str) -> None:
    async def life(world: World) -> None:
        labels = {GROUP_LABEL: "orders", COMPONENT_LABEL: "redrive", REDRIVE_LABEL: named}
        metadata = {"name": "stray", "namespace": "shop", "uid": "stray", "resourceVersion": "1", "labels": labels}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Running"}}
        world.kube.objects[POD.kind, "shop", "stray"] = pod
        world.redrive()
        await world.reconcile()
        assert (world.status()["phase"], len(world.jobs())) == ("Running", 1)

    run(life)
