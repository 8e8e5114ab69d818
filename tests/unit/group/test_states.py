"""The table of moves: every move of random members is in it, every row of it is reached, and its diagram is printed."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.group import errors
from fleet_consumer.group.classic import state as member_state
from fleet_consumer.group.classic.planning import collect_user_data, run_assignor
from fleet_consumer.group.classic.states import MOVES, IllegalMove, Moves, State, Trigger, check_move
from fleet_consumer.group.classification import RULES, Api, Verdict
from fleet_consumer.group.messages import (
    CloseRequested,
    CollectUserData,
    CoordinatorSuspected,
    ForCommit,
    ForHeartbeat,
    ForJoin,
    ForLookup,
    ForPlan,
    ForSync,
    ForWatch,
    LoginRefused,
    PlanFailed,
    RebalanceRequested,
    RunAssignor,
    Send,
    Subscribed,
    Unsubscribed,
    UserDataFailed,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import HeartbeatResponse
from tests.support.assignors import CooperativeRange
from tests.unit.group.lab import (
    COORDINATOR,
    ME,
    OTHER,
    Lab,
    commit_answer,
    join_answer,
    lookup_answer,
    metadata_answer,
    sync_answer,
)

WALKS = 8000
STEPS = 40
ASSIGNMENTS: list[dict[str, tuple[int, ...]]] = [{"t": (0, 1)}, {"t": (0,)}, {"x": (0,)}, {}]
APIS: dict[type, Api] = {
    ForLookup: Api.FIND_COORDINATOR,
    ForJoin: Api.JOIN_GROUP,
    ForSync: Api.SYNC_GROUP,
    ForHeartbeat: Api.HEARTBEAT,
    ForCommit: Api.OFFSET_COMMIT,
}
ROWS = {
    (state, trigger, target)
    for state, moves in MOVES.items()
    for trigger, targets in moves.items()
    for target in targets
}


class Walk:
    """A member to which anything happens that can happen, responses to requests of long ago included."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.eager = chance.random() < 0.5
        self.lab = Lab(assignors=("range",) if self.eager else (CooperativeRange(),), max_poll_interval_s=20.0)
        self.lab.answers_user_data = chance.random() < 0.5
        self.seen = 0
        self.pending: list[Send | RunAssignor | CollectUserData] = []

    def step(self) -> None:
        new, self.seen = self.lab.actions[self.seen :], len(self.lab.actions)
        for action in new:
            if isinstance(action, Send | RunAssignor) or (
                isinstance(action, CollectUserData) and not self.lab.answers_user_data
            ):
                self.pending.append(action)
        if self.chance.random() < 0.6:
            self.reply()
        else:
            self.user()

    def user(self) -> None:
        lab, pick = self.lab, self.chance.randrange(30)
        if pick < 5:
            lab.feed(Subscribed(self.chance.choice([("t",), ("t",), ("t", "u")])))
        elif pick < 12:
            lab.called_back()
        elif pick < 18:
            lab.polls = self.chance.random() < 0.9
            lab.tick(self.chance.choice([0.0, 0.2, 1.0, 3.0, 25.0]))
        elif pick < 21:
            lab.commit(sync=self.chance.random() < 0.5, alone=lab.is_in(State.IDLE))
        elif pick < 23:
            lab.feed(RebalanceRequested("test"))
        elif pick < 25:
            lab.feed(CoordinatorSuspected(COORDINATOR))
        elif pick < 28:
            lab.feed(Unsubscribed())
            if self.chance.random() < 0.8:
                lab.feed(Subscribed(("t",)))
        else:
            lab.feed(Subscribed((), re.compile("t$")))

    def end(self) -> None:
        """An event that ends the member."""
        pick = self.chance.randrange(5)
        if pick == 0:
            self.lab.feed(CloseRequested(leave=self.chance.random() < 0.5))
        elif pick == 1:
            self.lab.feed(LoginRefused(errors.AuthenticationFailed("refused")))
        elif sends := [each for each in self.pending if isinstance(each, Send) and type(each.context) in APIS]:
            send = self.chance.choice(sends)
            self.pending.remove(send)
            rules = RULES[APIS[type(send.context)]]
            fatal = [code for code, rule in rules.items() if rule.verdict is Verdict.FATAL]
            self.answer(send, self.chance.choice([*fatal, ErrorCode.FENCED_INSTANCE_ID]))

    def reply(self) -> None:
        """Answer the newest request, or an earlier one; some get a second outcome later."""
        if not self.pending:
            self.lab.tick(0.1)
            return
        place = -1 if self.chance.random() < 0.5 else self.chance.randrange(len(self.pending))
        action = self.pending[place] if self.chance.random() < 0.1 else self.pending.pop(place)
        works = self.chance.random() < 0.8
        match action:
            case RunAssignor(attempt):
                self.lab.feed(run_assignor(action) if works else PlanFailed(attempt, errors.AssignorFailed("no")))
            case CollectUserData(attempt):
                failed = UserDataFailed(attempt, errors.AssignorFailed("no"))
                self.lab.feed(collect_user_data(action) if works else failed)
            case Send() if works:
                self.answer(action, ErrorCode.NONE)
            case Send() if type(action.context) in APIS and self.chance.random() < 0.8:
                rules = RULES[APIS[type(action.context)]]
                codes = [code for code, rule in rules.items() if rule.verdict is not Verdict.FATAL]
                self.answer(action, self.chance.choice(codes))
            case Send():
                self.lab.feed_failure(action)

    def answer(self, send: Send, code: int) -> None:
        name = "range" if self.eager else CooperativeRange.name
        generation = self.chance.randrange(1, 9)
        response: Any = None
        match send.context:
            case ForLookup():
                response = lookup_answer(code)
            case ForJoin():
                leader = self.chance.choice([ME, OTHER])
                response = join_answer(code, leader=leader, generation_id=generation, protocol_name=name)
            case ForSync():
                response = sync_answer(code, self.chance.choice(ASSIGNMENTS))
            case ForHeartbeat():
                response = HeartbeatResponse(error_code=code)
            case ForCommit():
                response = commit_answer(code)
            case ForWatch() | ForPlan():
                response = metadata_answer({"t": 2})
        if response is not None:
            self.lab.feed_answer(send, response)


