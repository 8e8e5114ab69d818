"""The observer's memory: parts make one observation, each group hears once, and what is gone is forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_consumer.contract.patterns import compile_pattern
from fleet_consumer.net import RequestTimedOut
from fleet_operator.observe.changes import Observed
from fleet_operator.observe.observer_memory import WEIGHT_MAX, GroupPart, ObserverMemory
from fleet_operator.observe.subscriptions import GroupSubscription, retry_subscription
from fleet_operator.planning.observation import (
    ClusterObservation,
    GroupObservation,
    TopicObservation,
    last_known,
    last_known_group,
)

FILLING = tuple(f"t{number}" for number in range(WEIGHT_MAX - 2))
"""So many topics that, with one more, a group fills a part."""


def subscription(name: str, *topics: str) -> GroupSubscription:
    return GroupSubscription(group_id=name, topics=(*FILLING, *topics))


def memory_of(*subscriptions: GroupSubscription, last: ClusterObservation | None = None) -> ObserverMemory:
    memory = ObserverMemory(last=last)
    memory.change({subscription.group_id: subscription for subscription in subscriptions})
    return memory


def part_of(memory: ObserverMemory, name: str) -> GroupPart:
    (found,) = (part for part in memory.parts if name in part.subscriptions)
    return found


def poll(memory: ObserverMemory, name: str, *, state: str = "Stable", **topics: int) -> Observed:
    """Merge a poll of the part of a group; `topics` are those with partitions, the others do not exist."""
    part = part_of(memory, name)
    names = {topic for subscription in part.subscriptions.values() for topic in subscription.named_topics} - set(
        FILLING
    )
    names |= set(topics) if part.patterns else set()
    missing = TopicObservation(partitions=0, error="TopicNotFound")
    seen = ClusterObservation(
        observed_at=1.0,
        reachable=True,
        groups={g: GroupObservation(group_id=g, observed_at=1.0, state=state) for g in part.subscriptions},
        topics={t: TopicObservation(partitions=topics[t]) if t in topics else missing for t in names},
        matches={i.pattern.text: tuple(topics) for i in part.subscriptions.values() if i.pattern is not None},
        last_good_at=1.0,
    )
    return memory.merge(part, seen, 0.1)


def lost(memory: ObserverMemory, *, unconfirmed: bool = False) -> Observed:
    assert memory.last is not None
    return memory.fail(replace(memory.last, reachable=False, reason="BrokerUnreachable", unconfirmed=unconfirmed), 0.1)


def test_parts_make_one_observation() -> None:
    memory = memory_of(subscription("a", "ta"), subscription("b", "tb"))
    first = poll(memory, "a", ta=1).observation
    assert (set(first.groups), set(first.topics)) == ({"a"}, {"ta"})
    second = poll(memory, "b", tb=2).observation
    assert (set(second.groups), {n: t.partitions for n, t in second.topics.items()}) == (
        {"a", "b"},
        {"ta": 1, "tb": 2},
    )
    assert second.groups["a"] is first.groups["a"]


def test_topics_that_have_not_changed_are_the_same_mapping() -> None:
    """Whoever compares sees it without walking over all topics."""
    memory = memory_of(subscription("a", "ta"), subscription("b", "tb"))
    poll(memory, "a", ta=1)
    before = poll(memory, "b", tb=2).observation
    assert poll(memory, "a", ta=1).observation.topics is before.topics
    assert poll(memory, "b", tb=3).observation.topics["tb"].partitions == 3


def test_each_group_is_notified_when_its_own_part_was_polled_first() -> None:
    memory = memory_of(subscription("a"), subscription("b"))
    assert (poll(memory, "a").cluster, poll(memory, "a").groups) == (True, {})
    assert poll(memory, "b").groups == {"b": True}
    assert poll(memory, "b").groups == {}


def test_lost_cluster_that_comes_back_notifies_each_group_once() -> None:
    memory = memory_of(subscription("a"), subscription("b"))
    poll(memory, "a")
    poll(memory, "b")
    found = lost(memory)
    assert (found.lost, found.cluster, found.groups) == (True, True, {})
    assert (lost(memory).lost, lost(memory).cluster) == (False, False)
    back = poll(memory, "a")
    assert (back.cluster, back.groups) == (True, {"a": True})
    assert poll(memory, "a").groups == {}
    later = poll(memory, "b")
    assert (later.cluster, later.groups) == (False, {"b": True})
    assert poll(memory, "b").groups == {}


def test_poll_that_failed_and_proves_nothing_notifies_nobody_and_nobody_of_its_end() -> None:
    memory = memory_of(subscription("a"), subscription("b"))
    poll(memory, "a")
    poll(memory, "b")
    found = lost(memory, unconfirmed=True)
    assert (found.lost, found.cluster, found.groups) == (False, False, {})
    assert not found.observation.reachable
    assert set(found.observation.groups) == {"a", "b"}
    for name in "ab":
        back = poll(memory, name)
        assert (back.observation.reachable, back.cluster, back.groups) == (True, False, {})


def test_change_during_a_suspected_outage_is_notified_after_it() -> None:
    memory = memory_of(subscription("a"))
    poll(memory, "a")
    lost(memory, unconfirmed=True)
    assert poll(memory, "a", state="Empty").groups == {"a": True}


def test_topic_of_two_parts_that_changed_is_notified_to_the_groups_of_both() -> None:
    """Whichever part is polled first: its poll notifies both, since both show what it has found."""
    for order in ("ab", "ba"):
        memory = memory_of(subscription("a", "t"), subscription("b", "t"))
        for name in "ab":
            poll(memory, name)
        found = poll(memory, order[0], t=3)
        assert found.observation.topics["t"].partitions == 3, "the newest poll counts"
        assert found.groups == {"a": True, "b": True}
        assert poll(memory, order[1], t=3).groups == {}
        assert poll(memory, order[0], t=3).groups == {}


def test_topic_that_another_part_saw_otherwise_in_between_is_shown_as_seen_last() -> None:
    """It grew, or a broker lagged behind: the second poll of the first part finds what its first poll found."""
    memory = memory_of(subscription("a", "t"), subscription("b", "t"))
    poll(memory, "a", t=1)
    assert poll(memory, "b", t=2).groups == {"a": True, "b": True}
    found = poll(memory, "a", t=1)
    assert found.observation.topics["t"].partitions == 1
    assert found.groups == {"a": True, "b": True}
    assert poll(memory, "b", t=1).groups == {}


def test_topic_that_a_group_read_between_two_polls_of_its_part_is_notified_when_it_is_as_before() -> None:
    """A changed subscription makes its group read at once: b reads what c's poll has found, and a's poll takes it back.
    The poll of b's own part then finds what its previous poll found."""
    memory = memory_of(subscription("a", "t"), subscription("b", "t"), subscription("c", "t"))
    for name, partitions in (("a", 1), ("b", 1), ("c", 2)):
        poll(memory, name, t=partitions)
    memory.change({"b": subscription("b", "t")})
    found = poll(memory, "a", t=1)
    assert found.observation.topics["t"].partitions == 1
    assert found.groups == {"a": True, "b": True, "c": True}


