"""Parts of the groups: who is looked at together, when, and what is known of the topics of all."""

from __future__ import annotations

from fleet_consumer.contract.patterns import compile_pattern
from fleet_operator.observe.interests import GroupInterest
from fleet_operator.observe.observer_memory import WEIGHT_MAX, GroupPart, GroupParts
from fleet_operator.planning.observation import TopicObservation

NOW = 100.0
TOPICS = tuple(f"t{number}" for number in range(WEIGHT_MAX // 4 - 1))
"""So many that four groups fill a part."""


def wish(name: str, topics: tuple[str, ...] = TOPICS, *, pattern: str = "") -> GroupInterest:
    return GroupInterest(group_id=name, topics=topics, pattern=compile_pattern(pattern) if pattern else None)


def wishes(*names: str) -> dict[str, GroupInterest | None]:
    return {name: wish(name) for name in names}


def divided(parts: GroupParts) -> list[list[str]]:
    return [sorted(part.interests) for part in parts]


def part_of(parts: GroupParts, name: str) -> GroupPart:
    (found,) = (part for part in parts if name in part.interests)
    return found


def seen(**partitions: int) -> dict[str, TopicObservation]:
    return {name: TopicObservation(partitions=count) for name, count in partitions.items()}


def test_groups_are_divided_by_how_much_there_is_to_ask() -> None:
    parts = GroupParts()
    parts.change(wishes(*"abcdef"))
    assert divided(parts) == [["a", "b", "c", "d"], ["e", "f"]]
    assert [part.weight for part in parts] == [WEIGHT_MAX, WEIGHT_MAX // 2]
    assert len(parts) == 6


def test_group_with_more_topics_than_a_part_holds_has_a_part_of_its_own() -> None:
    parts = GroupParts()
    parts.change({**wishes("a"), "big": wish("big", tuple(map(str, range(2 * WEIGHT_MAX)))), **wishes("b")})
    assert divided(parts) == [["a", "b"], ["big"]]


def test_group_stays_in_its_part_when_its_interest_changes() -> None:
    parts = GroupParts()
    parts.change(wishes(*"abcdef"))
    before = part_of(parts, "a")
    parts.change({"a": wish("a", TOPICS[:1])})
    assert part_of(parts, "a") is before
    assert before.weight == 3 * WEIGHT_MAX // 4 + 2
    parts.change(wishes("a"))
    assert (part_of(parts, "a"), before.weight) == (before, WEIGHT_MAX)


def test_groups_with_patterns_are_looked_at_apart() -> None:
    """They need the names of all topics; nobody else's look should."""
    parts = GroupParts()
    parts.change({"a": wish("a"), "p": wish("p", (), pattern="t.*"), "b": wish("b")})
    assert divided(parts) == [["a", "b"], ["p"]]
    parts.change({"a": wish("a", (), pattern="t.*"), "p": wish("p")})
    assert sorted(divided(parts)) == [["a"], ["b", "p"]]
    assert len(parts) == 3


def test_room_of_removed_groups_is_used_again_and_empty_parts_go() -> None:
    parts = GroupParts()
    parts.change(wishes(*"abcdefgh"))
    parts.change({"b": None, **dict.fromkeys("efgh"), "never": None})
    assert divided(parts) == [["a", "c", "d"]]
    assert part_of(parts, "a").weight == 3 * WEIGHT_MAX // 4
    parts.change(wishes("i", "j"))
    assert divided(parts) == [["a", "c", "d", "i"], ["j"]]


def test_there_is_always_a_part_for_the_facts_of_the_cluster() -> None:
    parts = GroupParts()
    first = parts.due(NOW)
    assert (first.interests, first.patterns) == ({}, False)
    parts.change({"p": wish("p", (), pattern="t.*")})
    assert divided(parts) == [["p"]]
    assert part_of(parts, "p") is first
    parts.change({"p": None})
    assert (divided(parts), len(parts)) == ([[]], 0)
    assert not parts.due(NOW).patterns


def test_parts_are_looked_at_in_the_order_in_which_they_are_due() -> None:
    parts = GroupParts()
    parts.change(wishes(*"abcdefghi"))
    first, second, third = parts
    first.due_at, second.due_at, third.due_at = NOW + 3, NOW + 1, NOW + 2
    assert parts.due(NOW) is second
    parts.all_due()
    assert {part.due_at for part in parts} == {float("-inf")}


def test_part_with_a_new_wish_is_due_at_once() -> None:
    parts = GroupParts()
    parts.change(wishes(*"abcde"))
    for part in parts:
        part.due_at = NOW + 5
    parts.change(wishes("f"))
    assert parts.due(NOW) is part_of(parts, "f")
    assert parts.due(NOW).due_at < NOW


def test_part_that_was_just_polled_rests_before_a_wish_has_it_polled_again() -> None:
    """While thousands of groups are created, each of them would have its whole part polled."""
    parts = GroupParts()
    parts.change(wishes(*"abc"))
    part = parts.due(NOW)
    part.rest(NOW, cpu_s=0.1)
    part.due_at = NOW + 12
    parts.change(wishes("d"))
    assert NOW + 1 < part.due_at < NOW + 3
    part.due_at = NOW + 12
    part.rest(NOW, cpu_s=0.0)
    part.wish()
    assert part.due_at == NOW


def test_wishes_that_do_not_end_keep_no_part_from_being_looked_at() -> None:
    """Each wish makes its part due at once: of those that are due, the others come first."""
    parts = GroupParts()
    parts.change(wishes(*"abcdefghi"))
    looked: list[GroupPart] = []
    for _ in range(6):
        parts.change(wishes("a"))
        part = parts.due(NOW)
        looked.append(part)
        parts.take(part, {}, {})
        part.due_at = NOW
    assert looked == [*parts, *parts]


def test_part_that_cannot_be_looked_at_keeps_no_other_from_being_looked_at() -> None:
    parts = GroupParts()
    parts.change(wishes(*"abcdefghi"))
    bad = parts.due(NOW)
    looked: list[GroupPart] = []
    for _ in range(2 * len(list(parts))):
        part = parts.due(NOW)
        looked.append(part)
        if part is bad:
            parts.fail(part)
        else:
            parts.take(part, {}, {})
    assert looked == [*parts, *parts]


def test_failure_of_a_part_is_its_own_once_others_have_answered_since() -> None:
    """Of a cluster that is away no part can be looked at, and those that fail while it comes back are not to blame."""
    parts = GroupParts()
    parts.change(wishes(*"abcde"))
    first, second = parts
    assert [parts.fail(each) for each in (first, second, first, second)] == [False] * 4
    parts.take(first, {}, {})
    assert parts.fail(second)
    assert not parts.fail(second), "nothing has answered since"
    assert not parts.fail(first)
    parts.take(first, {}, {})
    parts.take(second, {}, {})
    assert not parts.fail(second)


def test_topic_of_several_parts_is_known_as_it_was_seen_last() -> None:
    parts = GroupParts()
    parts.change(wishes(*"abcde"))
    first, second = parts
    assert parts.take(second, seen(t=3, u=1), {"t.*": ("t",)})
    assert parts.take(first, seen(t=6), {})
    assert parts.topics() == seen(t=6, u=1)
    assert parts.matches() == {"t.*": ("t",)}
    assert not parts.take(second, seen(t=3, u=1), {"t.*": ("t",)})
    assert parts.topics() == seen(t=3, u=1)
    assert parts.take(second, seen(t=3, u=1), {})
    assert parts.matches() == {}


def test_parts_that_read_a_topic_are_found_by_its_name() -> None:
    parts = GroupParts()
    parts.change({**wishes(*"abcd"), "e": wish("e", ("other",))})
    assert [sorted(part.interests) for part in parts.reading(frozenset({"other"}))] == [["e"]]
    assert len(list(parts.reading(frozenset({"other", TOPICS[0]})))) == 2
    assert list(parts.reading(frozenset())) == []


def test_topic_is_found_while_one_group_of_the_part_names_it() -> None:
    """Also a group that names it twice, as a source and as an output."""
    parts = GroupParts()
    twice = GroupInterest(group_id="a", topics=("both",), other_topics=("both",))
    parts.change({"a": twice, "b": wish("b", ("both", "own"))})
    assert found_by(parts, "own") == [["a", "b"]]
    parts.change({"b": wish("b", ("both",))})
    assert found_by(parts, "own") == []
    parts.change({"a": None})
    assert found_by(parts, "both") == [["b"]]
    parts.change({"b": wish("b", ("other",))})
    assert found_by(parts, "both") == []
    assert part_of(parts, "b").named == {"other": 1}


def found_by(parts: GroupParts, *topics: str) -> list[list[str]]:
    return [sorted(part.interests) for part in parts.reading(frozenset(topics))]
