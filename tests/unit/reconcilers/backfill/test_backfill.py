"""A Backfill's reconciler against an API server in memory, a Spark operator in a few lines, and death at any call."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fleet_consumer.contract.backfill_ledger import RunProblem
from fleet_operator.clients.kinds import BACKFILL, CONFIG_MAP, CONSUMER_GROUP, OPERATOR_STATE, POD, SPARK_APPLICATION
from fleet_operator.planning.backfill.attempts import FAILURES_MAX
from fleet_operator.planning.backfill.ranges import TopicOffsets
from tests.unit.planning import builders
from tests.unit.reconcilers.backfill.world import World, covered, run, topic_offsets


def test_backfill_resolves_runs_and_ends() -> None:
    async def life(world: World) -> None:
        world.backfill()
        await world.live()
        status = world.status()
        assert (status["phase"], world.reason()) == ("Succeeded", "AllHandled")
        assert status["resolvedRange"] == [{"partition": number, "from": 0, "to": 10} for number in (0, 1)]
        assert (status["offsetsCovered"], status["offsetsTotal"], status["records"]["in"]) == (20, 20, 20)
        assert covered(world.played) == [1] * 20
        assert world.launched == ["again-1"]
        before = list(world.kube.writes)
        await world.reconcile()
        await world.reconcile()
        assert world.kube.writes == before, "a finished Backfill is left alone"

    run(life)


def test_dead_drivers_are_followed_by_others_behind_the_last_slice() -> None:
    async def life(world: World) -> None:
        world.ends = {1: ("during", 143, {}), 2: ("after", 1, {}), 3: ("during", 21, {"reason": "BrokerUnreachable"})}
        world.backfill()
        await world.live(200)
        assert world.status()["phase"] == "Succeeded"
        assert world.launched == ["again-1", "again-2", "again-3", "again-4"]
        twice = [count for count in covered(world.played) if count != 1]
        assert min(covered(world.played)) == 1, "no record is left out"
        assert len(twice) <= 8, "at most one slice of each attempt that dies is repeated"
        assert world.at_work_most == 1

    run(life)


def test_attempts_without_progress_end_with_the_last_reason() -> None:
    async def life(world: World) -> None:
        world.ends = {n: ("before", 1, {"reason": "ExecutorLost", "message": "out of memory"}) for n in range(9)}
        world.backfill()
        await world.live(400)
        status = world.status()
        assert (status["phase"], world.reason(), status["attempts"]) == ("Failed", "ExecutorLost", FAILURES_MAX)
        assert status["lastEnded"]["failuresInARow"] == FAILURES_MAX
        assert "out of memory" in status["conditions"][0]["message"]

    run(life)


@pytest.mark.parametrize("way", ["exit code", "ledger"])
def test_failure_that_others_would_repeat_is_final(way: str) -> None:
    async def life(world: World) -> None:
        world.backfill()
        if way == "exit code":
            world.ends = {1: ("before", 20, {"reason": "HandlerNotCallable", "message": "no handle in shop"})}
        else:
            await world.live(until=lambda: world.ledger() is not None)
            world.fail_with(1, RunProblem(reason="HandlerNotCallable", message="no handle in shop", final=True))
        await world.live()
        assert (world.status()["phase"], world.reason("Failed")) == ("Failed", "HandlerNotCallable")
        assert world.launched == ["again-1"]

    run(life)


def test_completed_application_without_a_last_word_is_no_success() -> None:
    async def life(world: World) -> None:
        world.ends = {1: ("after", 0, {})}
        world.backfill()
        await world.live(100, until=lambda: len(world.launched) == 2)
        assert world.status()["lastEnded"]["reason"] == "EndedWithoutLedger"
        await world.live(100)
        assert world.status()["phase"] == "Succeeded"

    run(life)


def test_next_attempt_waits_until_no_pod_is_left() -> None:
    async def life(world: World) -> None:
        world.lingering = True
        world.ends = {1: ("during", 143, {})}
        world.backfill()
        await world.live(60)
        assert (world.launched, world.reason()) == (["again-1"], "WaitingForLastRun")
        world.lingering = False
        await world.live(60)
        assert (world.status()["phase"], world.at_work_most) == ("Succeeded", 1)

    run(life)


def test_pod_that_outlives_its_failed_application_is_removed_with_it() -> None:
    """spark-submit may fail with the driver's pod made, and a ConfigMap that the pod waits for not made."""

    async def life(world: World) -> None:
        world.stuck = True
        world.ends = {1: ("before", 1, {})}
        world.backfill()
        await world.live(until=lambda: world.reason() == "WaitingForLastRun")
        assert list(world.applications()) == [1], "it may end on its own"
        await world.live()
        assert (world.status()["phase"], world.at_work_most) == ("Succeeded", 1)
        assert world.launched == ["again-1", "again-2"]
        assert list(world.applications()) == [2]

    run(life)