def test_topic_is_shown_as_seen_last_after_the_group_that_saw_it_has_gone() -> None:
    memory = memory_of(subscription("a", "t"), subscription("b", "t"))
    poll(memory, "a", t=1)
    poll(memory, "b", t=2)
    memory.change({"b": None})
    memory.tidy()
    assert memory.last is not None
    assert memory.last.topics["t"].partitions == 2, "a was notified of this value, and of no other since"
    assert poll(memory, "a", t=1).groups == {"a": True}


def test_topic_of_a_pattern_that_another_part_saw_changed_is_notified_to_its_group() -> None:
    memory = memory_of(subscription("a", "p1"), GroupSubscription(group_id="p", pattern=compile_pattern("p.*")))
    poll(memory, "a", p1=1)
    poll(memory, "p", p1=1)
    assert poll(memory, "a", p1=2).groups == {"a": True, "p": True}


def test_group_that_is_new_in_a_part_that_was_heard_is_notified() -> None:
    memory = memory_of(GroupSubscription(group_id="a", topics=("t",)))
    poll(memory, "a", t=1)
    memory.change({"b": GroupSubscription(group_id="b", topics=("t",))})
    assert part_of(memory, "b") is part_of(memory, "a")
    assert poll(memory, "a", t=1).groups == {"b": True}


