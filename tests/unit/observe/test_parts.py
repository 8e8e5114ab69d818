"""Parts of the groups: which groups are polled together, when, and what is known of the topics of all."""

from __future__ import annotations

from fleet_consumer.contract.patterns import compile_pattern
from fleet_operator.observe.observer_memory import WEIGHT_MAX, GroupPart, GroupParts
from fleet_operator.observe.subscriptions import GroupSubscription
from fleet_operator.planning.observation import TopicObservation

NOW = 100.0
TOPICS = tuple(f"t{number}" for number in range(WEIGHT_MAX // 4 - 1))
"""So many that four groups fill a part."""


def subscription(name: str, topics: tuple[str, ...] = TOPICS, *, pattern: str = "") -> GroupSubscription:
    return GroupSubscription(group_id=name, topics=topics, pattern=compile_pattern(pattern) if pattern else None)


def subscriptions(*names: str) -> dict[str, GroupSubscription | None]:
    return {name: subscription(name) for name in names}


def divided(parts: GroupParts) -> list[list[str]]:
    return [sorted(part.subscriptions) for part in parts]


def part_of(parts: GroupParts, name: str) -> GroupPart:
    (found,) = (part for part in parts if name in part.subscriptions)
    return found


def seen(**partitions: int) -> dict[str, TopicObservation]:
    return {name: TopicObservation(partitions=count) for name, count in partitions.items()}


def test_groups_are_divided_by_how_much_there_is_to_ask() -> None:
    parts = GroupParts()
    parts.change(subscriptions(*"abcdef"))
    assert divided(parts) == [["a", "b", "c", "d"], ["e", "f"]]
    assert [part.weight for part in parts] == [WEIGHT_MAX, WEIGHT_MAX // 2]
    assert len(parts) == 6


def test_group_with_more_topics_than_a_part_holds_has_a_part_of_its_own() -> None:
    parts = GroupParts()
    parts.change(
        {**subscriptions("a"), "big": subscription("big", tuple(map(str, range(2 * WEIGHT_MAX)))), **subscriptions("b")}
    )
    assert divided(parts) == [["a", "b"], ["big"]]


def test_group_stays_in_its_part_when_its_subscription_changes() -> None:
    parts = GroupParts()
    parts.change(subscriptions(*"abcdef"))
    before = part_of(parts, "a")
    parts.change({"a": subscription("a", TOPICS[:1])})
    assert part_of(parts, "a") is before
    assert before.weight == 3 * WEIGHT_MAX // 4 + 2
    parts.change(subscriptions("a"))
    assert (part_of(parts, "a"), before.weight) == (before, WEIGHT_MAX)


def test_groups_with_patterns_are_polled_apart() -> None:
    """They need the names of all topics; no other poll should."""
    parts = GroupParts()
    parts.change({"a": subscription("a"), "p": subscription("p", (), pattern="t.*"), "b": subscription("b")})
    assert divided(parts) == [["a", "b"], ["p"]]
    parts.change({"a": subscription("a", (), pattern="t.*"), "p": subscription("p")})
    assert sorted(divided(parts)) == [["a"], ["b", "p"]]
    assert len(parts) == 3


def test_room_of_removed_groups_is_used_again_and_empty_parts_go() -> None:
    parts = GroupParts()
    parts.change(subscriptions(*"abcdefgh"))
    parts.change({"b": None, **dict.fromkeys("efgh"), "never": None})
    assert divided(parts) == [["a", "c", "d"]]
    assert part_of(parts, "a").weight == 3 * WEIGHT_MAX // 4
    parts.change(subscriptions("i", "j"))
    assert divided(parts) == [["a", "c", "d", "i"], ["j"]]


def test_there_is_always_a_part_for_the_facts_of_the_cluster() -> None:
    parts = GroupParts()
    first = parts.due(NOW)
    assert (first.subscriptions, first.patterns) == ({}, False)
    parts.change({"p": subscription("p", (), pattern="t.*")})
    assert divided(parts) == [["p"]]
    assert part_of(parts, "p") is first
    parts.change({"p": None})
    assert (divided(parts), len(parts)) == ([[]], 0)
    assert not parts.due(NOW).patterns


def test_parts_are_polled_in_the_order_in_which_they_are_due() -> None:
    parts = GroupParts()
    parts.change(subscriptions(*"abcdefghi"))
    first, second, third = parts
    first.due_at, second.due_at, third.due_at = NOW + 3, NOW + 1, NOW + 2
    assert parts.due(NOW) is second
    parts.all_due()
    assert {part.due_at for part in parts} == {float("-inf")}


def test_part_with_a_new_request_is_due_at_once() -> None:
    parts = GroupParts()
    parts.change(subscriptions(*"abcde"))
    for part in parts:
        part.due_at = NOW + 5
    parts.change(subscriptions("f"))
    assert parts.due(NOW) is part_of(parts, "f")
    assert parts.due(NOW).due_at < NOW


def test_part_that_was_just_polled_rests_before_a_request_has_it_polled_again() -> None:
    """While thousands of groups are created, each of them would have its whole part polled."""
    parts = GroupParts()
    parts.change(subscriptions(*"abc"))
    part = parts.due(NOW)
    part.rest(NOW, cpu_s=0.1)
    part.due_at = NOW + 12
    parts.change(subscriptions("d"))
    assert NOW + 1 < part.due_at < NOW + 3
    part.due_at = NOW + 12
    part.rest(NOW, cpu_s=0.0)
    part.request_poll()
    assert part.due_at == NOW


def test_requests_that_do_not_end_keep_no_part_from_being_polled() -> None:
    """Each request makes its part due at once: of those that are due, the others come first."""
    parts = GroupParts()
    parts.change(subscriptions(*"abcdefghi"))
    polled: list[GroupPart] = []
    for _ in range(6):
        parts.change(subscriptions("a"))
        part = parts.due(NOW)
        polled.append(part)
        parts.record_poll(part, {}, {})
        part.due_at = NOW
    assert polled == [*parts, *parts]


def test_part_that_cannot_be_polled_keeps_no_other_from_being_polled() -> None:
    parts = GroupParts()
    parts.change(subscriptions(*"abcdefghi"))
    bad = parts.due(NOW)
    polled: list[GroupPart] = []
    for _ in range(2 * len(list(parts))):
        part = parts.due(NOW)
        polled.append(part)
        if part is bad:
            parts.fail(part)
        else:
            parts.record_poll(part, {}, {})
    assert polled == [*parts, *parts]


def test_failure_of_a_part_is_its_own_once_others_have_answered_since() -> None:
    """Of a cluster that is away no part can be polled, and those that fail while it comes back are not to blame."""
    parts = GroupParts()
    parts.change(subscriptions(*"abcde"))
    first, second = parts
    assert [parts.fail(each) for each in (first, second, first, second)] == [False] * 4
    parts.record_poll(first, {}, {})
    assert parts.fail(second)
    assert not parts.fail(second), "nothing has answered since"
    assert not parts.fail(first)
    parts.record_poll(first, {}, {})
    parts.record_poll(second, {}, {})
    assert not parts.fail(second)


def test_poll_that_finds_other_topics_or_matches_than_the_one_before_is_a_change() -> None:
    parts = GroupParts()
    parts.change(subscriptions("a"))
    (part,) = parts
    assert parts.record_poll(part, seen(t=3), {"t.*": ("t",)})
    assert not parts.record_poll(part, seen(t=3), {"t.*": ("t",)})
    assert parts.record_poll(part, seen(t=4), {"t.*": ("t",)})
    assert parts.record_poll(part, seen(t=4), {})


def test_parts_that_read_a_topic_are_found_by_its_name() -> None:
    parts = GroupParts()
    parts.change({**subscriptions(*"abcd"), "e": subscription("e", ("other",))})
    assert [sorted(part.subscriptions) for part in parts.naming(frozenset({"other"}))] == [["e"]]
    assert len(list(parts.naming(frozenset({"other", TOPICS[0]})))) == 2
    assert list(parts.naming(frozenset())) == []


def test_topic_is_found_while_one_group_of_the_part_names_it() -> None:
    """Also a group that names it twice, as a source and as an output."""
    parts = GroupParts()
    twice = GroupSubscription(group_id="a", topics=("both",), other_topics=("both",))
    parts.change({"a": twice, "b": subscription("b", ("both", "own"))})
    assert found_by(parts, "own") == [["a", "b"]]
    parts.change({"b": subscription("b", ("both",))})
    assert found_by(parts, "own") == []
    parts.change({"a": None})
    assert found_by(parts, "both") == [["b"]]
    parts.change({"b": subscription("b", ("other",))})
    assert found_by(parts, "both") == []
    assert part_of(parts, "b").named == {"other": 1}


def found_by(parts: GroupParts, *topics: str) -> list[list[str]]:
    return [sorted(part.subscriptions) for part in parts.naming(frozenset(topics))]
