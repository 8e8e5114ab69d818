"""Turns of groups: canaries first, never more at once than allowed, and an end at the first failure."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fleet_operator.planning.fleet.wave_ledger import WaveLedger
from fleet_operator.planning.fleet.waves import Key, RolloutStatus, Slot
from fleet_operator.planning.state.group import Phase, Upgrade

OLD, NEW, NEWER = "worker:1", "worker:2", "worker:3"
CLUSTER = ("shop", "main")
WHOLE = RolloutStatus(cluster=CLUSTER, whole=True, image=OLD, connection="before")


def key(number: int) -> Key:
    return ("shop", f"orders-{number:04}")


def ledger(count: int, *, bound: int = 2, image: str = NEW, canaries: tuple[int, ...] = ()) -> WaveLedger:
    made = WaveLedger(bound, image)
    made.record_cluster(CLUSTER, "before")
    for number in range(count):
        made.record_group(key(number), replace(WHOLE, canary=number in canaries))
    return made


def rolls(status: RolloutStatus = WHOLE, *, image: str = NEW) -> RolloutStatus:
    return replace(status, image=image, whole=False, upgrade=Upgrade(Phase.ROLLING, image))


def ended(status: RolloutStatus, phase: Phase = Phase.COMPLETE) -> RolloutStatus:
    assert status.upgrade is not None
    return replace(status, whole=phase is Phase.COMPLETE, upgrade=replace(status.upgrade, phase=phase))


def reason(slot: Slot) -> str:
    return slot.wait.reason if slot.wait is not None else ""


def go(made: WaveLedger, number: int, phase: Phase = Phase.COMPLETE, *, canary: bool = False) -> None:
    """A group's slot from its beginning to its end."""
    assert made.slot(key(number)).image
    way = rolls(replace(WHOLE, canary=canary))
    made.record_group(key(number), way)
    made.record_group(key(number), ended(way, phase))


def test_without_waves_nobody_has_a_slot() -> None:
    made = ledger(3, bound=0)
    assert made.slot(key(0)) == Slot()
    assert made.next() == []


def test_first_group_by_name_is_the_canary_where_none_is_labelled() -> None:
    made = ledger(4)
    assert made.next() == [key(0)]
    assert reason(made.slot(key(3))) == "CanaryRunning"
    assert "shop/orders-0000" in str(made.slot(key(3)).wait)
    go(made, 0)
    assert made.next() == [key(1), key(2)]
    assert made.slot(key(3)).image, "whoever asks first has the place"


def test_labelled_canaries_go_first_and_all_of_them() -> None:
    made = ledger(6, canaries=(3, 5))
    assert made.next() == [key(3), key(5)]
    go(made, 5, canary=True)
    assert reason(made.slot(key(0))) == "CanaryRunning"
    go(made, 3, canary=True)
    assert made.slot(key(0)).image


def test_given_turns_count_before_a_status_shows_them() -> None:
    """Two reconciles side by side must not take the last place both."""
    made = ledger(9)
    go(made, 0)
    assert made.slot(key(4)).image
    assert made.slot(key(7)).image
    assert reason(made.slot(key(5))) == "WaitingForWave"
    assert made.slot(key(4)).image, "whose status could not be written yet keeps the place"
    made.record_group(key(4), rolls())
    assert reason(made.slot(key(5))) == "WaitingForWave"
    made.release(key(7))
    assert made.slot(key(5)).image


def test_turn_of_a_group_that_may_not_go_any_more_is_free_again() -> None:
    for changed in (None, replace(WHOLE, rests=True), replace(WHOLE, image=None), replace(WHOLE, whole=False)):
        made = ledger(9, bound=1)
        go(made, 0)
        assert made.slot(key(1)).image
        assert made.next() == []
        made.record_group(key(1), changed)
        assert made.next() == [key(2)]


def test_next_operator_counts_what_the_statuses_show() -> None:
    made = ledger(9, bound=3)
    go(made, 0)
    for number in (1, 2, 3):
        made.record_group(key(number), rolls())
    assert made.next() == []
    assert reason(made.slot(key(4))) == "WaitingForWave"
    made.record_group(key(2), ended(rolls()))
    assert made.next() == [key(4)]


