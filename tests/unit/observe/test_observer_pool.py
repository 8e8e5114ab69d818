"""KafkaClusters that share an observer, and what each of them and its groups hear of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.patterns import compile_pattern
from fleet_consumer.net import NetworkClient, SaslSettings
from fleet_operator.observe import observer_pool
from fleet_operator.observe.changes import Observed
from fleet_operator.observe.observer import Observer, ObserverStoppedError
from fleet_operator.observe.observer_pool import ObserverPool, TooManyObserversError, _Post, _Slot
from fleet_operator.observe.subscriptions import GroupSubscription, ObserverSettings
from fleet_operator.planning.observation import ClusterObservation, GroupObservation
from tests.support.waiting import eventually_async
from tests.unit.observe.ears import Ear, observer_threads
from tests.unit.observe.scripted_cluster import ScriptedCluster
from tests.unit.observe.watched import Watched
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

ONE, TWO = ("ns1", "main"), ("ns2", "kafka")
OF_ONE, OF_TWO = ("ns1", "flights"), ("ns2", "flights")
ALL = compile_pattern("t.*")
Changes = Mapping[str, GroupSubscription | None]


def subscription(name: str, *topics: str) -> GroupSubscription:
    return GroupSubscription(group_id=name, topics=topics)


def good(*groups: str, cluster_id: str = "a") -> ClusterObservation:
    return ClusterObservation(
        observed_at=1.0,
        reachable=True,
        cluster_id=cluster_id,
        groups={name: GroupObservation(group_id=name, observed_at=1.0, state="Stable") for name in groups},
        last_good_at=1.0,
    )


class Pool(ObserverPool):
    """A pool whose observers' own observations do not arrive: those of a test do. `changes` are the subscriptions."""

    def __init__(self, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(SystemClock(), ear)
        self.changes: list[tuple[Observer, Changes]] = []
        watch, changes = Observer.watch, self.changes

        def recorded(observer: Observer, wanted: Changes) -> None:
            changes.append((observer, dict(wanted)))
            watch(observer, wanted)

        monkeypatch.setattr(Observer, "watch", recorded)
        monkeypatch.setattr(Observer, "_poll", lambda observer, client, part, memory: observer._stopping.wait(0.01))

    def publish(self, of: tuple[str, str], observation: ClusterObservation, /, **changes: Any) -> None:
        """Have the observer of a cluster publish an observation."""
        post = self._slots[of].post
        self._receive(post, Observed(observation=observation, seconds=0.1, **changes))

    def seen(self, cluster: tuple[str, str]) -> ClusterObservation:
        latest = self.latest(cluster)
        assert latest is not None
        return latest


async def shared(nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch) -> tuple[Pool, Ear]:
    ear = Ear()
    pool = Pool(ear, monkeypatch)
    pool.watch(OF_ONE, ONE, subscription("flights", "t1"))
    pool.ensure(ONE, nobody, "of-one")
    pool.ensure(TWO, replace(nobody), "of-two")
    pool.watch(OF_TWO, TWO, subscription("trains", "t2"))
    return pool, ear


async def test_clusters_with_equal_settings_share_one_thread(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, ear = await shared(nobody, monkeypatch)
    (thread,) = observer_threads()

    def where(_: NetworkClient) -> threading.Thread:
        return threading.current_thread()

    assert [await pool.act(cluster, where) for cluster in (ONE, TWO)] == [thread, thread]
    pool.publish(ONE, good("flights", "trains"), cluster=True, groups={"flights": True, "trains": False})
    assert [(pool.seen(each).connection, pool.seen(each).identified) for each in (ONE, TWO)] == [
        ("of-one", True),
        ("of-two", True),
    ]
    assert sorted(ear.clusters) == sorted(ear.polls) == [ONE, TWO]
    assert sorted(ear.groups) == [(OF_ONE, True), (OF_TWO, False)]
    await pool.close()
    assert observer_threads() == []


async def test_clusters_with_other_credentials_share_none(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has lesser rights must see what these rights allow."""
    pool, _ = await shared(nobody, monkeypatch)
    login = SaslSettings(mechanism="PLAIN", username="x", password="y")
    pool.ensure(("ns3", "main"), replace(nobody, sasl=login))
    pool.ensure(("ns4", "main"), replace(nobody, sasl=replace(login, password="z")))
    assert len(observer_threads()) == 3
    await pool.close()


async def test_connections_of_a_namespace_and_of_all_are_bounded(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal ones count once; those that are observed stay, and another one has the place of one that went."""
    monkeypatch.setattr(observer_pool, "OBSERVERS_PER_NAMESPACE_MAX", 2)
    monkeypatch.setattr(observer_pool, "OBSERVERS_MAX", 3)
    pool = Pool(Ear(), monkeypatch)
    settings = [replace(nobody, client_id=f"client-{number}") for number in range(5)]
    try:
        for number in range(2):
            pool.ensure(("many", f"own-{number}"), settings[number])
            pool.ensure(("many", f"equal-{number}"), settings[number])
        with pytest.raises(TooManyObserversError, match="namespace 'many' have 2 different connections already"):
            pool.ensure(("many", "further"), settings[2])
        assert pool.latest(("many", "further")) is None
        pool.ensure(("few", "one"), settings[2])
        pool.ensure(("many", "further"), settings[2])
        with pytest.raises(TooManyObserversError, match="all namespaces have 3 different connections already"):
            pool.ensure(("few", "two"), settings[3])
        pool.stop(("many", "further"))
        pool.ensure(("few", "one"), settings[4])  # an edit needs no further place
        pool.stop(("few", "one"))
        pool.ensure(("few", "two"), settings[3])
    finally:
        await pool.close()


async def test_stop_of_one_cluster_leaves_the_other_its_observer(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, ear = await shared(nobody, monkeypatch)
    (thread,) = observer_threads()
    pool.stop(ONE)
    assert pool.changes[-1][1] == {"flights": None}
    assert pool.latest(ONE) is None
    with pytest.raises(ObserverStoppedError):
        await pool.act(ONE, lambda _: None)
    assert await pool.act(TWO, lambda _: threading.current_thread()) is thread
    pool.publish(TWO, good("trains"), lost=True)
    assert ear.groups == [(OF_TWO, True)]
    pool.stop(TWO)

    async def ended() -> bool:
        return observer_threads() == []

    await eventually_async(ended, timeout_s=10, what="the thread to end with its last cluster")
    await pool.close()


async def test_cluster_that_joins_sees_the_last_observation_at_once(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, _ = await shared(nobody, monkeypatch)
    pool.publish(ONE, good("flights"))
    pool.ensure(("ns3", "main"), nobody, "of-three")
    seen = pool.seen(("ns3", "main"))
    assert (seen.reachable, seen.connection, seen.identified) == (True, "of-three", True)
    await pool.close()


async def test_cluster_id_kept_from_before_identifies_no_cluster_that_joins(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(Ear(), monkeypatch)
    pool.ensure(ONE, nobody, "old")
    pool.publish(ONE, good())
    pool.ensure(ONE, replace(nobody, interval_seconds=9.0), "new")
    assert (pool.seen(ONE).unconfirmed, pool.seen(ONE).identified) == (True, False)
    pool.publish(ONE, replace(good(), reachable=False, reason="BrokerUnreachable"))
    pool.ensure(TWO, replace(nobody, interval_seconds=9.0), "of-two")
    assert [(pool.seen(each).cluster_id, pool.seen(each).identified) for each in (ONE, TWO)] == [("a", False)] * 2
    pool.publish(ONE, good())
    assert [pool.seen(each).identified for each in (ONE, TWO)] == [True, True]
    await pool.close()


async def test_kafka_group_of_two_objects_on_two_clusters_is_observed_once_for_both(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, ear = await shared(nobody, monkeypatch)
    pool.watch(OF_TWO, TWO, replace(subscription("flights", "t2"), waits=True))
    wanted = {name: subscription for _, changes in pool.changes for name, subscription in changes.items()}
    assert wanted["trains"] is None
    both = wanted["flights"]
    assert both is not None
    assert (both.topics, both.named_topics) == (("t1",), ("t1", "t2")), "that of the other one only has to exist"
    pool.publish(ONE, good("flights"), groups={"flights": True})
    assert sorted(ear.groups) == [(OF_ONE, True), (OF_TWO, True)]
    pool.unwatch(OF_ONE)
    left = pool.changes[-1][1]["flights"]
    assert left is not None
    assert left.topics == ("t2",)
    pool.unwatch(OF_TWO)
    assert pool.changes[-1][1] == {"flights": None}
    await pool.close()


@pytest.mark.parametrize("owner_first", [True, False])
@pytest.mark.parametrize("others", [subscription("flights", "t2"), GroupSubscription(group_id="flights", pattern=ALL)])
async def test_owner_is_sampled_by_its_own_topics_whoever_else_names_its_kafka_group(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch, others: GroupSubscription, owner_first: bool
) -> None:
    """A suspended copy, in any namespace, would otherwise keep its number of workers as it is for good."""
    pool = Pool(Ear(), monkeypatch)
    for cluster in (ONE, TWO):
        pool.ensure(cluster, nobody)
    owner, copy = replace(subscription("flights", "t1"), scaled=True, asleep=True), replace(others, waits=True)
    watches = [(OF_TWO, TWO, owner), (OF_ONE, ONE, copy)]
    for each in watches if owner_first else reversed(watches):
        pool.watch(*each)
    both = pool.changes[-1][1]["flights"]
    assert both is not None
    assert (both.scaled, both.asleep) == (True, True)
    watched = Watched(ScriptedCluster(1, {("t1", 0): [1], ("t2", 0): [1, 2]}), {"flights": both})
    watched.poll()
    assert [sample.end_offsets for sample in watched.group("flights").samples] == [{("t1", 0): 1}] * 2
    pool.unwatch(OF_TWO)
    assert pool.changes[-1][1]["flights"] == copy
    await pool.close()


async def test_group_that_refers_to_another_cluster_is_observed_there_only(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, ear = await shared(nobody, monkeypatch)
    pool.ensure(("ns1", "other"), replace(nobody, interval_seconds=9.0))
    pool.watch(OF_ONE, ("ns1", "other"), subscription("flights", "t1"))
    pool.publish(ONE, good("flights"), groups={"flights": True})
    assert ear.groups == []
    pool.publish(("ns1", "other"), good("flights"), groups={"flights": True})
    assert ear.groups == [(OF_ONE, True)]
    await pool.close()


async def test_renewed_credentials_of_one_cluster_leave_the_others_groups_behind(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, ear = await shared(nobody, monkeypatch)
    pool.publish(ONE, good("flights", "trains"))
    renewed = replace(nobody, sasl=SaslSettings(mechanism="PLAIN", username="x", password="renewed"))
    pool.ensure(ONE, renewed, "of-one")
    seen = pool.seen(ONE)
    assert (seen.unconfirmed, set(seen.groups)) == (True, {"flights"})
    assert pool.changes[-2][1] == {"flights": None}, "the shared observer has one group less"
    assert set(pool.changes[-1][1]) == {"flights"}
    assert len(observer_threads()) == 2
    pool.publish(TWO, replace(good("trains"), reachable=False), lost=True)
    assert ear.groups == [(OF_TWO, True)]
    assert not pool.seen(TWO).reachable
    assert pool.seen(ONE).unconfirmed
    await pool.close()


async def test_observation_of_an_observer_that_was_stopped_is_dropped(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on its way to the event loop when its cluster got other credentials."""
    pool, ear = await shared(nobody, monkeypatch)
    post = pool._slots[ONE].post
    pool.stop(TWO)
    pool.ensure(ONE, replace(nobody, bootstrap_servers=("127.0.0.1:1",)), "new")
    ear.clear()
    pool._receive(post, Observed(observation=good("flights"), seconds=0.1, cluster=True, groups={"flights": True}))
    pool._receive(post, Observed(observation=good("flights"), lost=True))
    assert (ear.clusters, ear.groups, ear.polls) == ([], [], [])
    assert pool.latest(ONE) is None
    await pool.close()


async def test_observer_that_died_is_replaced_for_each_of_its_clusters(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, _ = await shared(nobody, monkeypatch)
    dead = pool._slots[ONE].post.observer
    dead.stop()
    await asyncio.to_thread(dead.join, 10)
    pool.ensure(ONE, nobody, "of-one")
    pool.ensure(TWO, nobody, "of-two")
    (thread,) = observer_threads()
    assert [await pool.act(each, lambda _: threading.current_thread()) for each in (ONE, TWO)] == [thread, thread]
    alive = pool._slots[ONE].post
    assert (alive.clusters, set(alive.groups)) == ({ONE, TWO}, {"flights", "trains"})
    await pool.close()


async def test_subscriptions_that_come_first_are_there_before_the_first_poll(
    nobody: ObserverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ObserverPool(SystemClock(), Ear())
    first: list[set[str]] = []

    def poll(observer: Observer, client: object, part: object, memory: object) -> None:
        first.append(set(part.subscriptions))  # type: ignore[attr-defined]
        observer._stopping.wait(0.01)

    monkeypatch.setattr(Observer, "_poll", poll)
    for number in range(50):
        pool.watch(("ns", f"g{number}"), ONE, subscription(f"g{number}", "t"))
    pool.ensure(ONE, nobody)

    async def polled() -> bool:
        return bool(first)

    await eventually_async(polled, timeout_s=10, what="a poll")
    assert first[0] == {f"g{number}" for number in range(50)}
    await pool.close()


def test_observer_that_hangs_is_told_once_and_so_is_its_end() -> None:
    """No poll will tell it."""
    ear = Ear()

    async def life() -> None:
        pool = ObserverPool(VirtualClock(asyncio.get_running_loop()), ear)
        hanging = Observer("ns1/main", ObserverSettings(bootstrap_servers=("b:1",)), pool._clock, lambda observed: None)
        post = _Post(hanging, {ONE}, {"flights": {(ONE, OF_ONE)}})
        pool._slots[ONE] = _Slot(post, "of-one")
        checking = asyncio.create_task(pool.keep_checking())
        await asyncio.sleep(300.0)
        assert (ear.clusters, ear.groups) == ([], []), "nothing was ever seen: nothing is stale"
        pool._receive(post, Observed(observation=replace(good("flights"), observed_at=pool._clock.wall()), seconds=0.1))
        ear.clear()
        await asyncio.sleep(59.0)
        assert (ear.clusters, ear.groups) == ([], [])
        await asyncio.sleep(3600.0)
        assert (ear.clusters, ear.groups) == ([ONE], [(OF_ONE, True)])
        ear.clear()
        for _ in range(2):
            seen = replace(good("flights"), observed_at=pool._clock.wall())
            pool._receive(post, Observed(observation=seen, seconds=0.1))
        assert (ear.clusters, ear.groups) == ([ONE], [(OF_ONE, True)])
        checking.cancel()

    run_virtual(life())