def test_suspension_stops_between_slices_and_goes_on_there() -> None:
    async def life(world: World) -> None:
        world.backfill()
        await world.live(until=lambda: bool(world.played))
        world.backfill(suspend=True)
        await world.live(until=lambda: world.status()["phase"] == "Paused")
        assert (world.reason(), world.control().suspend) == ("Suspended", True)
        assert world.status()["lastEnded"]["failuresInARow"] == 0
        done = len(world.played)
        await world.live(5)
        assert len(world.played) == done
        world.backfill(suspend=False)
        await world.live()
        assert (world.status()["phase"], covered(world.played)) == ("Succeeded", [1] * 20)
        assert world.launched == ["again-1", "again-2"]

    run(life)


def test_suspended_backfill_makes_nothing() -> None:
    async def life(world: World) -> None:
        world.backfill(suspend=True)
        await world.live(5)
        assert (world.status()["phase"], world.launched, world.sight.questions) == ("Paused", [], [])
        assert {kind for _, kind, _ in world.kube.writes} == {BACKFILL.kind, OPERATOR_STATE.kind}

    run(life)


def test_rate_reaches_a_running_driver() -> None:
    async def life(world: World) -> None:
        world.backfill(rate={"recordsPerSecond": 5})
        await world.live(until=lambda: bool(world.played))
        assert world.control().records_per_second == 5
        world.backfill(rate={"recordsPerSecond": 7})
        await world.reconcile()
        assert world.control().records_per_second == 7

    run(life)


def test_guard_pauses_while_the_live_group_is_behind_or_unknown() -> None:
    async def life(world: World) -> None:
        world.backfill(guard={"maxLiveBehindSeconds": 60})
        await world.live(until=lambda: bool(world.played))
        guard = world.control().guard
        assert guard is not None
        assert not guard.pause
        world.sight.seen = builders.observation(observed_at=builders.NOW + 30, groups={})
        await world.reconcile()
        later = world.control().guard
        assert later is not None
        assert (later.pause, "unknown" in later.message, later.checked != guard.checked) == (True, True, True)

    run(life)


def test_empty_range_succeeds() -> None:
    async def life(world: World) -> None:
        world.sight.answer = lambda question: topic_offsets(
            ends={0: 0, 1: 0}, end={0: None, 1: None}, first={0: None, 1: None}
        )
        world.backfill()
        await world.live()
        assert (world.status()["phase"], world.reason(), world.launched) == ("Succeeded", "RangeEmpty", [])

    run(life)


def test_missing_spark_is_waited_for() -> None:
    async def life(world: World) -> None:
        world.spark_installed = False
        world.backfill()
        await world.live(5)
        assert (world.status()["phase"], world.reason("SparkAvailable")) == ("Pending", "SparkNotInstalled")
        assert world.sight.questions == [], "a range is resolved when the run can begin"
        world.spark_installed = True
        await world.live()
        assert world.status()["phase"] == "Succeeded"

    run(life)


def test_topic_is_unknown_only_after_several_answers() -> None:
    async def life(world: World) -> None:
        answers = [TopicOffsets(partitions=None), TopicOffsets(partitions=None), topic_offsets()]
        world.sight.answer = lambda question: answers[min(len(world.sight.questions), 3) - 1]
        world.backfill()
        await world.live(until=lambda: len(world.sight.questions) == 2)
        await world.reconcile()
        assert (world.status()["phase"], world.reason()) == ("Resolving", "SourceTopicNotFound")
        await world.live()
        assert world.status()["phase"] == "Succeeded"

    run(life)


