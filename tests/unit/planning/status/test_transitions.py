"""`status.transitions`: merged from an observer's history, with the causes that are deduced or reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.observe.group_aggregation import extend_transitions
from fleet_operator.planning.observation import (
    GroupObservation,
    MemberObservation,
    WorkerObservation,
    WorkerRejoin,
)
from fleet_operator.planning.status.transitions import awaits_report
from tests.unit.planning.builders import NOW, facts, member, observation, observed_group
from tests.unit.planning.status.projecting import condition, message, project

PREPARING, COMPLETING, STABLE, EMPTY, DEAD = "PreparingRebalance", "CompletingRebalance", "Stable", "Empty", "Dead"
FOLLOWED = "group is already rebalancing"
Status = Mapping[str, Any]


@dataclass
class Mirror:
    """An observer and the status that is made of what it sees; one second passes with each observation."""

    now: float = NOW
    seen: GroupObservation | None = None
    status: dict[str, Any] = field(default_factory=dict)

    def sees(self, state: str, *members: MemberObservation) -> Mirror:
        """Observe the group without a chance to write it down."""
        self.now += 1.0
        transitions = extend_transitions(self.seen, state, members, self.now)
        self.seen = observed_group(observed_at=self.now, state=state, members=members, transitions=transitions)
        return self

    def writes(self, *workers: WorkerObservation) -> Mirror:
        self.status = project(facts(observation=observation(self.seen), workers=workers), self.status, self.now + 100)
        return self

    def restarts(self) -> Mirror:
        """Another process begins, with nothing but the status."""
        self.seen = None
        return self

    @property
    def moves(self) -> list[tuple[str, str]]:
        return [(entry["from"], entry["to"]) for entry in self.status["transitions"]]

    @property
    def causes(self) -> list[tuple[str, bool]]:
        return [(entry["cause"], entry["inferred"]) for entry in self.status["transitions"]]

    @property
    def generations(self) -> list[int | None]:
        return [entry.get("generation") for entry in self.status["transitions"]]


def worker(ordinal: int, generation: int, *rejoins: WorkerRejoin, heard_at: float, **changes: Any) -> WorkerObservation:
    report = WorkerObservation(
        pod=f"orders-fleet-{ordinal}",
        member_id=f"m{ordinal}",
        generation=generation,
        state=STABLE,
        rejoins=rejoins,
        heard_at=heard_at,
    )
    return replace(report, **changes)


A, B, C = (member(ordinal, {"orders": (ordinal,)}) for ordinal in range(3))


def test_states_that_come_and_go_between_two_writes_are_all_there_with_their_times() -> None:
    mirror = Mirror().sees(STABLE, A).writes()
    mirror.sees(PREPARING, A, B).sees(COMPLETING, A, B).sees(STABLE, A, B).sees(PREPARING, A).sees(EMPTY).sees(DEAD)
    mirror.writes()
    assert mirror.moves == [
        ("Unknown", STABLE),
        (STABLE, PREPARING),
        (PREPARING, COMPLETING),
        (COMPLETING, STABLE),
        (STABLE, PREPARING),
        (PREPARING, EMPTY),
        (EMPTY, DEAD),
    ]
    assert [entry["at"] for entry in mirror.status["transitions"]] == [
        f"2027-01-15T08:00:0{second}.000Z" for second in range(1, 8)
    ]
    assert mirror.causes == [
        ("first observation", False),
        ("orders-fleet-1 joined", True),
        ("all members have joined", False),
        ("the leader has assigned the partitions", False),
        ("orders-fleet-1 left", True),
        ("orders-fleet-0 left", True),
        ("the group was deleted, or its offsets have expired", True),
    ]
    assert (mirror.status["state"], mirror.status["stateSince"]) == (DEAD, "2027-01-15T08:00:07Z")


def test_the_same_history_adds_nothing_twice() -> None:
    mirror = Mirror().sees(STABLE, A).sees(EMPTY).writes()
    once = mirror.status["transitions"]
    assert mirror.writes().status["transitions"] == once
    assert mirror.sees(EMPTY).writes().status["transitions"] == once


def test_only_the_last_ten_are_kept_in_their_order() -> None:
    mirror = Mirror().sees(STABLE, A).writes()
    for _ in range(9):
        mirror.sees(PREPARING, A).sees(STABLE, A)
    mirror.writes()
    assert mirror.moves == [(PREPARING, STABLE) if number % 2 else (STABLE, PREPARING) for number in range(10)]
    for _ in range(3):
        mirror.sees(PREPARING, A).writes().sees(STABLE, A).writes()
    assert len(mirror.moves) == 10
    times = [entry["at"] for entry in mirror.status["transitions"]]
    assert times == sorted(set(times))


def test_new_process_continues_the_record_without_a_break() -> None:
    mirror = Mirror().sees(STABLE, A).sees(EMPTY).writes()
    mirror.restarts().sees(EMPTY).writes()
    assert mirror.moves == [("Unknown", STABLE), (STABLE, EMPTY)]
    mirror.sees(PREPARING, A).writes()
    assert mirror.moves[2:] == [(EMPTY, PREPARING)]
    assert mirror.writes().moves[2:] == [(EMPTY, PREPARING)]


def test_change_while_nobody_observed_is_inferred() -> None:
    mirror = Mirror().sees(STABLE, A).writes().restarts().sees(EMPTY).writes().writes()
    assert mirror.moves == [("Unknown", STABLE), (STABLE, EMPTY)]
    assert mirror.causes[1] == ("while the group was not observed", True)


@given(st.lists(st.sampled_from([PREPARING, COMPLETING, STABLE, EMPTY, DEAD, "write", "restart"]), max_size=40))
def test_whatever_happens_between_writes_nothing_is_lost_but_what_a_process_takes_with_it(steps: list[str]) -> None:
    mirror = Mirror().sees(EMPTY).writes()
    written, unwritten = [EMPTY], list[str]()
    for step in [*steps, "write"]:
        if step == "restart":
            mirror.restarts()
            unwritten = []
        elif step == "write":
            if mirror.seen is not None:
                mirror.writes()
            written, unwritten = [*written, *unwritten], []
            assert [entry["to"] for entry in mirror.status["transitions"]] == written[-10:]
            moves = mirror.moves
            assert all(earlier[1] == later[0] for earlier, later in pairwise(moves)), moves
        else:
            mirror.sees(step)
            if step != (unwritten or written)[-1]:
                unwritten.append(step)


def test_clock_that_goes_back_loses_and_repeats_nothing() -> None:
    mirror = Mirror().sees(STABLE, A).writes()
    mirror.now -= 30.0
    mirror.sees(PREPARING, A, B).writes().sees(COMPLETING, A, B).writes().writes()
    assert mirror.moves == [("Unknown", STABLE), (STABLE, PREPARING), (PREPARING, COMPLETING)]


def test_move_that_skips_a_state_is_inferred() -> None:
    mirror = Mirror().sees(STABLE, A).sees(COMPLETING, A).sees(EMPTY).sees(STABLE, A).writes()
    assert mirror.causes[1:] == [
        ("all members have joined", True),
        ("orders-fleet-0 left", True),
        ("orders-fleet-0 joined", True),
    ]


def test_many_members_are_counted() -> None:
    crowd = tuple(MemberObservation(member_id=f"x{n}", instance_id=None, client_id="", host="") for n in range(40))
    mirror = Mirror().sees(EMPTY).sees(PREPARING, *crowd).writes()
    assert mirror.causes[1] == ("x0, x1, x2 and 37 more joined", True)


def test_rebalance_that_no_observation_shows_follows_from_the_generation() -> None:
    mirror = Mirror().sees(STABLE, A)
    mirror.sees(STABLE, A).writes(worker(0, 3, heard_at=mirror.now - 0.5))
    assert mirror.generations == [3]
    mirror.sees(STABLE, A).writes(worker(0, 5, heard_at=mirror.now - 0.5)).writes(worker(0, 5, heard_at=0.0))
    entry = mirror.status["transitions"][-1]
    assert (entry["from"], entry["to"], entry["generation"]) == (STABLE, STABLE, 5)
    assert (entry["cause"], entry["inferred"]) == ("generation 3 to 5", True)
    assert len(mirror.moves) == 2


def test_report_that_is_newer_than_the_observation_infers_nothing() -> None:
    """The next observation may show that rebalance itself."""
    mirror = Mirror().sees(STABLE, A)
    mirror.sees(STABLE, A).writes(worker(0, 3, heard_at=mirror.now))
    ahead = worker(0, 4, heard_at=mirror.now + 0.5)
    assert len(mirror.writes(ahead).moves) == 1
    mirror.sees(PREPARING, A).writes(ahead).sees(STABLE, A).writes(ahead)
    assert mirror.moves[1:] == [(STABLE, PREPARING), (PREPARING, STABLE)]
    assert mirror.generations == [3, None, 4]


def test_seen_rebalance_is_not_inferred_again_from_a_late_report() -> None:
    mirror = Mirror().sees(STABLE, A)
    mirror.sees(STABLE, A).writes(worker(0, 3, heard_at=mirror.now))
    mirror.sees(PREPARING, A).sees(STABLE, A).sees(PREPARING, A).sees(STABLE, A)
    mirror.writes(worker(0, 3, heard_at=mirror.now))
    assert mirror.generations == [3, None, None, None, None]
    mirror.writes(worker(0, 4, heard_at=mirror.now))
    assert mirror.generations == [3, None, 4, None, None]
    mirror.writes(worker(0, 5, heard_at=mirror.now))
    assert mirror.generations == [3, None, 4, None, 5]


def test_workers_report_the_cause_and_those_that_follow_are_none() -> None:
    mirror = Mirror().sees(STABLE, A)
    mirror.sees(STABLE, A).writes(worker(0, 3, heard_at=mirror.now))
    mirror.sees(PREPARING, A, B).sees(COMPLETING, A, B).sees(STABLE, A, B).writes()
    assert mirror.causes[1] == ("orders-fleet-1 joined", True)
    first = worker(0, 4, WorkerRejoin(3, 4, FOLLOWED, own=False), heard_at=mirror.now)
    second = worker(1, 4, WorkerRejoin(-1, 4, "first subscription", own=True), heard_at=mirror.now)
    mirror.writes(first, second)
    assert mirror.causes[1:] == [
        ("orders-fleet-1: first subscription", False),
        ("all members have joined", False),
        ("the leader has assigned the partitions", False),
    ]
    assert mirror.generations == [3, None, None, 4]
    assert mirror.writes(first).causes[1] == ("orders-fleet-1: first subscription", False), "it goes with no worker"


def test_worker_that_gave_up_its_membership_is_the_cause_of_the_next_generation() -> None:
    mirror = Mirror().sees(STABLE, A, B)
    mirror.sees(STABLE, A, B).writes(worker(0, 3, heard_at=mirror.now))
    mirror.sees(PREPARING, A).sees(STABLE, A)
    late = WorkerRejoin(3, -1, "consumer poll timeout has expired", own=True)
    away = worker(1, -1, late, heard_at=mirror.now, member_id="", state="Unjoined")
    mirror.writes(worker(0, 4, WorkerRejoin(3, 4, FOLLOWED, own=False), heard_at=mirror.now), away)
    assert mirror.causes[1] == ("orders-fleet-1: consumer poll timeout has expired", False)


def test_cause_is_known_while_the_rebalance_lasts() -> None:
    mirror = Mirror().sees(STABLE, A)
    mirror.sees(STABLE, A).writes(worker(0, 3, heard_at=mirror.now))
    mirror.sees(PREPARING, A)
    again = worker(
        0, 3, WorkerRejoin(3, -1, "cached metadata has changed", own=True), heard_at=mirror.now, state=PREPARING
    )
    mirror.writes(again)
    assert mirror.causes[1] == ("orders-fleet-0: cached metadata has changed", False)


@pytest.mark.parametrize("gone", [(EMPTY, DEAD), (EMPTY,)])
def test_generation_of_a_group_that_was_created_again_counts_from_its_own_reports(gone: tuple[str, ...]) -> None:
    mirror = Mirror().sees(STABLE, A)
    mirror.sees(STABLE, A).writes(worker(0, 9, heard_at=mirror.now))
    for state in gone:
        mirror.sees(state)
    mirror.sees(PREPARING, A).sees(STABLE, A).writes(worker(0, 9, heard_at=mirror.now - 5))
    assert "generation" not in mirror.status["transitions"][-1], "a report from before"
    mirror.sees(STABLE, A).writes(worker(0, 1, heard_at=mirror.now - 0.5))
    assert (mirror.generations[-1], mirror.status["generation"]) == (1, 1)
    mirror.sees(STABLE, A).writes(worker(0, 2, heard_at=mirror.now - 0.5))
    assert mirror.moves[-1] == (STABLE, STABLE)
    assert mirror.generations[-1] == 2


def test_reports_of_retry_workers_concern_another_group() -> None:
    mirror = Mirror().sees(STABLE, A)
    mirror.sees(STABLE, A).writes(worker(0, 3, heard_at=mirror.now))
    rejoin = WorkerRejoin(3, 4, "cached metadata has changed", own=True)
    retry = worker(0, 4, rejoin, heard_at=mirror.now, pod="orders-fleet-retry-0", member_id="r0")
    mirror.sees(PREPARING, A).sees(STABLE, A).writes(worker(0, 4, heard_at=mirror.now), retry)
    assert mirror.causes[1] == ("a member joined again", True)


def test_idle_group_is_asked_for_its_generation_for_a_while() -> None:
    mirror = Mirror().sees(STABLE, A).writes()
    entries, report = mirror.status["transitions"], worker(0, 3, heard_at=0.0)
    assert awaits_report(entries, [report], mirror.now + 5)
    assert awaits_report(entries, [report], mirror.now + 240), "a busy machine reports late"
    unjoined = worker(0, -1, heard_at=0.0, state="Unjoined")
    assert awaits_report(entries, [unjoined], mirror.now + 5), "as it answered before it joined"
    assert not awaits_report(entries, [], mirror.now + 5), "nobody can be asked"
    assert not awaits_report(entries, [report], mirror.now + 500)
    mirror.sees(STABLE, A).writes(worker(0, 3, heard_at=mirror.now))
    assert not awaits_report(mirror.status["transitions"], [report], mirror.now + 5)
    assert not awaits_report([], [report], mirror.now)


def test_entries_that_somebody_else_wrote_break_nothing() -> None:
    mirror = Mirror()
    mirror.status = {"transitions": [{"from": "x", "to": STABLE, "at": "no time", "cause": "", "inferred": False}]}
    mirror.sees(STABLE, A).writes(worker(0, 3, heard_at=mirror.now))
    assert mirror.moves == [("x", STABLE)]
    assert mirror.status["state"] == STABLE
    assert not awaits_report(mirror.status["transitions"], [worker(0, 3, heard_at=0.0)], NOW)


@pytest.mark.parametrize(("lasts", "reason"), [(100.0, "AsWanted"), (130.0, "RebalanceTakesLong")])
def test_rebalance_that_does_not_end_is_a_problem(lasts: float, reason: str) -> None:
    mirror = Mirror().sees(STABLE, A).sees(PREPARING, A, B)
    mirror.now += lasts - 2
    mirror.sees(COMPLETING, A, B).sees(COMPLETING, A, B).writes()
    assert condition(mirror.status, "Degraded")[1] == reason
    mirror.sees(STABLE, A, B).writes()
    assert condition(mirror.status, "Degraded") == ("False", "AsWanted")


def test_message_about_a_long_rebalance_stays_the_same() -> None:
    mirror = Mirror().sees(STABLE, A).sees(PREPARING, A)
    mirror.now += 200
    first = message(mirror.sees(PREPARING, A).writes().status, "Degraded")
    mirror.now += 200
    assert message(mirror.sees(PREPARING, A).writes().status, "Degraded") == first
    slow = worker(0, 3, heard_at=mirror.now, state=PREPARING, revoking=True)
    assert "have not released their partitions, in orders-fleet-0" in message(mirror.writes(slow).status, "Degraded")
