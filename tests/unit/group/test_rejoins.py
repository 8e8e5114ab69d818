"""A member's account of its rejoins: from which generation to which, and for what cause."""

from __future__ import annotations

from fleet_consumer.group import reasons
from fleet_consumer.group.classic.state import REJOINS_MAX
from fleet_consumer.group.membership import Rejoin
from fleet_consumer.group.messages import ForJoin, ForSync, RebalanceRequested, Unsubscribed
from fleet_consumer.wire.errors import ErrorCode
from tests.unit.group.lab import Lab, join_answer, sync_answer


def rejoined(lab: Lab, generation: int) -> Lab:
    lab.answer(ForJoin, join_answer(generation_id=generation))
    lab.answer(ForSync, sync_answer())
    lab.called_back()
    return lab


def rejoins(lab: Lab) -> tuple[Rejoin, ...]:
    return lab.machine.snapshot().rejoins


def test_first_join_is_noted_with_its_cause_and_not_with_that_of_an_attempt() -> None:
    lab = Lab().joining()
    assert rejoins(lab) == (Rejoin(-1, -1, reasons.SUBSCRIBED, own=True),), "on its way"
    lab.answer(ForJoin, join_answer(ErrorCode.MEMBER_ID_REQUIRED))
    assert rejoined(lab, 7).machine.snapshot().last_rebalance_reason == reasons.MEMBER_ID_REQUIRED
    assert rejoins(lab) == (Rejoin(-1, 7, reasons.SUBSCRIBED, own=True),)


def test_member_that_follows_others_is_no_cause() -> None:
    lab = rejoined(Lab().joining(), 1)
    lab.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert lab.machine.snapshot().revoking
    lab.called_back()
    assert rejoins(lab)[1:] == (Rejoin(1, -1, reasons.GROUP_REBALANCING, own=False),)
    assert not lab.machine.snapshot().revoking
    rejoined(lab, 2)
    assert rejoins(lab)[1:] == (Rejoin(1, 2, reasons.GROUP_REBALANCING, own=False),)


def test_member_that_was_expelled_comes_from_the_generation_that_it_lost() -> None:
    lab = rejoined(Lab(max_poll_interval_s=10.0).joining(), 4)
    lab.polls = False
    lab.run_for(11.0)
    assert rejoins(lab)[-1] == Rejoin(4, -1, reasons.POLL_TIMEOUT, own=True)
    lab.polls = True
    lab.run_for(1.0)
    lab.called_back()
    lab.run_for(2.0)
    assert rejoins(rejoined(lab, 6))[-1] == Rejoin(4, 6, reasons.POLL_TIMEOUT, own=True)


def test_cause_that_somebody_gives_is_cut() -> None:
    lab = rejoined(Lab().joining(), 1)
    lab.feed(RebalanceRequested("x" * 600))
    lab.called_back()
    assert len(rejoins(rejoined(lab, 2))[-1].reason) == reasons.LENGTH_MAX


def test_rejoin_that_is_given_up_is_none() -> None:
    lab = Lab().joining()
    lab.feed(Unsubscribed())
    assert rejoins(lab) == ()


def test_only_the_last_rejoins_are_kept() -> None:
    lab = rejoined(Lab().joining(), 1)
    for generation in range(2, 30):
        lab.beat(ErrorCode.REBALANCE_IN_PROGRESS)
        lab.called_back()
        rejoined(lab, generation)
    assert [rejoin.generation for rejoin in rejoins(lab)] == list(range(30 - REJOINS_MAX, 30))
