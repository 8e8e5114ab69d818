"""Turns of namespaces: one after the other, and none holds up the others more than once."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from fleet_operator.planning.fleet.wave_ledger import WaveLedger
from fleet_operator.planning.fleet.waves import Key
from fleet_operator.planning.state.group import Phase, Upgrade
from tests.unit.planning.fleet.test_wave_ledger import CLUSTER, DEADLINE_S, NEW, NEWER, OLD, WHOLE, ended, reason, rolls


def of(namespace: str, count: int) -> list[Key]:
    return [(namespace, f"g-{number:04}") for number in range(count)]


def filled(groups: Iterable[Key], *, bound: int, image: str = NEW) -> WaveLedger:
    made = WaveLedger(bound, image, deadline_s=DEADLINE_S)
    made.record_cluster(CLUSTER, "before")
    for each in groups:
        made.record_group(each, WHOLE)
    return made


def begin(made: WaveLedger, which: Key, phase: Phase) -> None:
    assert made.slot(which).image
    made.record_group(which, rolls())
    made.record_group(which, ended(rolls(), phase))


def run_rollout(groups: list[Key], *, bound: int, ends: dict[str, Phase], hours: int) -> dict[Key, float]:
    """Beginning of each group, in seconds, where a rollout takes five minutes and ends in the phase of its namespace.

    Each minute the groups that the ledger names ask first, then all others, as each is visited within a minute.
    """
    made, chance = filled(groups, bound=bound), random.Random(1)
    began: dict[Key, float] = {}
    for now in range(0, hours * 3600, 60):
        for each, since in began.items():
            if now - since == 300:
                made.record_group(each, ended(rolls(), ends[each[0]]))
        made.expire(now)
        for each in [*made.next(), *chance.sample(groups, len(groups))]:
            if each not in began and made.slot(each).image:
                began[each] = now
                made.record_group(each, rolls())
        ending = {each for each in began if ends[each[0]] is not Phase.ROLLING}
        assert sum(now - began[each] < 300 for each in ending) <= bound
        assert sum(now - began[each] < DEADLINE_S for each in began.keys() - ending) <= bound
    return began


@pytest.mark.parametrize("failing", ["aaa", "zzz"])
def test_namespace_whose_groups_fail_holds_up_the_others_once_and_not_once_for_each_group(failing: str) -> None:
    """200 groups that failed on an image, one in each hour, kept another namespace from it all that time."""
    groups = [*of(failing, 200), *of("bbb", 20), *of("ccc", 1)]
    ends = {failing: Phase.FAILED, "bbb": Phase.COMPLETE, "ccc": Phase.COMPLETE}
    began = run_rollout(groups, bound=5, ends=ends, hours=8)
    assert all(began[each] < 2 * DEADLINE_S for each in (*of("bbb", 20), *of("ccc", 1)))
    failed = [each for each in began if each[0] == failing]
    assert 7 <= len(failed) <= 9, "one after the other, with an hour between them: not all go into an image that fails"


def test_namespace_whose_groups_never_arrive_holds_a_place_from_the_others_once() -> None:
    groups = [*of("aaa", 200), *of("bbb", 20)]
    ends = {"aaa": Phase.ROLLING, "bbb": Phase.COMPLETE}
    began = run_rollout(groups, bound=1, ends=ends, hours=4)
    assert all(began[each] < 2 * DEADLINE_S + 20 * 360 for each in of("bbb", 20))


def test_namespaces_take_turns_so_that_one_with_many_groups_does_not_take_all_places() -> None:
    made = filled([*of("aaa", 9), *of("bbb", 2), *of("ccc", 3)], bound=4)
    begin(made, ("aaa", "g-0000"), Phase.COMPLETE)
    assert made.next() == [("bbb", "g-0000"), ("ccc", "g-0000"), ("aaa", "g-0001"), ("bbb", "g-0001")]
    for each in made.next():
        begin(made, each, Phase.ROLLING)
    for each in of("bbb", 2):
        made.record_group(each, ended(rolls()))
    assert made.next() == [("ccc", "g-0001"), ("aaa", "g-0002")], "one place of four each, so both have another one"


def test_groups_that_never_arrive_take_no_more_places_than_other_namespaces_have() -> None:
    made = filled([*of("aaa", 9), *of("bbb", 9)], bound=3)
    begin(made, ("aaa", "g-0000"), Phase.COMPLETE)
    for number in (1, 2):
        begin(made, ("aaa", f"g-{number:04}"), Phase.ROLLING)
    for each in of("bbb", 9):
        assert made.next() == [each]
        begin(made, each, Phase.COMPLETE)


@pytest.mark.parametrize("force", [False, True])
def test_namespaces_take_turns_at_a_single_place(force: bool) -> None:
    made = filled([*of("aaa", 4), *of("bbb", 4), *of("ccc", 2)], bound=1)
    made.force = force
    order = []
    while woken := made.next():
        begin(made, woken[0], Phase.COMPLETE)
        order.append(woken[0][0])
    assert order == ["aaa", "bbb", "ccc", "aaa", "bbb", "ccc", "aaa", "bbb", "aaa", "bbb"]


def test_namespace_that_was_late_goes_last_has_a_canary_of_its_own_and_waits_for_the_failures_of_others() -> None:
    made = filled([*of("aaa", 9), *of("bbb", 9)], bound=3)
    begin(made, ("aaa", "g-0000"), Phase.FAILED)
    for at in (0.0, DEADLINE_S):
        made.expire(at)
    made.record_group(("aaa", "g-0000"), None)
    made.expire(DEADLINE_S + 1)
    assert made.next() == [("bbb", "g-0000"), ("aaa", "g-0001")], "a canary of the others, and one of its own"
    begin(made, ("bbb", "g-0000"), Phase.COMPLETE)
    assert made.next() == of("bbb", 4)[1:]
    assert reason(made.slot(("aaa", "g-0002"))) == "CanaryRunning"
    made.bound = 20
    assert made.next() == [*of("bbb", 9)[1:], ("aaa", "g-0001")]
    begin(made, ("aaa", "g-0001"), Phase.FAILED)
    assert made.next() == of("bbb", 9)[1:]
    stopped = made.slot(("aaa", "g-0002"))
    assert reason(stopped) == "UpgradeStopped"
    assert "no further group in namespace aaa" in str(stopped.wait)
    assert made.slot(("bbb", "g-0001")).image
    made.record_group(("aaa", "g-0001"), ended(rolls()))
    assert made.slot(("aaa", "g-0005")).image, "it has proven itself"
    begin(made, ("bbb", "g-0002"), Phase.FAILED)
    for each in (("aaa", "g-0002"), ("bbb", "g-0003")):
        assert reason(made.slot(each)) == "UpgradeStopped"


def test_stuck_group_of_a_namespace_that_stopped_itself_does_not_go_first() -> None:
    made = filled([*of("aaa", 4), *of("bbb", 4)], bound=2, image=NEWER)
    for number in (0, 1):
        made.record_group(("aaa", f"g-{number:04}"), ended(rolls(image=NEWER), Phase.FAILED))
        made.expire(number * DEADLINE_S)
    for namespace in ("aaa", "bbb"):
        made.record_group((namespace, "g-0003"), rolls())
    assert made.next() == [("bbb", "g-0003")]
    assert reason(made.slot(("aaa", "g-0003"))) == "UpgradeStopped"
    assert made.slot(("bbb", "g-0003")).image


def test_namespace_that_was_late_with_one_connection_holds_up_the_others_with_the_next() -> None:
    made = filled([*of("aaa", 3), *of("bbb", 3)], bound=3, image=OLD)
    for connection in ("wrong", "right"):
        made.record_cluster(CLUSTER, connection)
        assert made.slot(("aaa", "g-0000")).connection
        way = replace(WHOLE, connection=connection, upgrade=Upgrade(Phase.FAILED, None, connection))
        made.record_group(("aaa", "g-0000"), way)
        made.expire(0.0)
        assert reason(made.slot(("bbb", "g-0000"))) == "UpgradeStopped"
        made.expire(DEADLINE_S)
        assert made.next() == [("bbb", "g-0000"), ("aaa", "g-0001")]
        made.record_group(("aaa", "g-0000"), ended(way))