def overtaken() -> None:
    """Requests of an eager member, answered only when the next JoinGroup is in flight."""
    for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
        for kind, response in (
            (ForCommit, commit_answer(code)),
            (ForHeartbeat, HeartbeatResponse(error_code=code)),
        ):
            lab = Lab().beating()
            lab.commit()
            lab.feed(RebalanceRequested("test"))
            lab.called_back()
            lab.answer(kind, response)


def late_answer(kind: type) -> None:
    """A response to an attempt of the subscription before, when the next rebalance has begun already."""
    lab = Lab().joining() if kind is ForJoin else Lab().syncing()
    late = lab.asked(kind)
    lab.feed(Unsubscribed())
    lab.feed(Subscribed(("t",)))
    lab.answer(ForJoin, join_answer())
    lab.answer(ForSync, sync_answer())
    lab.called_back()
    lab.feed(RebalanceRequested("test"))
    assert lab.is_in(State.REVOKING)
    fenced = ErrorCode.FENCED_INSTANCE_ID
    lab.feed_answer(late, join_answer(fenced) if kind is ForJoin else sync_answer(fenced))


def test_every_move_is_in_the_table_and_every_row_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move outside of the table raises IllegalMove."""
    reached = set()

    def check(current: State, trigger: Trigger, target: State) -> None:
        check_move(current, trigger, target)
        reached.add((current, trigger, target))

    monkeypatch.setattr(member_state, "check_move", check)
    chance = random.Random(20)
    for _ in range(WALKS):
        walk = Walk(chance)
        for _ in range(chance.randrange(STEPS)):
            walk.step()
        walk.end()
        walk.lab.feed(CloseRequested(leave=True))
    overtaken()
    late_answer(ForJoin)
    late_answer(ForSync)
    assert {f"{current.name} -> {target.name}: {trigger.name}" for current, trigger, target in ROWS - reached} == set()


def test_every_state_can_be_reached_and_left_but_the_last() -> None:
    assert {target for _, _, target in ROWS} == set(State)
    assert {state for state, moves in MOVES.items() if not moves} == {State.LEFT}


@pytest.mark.parametrize("trigger", Trigger)
def test_illegal_move_raises_and_names_states_and_trigger(trigger: Trigger) -> None:
    with pytest.raises(IllegalMove, match=re.escape(f"STABLE -> SYNCING at {trigger.value!r}")):
        check_move(State.STABLE, trigger, State.SYNCING)


def test_page_about_rebalances_has_the_states_and_the_diagram_of_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs/rebalance.md").read_text()
    rows = "".join(f"| {state.name} | {state.word} | {state.meaning} |\n" for state in State)
    assert f"|---|---|---|\n{rows}" in page
    assert f"```mermaid\n{diagram()}```\n" in page


def diagram() -> str:
    """`MOVES` as a Mermaid state diagram. Moves that all subscribed states share are drawn once, from their frame."""
    members = [state for state in State if state not in (State.IDLE, State.LEFT, State.FAILED)]
    shared = set.intersection(*({*_pairs(MOVES[state])} for state in members))
    lines = ["stateDiagram-v2", "    [*] --> IDLE", '    state "subscribed" as SUBSCRIBED {']
    for state in members:
        own = [pair for pair in _pairs(MOVES[state]) if pair not in shared]
        lines += [f"        {line}" for line in _arrows(state.name, own)]
    lines.append("    }")
    for state in (State.IDLE, State.FAILED):
        lines += [f"    {line}" for line in _arrows(state.name, _pairs(MOVES[state]))]
    pairs = [pair for pair in _pairs(MOVES[members[0]]) if pair in shared]
    lines += [f"    {line}" for line in _arrows("SUBSCRIBED", pairs)]
    return "\n".join([*lines, "    LEFT --> [*]", ""])


def _pairs(moves: Moves) -> list[tuple[State, Trigger]]:
    order = list(Trigger)
    return [
        (state, trigger) for state in State for trigger in sorted(moves, key=order.index) if state in moves[trigger]
    ]


def _arrows(source: str, pairs: list[tuple[State, Trigger]]) -> list[str]:
    labels: dict[State, list[str]] = {}
    for target, trigger in pairs:
        labels.setdefault(target, []).append(trigger.value)
    return [f"{source} --> {target.name}: {', '.join(names)}" for target, names in labels.items()]