def test_group_that_went_is_not_observed_and_is_notified_when_it_is_back() -> None:
    """In between, a state poll has shown an observation without it."""
    memory = memory_of(GroupSubscription(group_id="a"), GroupSubscription(group_id="b"))
    poll(memory, "a")
    memory.change({"a": None})
    assert memory.last is not None
    assert set(memory.last.groups) == {"b"}
    memory.merge_states(replace(memory.last, groups={"b": replace(memory.last.groups["b"], state="Empty")}))
    memory.change({"a": GroupSubscription(group_id="a")})
    assert poll(memory, "a").groups == {"a": True, "b": True}


def test_group_that_went_and_came_back_between_two_polls_is_notified() -> None:
    memory = memory_of(GroupSubscription(group_id="a"), GroupSubscription(group_id="b"))
    poll(memory, "a")
    memory.change({"a": None})
    memory.change({"a": GroupSubscription(group_id="a")})
    assert poll(memory, "a").groups == {"a": True}


def test_state_that_a_state_poll_found_is_told_once() -> None:
    memory = memory_of(GroupSubscription(group_id="a"), GroupSubscription(group_id="b"))
    before = poll(memory, "a").observation
    merge_states = replace(before, groups={**before.groups, "a": replace(before.groups["a"], state="Empty")})
    found = memory.merge_states(merge_states)
    assert (found.seconds, found.groups, found.cluster) == (None, {"a": True}, False)
    seen = ClusterObservation(observed_at=2.0, reachable=True, groups=merge_states.groups, last_good_at=2.0)
    assert memory.merge(part_of(memory, "a"), seen, 0.1).groups == {}
    assert poll(memory, "a").groups == {"a": True}, "and when it has passed"


def test_observer_that_begins_unconfirmed_keeps_what_was_known_until_each_part_was_polled() -> None:
    """Otherwise renewed credentials would turn the conditions of most groups to Unknown for some seconds."""
    pattern = GroupSubscription(group_id="p", pattern=compile_pattern("p.*"))
    known = memory_of(subscription("a", "ta"), subscription("b", "tb"), pattern)
    for name in "ab":
        poll(known, name, ta=1, tb=1)
    last = poll(known, "p", p1=1).observation
    memory = memory_of(
        subscription("a", "ta"),
        subscription("b", "tb"),
        pattern,
        last=replace(last, reachable=False, unconfirmed=True, reason="x"),
    )
    found = poll(memory, "a", ta=1)
    assert (found.cluster, found.groups) == (True, {"a": True})
    assert (found.observation.topics, found.observation.matches) == (last.topics, last.matches)
    assert set(found.observation.groups) == {"a", "b", "p"}
    memory.tidy()
    assert memory.last is not None
    assert memory.last.topics == last.topics
    assert poll(memory, "b").groups == {"b": True}
    assert poll(memory, "p", p2=1).observation.matches == {"p.*": ("p2",)}
    memory.tidy()
    assert memory.last is not None
    assert set(memory.last.topics) == {"ta", "tb", "p2"}


