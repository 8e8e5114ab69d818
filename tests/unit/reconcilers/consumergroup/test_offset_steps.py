"""Steps of a reset in Kafka, as they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet_consumer.net import KafkaError
from fleet_consumer.wire.errors import ErrorCode
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.observe.kafka_admin import OffsetsSet
from fleet_operator.planning.fleet.revision import plan_revision
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord
from fleet_operator.planning.offsets.records import ResetPhase, ResetRecord, mark_of
from fleet_operator.planning.offsets.reset import Finding, ResetDecision, ResetStep
from fleet_operator.planning.offsets.targets import GroupOffsets
from fleet_operator.planning.state.fleet import RevisionState
from fleet_operator.planning.state.group import GroupState
from fleet_operator.reconcilers.consumergroup.offset_reset import READ_SECONDS, OffsetResets, reset_facts
from fleet_operator.runtime.background import Tasks
from fleet_operator.runtime.metrics import Metrics
from tests.unit.planning.builders import IMAGE, consumer_group, kafka_cluster, remembered
from tests.unit.reconcilers.consumergroup.sessions import fresh_session
from tests.unit.reconcilers.consumergroup.test_decide import gathered
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

GROUP = ("shop", "orders")
RECORD = ResetRecord(id="a", to="Earliest", phase=ResetPhase.COMMITTING, offsets={"orders": {0: 0}})
COMMIT = ResetDecision(last=RECORD, step=ResetStep.COMMIT, step_for=RECORD)
HERE = SimpleNamespace(key=GROUP, cluster_key=GROUP, cluster_id="kafka-1", group=consumer_group())


class Busy:
    """An observer whose thread never comes to what is asked."""

    async def change(self, *_: Any) -> Any:
        await asyncio.sleep(3600.0)


class Doing:
    """An observer that does what is asked at once, with a Kafka that takes everything."""

    def __init__(self, *answers: OffsetsSet | Exception) -> None:
        self.marks: list[str] = []
        self.answers = list(answers)

    async def change(self, cluster: object, cluster_id: object, run: Callable[[Any], Any]) -> Any:
        return run(self)

    def set_offsets(self, group_id: str, wanted: Any, previous: Any, *, mark: str) -> OffsetsSet:
        self.marks.append(mark)
        answer = self.answers.pop(0) if self.answers else OffsetsSet({}, {}, {("orders", 0): 0})
        if isinstance(answer, Exception):
            raise answer
        return answer

    def read_offsets(self, *_: Any, read_committed: bool) -> GroupOffsets:
        return GroupOffsets(state="Empty")

    def look(self, cluster: object) -> None:
        pass


def body(record: ResetRecord | None = RECORD, **metadata: Any) -> JsonObject:
    status = {} if record is None else {"offsets": {"lastReset": record.document()}}
    return {"metadata": {"uid": HERE.group.metadata.uid, **metadata}, "status": status}


@dataclass
class Objects:
    """A store whose object is this one, read live."""

    live: JsonObject | None

    async def refresh(self, *_: object) -> JsonObject | None:
        return self.live


async def take(observer: Any, live: JsonObject | None) -> tuple[Finding | None, list[int]]:
    """Take the step of a commit; its finding, and how often the group was queued."""
    returned = list[int]()
    clock = VirtualClock(asyncio.get_running_loop())
    tasks = Tasks()
    session = fresh_session(clock, tasks=tasks, again=lambda: returned.append(1))
    resets = OffsetResets(cast("Any", Objects(live)), observer, Metrics(), clock)
    resets.take_step(session, cast("Any", HERE), ("orders",), COMMIT)
    await asyncio.sleep(120.0)
    await tasks.close()
    return resets.finding(GROUP), returned


def test_step_that_runs_out_of_time_leaves_its_reason() -> None:
    """Without it a fleet would stand still and nothing would say why."""
    finding, returned = run_virtual(take(Busy(), body()))
    assert finding is not None
    assert finding.problem is not None
    assert finding.problem.message == "the brokers did not answer in time"
    assert (finding.id, finding.phase) == ("a", ResetPhase.COMMITTING)
    assert returned == [1]


def test_refusal_of_a_whole_request_has_the_word_of_our_conditions() -> None:
    finding, _ = run_virtual(take(Doing(KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "group 'g'")), body()))
    assert finding is not None
    assert finding.problem is not None
    assert finding.problem.reason == "AuthorizationFailed"


def test_commit_is_made_with_the_mark_of_the_reset_and_the_group() -> None:
    observer = Doing()
    finding, _ = run_virtual(take(observer, body()))
    assert finding is not None
    assert finding.committed
    assert observer.marks == [mark_of(RECORD, HERE.group.metadata.uid)]


@pytest.mark.parametrize(
    "live",
    [
        None,
        body(uid="another"),
        body(None),
        body(replace(RECORD, phase=ResetPhase.SUCCEEDED)),
        body(replace(RECORD, id="b")),
    ],
)
def test_nothing_is_committed_for_what_only_a_stale_cache_says(live: JsonObject | None) -> None:
    """An operator that was suspended goes on with what it had, and other programs may have committed since."""
    observer = Doing()
    finding, returned = run_virtual(take(observer, live))
    assert (finding, returned, observer.marks) == (None, [1], [])


OUTDATED = OffsetsSet({}, {}, {}, outdated=True)
REFUSED = OffsetsSet({("orders", 0): "UnknownMemberId"}, {}, {})


@pytest.mark.parametrize(
    ("wrote", "answers", "unsent"),
    [
        (True, [OUTDATED], True),
        (True, [REFUSED, OUTDATED], True),
        (True, [TimeoutError(), OUTDATED], False),
        (True, [OffsetsSet({}, {}, {}), OUTDATED], False),
        (False, [OUTDATED], False),
        (False, [REFUSED, OUTDATED], False),
    ],
)
def test_it_is_known_whether_a_commit_can_have_been_made(
    wrote: bool, answers: list[OffsetsSet | Exception], unsent: bool
) -> None:
    """Only by the process that has brought the reset to `Committing`, and only until an answer is lost."""

    async def main() -> Finding | None:
        clock = VirtualClock(asyncio.get_running_loop())
        session = fresh_session(clock)
        resets = OffsetResets(cast("Any", Objects(body())), cast("Any", Doing(*answers)), Metrics(), clock)
        if wrote:
            resets.advanced(GROUP, RECORD)
        for _ in answers:
            resets.take_step(session, cast("Any", HERE), ("orders",), COMMIT)
            await asyncio.sleep(120.0)
        return resets.finding(GROUP)

    finding = run_virtual(main())
    assert finding is not None
    assert (finding.outdated, finding.unsent) == (True, unsent)


def test_step_that_ends_after_its_reset_has_gone_on_leaves_a_finding_that_can_be_read() -> None:
    """A dry run ends while a read of it runs: what comes back then is of no use, and stops nothing."""

    async def main() -> Finding | None:
        nobody, clock = cast("Any", None), VirtualClock(asyncio.get_running_loop())
        session = fresh_session(clock)

        class Slow(Doing):
            async def change(self, cluster: object, cluster_id: object, run: Callable[[Any], Any]) -> Any:
                await asyncio.sleep(5.0)
                return run(self)

        resets = OffsetResets(nobody, cast("Any", Slow()), Metrics(), clock)
        wanted = consumer_group(offsets={"reset": {"id": "a", "to": "Latest"}})
        here = SimpleNamespace(**{**vars(HERE), "group": wanted})
        decision = ResetDecision(last=DOWN, step=ResetStep.READ, step_for=DOWN)
        resets.take_step(session, cast("Any", here), ("orders",), decision)
        await asyncio.sleep(1.0)
        resets.forget(GROUP)
        await asyncio.sleep(5.0)
        return resets.finding(GROUP)

    finding = run_virtual(main())
    assert finding is not None
    assert finding.read is not None


DOWN = replace(RECORD, phase=ResetPhase.STANDING_DOWN, offsets={})


def test_offsets_that_were_read_before_a_hindrance_are_not_decided_upon_after_it() -> None:
    """`paused` may come right behind a read, and be removed hours later."""

    async def main() -> tuple[Finding | None, Finding | None, Finding | None]:
        nobody, clock = cast("Any", None), VirtualClock(asyncio.get_running_loop())
        session = fresh_session(clock)
        resets = OffsetResets(nobody, cast("Any", Doing()), Metrics(), clock)
        wanted = consumer_group(offsets={"reset": {"id": "a", "to": "Latest"}})
        here = SimpleNamespace(**{**vars(HERE), "group": wanted})
        decision = ResetDecision(last=DOWN, step=ResetStep.READ, step_for=DOWN)
        resets.take_step(session, cast("Any", here), ("orders",), decision)
        await asyncio.sleep(READ_SECONDS - 1.0)
        early = resets.finding(GROUP)
        await asyncio.sleep(2.0)
        late = resets.finding(GROUP)
        resets.take_step(session, cast("Any", here), ("orders",), decision)
        await asyncio.sleep(1.0)
        return early, late, resets.finding(GROUP)

    early, late, again = run_virtual(main())
    assert early is not None
    assert early.read is not None
    assert late is None
    assert again is not None
    assert (early.waited_s, again.waited_s) == (0.0, READ_SECONDS + 1.0), "the group is waited for since the first read"


REVISION = plan_revision(consumer_group(), kafka_cluster(), handler_files=None, image=IMAGE)


@pytest.mark.parametrize(
    ("state", "changes", "begun"),
    [
        (None, {}, False),
        (RevisionState.CANDIDATE, {}, False),
        (RevisionState.REFUSED, {}, False),
        (RevisionState.GOOD, {}, True),
        (None, {"workers": ({"metadata": {"name": "orders-0"}, "spec": {}},)}, True),
        (None, {"stateful_set": {"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}}}, True),
    ],
)
def test_fleet_whose_stateful_set_was_deleted_is_no_new_one(
    state: RevisionState | None, changes: dict[str, Any], begun: bool
) -> None:
    """A reset that waits or has failed would keep it down; only a fleet that never ran has to wait for its reset."""
    record = RevisionRecord(hash=REVISION.hash, state=state or RevisionState.CANDIDATE)
    known = GroupState() if state is None else remembered(record)
    facts = reset_facts(gathered(state=known, **changes), ("orders",), None)
    assert (facts.begun, facts.down) == (begun, True)