def test_failure_stops_all_that_have_not_begun_until_it_is_fixed() -> None:
    made = ledger(9, bound=3)
    go(made, 0)
    go(made, 1, Phase.FAILED)
    assert made.next() == []
    for number in (1, 5):
        slot = made.slot(key(number))
        assert reason(slot) == "UpgradeStopped"
        assert "shop/orders-0001" in str(slot.wait)
    assert made.counts() == {"waiting": 7, "rolling": 0, "failed": 1}
    made.record_group(key(1), ended(rolls()))
    assert made.next() == [key(2), key(3), key(4)]


def test_failed_group_that_is_suspended_goes_on_being_a_reason_to_stop() -> None:
    made = ledger(9)
    go(made, 0, Phase.FAILED)
    made.record_group(key(0), replace(ended(rolls(), Phase.FAILED), rests=True))
    assert reason(made.slot(key(5))) == "UpgradeStopped"
    made.record_group(key(0), replace(WHOLE, image=None))
    assert made.next() == [key(1)], "another canary, for the first one runs an image of its own now"


@pytest.mark.parametrize("changed", [{"rests": True}, {"image": None}, {"whole": False}])
def test_group_that_may_not_go_holds_up_nobody(changed: dict[str, object]) -> None:
    made = ledger(4, canaries=(0,))
    made.record_group(key(0), replace(WHOLE, canary=True, **changed))  # type: ignore[arg-type]
    assert made.next() == [key(1)]
    assert not made.slot(key(0)).image
    made.record_group(key(1), rolls())
    made.record_group(key(1), replace(rolls(), rests=True))
    assert made.next() == [key(2)], "one that was suspended on its way gives its place to the next canary"


def test_suspended_group_says_that_it_waits_and_one_that_is_up_to_date_says_nothing() -> None:
    made = ledger(2)
    made.record_group(key(0), replace(WHOLE, rests=True))
    assert reason(made.slot(key(0))) == "WaitingForFleet"
    made.record_group(key(1), replace(WHOLE, image=NEW))
    assert made.slot(key(1)) == Slot(waves=True)


def test_newer_image_begins_again_with_the_failed_group_too() -> None:
    made = ledger(3, image=NEWER)
    made.record_group(key(0), ended(rolls(), Phase.FAILED))
    assert made.next() == [key(0)]
    assert made.slot(key(0)).image


def test_groups_stuck_at_an_image_that_does_not_start_go_over_to_the_next_in_their_own_places() -> None:
    made = ledger(6, bound=2, image=NEWER, canaries=(0,))
    for number in (3, 4):
        made.record_group(key(number), rolls())
    assert made.next() == [key(3)]
    assert reason(made.slot(key(0))) == "WaitingForWave", "the canary has no place"
    assert reason(made.slot(key(4))) == "CanaryRunning"
    assert made.slot(key(3)).image
    made.record_group(key(3), rolls(image=NEWER))
    made.record_group(key(3), ended(rolls(image=NEWER)))
    assert made.next() == [key(0)]
    assert made.slot(key(0)).image


def test_changed_connection_goes_in_waves_of_its_cluster_and_shares_the_bound() -> None:
    made = ledger(5, bound=2, image=OLD)
    other = ("shop", "other")
    made.record_cluster(other, "theirs")
    made.record_group(("shop", "elsewhere"), replace(WHOLE, cluster=other, connection="theirs"))
    assert made.next() == []
    made.record_cluster(CLUSTER, "after")
    assert made.next() == [key(0)]
    assert made.slot(key(0)) == Slot(waves=True, connection=True)
    assert made.slot(("shop", "elsewhere")) == Slot(waves=True)
    assert reason(made.slot(key(1))) == "CanaryRunning"
    made.record_cluster(CLUSTER, "before")
    assert made.next() == []
    assert made.slot(key(1)) == Slot(waves=True), "the edit was taken back"


