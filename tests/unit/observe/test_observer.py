"""The observer's schedule, its thread, and what the event loop hears of it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TypeVar

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.net import (
    AllBrokersUnreachable,
    AuthenticationFailed,
    Disconnected,
    NetError,
    NetworkClient,
    SaslSettings,
    TlsFailed,
    TokenUnavailable,
)
from fleet_operator.observe.changes import Observed
from fleet_operator.observe.observer import (
    REST_FACTOR,
    UNCONFIRMED_PAUSE_SECONDS,
    ObserverStoppedError,
    failure,
    pause_of_failure,
)
from fleet_operator.observe.observer_memory import (
    HURRY_MAX_SECONDS,
    INTERVAL_SECONDS_MAX,
    OUTAGE_SECONDS,
    GroupPart,
    ObserverMemory,
    pause_s,
)
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.observe.subscriptions import GroupSubscription, ObserverSettings
from fleet_operator.planning.observation import (
    ClusterObservation,
    GroupObservation,
    MemberObservation,
    RetryObservation,
    last_known,
)
from fleet_operator.reconcilers.kafkacluster import FIXED_BY_SECRETS
from tests.support.waiting import eventually_async
from tests.unit.observe.ears import Ear, observer_threads

T = TypeVar("T")

CLUSTER, GROUP = ("ns", "main"), ("ns", "flights")


def seen(state: str, error: str | None = None) -> ClusterObservation:
    group = GroupObservation(group_id="g", observed_at=0.0, state=state, error=error)
    return ClusterObservation(observed_at=0.0, reachable=True, groups={"g": group})


def part() -> GroupPart:
    return GroupPart(patterns=False, subscriptions=subscriptions())


def subscriptions() -> dict[str, GroupSubscription]:
    return {"g": GroupSubscription(group_id="g", topics=("t",))}


@pytest.mark.parametrize(
    ("polled", "pause"),
    [
        (seen("Stable"), 5.0),
        (seen("PreparingRebalance"), 5.0),
        (seen("Empty"), 5.0),
        (seen("Stable", error="CoordinatorLoadInProgress"), 1.0),
        (ClusterObservation(observed_at=0.0, reachable=True), 1.0),
    ],
)
def test_groups_that_polls_have_not_seen_are_polled_more_often(polled: ClusterObservation, pause: float) -> None:
    """States of the others are merge_states at each second."""
    assert pause_s(part(), 5.0, polled, 0.0) == pause


def test_group_that_can_never_be_asked_does_not_keep_the_pace_up_for_ever() -> None:
    polled = part()
    refused = seen("Unknown", error="AuthorizationFailed")
    assert pause_s(polled, 5.0, refused, 0.0) == 1.0
    assert pause_s(polled, 5.0, refused, HURRY_MAX_SECONDS + 1) == 5.0
    assert pause_s(polled, 5.0, seen("Stable"), HURRY_MAX_SECONDS + 2) == 5.0
    assert pause_s(polled, 5.0, refused, HURRY_MAX_SECONDS + 3) == 1.0


@pytest.mark.parametrize(
    ("interval", "asleep", "pause"), [(5.0, False, 5.0), (60.0, False, 10.0), (5.0, True, 2.0), (1.0, True, 1.0)]
)
def test_scaled_groups_are_polled_often_enough_and_sleeping_ones_more(
    interval: float, asleep: bool, pause: float
) -> None:
    subscribed = {"g": replace(subscriptions()["g"], scaled=True, asleep=asleep)}
    assert pause_s(GroupPart(False, subscribed), interval, seen("Empty" if asleep else "Stable"), 0.0) == pause


@pytest.mark.parametrize(("due_in", "pause"), [(2.5, 2.5), (0.2, 1.0), (-60.0, 1.0), (90.0, 5.0), (None, 5.0)])
def test_unattended_due_time_is_not_slept_through(due_in: float | None, pause: float) -> None:
    flow = RetryObservation(observed_at=0.0, next_due_at=due_in)
    stable = GroupObservation(group_id="g", observed_at=0.0, state="Stable", retry=flow)
    polled = ClusterObservation(observed_at=0.0, reachable=True, groups={"g": stable})
    assert pause_s(part(), 5.0, polled, 0.0) == pause
    worker = MemberObservation(member_id="m", instance_id=None, client_id="c", host="h")
    attended = replace(polled, groups={"g": replace(stable, retry=replace(flow, members=(worker,)))})
    assert pause_s(part(), 5.0, attended, 0.0) == 5.0


def test_polls_become_rarer_with_their_cost_up_to_a_limit() -> None:
    def pause(polled: ClusterObservation, all_cpu_s: float, interval: float = 5.0) -> float:
        return pause_s(part(), interval, polled, 0.0, all_cpu_s=all_cpu_s)

    assert [pause(seen("Stable"), cpu) for cpu in (0.1, 0.4, 8.0)] == [5.0, 8.0, INTERVAL_SECONDS_MAX]
    assert pause(seen("Stable"), 8.0, interval=60.0) == 60.0, "an interval that was chosen is not shortened"
    assert pause(ClusterObservation(observed_at=0.0, reachable=True), 8.0) == 1.0


def test_refused_credentials_are_not_repeated_quickly() -> None:
    def refused(reason: str) -> ClusterObservation:
        return ClusterObservation(observed_at=0.0, reachable=False, reason=reason)

    assert pause_of_failure(refused("AuthenticationFailed"), 5.0, 0.0) == 30.0
    assert pause_of_failure(refused("TlsFailed"), 60.0, 0.0) == 60.0
    assert pause_of_failure(refused("BrokerUnreachable"), 5.0, 0.0) == 5.0


def test_failed_poll_that_cost_much_rests_as_long_as_one_that_succeeded() -> None:
    """Brokers of a tenant may answer with megabytes, and an error at their end."""
    away = ClusterObservation(observed_at=0.0, reachable=False, reason="BrokerUnreachable")
    assert pause_of_failure(away, 15.0, 8.0) == REST_FACTOR * 8.0


def test_one_poll_that_failed_proves_nothing_and_the_next_one_comes_soon() -> None:
    memory = ObserverMemory()
    assert [memory.is_proven(at, at + 1.0) for at in (0.0, 5.0, 10.0)] == [False, False, True]
    memory.merge(memory.parts.due(0.0), ClusterObservation(observed_at=0.0, reachable=True), 1.0)
    assert not memory.is_proven(60.0, 61.0)
    assert memory.is_proven(61.0, 60.0 + OUTAGE_SECONDS), "polls that hang take long enough"
    wondering = ClusterObservation(observed_at=0.0, reachable=False, unconfirmed=True)
    assert pause_of_failure(wondering, 60.0, 0.0) == UNCONFIRMED_PAUSE_SECONDS


def test_only_a_known_observation_becomes_unconfirmed() -> None:
    """Before the first good poll, and when a broker refuses us, the first failure is told."""
    good = replace(seen("Stable"), last_good_at=1.0)
    lost, refused = Disconnected("lost"), AuthenticationFailed("refused")
    assert failure(lost, good, 2.0, proven=False).unconfirmed
    assert failure(lost, good, 2.0, proven=False).groups == good.groups
    assert not failure(lost, good, 2.0, proven=True).unconfirmed
    assert not failure(lost, None, 2.0, proven=False).unconfirmed
    assert not failure(refused, good, 2.0, proven=False).unconfirmed


def no_broker(*failures: NetError) -> AllBrokersUnreachable:
    return AllBrokersUnreachable("no broker answers", failures=failures)


def test_refusal_next_to_a_broker_that_is_away_is_the_reason_and_may_pass() -> None:
    """Certificates are renewed broker by broker: our Secret is read again soon, and nobody is alarmed by one poll."""
    good = replace(seen("Stable"), last_good_at=1.0)
    mixed = failure(no_broker(TlsFailed("refused"), Disconnected("away")), good, 2.0, proven=False)
    assert (mixed.reason, mixed.unconfirmed) == ("TlsFailed", True)
    both = failure(no_broker(TlsFailed("refused"), TlsFailed("refused")), good, 2.0, proven=False)
    assert (both.reason, both.unconfirmed) == ("TlsFailed", False)
    none = failure(no_broker(), good, 2.0, proven=False)
    assert (none.reason, none.unconfirmed) == ("BrokerUnreachable", True)


async def test_failed_poll_notifies_only_after_enough_failures(nobody: ObserverSettings) -> None:
    ear = Ear()
    observers = ObserverPool(SystemClock(), ear)
    observers.watch(GROUP, CLUSTER, subscriptions()["g"])
    observers.ensure(CLUSTER, nobody)
    post = observers._slots[CLUSTER].post
    post.observer.stop()
    await asyncio.to_thread(post.observer.join, 10)
    await asyncio.sleep(0)
    ear.clusters.clear()
    ear.groups.clear()
    memory = ObserverMemory()
    memory.change(subscriptions())

    def take(observation: ClusterObservation) -> None:
        part = memory.parts.due(0.0)
        observers._receive(
            post,
            memory.merge(part, observation, 0.1) if observation.reachable else memory.fail(observation, 0.1),
        )

    good = replace(seen("Stable"), last_good_at=1.0)
    lost = Disconnected("lost")
    take(good)
    assert (len(ear.clusters), ear.groups) == (1, [(GROUP, True)])
    for _ in range(2):
        take(failure(lost, good, 2.0, proven=False))
        latest = observers.latest(CLUSTER)
        assert latest
        assert not latest.reachable, "whoever is about to act sees that Kafka does not answer"
    take(good)
    assert (len(ear.clusters), len(ear.groups)) == (1, 1)
    take(failure(lost, good, 3.0, proven=False))
    take(failure(lost, good, 4.0, proven=True))
    assert (len(ear.clusters), len(ear.groups)) == (2, 2)
    await observers.close()


async def test_unreachable_broker_notifies_once(nobody: ObserverSettings) -> None:
    ear = Ear()
    observers = ObserverPool(SystemClock(), ear)
    observers.watch(GROUP, CLUSTER, subscriptions()["g"])
    observers.ensure(CLUSTER, nobody)
    polls: set[float] = set()

    async def three_polls() -> bool:
        latest = observers.latest(CLUSTER)
        if latest:
            polls.add(latest.observed_at)
        return len(polls) >= 3

    await eventually_async(three_polls, timeout_s=20, what="three polls")
    latest = observers.latest(CLUSTER)
    assert latest
    assert (latest.reachable, latest.reason, latest.last_good_at) == (False, "BrokerUnreachable", None)
    assert ear.clusters == [CLUSTER]
    assert ear.groups == [(GROUP, True)]
    await observers.close()
    assert observer_threads() == []


async def test_equal_settings_keep_the_observer_and_others_replace_it(nobody: ObserverSettings) -> None:
    observers = ObserverPool(SystemClock(), Ear())
    observers.ensure(CLUSTER, nobody)
    (first,) = observer_threads()
    observers.ensure(CLUSTER, ObserverSettings(bootstrap_servers=nobody.bootstrap_servers, interval_seconds=0.2))
    assert observer_threads() == [first]
    observers.ensure(CLUSTER, ObserverSettings(bootstrap_servers=nobody.bootstrap_servers, interval_seconds=0.3))

    async def replaced() -> bool:
        return bool(observer_threads()) and first not in observer_threads()

    await eventually_async(replaced, timeout_s=15, what="another thread")
    await observers.close()
    assert observer_threads() == []


def good(cluster_id: str = "a") -> ClusterObservation:
    now = SystemClock().wall()
    return ClusterObservation(observed_at=now, reachable=True, cluster_id=cluster_id, last_good_at=now)


async def seen_once(nobody: ObserverSettings) -> ObserverPool:
    """A pool whose observer of connection `old` has seen cluster `a`."""
    observers = ObserverPool(SystemClock(), Ear())
    observers.ensure(CLUSTER, nobody, "old")
    observers._receive(observers._slots[CLUSTER].post, Observed(observation=good(), seconds=0.1))
    return observers


async def test_observer_with_renewed_credentials_begins_with_the_last_observation_unconfirmed(
    nobody: ObserverSettings,
) -> None:
    """Otherwise each rotation would turn all conditions of a cluster and its groups to Unknown and back."""
    observers = await seen_once(nobody)
    login = SaslSettings(mechanism="PLAIN", username="x", password="renewed")
    observers.ensure(CLUSTER, replace(nobody, sasl=login), "old")
    latest = observers.latest(CLUSTER)
    assert latest
    assert (latest.reachable, latest.unconfirmed, latest.cluster_id, latest.identified) == (False, True, "a", True)
    shown = last_known(latest)
    assert shown
    assert (shown.reachable, shown.reason) == (True, "")
    observers.ensure(CLUSTER, replace(nobody, sasl=None, interval_seconds=9.0), "new")
    latest = observers.latest(CLUSTER)
    assert latest
    assert (latest.connection, latest.identified) == ("new", False)
    await observers.close()


async def test_observer_of_other_addresses_begins_without_an_observation(nobody: ObserverSettings) -> None:
    observers = await seen_once(nobody)
    observers.ensure(CLUSTER, replace(nobody, bootstrap_servers=("127.0.0.1:1",)), "new")
    assert observers.latest(CLUSTER) is None
    await observers.close()


async def test_unreachable_cluster_is_not_unconfirmed_after_a_renewal(nobody: ObserverSettings) -> None:
    """Unconfirmed, it would be shown as reachable."""
    observers = await seen_once(nobody)
    refused = replace(good(), reachable=False, reason="AuthenticationFailed")
    observers._receive(observers._slots[CLUSTER].post, Observed(observation=refused, seconds=0.1))
    observers.ensure(CLUSTER, replace(nobody, interval_seconds=9.0), "old")
    assert observers.latest(CLUSTER) is None
    await observers.close()


async def test_refusal_of_another_connection_keeps_the_cluster_id_as_unidentified(nobody: ObserverSettings) -> None:
    observers = await seen_once(nobody)
    observers.refuse(CLUSTER, "SecretNotLabelled", "label it", "old")
    latest = observers.latest(CLUSTER)
    assert latest
    assert (latest.connection, latest.cluster_id, latest.identified) == ("old", "a", True)
    observers.refuse(CLUSTER, "SecretNotLabelled", "label it", "new")
    latest = observers.latest(CLUSTER)
    assert latest
    assert (latest.connection, latest.cluster_id, latest.identified) == ("new", "a", False)


async def test_refusal_stands_in_for_an_observation() -> None:
    ear = Ear()
    observers = ObserverPool(SystemClock(), ear)
    observers.watch(GROUP, CLUSTER, subscriptions()["g"])
    observers.refuse(CLUSTER, "SecretNotFound", "secret `x` does not exist")
    observers.refuse(CLUSTER, "SecretNotFound", "secret `x` does not exist")
    latest = observers.latest(CLUSTER)
    assert latest
    assert (latest.reachable, latest.reason) == (False, "SecretNotFound")
    assert ear.groups == [(GROUP, True)]
    observers.stop(CLUSTER)
    assert observers.latest(CLUSTER) is None


async def test_action_runs_on_the_observers_thread_and_brings_its_error_back(nobody: ObserverSettings) -> None:
    observers = ObserverPool(SystemClock(), Ear())
    observers.ensure(CLUSTER, nobody)

    def where(_: NetworkClient) -> str:
        return threading.current_thread().name

    def fail(_: NetworkClient) -> None:
        raise LookupError("no")

    assert await observers.act(CLUSTER, where) == "observer-ns/main"
    with pytest.raises(LookupError):
        await observers.act(CLUSTER, fail)
    await observers.close()
    with pytest.raises(ObserverStoppedError):
        await observers.act(CLUSTER, where)


async def test_flood_of_actions_does_not_keep_polls_from_being_taken(nobody: ObserverSettings) -> None:
    """More work than fits between two polls: polls go on while it is done."""
    observers = ObserverPool(SystemClock(), Ear())
    observers.ensure(CLUSTER, nobody)
    pause = threading.Event()
    polls: set[float] = set()

    def work(_: NetworkClient) -> None:
        pause.wait(0.1)
        latest = observers.latest(CLUSTER)
        if latest:
            polls.add(latest.observed_at)

    await asyncio.gather(*(observers.act(CLUSTER, work) for _ in range(25)))
    await observers.close()
    assert len(polls) >= 2


async def test_action_for_an_observer_that_is_being_stopped_is_refused(nobody: ObserverSettings) -> None:
    observers = ObserverPool(SystemClock(), Ear())
    observers.ensure(CLUSTER, nobody)
    entered, leave = threading.Event(), threading.Event()

    def hold(_: NetworkClient) -> bool:
        entered.set()
        return leave.wait(10)

    holding = asyncio.ensure_future(observers.act(CLUSTER, hold))
    waiting = asyncio.ensure_future(observers.act(CLUSTER, lambda _: None))
    await asyncio.to_thread(entered.wait, 10)
    observers.stop(CLUSTER)
    leave.set()
    assert await holding
    with pytest.raises(ObserverStoppedError):
        await waiting
    await observers.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TlsFailed("x", reason="CertificateNotTrusted"), "TlsFailed"),
        (TlsFailed("x", reason="ClientCertificateRefused"), "TlsFailed"),
        (AuthenticationFailed("x", reason="ServerNotAuthentic"), "AuthenticationFailed"),
        (TokenUnavailable("x"), "BrokerUnreachable"),
    ],
)
def test_failures_a_renewed_secret_may_fix_have_the_rereading_reason(error: NetError, reason: str) -> None:
    assert failure(error, None, 0.0).reason == reason
    assert (reason in FIXED_BY_SECRETS) == (reason != "BrokerUnreachable")