def test_nothing_of_a_group_is_left_when_it_is_gone() -> None:
    kept = GroupSubscription(group_id="kept", topics=("shared",), failed_topic="kept.failed")
    flow = GroupSubscription(
        group_id="gone", topics=("shared", "mine"), failed_topic="f", retry=retry_subscription("gone", ["5s"])
    )
    big = subscription("big", "only")
    memory = memory_of(kept, flow, big)
    for name in ("kept", "gone", "big"):
        poll(memory, name, shared=1, mine=1, only=1)
    logs = memory.cluster.logs
    topics = ("shared", "mine", "only", "kept.failed", *flow.named_topics)
    memory.cluster.coordinators |= dict.fromkeys(("kept", "gone", "gone.retry", flow.retry.group_id, "big"), 1)  # type: ignore[union-attr]
    logs.take_ends(False, {topic: {(topic, 0): 1} for topic in topics}, 1.0)
    logs.take_starts({topic: {(topic, 0): 0} for topic in topics})
    memory.change({"gone": None, "big": None})
    memory.tidy()
    assert memory.last is not None
    assert set(memory.last.groups) == {"kept"}
    assert memory.cluster.coordinators == {"kept": 1}
    assert {*logs._starts, *(t for _, t in logs._ends)} == {"shared", "kept.failed"}
    poll(memory, "kept", shared=1)
    memory.tidy()
    assert set(memory.last.topics) == {"shared", "kept.failed"}


def test_logs_of_topics_that_match_or_are_committed_are_kept() -> None:
    pattern = GroupSubscription(group_id="p", pattern=compile_pattern("p.*"))
    memory = memory_of(pattern, GroupSubscription(group_id="any"))
    poll(memory, "p", p1=1)
    any_part = part_of(memory, "any")
    committed = GroupObservation(group_id="any", observed_at=1.0, committed={("mine", 0): 1})
    memory.merge(
        any_part, ClusterObservation(observed_at=1.0, reachable=True, groups={"any": committed}, last_good_at=1.0), 0.1
    )
    memory.cluster.logs.take_starts({topic: {(topic, 0): 0} for topic in ("p1", "mine", "left")})
    memory.tidy()
    assert set(memory.cluster.logs._starts) == {"p1", "mine"}
    poll(memory, "p", p2=1)
    memory.tidy()
    assert set(memory.cluster.logs._starts) == {"mine"}, "a topic that matches no more goes without any group going"


class Reconciler:
    """Whoever reads the published observation when a group is notified, and not before; `heard` has what it read."""

    def __init__(self) -> None:
        self.memory = ObserverMemory()
        self.states = dict.fromkeys(SUBSCRIPTIONS, "Stable")
        self.partitions = {"one": 1, "two": 1, "out": 1}
        self.published: ClusterObservation | None = None
        self.heard: dict[str, object] = {}

    def view(self, name: str) -> object:
        seen = last_known(self.published)
        if seen is None:
            return None
        group = seen.groups.get(name)
        known = None if group is None else replace(last_known_group(group), observed_at=0.0, failing_since=None)
        return (
            seen.reachable,
            seen.reason,
            known,
            [seen.topics.get(topic) for topic in SUBSCRIPTIONS[name].named_topics],
        )

    def take(self, observed: Observed) -> None:
        self.published = observed.observation
        wanted = {name for part in self.memory.parts for name in part.subscriptions}
        self.heard |= {name: self.view(name) for name in (wanted if observed.lost else observed.groups)}

    def want(self, name: str, wanted: bool) -> None:
        self.memory.change({name: SUBSCRIPTIONS[name] if wanted else None})
        self.heard[name] = self.view(name)

    def poll(self, turn: int) -> None:
        parts = list(self.memory.parts)
        part = parts[turn % len(parts)]
        names = {topic for subscription in part.subscriptions.values() for topic in subscription.named_topics}
        seen = ClusterObservation(
            observed_at=1.0,
            reachable=True,
            groups={
                name: GroupObservation(group_id=name, observed_at=1.0, state=self.states[name])
                for name in part.subscriptions
            },
            topics={name: TopicObservation(partitions=self.partitions.get(name, 0)) for name in names},
            last_good_at=1.0,
        )
        self.take(self.memory.merge(part, seen, 0.1))
        for name in part.subscriptions:
            assert self.heard[name] == self.view(name), "what a poll found is told to the groups that it was for"

    def poll_states(self) -> None:
        last = self.memory.last
        if last is not None and last.reachable:
            groups = {name: replace(group, state=self.states[name]) for name, group in last.groups.items()}
            same = {name: group for name, group in last.groups.items() if group == groups[name]}
            self.take(self.memory.merge_states(replace(last, groups={**groups, **same})))

    def lose(self, unconfirmed: bool) -> None:
        last = self.memory.last
        if last is not None and (not unconfirmed or last.reachable):
            self.take(
                self.memory.fail(
                    replace(last, reachable=False, unconfirmed=unconfirmed, reason="BrokerUnreachable"), 0.1
                )
            )

    def fail_part(self, turn: int, now: float) -> None:
        parts = list(self.memory.parts)
        if self.memory.last is not None and self.memory.last.reachable:
            error = RequestTimedOut("no answer")
            self.take(self.memory.fail_part(parts[turn % len(parts)], error, now))