def test_image_waits_for_the_connection_and_not_the_other_way_round() -> None:
    made = ledger(3, bound=3)
    made.record_cluster(CLUSTER, "after")
    assert made.slot(key(0)) == Slot(waves=True, image=True, connection=True)
    assert reason(made.slot(key(1))) == "CanaryRunning"
    both = replace(rolls(), connection="after", upgrade=Upgrade(Phase.FAILED, NEW))
    made.record_group(key(0), both)
    slot = made.slot(key(1))
    assert (slot.image, slot.connection, reason(slot)) == (False, True, "UpgradeStopped")


def test_unknown_connection_of_a_cluster_moves_nobody() -> None:
    made = ledger(3, image=OLD)
    made.record_cluster(CLUSTER, None)
    assert made.slot(key(0)) == Slot(waves=True)
    made.record_group(key(1), replace(WHOLE, connection=None))
    made.record_cluster(CLUSTER, "after")
    assert made.slot(key(1)) == Slot(waves=True)


@pytest.mark.parametrize("seed", range(20))
def test_bound_holds_and_all_arrive_in_any_order_with_restarts(seed: int) -> None:
    """Turns are asked for in any order, statuses show late, and the operator is exchanged in between."""
    chance = random.Random(seed)
    count, bound = 40, chance.randint(1, 5)
    stored = {key(number): replace(WHOLE, canary=chance.random() < 0.1) for number in range(count)}
    made = WaveLedger(bound, NEW)
    first: list[Key] = []
    for _ in range(20_000):
        if all(each.image == NEW and each.whole for each in stored.values()):
            break
        if chance.random() < 0.02:
            made = WaveLedger(bound, NEW)
        for which, status in stored.items():
            made.record_group(which, status)
        which = chance.choice(sorted(stored))
        status = stored[which]
        if status.rolls and chance.random() < 0.5:
            stored[which] = ended(status)
        elif made.slot(which).image and chance.random() < 0.8:
            stored[which] = rolls(status)
            first.append(which)
            made.record_group(which, stored[which])
        assert sum(each.rolls for each in stored.values()) <= bound
    assert len(first) == count
    canaries = {which for which, status in stored.items() if status.canary} or {min(stored)}
    assert set(first[: len(canaries)]) == canaries


DOWN = replace(WHOLE, whole=False, down=True)


@pytest.mark.parametrize("bound", [1, 5])
def test_fleet_that_is_down_takes_a_changed_connection_at_once_whatever_holds_the_others(bound: int) -> None:
    made = ledger(9, bound=bound, image=OLD, canaries=(3,))
    made.record_cluster(CLUSTER, "after")
    assert made.slot(key(3)).connection
    failed = replace(WHOLE, canary=True, connection="after", upgrade=Upgrade(Phase.FAILED, None, "after"))
    made.record_group(key(3), failed)
    assert reason(made.slot(key(4))) == "UpgradeStopped"
    for number in range(5, 9):
        made.record_group(key(number), DOWN)
        assert made.slot(key(number)) == Slot(waves=True, connection=True, alone=True)
    assert made.counts()["waiting"] == 4, "those that are down wait for nobody"
    assert made.counts()["rolling"] == 0, "and take no place"


def test_fleet_that_is_down_holds_up_nobody_as_the_canary() -> None:
    made = ledger(4, canaries=(0,))
    made.record_group(key(0), replace(DOWN, canary=True))
    made.record_cluster(CLUSTER, "after")
    assert made.next() == [key(1)]


def test_only_a_fleet_that_fails_takes_an_image_that_no_canary_has_proven() -> None:
    made = ledger(4)
    made.record_group(key(2), DOWN)
    assert reason(made.slot(key(2))) == "WaitingForFleet"
    assert "spec.image" in str(made.slot(key(2)).wait)
    made.record_group(key(2), replace(DOWN, fails=True))
    assert made.slot(key(2)) == Slot(waves=True, image=True, alone=True)
    made.record_group(key(2), replace(DOWN, fails=True, rests=True))
    assert not made.slot(key(2)).begins, "a paused fleet stays as it is"


