"""The last usable content of a RetryPolicy: its state names it, its record keeps it, new groups follow it."""

from __future__ import annotations

from typing import Any

from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, OPERATOR_STATE, RETRY_POLICY, JsonObject
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import PolicyRevision
from fleet_operator.reconcilers.consumergroup.gather import gather
from fleet_operator.reconcilers.retrypolicy import RetryPolicyReconciler
from tests.unit.reconcilers.redrive.world import World, run

KEY = ("shop", "standard")
MANY = [f"{seconds}s" for seconds in range(1, 18)]


class Policy:
    """A RetryPolicy in a world with a ConsumerGroup that refers to it and has published nothing yet."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.restart()

    def restart(self) -> None:
        self.world.start()
        self.world.deliver()
        self._reconciler = RetryPolicyReconciler(self.world.context)

    async def edit(self, *sequence: str) -> None:
        self.world.put(RETRY_POLICY, "standard", {"sequence": list(sequence)})
        await self.reconcile()

    async def reconcile(self) -> None:
        self.world.deliver()
        await self._reconciler.reconcile(KEY)
        self.world.deliver()

    @property
    def body(self) -> JsonObject:
        found = self.world.get(RETRY_POLICY, "standard")
        assert found is not None
        return found

    @property
    def state(self) -> Any:
        found = self.world.get(OPERATOR_STATE, "standard.retrypolicy")
        return found["data"].get("revision") if found is not None else None

    @property
    def records(self) -> list[str]:
        return sorted(name for kind, _, name in self.world.kube.objects if kind == CONFIG_MAP.kind)

    async def followed(self) -> PolicyRevision | Problem | None:
        """The content for a group that has published nothing yet."""
        self.world.deliver()
        group = self.world.store.get(CONSUMER_GROUP, ("shop", "orders"))
        assert group is not None
        return (await gather(self.world.context, group)).policy


def test_policy_that_cannot_be_used_serves_new_groups_by_its_state_also_without_its_status() -> None:
    async def life(world: World) -> None:
        policy = Policy(world)
        await policy.edit("5m")
        good = policy.state
        assert policy.records == [f"standard-{good}"]
        await policy.edit(*MANY)
        policy.body["status"] = {}
        policy.restart()
        await policy.reconcile()
        assert (policy.state, policy.records) == (good, [f"standard-{good}"])
        found = await policy.followed()
        assert isinstance(found, PolicyRevision)
        assert (found.hash, found.sequence) == (good, ("5m",))

    run(life)


def test_policy_that_never_could_be_used_has_neither_state_nor_record() -> None:
    async def life(world: World) -> None:
        policy = Policy(world)
        await policy.edit(*MANY)
        assert (policy.state, policy.records) == (None, [])
        found = await policy.followed()
        assert isinstance(found, Problem)
        assert found.reason == "TooManyDelays"

    run(life)


def test_record_of_an_unusable_policy_whose_state_was_lost_is_kept() -> None:
    """Nothing says which content was the last usable one, so that none is removed."""

    async def life(world: World) -> None:
        policy = Policy(world)
        await policy.edit("5m")
        record = policy.records
        await policy.edit(*MANY)
        for content in (None, {"revision": 7}):
            del world.kube.objects[OPERATOR_STATE.kind, "shop", "standard.retrypolicy"]
            if content is not None:
                world.keep(RETRY_POLICY, "standard", content)
            policy.restart()
            await policy.reconcile()
            assert policy.records == record
            assert isinstance(await policy.followed(), Problem)
            world.keep(RETRY_POLICY, "standard", {"revision": record[0].removeprefix("standard-")})

    run(life)


def test_newer_content_replaces_an_older_record_that_no_group_follows() -> None:
    async def life(world: World) -> None:
        policy = Policy(world)
        await policy.edit("5m")
        first = policy.state
        await policy.edit("6m")
        assert policy.state != first
        assert policy.records == [f"standard-{policy.state}"]

    run(life)