SUBSCRIPTIONS = {
    "a": subscription("a", "one"),
    "b": subscription("b", "one"),
    "c": GroupSubscription(group_id="c", topics=("one",), other_topics=("out",)),
    "d": GroupSubscription(group_id="d", topics=("two",)),
}
events = st.one_of(
    st.builds(lambda turn: lambda of: of.poll(turn), st.integers(0, 5)),
    st.builds(lambda turn: lambda of: of.poll(turn), st.integers(0, 5)),
    st.just(lambda of: of.poll_states()),
    st.builds(lambda turn, now: lambda of: of.fail_part(turn, now), st.integers(0, 5), st.sampled_from((1.0, 99.0))),
    st.builds(lambda unconfirmed: lambda of: of.lose(unconfirmed), st.booleans()),
    st.builds(lambda name, wanted: lambda of: of.want(name, wanted), st.sampled_from("abcd"), st.booleans()),
    st.builds(
        lambda name, state: lambda of: of.states.update({name: state}),
        st.sampled_from("abcd"),
        st.sampled_from(("Stable", "Empty")),
    ),
    st.builds(
        lambda name, count: lambda of: of.partitions.update({name: count}),
        st.sampled_from(("one", "two", "out")),
        st.integers(1, 2),
    ),
    st.just(lambda of: of.memory.tidy()),
)


@settings(max_examples=300, deadline=None, print_blob=True)
@given(st.lists(events, max_size=40))
def test_no_change_is_missed_by_the_group_that_it_concerns(played: list[Callable[[Reconciler], None]]) -> None:
    """Invariant: after a poll, each of its groups has read the observation since that shows what it shows now."""
    reconciler = Reconciler()
    for name in SUBSCRIPTIONS:
        reconciler.want(name, wanted=True)
    for event in played:
        event(reconciler)
    for turn, _ in enumerate(list(reconciler.memory.parts)):
        reconciler.poll(turn)


def test_topics_that_were_changed_make_their_groups_due() -> None:
    memory = memory_of(subscription("a", "ta"), subscription("b", "tb"))
    for name in "ab":
        part_of(memory, name).due_at = 50.0
    memory.invalidate_topics(frozenset({"tb"}))
    assert memory.parts.due(10.0) is part_of(memory, "b")
    assert part_of(memory, "a").due_at == 50.0
    memory.invalidate_topics(frozenset())
    assert part_of(memory, "a").due_at < 0


def test_five_thousand_groups_cost_a_part_of_them_at_a_time() -> None:
    """Each change and each poll costs about as much with 5,000 groups as its own part does: no walk over pairs."""
    subscriptions = {
        f"g{n}": GroupSubscription(
            group_id=f"g{n}",
            topics=(f"t{n % 500}",),
            failed_topic=f"f{n}",
            retry=retry_subscription(f"g{n}", ["5s", "1m"]),
        )
        for n in range(5_000)
    }
    memory = ObserverMemory()
    began = time.thread_time()
    for name, subscription in subscriptions.items():
        memory.change({name: subscription})
    assert len(list(memory.parts)) > 50
    for name in [next(iter(part.subscriptions)) for part in memory.parts]:
        poll(memory, name)
        memory.tidy()
    for name in list(subscriptions)[:1_000]:
        memory.change({name: None})
    memory.tidy()
    assert memory.last is not None
    assert len(memory.last.groups) == 4_000
    assert time.thread_time() - began < 20.0, "a second or two; pairs of groups would take minutes"