def test_fleet_that_is_down_on_its_way_goes_over_to_the_newest_connection_in_its_own_place() -> None:
    made = ledger(4, bound=1)
    made.record_cluster(CLUSTER, "wrong")
    stuck = replace(DOWN, connection="wrong", upgrade=Upgrade(Phase.ROLLING, None, "wrong"))
    made.record_group(key(0), stuck)
    made.record_cluster(CLUSTER, "right")
    assert made.slot(key(0)).connection


DEADLINE_S = 3600.0


def limited(count: int, **changes: object) -> WaveLedger:
    made = ledger(count, **changes)  # type: ignore[arg-type]
    made.deadline_s = DEADLINE_S
    assert made.expire(0.0) == []
    return made


def test_failed_group_stops_the_others_until_the_deadline_and_no_longer() -> None:
    made = limited(9)
    go(made, 0, Phase.FAILED)
    made.expire(10.0)
    assert made.expire(DEADLINE_S) == []
    assert reason(made.slot(key(5))) == "UpgradeStopped"
    assert made.expire(10.0 + DEADLINE_S) == [(key(0), "the operator's worker image")]
    assert made.expire(20.0 + DEADLINE_S) == [], "it is told once"
    assert made.next() == [key(1)], "another canary: nothing is proven yet"
    assert made.counts()["failed"] == 1
    assert "failed in this group" in str(made.slot(key(0)).wait)
    go(made, 1, Phase.FAILED)
    made.expire(30.0 + DEADLINE_S)
    assert made.next() == [], "one failure after the other, with an hour between them"


def test_canary_that_never_begins_or_never_arrives_holds_the_others_until_the_deadline() -> None:
    made = limited(6, canaries=(3, 5))
    assert made.slot(key(3)).image
    made.record_group(key(3), rolls(replace(WHOLE, canary=True)))
    assert reason(made.slot(key(0))) == "CanaryRunning"
    for at in (1.0, DEADLINE_S + 1):
        late = made.expire(at)
    assert (key(3), "a slot") in late
    assert {found for found, _ in late} == {key(3), key(5)}
    assert made.next()[0] == key(0)
    assert made.slot(key(0)).image
    made.record_group(key(3), ended(rolls(replace(WHOLE, canary=True))))
    made.expire(DEADLINE_S + 2)
    assert made.slot(key(1)).image, "it has arrived after all"


def test_first_group_by_name_that_never_begins_is_passed_over() -> None:
    made = limited(4)
    for at in (1.0, DEADLINE_S + 1):
        made.expire(at)
    assert made.next() == [key(1)]
    assert made.slot(key(1)).image


def test_group_that_waits_for_a_slot_holds_up_nobody() -> None:
    made = limited(4, bound=1)
    go(made, 0)
    made.record_group(key(1), rolls())
    made.expire(1.0)
    assert made.expire(DEADLINE_S + 1) == [(key(1), "a slot"), (key(1), "the operator's worker image")]
    assert made.next() == [key(2)], "and a slot that is held too long is given to another one"


def test_force_goes_to_all_within_the_bound_whatever_has_failed() -> None:
    made = ledger(9, bound=3, canaries=(8,))
    made.record_group(key(0), ended(rolls(), Phase.FAILED))
    made.force = True
    assert made.next() == [key(1), key(2), key(3)]
    assert all(made.slot(key(number)).image for number in (1, 2, 3))
    assert reason(made.slot(key(4))) == "WaitingForWave"


def test_without_a_deadline_the_hold_has_no_end() -> None:
    made = ledger(4)
    go(made, 0, Phase.FAILED)
    for at in (0.0, 1e9):
        assert made.expire(at) == []
    assert reason(made.slot(key(1))) == "UpgradeStopped"


def test_second_group_that_never_begins_is_passed_over_while_the_first_one_never_arrives() -> None:
    made = limited(4, bound=3)
    go(made, 0, Phase.ROLLING)
    for at in (1.0, DEADLINE_S + 1, DEADLINE_S + 2, 2 * DEADLINE_S + 2):
        made.expire(at)
    assert made.next() == [key(2)]
