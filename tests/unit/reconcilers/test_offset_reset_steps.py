"""Steps of an OffsetReset in Kafka, as they end, and the fleets that wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fleet_consumer.net import KafkaError
from fleet_consumer.wire.errors import ErrorCode
from fleet_operator.api.v1alpha1.conditions import find_condition
from fleet_operator.api.v1alpha1.model import PAUSED_ANNOTATION
from fleet_operator.clients.kinds import CONSUMER_GROUP, OFFSET_RESET, OPERATOR_STATE, STATEFUL_SET, JsonObject
from fleet_operator.clients.kube import KubeForbiddenError
from fleet_operator.observe.kafka_admin import OffsetsSet
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.labels import RESET_FINALIZER
from fleet_operator.planning.offsets.records import Committed
from fleet_operator.planning.offsets.targets import GroupOffsets, Member
from fleet_operator.reconcilers.consumergroup.gather import gather
from fleet_operator.reconcilers.offsetreset import READ_SECONDS
from tests.unit.reconcilers.test_offsetreset import KEY, NAME, PLACES, Kafka, World, life

OUTDATED = OffsetsSet({}, {}, {}, outdated=True)
REFUSED = OffsetsSet(dict.fromkeys(PLACES, "UnknownMemberId"), {}, {})
NOT_THERE = OffsetsSet({}, {}, {})


class MoodyKafka(Kafka):
    """Commits are answered by these answers first; with `busy` nothing is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[OffsetsSet | Exception] = []
        self.busy = False
        self.members: tuple[Member, ...] = ()

    async def change(self, cluster: Any, cluster_id: Any, act: Callable[[Any], Any]) -> Any:
        await asyncio.sleep(3600.0 if self.busy else 0.0)
        return act(self)

    def read_offsets(self, *given: Any, **named: Any) -> Any:
        read: GroupOffsets = super().read_offsets(*given, **named)
        return read if not self.members else GroupOffsets(state="Stable", members=self.members)

    def set_offsets(self, *given: Any, **named: Any) -> OffsetsSet:
        if not self.answers:
            return super().set_offsets(*given, **named)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Stage(World):
    """A World whose Kafka has moods."""

    def __init__(self) -> None:
        super().__init__()
        self.moody = MoodyKafka()
        self.kafka = self.sight = self.moody
        self.start()

    async def reach(self, phase: str) -> None:
        while self.phase() != phase:
            await self.reconcile(NAME)
            await asyncio.sleep(5.0)

    def complete(self) -> tuple[str, str]:
        """Reason and message of the condition Complete."""
        found = self.get(OFFSET_RESET, NAME)
        assert found is not None
        condition = find_condition(found["status"]["conditions"], "Complete")
        assert condition is not None
        return condition["reason"], condition["message"]

    def renew(self, body: JsonObject) -> None:
        """Another writer has written this object."""
        self.kube.version += 1
        body["metadata"]["resourceVersion"] = str(self.kube.version)


def play(history: Callable[[Stage], Any]) -> None:
    async def main(_: World) -> None:
        await history(Stage())

    life(main)


def test_step_that_runs_out_of_time_leaves_its_reason() -> None:
    """Without it a fleet would stand still and nothing would say why."""

    async def history(stage: Stage) -> None:
        stage.reset()
        await stage.reach("Committing")
        stage.moody.busy = True
        await stage.live(times=16)
        assert stage.complete() == ("BrokerUnreachable", "the brokers did not answer in time")

    play(history)


def test_refusal_of_a_whole_request_has_the_word_of_our_conditions() -> None:
    async def history(stage: Stage) -> None:
        stage.reset()
        await stage.reach("Committing")
        stage.moody.answers = [KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "group 'g'")] * 20
        await stage.live()
        assert (stage.phase(), stage.complete()[0]) == ("Committing", "AuthorizationFailed")

    play(history)


def is_gone(stage: Stage) -> None:
    del stage.kube.objects[OFFSET_RESET.kind, "shop", NAME]


def was_made_again(stage: Stage) -> None:
    body = stage.kube.objects[OFFSET_RESET.kind, "shop", NAME]
    body["metadata"]["uid"] = "another"
    stage.renew(body)


def is_done(stage: Stage) -> None:
    state = stage.kube.objects[OPERATOR_STATE.kind, "shop", f"{NAME}.offsetreset"]
    state["data"]["facts"]["phase"] = "Succeeded"
    stage.renew(state)


def is_done_by_its_group(stage: Stage) -> None:
    state = stage.kube.objects[OPERATOR_STATE.kind, "shop", "orders.consumergroup"]
    (entry,) = state["data"]["runs"]
    entry["phase"] = "Succeeded"
    stage.renew(state)


@pytest.mark.parametrize("truth", [is_gone, was_made_again, is_done, is_done_by_its_group])
def test_nothing_is_committed_for_what_only_a_stale_cache_says(truth: Callable[[Stage], None]) -> None:
    """An operator that was suspended goes on with what it had, and other programs may have committed since."""

    async def history(stage: Stage) -> None:
        stage.reset()
        await stage.reach("Committing")
        truth(stage)
        await stage.reconciler.reconcile(KEY)
        await asyncio.sleep(1.0)
        assert stage.kafka.sets == 0

    play(history)


