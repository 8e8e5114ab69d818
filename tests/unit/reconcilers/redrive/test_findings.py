"""The findings of a finished Redrive reach the state of its group."""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.reconcilers.redrive import RECORDED_SECONDS
from fleet_operator.reconcilers.run import WATCH_SECONDS
from tests.unit.planning import builders
from tests.unit.reconcilers.redrive.world import KEY, TOPICS, World, run


def test_group_is_brought_back_until_it_has_the_findings_of_a_finished_redrive() -> None:
    """Nothing else brings it back before its next resync: a status that the operator wrote is no change."""

    async def life(world: World) -> None:
        topics = {name: replace(topic, topic_id=f"id-of-{name}") for name, topic in TOPICS.items()}
        world.sight.seen = builders.observation(topics=topics)
        world.redrive()
        await world.reconcile()
        world.controller()
        await world.reconcile()
        world.finish(word='{"ok": true, "selected": 7, "moved": 7, "redrivenTo": 0}')
        world.deliver()
        ended = await world.reconciler.reconcile(KEY)
        assert world.recorded == [], "its own status is not in the caches yet"
        assert ended is not None
        assert ended <= WATCH_SECONDS
        waits = await world.reconciler.reconcile(KEY)
        assert world.recorded == [("shop", "orders")]
        assert waits is not None
        assert waits <= RECORDED_SECONDS

    run(life)
