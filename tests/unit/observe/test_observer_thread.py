"""The observer's thread from its first poll to its end, with a cluster in memory in the place of the network client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.patterns import compile_pattern
from fleet_consumer.net import AllBrokersUnreachable, BrokerAddress, Call, Disconnected, RequestTimedOut
from fleet_consumer.wire.message import Request
from fleet_consumer.wire.topics import MetadataResponse
from fleet_operator.observe import group_aggregation
from fleet_operator.observe import observer as observers
from fleet_operator.observe.changes import Observed
from fleet_operator.observe.observer import Observer, ObserverStoppedError
from fleet_operator.observe.observer_memory import WEIGHT_MAX
from fleet_operator.observe.subscriptions import GroupSubscription, ObserverSettings
from fleet_operator.planning.observation import ClusterObservation
from tests.support.waiting import eventually
from tests.unit.observe.scripted_cluster import ScriptedCluster

FILLING = tuple(f"filling{number}" for number in range(WEIGHT_MAX - 1))
SETTINGS = ObserverSettings(bootstrap_servers=("broker:9092",), interval_seconds=0.2)


@dataclass
class Client(ScriptedCluster):
    """The scripted cluster behind the face of a network client. While it is `away` no broker answers, while it is
    `crowded` all topics are too many for one answer; calls of `pending` kinds never end."""

    away: bool = False
    crowded: bool = False
    pending: set[str] = field(default_factory=set)
    woken: threading.Event = field(default_factory=threading.Event)
    waits: threading.Event = field(default_factory=threading.Event)
    """Set once the thread waits for a call that does not end."""

    def metadata(self, topics: Sequence[str] | None = (), *, timeout_s: float) -> MetadataResponse:
        if self.away:
            gone = Disconnected("away", address=BrokerAddress("broker", 0), reason="Disconnected")
            raise AllBrokersUnreachable("no broker answers", failures=(gone,))
        if self.crowded and topics is None:
            raise RequestTimedOut("no answer", address=BrokerAddress("broker", 0))
        return super().metadata(topics, timeout_s=timeout_s)

    def send(self, address: BrokerAddress, request: Request[Any], *, timeout_s: float) -> Call[Any]:
        if request.RESPONSE.__name__ in self.pending:
            return Call(address, request, timeout_s=timeout_s, deadline=0.0)
        return super().send(address, request, timeout_s=timeout_s)

    def poll(self, timeout_s: float) -> None:
        if self.pending:
            self.waits.set()
        self.woken.wait(timeout_s)
        self.woken.clear()

    def wakeup(self) -> None:
        self.woken.set()

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class Run:
    """One observer, its cluster and all that it has published."""

    client: Client
    published: list[Observed] = field(default_factory=list)
    observer: Observer = field(init=False)

    def start(self, settings: ObserverSettings = SETTINGS, last: ClusterObservation | None = None) -> None:
        self.observer = Observer("ns/main", settings, SystemClock(), self.published.append, last)
        self.observer.watch(
            {
                "a": GroupSubscription(group_id="a", topics=("t",)),
                "b": GroupSubscription(group_id="b", topics=("t", *FILLING)),
            }
        )
        self.observer.start()

    def told(self, since: int = 0) -> list[str]:
        """The groups that were notified, in order."""
        return [group_id for observed in self.published[since:] for group_id in observed.groups]

    def until(self, true: Callable[[], bool], what: str) -> None:
        eventually(true, timeout_s=20, what=what)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    client = Client(1, {("t", 0): []}, commits={"a": {}, "b": {}})
    monkeypatch.setattr(observers, "NetworkClient", lambda connection, clock: client)
    found = Run(client)
    yield found
    found.observer.stop()
    assert found.observer.join(10.0)


def test_first_polls_find_all_groups_part_by_part(run: Run) -> None:
    run.start()
    run.until(lambda: sorted(run.told()) == ["a", "b"], "both groups to be notified")
    first = run.published[0]
    assert (first.observation.reachable, first.cluster, len(first.groups)) == (True, True, 1)
    assert set(run.published[-1].observation.groups) == {"a", "b"}


def test_cluster_that_was_lost_and_came_back_notifies_each_group_once(run: Run) -> None:
    run.start()
    run.until(lambda: len(run.told()) == 2, "both groups to be notified")
    run.client.away = True
    run.until(lambda: any(observed.lost for observed in run.published), "the loss")
    lost = next(observed for observed in run.published if observed.lost)
    assert set(lost.observation.groups) == {"a", "b"}, "their last values"
    assert sum(observed.lost for observed in run.published) == 1
    since = len(run.published)
    run.client.away = False
    run.until(lambda: len(run.told(since)) == 2, "both groups to be notified again")
    count = len(run.published)
    run.until(lambda: len(run.published) >= count + 4, "more polls")
    assert sorted(run.told(since)) == ["a", "b"]
    assert sum(observed.lost for observed in run.published) == 1


def test_pattern_that_asks_for_too_much_hides_no_other_group(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own group is unknown, and why; the cluster answers, and so do all that ask for their topics by name."""
    monkeypatch.setattr(group_aggregation, "GROUP_UNCONFIRMED_SECONDS", 0.5)
    run.start()
    run.until(lambda: len(run.told()) == 2, "both groups to be notified")
    run.client.crowded = True
    since = len(run.published)
    run.observer.watch({"p": GroupSubscription(group_id="p", pattern=compile_pattern("t.*"))})

    def latest() -> ClusterObservation:
        return run.published[-1].observation

    run.until(lambda: run.told(since).count("p") == 1, "the group with the pattern to be notified")
    known = latest().groups["p"]
    assert (known.error, known.unconfirmed) == ("RequestTimedOut", False)
    run.client.groups["a"] = ("PreparingRebalance", ())
    run.until(lambda: latest().groups["a"].state == "PreparingRebalance", "the state of another group")
    assert not any(observed.lost for observed in run.published[since:])
    assert latest().reachable
    run.client.crowded = False
    run.until(lambda: latest().groups["p"].error is None, "the group with the pattern to be observed")
    assert run.told(since).count("p") == 2