def test_unknown_topic_fails() -> None:
    async def life(world: World) -> None:
        world.sight.answer = lambda question: TopicOffsets(partitions=None)
        world.backfill()
        await world.live()
        assert (world.status()["phase"], world.reason(), len(world.sight.questions)) == (
            "Failed",
            "SourceTopicNotFound",
            3,
        )

    run(life)


@pytest.mark.parametrize("damage", ["{}", "no json", '{"version":1}', "x" * 100_000])
def test_damaged_ledger_is_neither_a_beginning_nor_an_end(damage: str) -> None:
    async def life(world: World) -> None:
        world.backfill()
        await world.live(until=lambda: bool(world.played))
        world.write_ledger(damage)
        await world.reconcile()
        assert (world.status()["phase"], world.reason()) == ("Failed", "LedgerUnreadable")
        await world.reconcile()
        assert world.applications() == {}, "its application is deleted once the end is on record"

    run(life)


@pytest.mark.parametrize("restarted", [False, True], ids=["same operator", "another operator"])
def test_ledger_that_was_set_back_is_no_beginning(restarted: bool) -> None:
    """Another operator knows it by its memory; the status is lost."""

    def done(world: World) -> int:
        found = world.ledger()
        return 0 if found is None else found.slices_done

    async def life(world: World) -> None:
        world.backfill()
        await world.live(until=lambda: done(world) == 1)
        old = world.ledger()
        assert old is not None
        await world.live(until=lambda: done(world) == 3)
        await world.reconcile()
        if restarted:
            world.kube.objects[BACKFILL.kind, "shop", "again"]["status"] = {}
            world.start()
        world.write_ledger(old)
        await world.reconcile()
        assert (world.status()["phase"], world.reason()) == ("Failed", "LedgerUnreadable")

    run(life)


def test_deleted_ledger_is_no_beginning() -> None:
    async def life(world: World) -> None:
        world.ends = {1: ("after", 143, {})}
        world.backfill()
        await world.live(until=lambda: "lastEnded" in world.status())
        del world.kube.objects[CONFIG_MAP.kind, "shop", "again-ledger"]
        await world.live()
        assert (world.status()["phase"], world.reason(), world.launched) == ("Failed", "LedgerUnreadable", ["again-1"])

    run(life)


def test_deleted_group_cancels() -> None:
    async def life(world: World) -> None:
        world.backfill()
        await world.live(until=lambda: bool(world.played))
        del world.kube.objects[CONSUMER_GROUP.kind, "shop", "orders"]
        await world.reconcile()
        assert (world.status()["phase"], world.reason("Failed")) == ("Cancelled", "GroupDeleted")
        await world.reconcile()
        assert world.applications() == {}

    run(life)


def test_application_that_somebody_deletes_is_a_failed_attempt() -> None:
    async def life(world: World) -> None:
        world.backfill()
        await world.live(until=lambda: bool(world.played))
        await world.reconcile()
        del world.kube.objects[SPARK_APPLICATION.kind, "shop", "again-1"]
        await world.live(100)
        assert (world.status()["phase"], world.launched) == ("Succeeded", ["again-1", "again-2"])

    run(life)


def test_driver_that_never_runs_is_a_failed_attempt_with_its_pods_reason() -> None:
    async def life(world: World) -> None:
        world.backfill(deadlines={"startSeconds": 30})
        await world.live(until=lambda: bool(world.launched))
        (body,) = world.applications().values()
        world._pod(body)
        waiting = {"reason": "ErrImagePull", "message": "no such image"}
        pod = world.get(POD, "again-1-driver")
        assert pod is not None
        world._set(pod, {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]})
        world.say(1, "SUBMITTED")
        for _ in range(12):
            await world.reconcile()
            await asyncio.sleep(5.0)
        end = world.status()["lastEnded"]
        assert (end["attempt"], end["reason"], end["failuresInARow"]) == (1, "ErrImagePull", 1)
        assert world.status()["phase"] == "Running"
        assert world.get(SPARK_APPLICATION, "again-1") is None

    run(life)


