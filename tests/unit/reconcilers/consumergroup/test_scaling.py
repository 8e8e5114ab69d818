"""Scaling in a reconcile: what holds it, what a restart finds, and what other planners have to say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_consumer.contract.joins import JoinStep
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.deadlines import MISSING
from fleet_operator.planning.fleet.parts import MAIN, read_part
from fleet_operator.planning.fleet.revision import with_known
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord
from fleet_operator.planning.observation import MemberObservation, ProgressSample, TopicObservation
from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.state.document import read_state, write_state
from fleet_operator.planning.state.group import FleetState, GroupState, RevisionState
from fleet_operator.planning.state.sizing import Capacity, Growth, SizingState
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.plan import Plan, make_plan
from fleet_operator.reconcilers.consumergroup.session import Memory
from tests.unit.planning.builders import (
    IMAGE,
    NOW,
    consumer_group,
    kafka_cluster,
    observation,
    observed_group,
    remembered,
)
from tests.unit.reconcilers.consumergroup.test_decide import gathered

READY = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"}]}


def samples(*, arrival: float = 10.0, committed: int = 100) -> tuple[ProgressSample, ...]:
    """A minute and a half in which records arrive in each of four partitions, and nothing is left."""
    keys = [("orders", number) for number in range(4)]
    return tuple(
        ProgressSample(
            NOW - 90 + 5 * n,
            {key: committed + round(5 * n * arrival) for key in keys},
            {key: committed + round(5 * n * arrival) for key in keys},
        )
        for n in range(19)
    )


def found(
    *, replicas: int = 2, memory: SizingState | None = None, wanted: dict[str, Any] | None = None, **changes: Any
) -> Gathered:
    """A fleet that has rolled out and is Stable."""
    spec: dict[str, Any] = {"scaling": {}, "replicas": 2} | (wanted or {})
    group = consumer_group(**{key: value for key, value in spec.items() if value is not None})
    bare: dict[str, Any] = {"cluster": kafka_cluster(), "group": group, "policy": None}
    revision = make_plan(gathered(**bare), NOW, image=IMAGE).fleet.wanted
    assert revision is not None
    body = manifests.stateful_set(group, revision=revision.hash, pod_template=revision.pod_template, replicas=replicas)
    body = with_known(body, {revision.hash: revision.pod_template})
    body["metadata"] |= {"generation": 1}
    body["status"] = {"observedGeneration": 1, "currentRevision": "r", "updateRevision": "r"} | dict.fromkeys(
        ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "currentReplicas"), replicas
    )
    good = RevisionRecord(hash=revision.hash, state=RevisionState.GOOD, since=NOW - 600, checked=True)
    seen = observed_group()
    latest = samples()[-1]
    seen = replace(seen, samples=samples(), observed_at=NOW, committed=latest.committed, end_offsets=latest.end_offsets)
    pods = tuple(worker(number, revision.hash) for number in range(replicas))
    defaults: dict[str, Any] = {
        **bare,
        "state": replace(remembered(good), sizing=memory or SizingState()),
        "observation": observation(seen),
        "parts": {**gathered().parts, MAIN: read_part(MAIN, body, pods, NOW)},
        "config_maps": (manifests.revision_config_map(group, revision),),
    }
    return replace(gathered(), **(defaults | changes))


def worker(number: int, revision: str) -> JsonObject:
    annotations = {"consumerfleet.io/revision": revision}
    return {"metadata": {"name": f"orders-{number}", "annotations": annotations}, "spec": {}, "status": READY}


def plan(of: Gathered, memory: Memory | None = None, now: float = NOW) -> Plan:
    return make_plan(of, now, image=IMAGE, memory=memory)


def test_number_decided_last_counts_and_not_spec_replicas() -> None:
    decided = plan(found(replicas=4, memory=SizingState(count=4), wanted={"replicas": 9}))
    assert decided.sizing.decision.replicas == 4
    assert decided.parts[0].replicas == 4


def test_workers_that_the_fleet_lacks_count_against_its_deadline() -> None:
    """The controller cannot make them: a quota, an admission webhook."""
    of = found(wanted={"scaling": None})
    body = of.parts[MAIN].body
    assert body is not None
    body = {**body, "status": {**body["status"], "replicas": 1, "currentReplicas": 1}}
    lacking = replace(of, parts={**of.parts, MAIN: read_part(MAIN, body, of.parts[MAIN].pods[:1], NOW)})
    assert MISSING in plan(lacking).memory.watched.counted
    assert MISSING not in plan(of).memory.watched.counted


def test_scaling_begins_at_the_fleet_that_there_is() -> None:
    decided = plan(found(replicas=3, wanted={"replicas": 1}))
    assert decided.sizing.decision.replicas == 3
    assert decided.sizing.decision.memory is not None
    assert decided.sizing.decision.memory.count == 3


def test_what_later_decisions_need_stands_in_the_state() -> None:
    decided = plan(found(replicas=3))
    assert decided.state.sizing == decided.sizing.decision.memory


def test_suspended_fleet_comes_back_with_the_number_it_had() -> None:
    memory = SizingState(count=4)
    of = found(replicas=4, memory=memory, wanted={"suspend": True})
    decided = plan(of)
    assert (decided.sizing.decision.replicas, decided.sizing.decision.memory) == (0, replace(memory, replicas=2)), (
        "as it was"
    )
    assert plan(found(replicas=0, memory=memory)).sizing.decision.replicas == 4


def test_check_next_to_the_fleet_holds_nothing() -> None:
    """It may wait for an image that does not exist, without end."""
    checking = found(replicas=2, wanted={"image": "other:1"})
    changed = replace(checking, group=consumer_group(scaling={"minReplicas": 3}, replicas=2, image="another:2"))
    decided = plan(changed)
    assert decided.fleet.decision.phase is RolloutPhase.CHECKING
    assert decided.sizing.facts is not None
    assert (decided.sizing.facts.hold, decided.sizing.facts.rolling) == (None, False)
    assert decided.sizing.decision.limit != limits.ROLLOUT


def rolling(of: Gathered) -> Gathered:
    """The same while its revision is not known to be good yet, and a worker is not ready."""
    body = of.parts[MAIN].body
    assert body is not None
    body = {**body, "status": {**body["status"], "readyReplicas": 1, "availableReplicas": 1}}
    first, *others = of.parts[MAIN].pods
    pods = ({**first, "status": {}}, *others)
    fresh = {name: replace(verdict, state=RevisionState.CANDIDATE) for name, verdict in of.state.fleet.verdicts.items()}
    state = replace(of.state, fleet=FleetState(verdicts=fresh))
    return replace(of, state=state, parts={**of.parts, MAIN: read_part(MAIN, body, pods, NOW)})


def test_workers_of_a_revision_on_their_way_hold_all_but_growth() -> None:
    decided = plan(rolling(found(replicas=2)))
    assert decided.fleet.decision.phase is RolloutPhase.WAITING
    assert decided.sizing.facts is not None
    assert (decided.sizing.facts.hold, decided.sizing.facts.rolling, decided.sizing.facts.revision) == (
        None,
        True,
        None,
    )
    assert decided.sizing.decision.limit == limits.ROLLOUT


KEPT = SizingState(count=24, replicas=2)


@pytest.mark.parametrize("wanted", [{"scaling": None}, {"scaling": {"dryRun": True}}], ids=["removed", "dry run"])
def test_fleet_keeps_its_number_without_autoscaling_until_spec_replicas_is_edited(wanted: dict[str, Any]) -> None:
    scaled = plan(found(replicas=24, memory=SizingState(count=24))).sizing.decision
    assert scaled.memory is not None
    assert (scaled.memory.count, scaled.memory.replicas) == (24, 2)
    memory: SizingState | None = scaled.memory
    for _ in range(2):
        decided = plan(found(replicas=24, memory=memory, wanted=wanted)).sizing.decision
        assert decided.replicas == 24
        memory = decided.memory
    assert memory is not None
    edited = plan(found(replicas=24, memory=memory, wanted={**wanted, "replicas": 5})).sizing.decision
    assert edited.replicas == 5
    back = plan(found(replicas=5, memory=edited.memory, wanted={**wanted, "replicas": 2})).sizing.decision
    assert back.replicas == 2, "what was edited once is in force"


ABSENT: dict[str, Any] = {"scaling": None, "replicas": None}


@pytest.mark.parametrize("suspended_between", [False, True], ids=["running", "suspended between"])
@pytest.mark.parametrize("given", [0, 4])
def test_number_stays_when_spec_replicas_is_removed(given: int, suspended_between: bool) -> None:
    memory = plan(found(replicas=given, wanted={"scaling": None, "replicas": given})).sizing.decision.memory
    if suspended_between:
        stopped = plan(found(replicas=0, memory=memory, wanted={**ABSENT, "suspend": True})).sizing.decision
        assert stopped.replicas == 0
        memory = stopped.memory
    for _ in range(2):
        decided = plan(found(replicas=0, memory=memory, wanted=ABSENT)).sizing.decision
        assert decided.replicas == given
        memory = decided.memory


def test_number_that_a_load_gave_stays_when_spec_replicas_goes_with_scaling() -> None:
    assert plan(found(replicas=24, memory=KEPT, wanted=ABSENT)).sizing.decision.replicas == 24


@pytest.mark.parametrize(("running", "wanted"), [(0, 1), (7, 7)], ids=["new", "state was lost"])
def test_fleet_without_a_number_keeps_what_runs_and_begins_with_one(running: int, wanted: int) -> None:
    assert plan(found(replicas=running, wanted=ABSENT)).sizing.decision.replicas == wanted


def test_number_that_is_given_after_an_absent_one_counts() -> None:
    memory = plan(found(replicas=4, wanted=ABSENT)).sizing.decision.memory
    assert plan(found(replicas=4, memory=memory, wanted={**ABSENT, "replicas": 2})).sizing.decision.replicas == 2


def test_number_that_was_kept_is_where_scaling_begins_again() -> None:
    without = plan(found(replicas=24, memory=KEPT, wanted={"scaling": None})).sizing.decision
    assert plan(found(replicas=24, memory=without.memory)).sizing.decision.replicas == 24


def test_fleet_that_sleeps_does_not_go_on_sleeping_without_autoscaling() -> None:
    asleep = SizingState(count=0, replicas=2)
    assert plan(found(replicas=0, memory=asleep, wanted={"scaling": None})).sizing.decision.replicas == 2


def test_growth_of_a_fleet_that_no_load_sizes_is_no_number_to_keep() -> None:
    grown = plan(found(replicas=2, wanted={"scaling": None, "replicas": 5})).sizing.decision
    assert (
        plan(found(replicas=5, memory=grown.memory, wanted={"scaling": None, "replicas": 3})).sizing.decision.replicas
        == 3
    )


def test_capacity_is_that_of_the_running_revision_as_the_state_keeps_it() -> None:
    """The status shows changes by a factor of two, for people."""
    running = found().parts[MAIN].fleet
    assert running is not None
    shown = {"status": {"scaling": {"perReplicaPerSecond": "100"}}}
    for capacity, known in (
        (Capacity(rate=55.0, revision=running.revision), 55.0),
        (Capacity(rate=55.0, revision="another"), None),
        (None, None),
    ):
        of = found(memory=SizingState(count=2, capacity=capacity))
        decided = plan(replace(of, body={**of.body, **shown}))
        assert decided.sizing.decision.inputs is not None
        assert decided.sizing.decision.inputs.capacity == known


def test_missing_topic_keeps_no_fleet_from_waking() -> None:
    of = found(
        replicas=0, memory=SizingState(count=0), wanted={"scaling": {"minReplicas": 0}, "topics": ["orders", "b"]}
    )
    assert of.observation is not None
    seen = of.observation.groups["orders"]
    ends = {key: end + 100 for key, end in seen.end_offsets.items()}
    missing = {"b": TopicObservation(partitions=0, error="TopicNotFound")}
    waiting = observation(replace(seen, end_offsets=ends, members=(), state="Empty"))
    decided = plan(replace(of, observation=replace(waiting, topics={**waiting.topics, **missing})))
    assert decided.views.view.partition_counts is None, "no topic is made or grown by it"
    assert decided.views.view.lag is not None
    assert not decided.views.view.lag.complete
    assert decided.sizing.decision.replicas > 0


def test_foreign_member_holds_the_number() -> None:
    of = found()
    assert of.observation is not None
    seen = of.observation.groups["orders"]
    java = MemberObservation(member_id="java-1", instance_id=None, client_id="java", host="")
    shared = replace(of, observation=observation(replace(seen, members=(*seen.members, java))))
    decided = plan(shared)
    assert (decided.sizing.decision.replicas, decided.sizing.decision.limit) == (2, limits.GROUP_SHARED)
    assert "java" in decided.sizing.decision.reason


def test_one_failed_poll_changes_no_decision() -> None:
    """The status would show Unknown and back again, in two writes for every group of the cluster."""
    of = found()
    first = plan(of)
    assert of.observation is not None
    unconfirmed = replace(
        of, observation=replace(of.observation, reachable=False, unconfirmed=True, reason="BrokerDown")
    )
    second = plan(unconfirmed, first.memory, NOW + 5)
    assert (second.sizing.decision.replicas, second.sizing.decision.limit) == (
        first.sizing.decision.replicas,
        first.sizing.decision.limit,
    )
    lost = replace(of, observation=replace(of.observation, reachable=False, reason="BrokerDown"))
    assert plan(lost, second.memory, NOW + 60).sizing.decision.limit == limits.UNKNOWN


def restarted(of: Gathered) -> Gathered:
    """The same for a process that has polled once: offsets are known, and rates are not."""
    assert of.observation is not None
    (seen,) = of.observation.groups.values()
    return replace(of, observation=observation(replace(seen, samples=seen.samples[-1:])))


@pytest.mark.parametrize("wanted", [{}, {"dryRun": True, "minReplicas": 3}, {"maxReplicas": 1, "minReplicas": 1}])
def test_number_in_the_state_stands_until_a_new_process_has_polled_twice(wanted: dict[str, Any]) -> None:
    of = found(memory=SizingState(count=2), wanted={"scaling": wanted})
    before = plan(of).sizing.decision
    of = found(replicas=before.replicas, memory=before.memory, wanted={"scaling": wanted})
    once = plan(restarted(of))
    assert (once.sizing.decision.replicas, once.sizing.decision.limit) == (before.replicas, limits.UNKNOWN)
    assert once.sizing.facts is not None
    assert once.sizing.facts.awaits_rates
    assert once.state.sizing.count == before.replicas


def test_window_of_fewer_workers_begins_again_after_a_gap_without_samples() -> None:
    before = plan(found())
    assert before.sizing.history.known_since is not None
    after = plan(restarted(found()), before.memory, NOW + 60)
    assert (after.sizing.decision.limit, after.sizing.history.known_since) == (before.sizing.decision.limit, None)


def test_old_observation_changes_nothing_and_the_window_of_fewer_workers_begins_again() -> None:
    before = plan(found())
    after = plan(found(), before.memory, NOW + 31)
    decision = after.sizing.decision
    assert (decision.replicas, decision.limit) == (before.sizing.decision.replicas, before.sizing.decision.limit)
    assert (before.sizing.history.known_since, after.sizing.history.known_since) == (NOW, None)


@pytest.mark.parametrize("wanted", [{}, {"scaling": None, "replicas": None}, {"scaling": {"dryRun": True}}])
def test_number_that_others_gave_a_stateful_set_leaves_a_state_that_can_be_read(wanted: dict[str, Any]) -> None:
    of = found(wanted=wanted)
    main = of.parts[MAIN]
    assert main.fleet is not None
    many = replace(main, fleet=replace(main.fleet, replicas=5000))
    decided = plan(replace(of, parts={**of.parts, MAIN: many}))
    assert read_state(GroupState, write_state(decided.state, {}), "orders") == decided.state


def test_dry_run_leaves_spec_replicas_and_shows_what_it_would_do() -> None:
    of = found(replicas=2, wanted={"scaling": {"dryRun": True, "minReplicas": 3}})
    decided = plan(of)
    assert (decided.sizing.decision.replicas, decided.sizing.decision.proposed) == (2, 3)
    assert decided.sizing.decision.memory == SizingState(replicas=2)


def test_dry_run_writes_nothing_on_one_failed_poll_either() -> None:
    of = found(replicas=2, wanted={"scaling": {"dryRun": True}})
    first = plan(of)
    assert of.observation is not None
    unconfirmed = replace(
        of, observation=replace(of.observation, reachable=False, unconfirmed=True, reason="BrokerDown")
    )
    assert plan(unconfirmed, first.memory, NOW + 5).sizing.decision.memory == SizingState(replicas=2)


def test_workers_of_one_step_join_together() -> None:
    fixed = {"scaling": None, "replicas": 5}
    decided = plan(found(replicas=2, wanted=fixed))
    assert decided.sizing.decision.memory == SizingState(
        replicas=5, growth=Growth(before=2, after=5, commits=0.0, at=NOW)
    )
    assert decided.join_step == JoinStep(2, 5, NOW)
    settled = plan(found(replicas=5, memory=decided.sizing.decision.memory, wanted=fixed))
    assert settled.join_step == decided.join_step, "the file stays as it is"
    assert (
        plan(
            found(replicas=5, memory=decided.sizing.decision.memory, wanted={"scaling": None, "replicas": 3})
        ).join_step
        is None
    )


def test_fleet_that_wakes_has_nobody_to_wait_for() -> None:
    decided = plan(found(replicas=0, wanted={"scaling": None, "replicas": 2}))
    assert decided.join_step is None


@pytest.mark.parametrize(("current", "asleep"), [(0, True), (2, False)])
def test_sleeping_group_is_observed_closely(current: int, asleep: bool) -> None:
    of = found(replicas=current, memory=SizingState(count=current), wanted={"scaling": {"minReplicas": 0}})
    subscription = plan(of).subscription
    assert (subscription.scaled, subscription.asleep) == (True, asleep)


PAUSED = {"paused": True, "minReplicas": 6, "maxReplicas": 8}


@pytest.mark.parametrize("count", [0, 4])
def test_paused_fleet_keeps_its_number_whatever_its_load_and_its_bounds_say(count: int) -> None:
    """Also none: a fleet that somebody pauses while it sleeps stays asleep."""
    memory = SizingState(count=count, replicas=2, capacity=Capacity(rate=60.0, revision="r"))
    decided = plan(found(replicas=count, memory=memory, wanted={"scaling": PAUSED}))
    decision = decided.sizing.decision
    assert (decision.replicas, decision.proposed, decision.limit) == (count, 6, limits.PAUSED)
    assert decided.parts[0].replicas == count
    assert (decided.state.sizing.count, decided.state.sizing.replicas) == (count, 2)


def test_pause_wins_over_a_dry_run() -> None:
    decided = plan(found(replicas=4, memory=SizingState(count=4), wanted={"scaling": {**PAUSED, "dryRun": True}}))
    assert (decided.sizing.decision.replicas, decided.sizing.decision.limit) == (4, limits.PAUSED)


def test_edit_of_spec_replicas_moves_a_paused_fleet() -> None:
    memory = SizingState(count=4, replicas=2)
    decided = plan(found(replicas=4, memory=memory, wanted={"scaling": PAUSED, "replicas": 3}))
    assert (decided.sizing.decision.replicas, decided.state.sizing.count) == (3, None)


@pytest.mark.parametrize("count", [0, 4])
def test_fleet_goes_on_by_its_load_from_the_number_at_which_it_was_paused(count: int) -> None:
    paused = plan(found(replicas=count, memory=SizingState(count=count), wanted={"scaling": {"paused": True}}))
    resumed = plan(found(replicas=count, memory=paused.state.sizing, wanted={"scaling": {"minReplicas": 0}}))
    assert resumed.sizing.decision.current == count
    assert resumed.sizing.decision.limit != limits.PAUSED


def test_suspended_fleet_that_is_paused_runs_no_workers() -> None:
    memory = SizingState(count=4, replicas=2)
    decided = plan(found(replicas=4, memory=memory, wanted={"scaling": PAUSED, "suspend": True}))
    assert (decided.sizing.decision.replicas, decided.sizing.decision.limit) == (0, limits.SUSPENDED)
    assert decided.state.sizing == memory


def test_group_is_reconciled_when_a_schedule_ends() -> None:
    """`NOW` is 08:00 UTC."""
    schedule = {"cron": "30 7 * * *", "durationSeconds": 3600, "minReplicas": 3}
    decided = plan(found(replicas=2, memory=SizingState(count=2), wanted={"scaling": {"schedules": [schedule]}}))
    assert decided.sizing.decision.replicas == 3
    assert decided.sizing.decision.requeue_after == 1800.0
    assert decided.requeue_after is not None
    assert decided.requeue_after <= 1800.0


def test_group_without_schedules_is_not_reconciled_for_its_bounds() -> None:
    assert plan(found()).sizing.decision.requeue_after is None
