"""A Redrive's reconciler against an API server in memory, a Job controller in a few lines, and death at any call."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, JOB, KAFKA_CLUSTER, POD, REDRIVE
from fleet_operator.planning.offsets.records import Committed
from fleet_operator.planning.state.group import GroupState, UpgradeState
from fleet_operator.reconcilers.states import States
from tests.unit.planning import builders
from tests.unit.reconcilers.redrive.world import KEY, TOPICS, DeathError, Moment, World, run


def test_redrive_runs_its_job_and_ends_with_the_runs_message() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.reconcile()
        job = world.get(JOB)
        assert job is not None
        assert job["spec"]["template"]["spec"]["containers"][0]["image"].startswith("consumer-fleet-consumer:")
        assert '"groupId": "orders"' in (world.get(CONFIG_MAP) or {})["data"]["redrive.json"]
        assert (world.status()["phase"], "startedAt" in world.status()) == ("Running", True)
        world.controller()
        world.sight.positions = (Committed(4, '{"v":1,"end":10,"selected":3,"moved":2,"guarded":1}'),)
        await asyncio.sleep(5.0)
        await world.reconcile()
        assert world.again == [KEY, KEY], "the end of each question brings the Redrive back"
        await asyncio.sleep(6.0)
        await world.reconcile()
        assert [world.status()[name] for name in ("selected", "moved", "guarded", "remaining")] == [3, 2, 1, 6]
        world.finish()
        await world.reconcile()
        assert world.status()["phase"] == "Succeeded"
        assert [world.status()[name] for name in ("selected", "moved", "guarded", "remaining")] == [5, 4, 1, 0]
        result = await world.reconcile()
        assert result is None or result > 10
        del world.kube.objects[JOB.kind, "shop", "fixed-redrive"]
        before = list(world.kube.writes)
        await world.reconcile()
        assert world.kube.writes == before, "a finished Redrive whose Job is gone is left alone"

    run(life)


def test_run_has_the_image_that_its_group_is_pinned_to() -> None:
    async def life(world: World) -> None:
        world.deliver()
        group = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]
        states = States(world.store, world.clock)
        pinned = UpgradeState(image="worker:old", source="Operator")
        await states.save(group, replace(states.read(group, GroupState), upgrade=pinned), before=None)
        world.redrive()
        await world.reconcile()
        job = world.get(JOB)
        assert job is not None
        assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "worker:old"

    run(life)


def test_final_message_not_yet_watched_is_read_live() -> None:
    """The Job's end and its pod's come by two watches: an end is final, so it must not be written down without it."""

    async def life(world: World) -> None:
        world.redrive()
        await world.reconcile()
        world.controller()
        await world.reconcile()
        stale = copy.deepcopy(next(body for a, body in world.kube.objects.items() if a[0] == POD.kind))
        world.finish()
        world.deliver()
        world.store.cache(POD).remove(("shop", stale["metadata"]["name"]), "another", world.kube.version)
        pods = world.store.cache(POD)
        del pods._objects["shop", stale["metadata"]["name"]]
        pods.observe(stale)
        await world.reconciler.reconcile(KEY)
        assert world.status()["moved"] == 4

    run(life)


def test_missing_prerequisites_are_waited_for() -> None:
    async def life(world: World) -> None:
        world.redrive()
        world.sight.seen = builders.observation(topics={})
        result = await world.reconcile()
        assert (world.status()["phase"], world.jobs()) == ("Pending", [])
        assert result is not None
        assert result <= 5
        world.sight.seen = builders.observation(topics=TOPICS)
        await world.reconcile()
        assert world.status()["phase"] == "Running"

    run(life)


def test_suspended_redrive_goes_on_with_another_job_once_the_last_pod_has_ended() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.reconcile()
        world.controller()
        first = world.jobs()[0]["metadata"]["uid"]
        world.redrive(suspend=True)
        await world.reconcile()
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Paused", True)
        world.redrive()
        await world.reconcile()
        assert world.jobs()[0]["spec"]["suspend"], "the last pod has not ended yet"
        world.controller()
        await world.reconcile()
        assert (world.status()["phase"], world.jobs()) == ("Running", [])
        await world.reconcile()
        (job,) = world.jobs()
        assert (world.status()["phase"], job["spec"].get("suspend")) == ("Running", None)
        assert job["metadata"]["uid"] != first

    run(life)


def test_new_rate_means_a_new_job_once_the_old_pod_has_ended() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.reconcile()
        world.controller()
        first = world.jobs()[0]["metadata"]["uid"]
        world.redrive(rate={"recordsPerSecond": 7})
        await world.reconcile()
        assert world.jobs() == []
        world.controller(end_old=False)
        await world.reconcile()
        assert world.jobs() == [], "the old pod may still be moving records"
        world.controller()
        await world.reconcile()
        (job,) = world.jobs()
        assert job["metadata"]["uid"] != first
        assert '"recordsPerSecond": 7' in (world.get(CONFIG_MAP) or {})["data"]["redrive.json"]

    run(life)


def test_redrives_of_one_group_take_turns_the_oldest_first() -> None:
    async def life(world: World) -> None:
        world.redrive("younger", at=2)
        world.redrive("fixed", at=1)
        await asyncio.gather(world.reconcile("younger"), world.reconcile("fixed"))
        assert [job["metadata"]["name"] for job in world.jobs()] == ["fixed-redrive"]
        assert world.status("younger")["phase"] == "Pending"
        assert "'fixed'" in world.status("younger")["conditions"][0]["message"]
        world.controller()
        world.redrive("fixed", at=1, suspend=True)
        await world.reconcile("fixed")
        await world.reconcile("younger")
        assert len(world.jobs()) == 1, "its pod has not ended"
        world.controller()
        await world.reconcile("younger")
        assert len(world.jobs()) == 2
        world.redrive("fixed", at=1)
        world.controller()
        await world.reconcile("fixed")
        assert world.status("fixed")["phase"] == "Pending"
        world.finish()
        await world.reconcile("younger")
        await world.reconcile("fixed")
        assert (world.status("younger")["phase"], world.status("fixed")["phase"]) == ("Succeeded", "Running")
        assert world.most_pods == 1

    run(life)


def test_two_that_begin_at_the_same_moment_do_not_both_run() -> None:
    """Both decide to run from the same caches; only what is read live, one after the other, tells them apart."""

    async def life(world: World) -> None:
        world.redrive("one", at=1)
        world.deliver()
        first = asyncio.create_task(world.reconciler.reconcile(("shop", "one")))
        world.redrive("two", at=1)
        world.deliver()
        # As if its watch event were late.
        world.store.cache(REDRIVE).remove(("shop", "one"), "uid-of-one", world.kube.version)
        await asyncio.gather(first, world.reconciler.reconcile(("shop", "two")))
        assert len(world.jobs()) == 1

    run(life)


def test_nothing_is_started_for_a_redrive_deleted_unseen() -> None:
    async def life(world: World) -> None:
        world.redrive()
        world.deliver()
        del world.kube.objects[REDRIVE.kind, "shop", "fixed"]
        await world.reconciler.reconcile(KEY)
        assert world.kube.writes == []
        assert world.store.get(REDRIVE, KEY) is None

    run(life)


def test_deleted_group_cancels_only_its_running_redrive() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.reconcile()
        world.controller()
        del world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]
        await world.reconcile()
        assert (world.status()["phase"], world.jobs()) == ("Cancelled", [])
        world.redrive("later")
        await world.reconcile("later")
        assert (world.status("later")["phase"], world.jobs()) == ("Pending", [])

    run(life)


def test_run_without_readers_is_paused_and_resumed() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.reconcile()
        world.controller()
        first = world.jobs()[0]["metadata"]["uid"]
        spec = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]["spec"]
        world.put(CONSUMER_GROUP, "orders", {key: value for key, value in spec.items() if key != "retry"})
        await world.reconcile()
        ready = world.status()["conditions"][0]
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Paused", True)
        assert (ready["status"], ready["reason"]) == ("False", "RetryNotConfigured")
        assert "name a RetryPolicy" in ready["message"]
        world.controller()
        before = list(world.kube.writes)
        await world.reconcile()
        assert world.kube.writes == before
        world.put(CONSUMER_GROUP, "orders", spec)
        for _ in range(2):
            await world.reconcile()
        assert (world.status()["phase"], world.jobs()[0]["spec"].get("suspend")) == ("Running", None)
        assert world.jobs()[0]["metadata"]["uid"] != first
        world.controller()
        assert world.most_pods == 1

    run(life)


def test_run_of_a_group_that_is_suspended_waits_for_its_workers() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.reconcile()
        world.controller()
        spec = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]["spec"]
        world.put(CONSUMER_GROUP, "orders", {**spec, "suspend": True})
        await world.reconcile()
        ready = world.status()["conditions"][0]
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Paused", True)
        assert (ready["status"], ready["reason"]) == ("False", "GroupSuspended")
        world.controller()
        world.put(CONSUMER_GROUP, "orders", spec)
        for _ in range(2):
            await world.reconcile()
        assert (world.status()["phase"], world.jobs()[0]["spec"].get("suspend")) == ("Running", None)

    run(life)


def test_group_that_is_paused_holds_back_new_runs_only() -> None:
    """Its condition Paused says that the operator changes nothing; what runs goes on, as workers do."""

    async def life(world: World) -> None:
        group = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]
        world.redrive()
        await world.reconcile()
        world.controller()
        world.put(CONSUMER_GROUP, "orders", group["spec"], annotations={"consumerfleet.io/paused": "true"})
        world.redrive("later", at=1)
        for name in ("fixed", "later"):
            await world.reconcile(name)
        assert (world.status("fixed")["phase"], world.jobs()[0]["spec"].get("suspend")) == ("Running", None)
        world.finish(word='{"ok":true,"selected":0,"moved":0,"guarded":0}')
        for name in ("fixed", "later"):
            await world.reconcile(name)
        assert (world.status("fixed")["phase"], world.status("later")["phase"]) == ("Succeeded", "Pending")
        assert world.status("later")["conditions"][0]["reason"] == "PausedByAnnotation"
        assert len(world.jobs()) == 1
        world.put(CONSUMER_GROUP, "orders", group["spec"])
        await world.reconcile("later")
        assert (world.status("later")["phase"], len(world.jobs())) == ("Running", 2)

    run(life)


def test_run_on_another_cluster_than_the_groups_is_halted() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.reconcile()
        world.controller()
        main = world.kube.objects[KAFKA_CLUSTER.kind, "shop", "main"]
        await States(world.store, world.clock).save(main, ClusterIdentity(cluster_id="another"), before=None)
        world.put(KAFKA_CLUSTER, "main", {"bootstrapServers": ["kafka:9092"]})
        await world.reconcile()
        assert (world.status()["phase"], world.jobs()[0]["spec"]["suspend"]) == ("Paused", True)
        assert world.status()["conditions"][0]["reason"] == "ClusterIdChanged"

    run(life)


def test_job_of_an_edited_cluster_waits_until_the_operator_has_checked_its_secrets() -> None:
    """The Job would mount a Secret that no KafkaCluster may use, and log in with it at any address."""

    async def life(world: World) -> None:
        world.put(KAFKA_CLUSTER, "main", {"bootstrapServers": ["evil:9092"]})
        world.redrive()
        await world.reconcile()
        assert world.jobs() == []
        assert (world.status()["phase"], world.status()["conditions"][0]["reason"]) == ("Pending", "NotYetObserved")
        world.put(KAFKA_CLUSTER, "main", {"bootstrapServers": ["kafka:9092"]})
        await world.reconcile()
        assert len(world.jobs()) == 1

    run(life)


def test_redrive_of_a_group_that_waits_for_an_older_one_is_not_started() -> None:
    """Both objects have the same failed topic, and the older one's Redrives would not see what this one moves."""

    async def life(world: World) -> None:
        spec = world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]["spec"]
        world.put(CONSUMER_GROUP, "double", {**spec, "groupId": "orders"}, at=30)
        world.redrive(groupRef={"name": "double"})
        await world.reconcile()
        assert (world.status()["phase"], world.jobs()) == ("Pending", [])
        assert world.status()["conditions"][0]["reason"] == "GroupIdTaken"
        assert "shop/orders" in world.status()["conditions"][0]["message"]

    run(life)