def test_application_that_nobody_takes_is_pending_and_made_again() -> None:
    async def life(world: World) -> None:
        world.backfill(deadlines={"startSeconds": 30})
        for _ in range(12):
            await world.reconcile()
            await asyncio.sleep(5.0)
        for _ in range(5):
            assert (world.status()["phase"], world.reason()) == ("Pending", "SparkOperatorNotResponding")
            await asyncio.sleep(1.0)
            await world.reconcile()
        assert world.status()["attempts"] == 2

    run(life)


def test_driver_without_progress_is_followed_by_another() -> None:
    async def life(world: World) -> None:
        world.backfill(deadlines={"progressSeconds": 60}, slice={"maxSeconds": 1})
        await world.live(until=lambda: bool(world.played))
        for _ in range(18):
            await world.reconcile()
            await asyncio.sleep(5.0)
        assert world.status()["lastEnded"]["reason"] == "NoProgress"
        assert world.applications() == {}
        await world.live(100)
        assert (world.status()["phase"], world.launched) == ("Succeeded", ["again-1", "again-2"])

    run(life)


def test_range_waits_for_transactions_of_the_first_poll_and_for_no_later_ones() -> None:
    async def life(world: World) -> None:
        both = range(2)
        answers = [
            topic_offsets(ends={0: 5, 1: 10}, highs=dict.fromkeys(both, 10)),
            topic_offsets(ends={0: 12, 1: 12}, highs=dict.fromkeys(both, 20)),
        ]
        world.sight.answer = lambda question: answers[min(len(world.sight.questions), 2) - 1]
        world.backfill()
        await world.live(until=lambda: bool(world.sight.questions))
        await world.reconcile()
        assert (world.status()["phase"], world.reason()) == ("Resolving", "OpenTransaction")
        assert "resolvedRange" not in world.status()
        await world.live(until=lambda: "resolvedRange" in world.status())
        assert world.status()["resolvedRange"] == [{"partition": number, "from": 0, "to": 12} for number in (0, 1)]
        first, second = world.sight.questions
        assert (first.from_ms, first.to_ms) == (second.from_ms, second.to_ms), "the time does not move on"

    run(life)


def test_range_that_waits_for_a_transaction_takes_the_end_of_a_topic_that_was_made_again() -> None:
    """The new topic's log may never become as long as the deleted topic's log."""

    async def life(world: World) -> None:
        answers = [
            topic_offsets(ends={0: 5, 1: 10}, highs={0: 10, 1: 10}, topic_id="former"),
            topic_offsets(ends={0: 7, 1: 3}, highs={0: 7, 1: 3}, topic_id="new"),
        ]
        world.sight.answer = lambda question: answers[min(len(world.sight.questions), 2) - 1]
        world.backfill()
        await world.live(until=lambda: "resolvedRange" in world.status())
        assert (world.status()["topicId"], world.reason()) == ("new", "Resolved")
        assert world.status()["resolvedRange"] == [
            {"partition": 0, "from": 0, "to": 7},
            {"partition": 1, "from": 0, "to": 3},
        ]

    run(life)


def test_sign_of_progress_within_a_slice_renews_the_deadline() -> None:
    async def life(world: World) -> None:
        world.backfill(deadlines={"progressSeconds": 60})
        await world.live(until=lambda: bool(world.played))
        ledger = world.get(CONFIG_MAP, "again-ledger")
        assert ledger is not None
        for work in range(40):
            ledger["data"]["alive"] = str(work)
            await world.reconcile()
            await asyncio.sleep(5.0)
        assert (world.status()["phase"], "lastEnded" in world.status()) == ("Running", False)

    run(life)


@pytest.mark.parametrize("alive", [True, False])
def test_paused_driver_that_gives_no_sign_is_replaced(alive: bool) -> None:
    async def life(world: World) -> None:
        world.backfill(deadlines={"progressSeconds": 60}, guard={"maxLiveBehindSeconds": 5})
        await world.live(until=lambda: bool(world.played))
        ledger = world.ledger()
        assert ledger is not None
        paused = replace(ledger, throttled_by="Guard", throttle_message="the live group is behind")
        for step in range(30):
            if alive or step == 0:
                world.write_ledger(paused, sign=step)
            await world.reconcile()
            await asyncio.sleep(5.0)
        ended = world.status().get("lastEnded", {}).get("reason")
        assert ended == (None if alive else "NoProgress")

    run(life)