def test_observer_that_begins_unconfirmed_finds_its_groups_in_what_was_known(run: Run) -> None:
    run.start()
    run.until(lambda: len(run.told()) == 2, "both groups to be notified")
    run.observer.stop()
    assert run.observer.join(10.0)
    last = run.published[-1].observation
    run.published.clear()
    run.start(last=last)
    run.until(lambda: sorted(run.told()) == ["a", "b"], "both groups to be notified by the second observer")
    assert all(set(observed.observation.groups) == {"a", "b"} for observed in run.published)
    assert all("t" in observed.observation.topics for observed in run.published)


def test_state_is_seen_long_before_the_next_poll(run: Run) -> None:
    run.start(ObserverSettings(bootstrap_servers=("broker:9092",), interval_seconds=300.0))
    run.until(lambda: len(run.told()) == 2, "both groups to be notified")
    run.client.groups["a"] = ("PreparingRebalance", ())
    run.until(lambda: run.told()[2:] == ["a"], "a state poll")
    assert run.published[-1].seconds is None
    assert run.published[-1].observation.groups["a"].state == "PreparingRebalance"


def test_changed_topics_are_polled_now(run: Run) -> None:
    run.start(ObserverSettings(bootstrap_servers=("broker:9092",), interval_seconds=300.0))
    run.until(lambda: len(run.told()) == 2, "both groups to be notified")
    run.client.logs["t", 1] = []
    run.observer.poll_soon(["t"])
    run.until(lambda: sorted(run.told()[2:]) == ["a", "b"], "both groups to hear of the new partition")


def test_group_that_is_wanted_later_is_polled_now_and_one_that_is_not_is_gone(run: Run) -> None:
    run.start(ObserverSettings(bootstrap_servers=("broker:9092",), interval_seconds=300.0))
    run.until(lambda: len(run.told()) == 2, "both groups to be notified")
    run.observer.watch({"a": None, "c": GroupSubscription(group_id="c", topics=("t",))})
    run.until(lambda: run.told()[2:] == ["c"], "the new group")
    assert set(run.published[-1].observation.groups) == {"b", "c"}


def test_stop_ends_a_poll_that_waits_for_a_broker(run: Run) -> None:
    run.client.pending.add("ListOffsetsResponse")
    run.start()
    assert run.client.waits.wait(10.0)
    asked = run.observer.submit(lambda client: None)
    run.observer.stop()
    assert run.observer.join(5.0)
    assert run.published == []
    assert isinstance(asked.exception(5.0), ObserverStoppedError)


def test_action_for_an_observer_that_has_ended_is_refused(run: Run) -> None:
    """It may have died of a bug; whoever waits for the outcome would wait indefinitely."""
    run.start()
    run.observer.stop()
    assert run.observer.join(10.0)
    assert isinstance(run.observer.submit(lambda client: None).exception(5.0), ObserverStoppedError)