@pytest.mark.parametrize(
    ("another_process", "answers", "phase"),
    [
        (False, [OUTDATED], "Succeeded"),
        (False, [REFUSED, OUTDATED], "Succeeded"),
        (False, [TimeoutError(), OUTDATED], "Failed"),
        (False, [NOT_THERE, OUTDATED], "Failed"),
        (True, [OUTDATED], "Failed"),
        (True, [REFUSED, OUTDATED], "Failed"),
    ],
)
def test_reset_that_another_program_overtook_is_done_only_if_no_commit_can_have_been_made(
    another_process: bool, answers: list[OffsetsSet | Exception], phase: str
) -> None:
    """Only the process that has brought the reset to `Committing` knows it, and only until an answer is lost."""

    async def history(stage: Stage) -> None:
        stage.reset()
        await stage.reach("Committing")
        if another_process:
            stage.start()
        stage.moody.answers = list(answers)
        assert await stage.live(times=20) == phase
        assert stage.complete()[0] == ("OffsetsSet" if phase == "Succeeded" else "OffsetsOvertaken")

    play(history)


def test_offsets_that_were_read_before_a_hindrance_are_not_decided_upon_after_it() -> None:
    """The annotation may come right behind a read, and be removed hours later."""

    async def history(stage: Stage) -> None:
        stage.reset()
        await stage.reach("StoppingWorkers")
        await stage.reconcile(NAME)  # reads
        group = stage.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]
        group["metadata"]["annotations"] = {PAUSED_ANNOTATION: "true"}
        stage.renew(group)
        await stage.reconcile(NAME)
        assert stage.complete()[0] == "PausedByAnnotation"
        await asyncio.sleep(READ_SECONDS + 1.0)
        stage.kafka.commits = dict.fromkeys(PLACES, Committed(70))
        group["metadata"]["annotations"] = {}
        stage.renew(group)
        await stage.reconcile(NAME)
        assert stage.phase() == "StoppingWorkers", "it reads again"
        await stage.reach("Committing")
        status = stage.get(OFFSET_RESET, NAME)["status"]  # type: ignore[index]
        assert {each["offset"] for each in status["previous"]} == {70}

    play(history)


def test_workers_that_do_not_leave_are_waited_for_since_the_first_poll() -> None:
    async def history(stage: Stage) -> None:
        stage.reset()
        await stage.reach("StoppingWorkers")
        stage.moody.members = (Member(None, "orders-fleet-0"),)
        await stage.live(times=3)
        assert stage.complete()[0] == "StoppingWorkers"
        await stage.live(times=40)
        assert stage.complete()[0] == "WorkersRemain"

    play(history)


def test_namespace_that_is_deleted_with_a_commit_under_way_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be created there any more, and so nothing can be remembered once the states are gone."""

    async def history(stage: Stage) -> None:
        stage.reset()
        await stage.reach("Committing")
        made = stage.kube.create

        async def refused(body: JsonObject, *, strict: bool = False) -> JsonObject:
            if body["kind"] == OPERATOR_STATE.kind:
                raise KubeForbiddenError("the namespace is being terminated", status=403)
            return await made(body, strict=strict)

        monkeypatch.setattr(stage.kube, "create", refused)
        body = stage.kube.objects[OFFSET_RESET.kind, "shop", NAME]
        assert body["metadata"]["finalizers"] == [RESET_FINALIZER]
        body["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
        stage.renew(body)
        for address in [each for each in stage.kube.objects if each[0] in (OPERATOR_STATE.kind, CONSUMER_GROUP.kind)]:
            del stage.kube.objects[address]
        await stage.reconcile(NAME)
        assert stage.kube.objects[OFFSET_RESET.kind, "shop", NAME]["metadata"]["finalizers"] == []

    play(history)


@pytest.mark.parametrize(
    ("verdict", "fleet", "held"),
    [
        (None, None, True),
        ("Candidate", None, True),
        ("Refused", None, True),
        ("Good", None, False),
        (None, {}, False),
        (None, {"deletionTimestamp": "2027-01-15T08:00:00Z"}, False),
    ],
)
def test_only_a_fleet_that_never_ran_waits_for_a_reset_that_has_not_begun(
    verdict: str | None, fleet: JsonObject | None, held: bool
) -> None:
    """A reset that waits or has failed would keep down one whose StatefulSet was deleted."""

    async def history(stage: Stage) -> None:
        stage.keep(CONSUMER_GROUP, "orders", {"fleet": {"verdicts": {"abc": {"state": verdict}}}} if verdict else {})
        if fleet is not None:
            stage.put(STATEFUL_SET, MAIN.child("orders"), {"replicas": 0})
            body = stage.kube.objects[STATEFUL_SET.kind, "shop", MAIN.child("orders")]
            body["metadata"] |= {"ownerReferences": [{"uid": "uid-of-orders"}], **fleet}
            body["metadata"]["labels"] = {"consumerfleet.io/group": "orders"}
        stage.reset()
        stage.deliver()
        group = stage.store.get(CONSUMER_GROUP, ("shop", "orders"))
        assert group is not None
        assert ((await gather(stage.context, group)).hold is not None) is held

    play(history)
