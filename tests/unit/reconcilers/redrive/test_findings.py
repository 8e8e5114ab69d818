"""The findings of a finished Redrive reach the state of its group."""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.reconcilers.redrive import NOTED_SECONDS
from fleet_operator.reconcilers.run import WATCH_SECONDS
from tests.unit.planning import builders
from tests.unit.reconcilers.redrive.world import KEY, TOPICS, World, run


def test_group_is_brought_back_until_it_has_the_findings_of_a_finished_redrive() -> None:
    """Nothing else brings it back before its next resync: a status that the operator wrote is no news."""

    async def life(world: World) -> None:
        topics = {name: replace(topic, topic_id=f"id-of-{name}") for name, topic in TOPICS.items()}
        world.sight.seen = builders.observation(topics=topics)
        world.redrive()
        await world.look()
        world.controller()
        await world.look()
        world.finish(word='{"ok": true, "selected": 7, "moved": 7, "redrivenTo": 0}')
        world.deliver()
        ended = await world.reconciler.reconcile(KEY)
        assert world.noted == [], "its own status is not in the caches yet"
        assert ended.requeue_after is not None
        assert ended.requeue_after <= WATCH_SECONDS
        waits = await world.reconciler.reconcile(KEY)
        assert world.noted == [("shop", "orders")]
        assert waits.requeue_after is not None
        assert waits.requeue_after <= NOTED_SECONDS

    run(life)