def test_failed_run_is_an_end() -> None:
    async def life(world: World) -> None:
        world.redrive()
        await world.reconcile()
        world.controller()
        world.finish(code=20, word='{"ok":false,"reason":"SettingsInvalid","message":"filter.keyRegex: no"}')
        await world.reconcile()
        (ready, complete, failed) = world.status()["conditions"]
        assert world.status()["phase"] == "Failed"
        assert (ready["status"], complete["status"], failed["status"]) == ("False", "False", "True")
        assert (failed["type"], failed["reason"], complete["reason"]) == ("Failed", *["SettingsInvalid"] * 2)
        assert "filter.keyRegex" in complete["message"]

    run(life)


def test_foreign_job_is_not_taken_over() -> None:
    async def life(world: World) -> None:
        world.redrive()
        metadata = {"name": "fixed-redrive", "namespace": "shop", "uid": "theirs", "resourceVersion": "1"}
        theirs = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {}}
        world.kube.objects[JOB.kind, "shop", "fixed-redrive"] = theirs
        await world.reconcile()
        assert world.status()["phase"] == "Pending"
        assert world.status()["conditions"][0]["reason"] == "RefusedByApiServer"
        assert "Job `fixed-redrive`" in world.status()["conditions"][0]["message"]

    run(life)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_operator_killed_at_any_call_converges(moment: Moment) -> None:
    """One life (start, suspend, resume, new rate, end) with a death at each call: the end is always the same."""
    calls = [0]
    expected: list[dict[str, Any]] = [{}]

    def life_of(fatal: int) -> Callable[[World], Awaitable[None]]:
        async def life(world: World) -> None:
            client = world.start(fatal, moment)

            async def turn(**spec: Any) -> None:
                """A user's edit, and then operators until nothing moves."""
                nonlocal client
                world.redrive(**spec)
                for _ in range(6):
                    try:
                        await world.reconcile()
                    except DeathError:
                        calls[0] += client.calls
                        client = world.start()
                    world.controller()
                    await asyncio.sleep(6.0)

            await turn()
            await turn(suspend=True)
            await turn()
            await turn(rate={"recordsPerSecond": 9})
            world.finish()
            await turn(rate={"recordsPerSecond": 9}, suspend=True)
            status = world.status()
            outcome = {name: status[name] for name in ("phase", "selected", "moved", "guarded", "remaining")}
            assert world.most_pods == 1, f"killed {moment} call {fatal}"
            assert len(world.jobs()) == 1
            if fatal == 0:
                calls[0], expected[0] = client.calls, outcome
            assert outcome == expected[0], f"killed {moment} call {fatal}"
            assert outcome["phase"] == "Succeeded"

        return life

    run(life_of(0))
    total = calls[0]
    assert total > 10
    for fatal in range(1, total + 1):
        run(life_of(fatal))


def test_deleted_redrive_is_forgotten() -> None:
    async def life(world: World) -> None:
        world.redrive()
        world.sight.positions = (Committed(4, '{"v":1,"end":10}'),)
        await world.reconcile()
        await asyncio.sleep(11.0)
        await world.reconcile()
        assert "selected" in world.status()
        del world.kube.objects[REDRIVE.kind, "shop", "fixed"]
        assert await world.reconcile() is None
        world.sight.positions = ()
        world.redrive()
        for _ in range(2):
            await world.reconcile()
            await asyncio.sleep(11.0)
        assert "selected" not in world.status()

    run(life)


def test_unreachable_cluster_is_an_obstacle_with_its_own_reason() -> None:
    async def life(world: World) -> None:
        assert world.sight.seen is not None
        world.sight.seen = replace(world.sight.seen, reachable=False, reason="BrokerUnreachable", message="away")
        world.redrive()
        await world.reconcile()
        assert world.status()["conditions"][0]["reason"] == "BrokerUnreachable"

    run(life)
