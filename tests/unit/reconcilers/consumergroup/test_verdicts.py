"""Verdicts on revisions: without their ConfigMaps, and where the state itself was lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.parts import MAIN, PartPlan, read_part
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord
from fleet_operator.planning.state.group import FleetState, GroupState, RevisionState, RevisionVerdict
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.plan import Plan, make_plan
from tests.unit.planning.builders import IMAGE, NOW, consumer_group, kafka_cluster, remembered
from tests.unit.planning.retry.test_plan import cluster, flow
from tests.unit.reconcilers.consumergroup.test_decide import gathered

GROUP = consumer_group(replicas=2)
CHANGED = consumer_group(replicas=2, consumer={"maxPollRecords": 7})
OLDER = "0" * 10
GOOD = RevisionVerdict(state=RevisionState.GOOD, since=NOW - 9000, checked=True)


def plan_of(found: Gathered) -> Plan:
    return make_plan(found, NOW, image=IMAGE)


def hash_of(plan: Plan) -> str:
    assert plan.fleet.wanted is not None
    return plan.fleet.wanted.hash


def fleet(*, ready: int = 2, **changes: Any) -> Gathered:
    """A fleet of two workers at its good revision."""
    bare = gathered(group=GROUP, cluster=kafka_cluster(), policy=None, observation=cluster(flow(found_delays=())))
    first = plan_of(bare)
    assert first.fleet.wanted is not None
    body = first.fleet.stateful_set(bare, PartPlan(part=MAIN, target=hash_of(first), replicas=2))
    body["metadata"] |= {"generation": 1}
    counts = {"replicas": 2, "currentReplicas": 2, "updatedReplicas": 2, "readyReplicas": ready}
    body["status"] = {"observedGeneration": 1, "availableReplicas": ready} | counts
    pods = tuple(worker(number, hash_of(first), ready=number < ready) for number in range(2))
    state = remembered(RevisionRecord(hash=hash_of(first), state=GOOD.state, since=GOOD.since, checked=True))
    here = replace(
        bare,
        state=replace(first.state, fleet=replace(state.fleet, wanted=hash_of(first))),
        parts={**bare.parts, MAIN: read_part(MAIN, body, pods, NOW)},
        config_maps=(manifests.revision_config_map(GROUP, first.fleet.wanted),),
    )
    return replace(here, **changes)


def worker(number: int, revision: str, *, ready: bool) -> dict[str, Any]:
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2027-01-15T08:00:00Z"}
    metadata = {"name": f"orders-{number}", "annotations": {"consumerfleet.io/revision": revision}}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": [condition]}}


def with_verdict(found: Gathered, revision: str, verdict: RevisionVerdict = GOOD) -> Gathered:
    """The same with one more verdict in the state."""
    known = found.state.fleet
    return replace(
        found, state=replace(found.state, fleet=replace(known, verdicts={**known.verdicts, revision: verdict}))
    )


def older_record(**changes: Any) -> dict[str, Any]:
    """The ConfigMap of another revision, which was not read as a whole."""
    annotations = {"consumerfleet.io/revision": OLDER}
    return {"metadata": {"name": f"orders-fleet-{OLDER}", "namespace": "shop", "annotations": annotations, **changes}}


@pytest.mark.parametrize("ready", [2, 1])
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "record lost too"])
def test_fleet_whose_state_was_lost_neither_rolls_nor_is_checked_again(ready: int, recorded: bool) -> None:
    before = fleet(ready=ready)
    lost = replace(before, state=GroupState(), config_maps=before.config_maps if recorded else ())
    plan = plan_of(lost)
    running = hash_of(plan_of(before))
    assert (hash_of(plan), plan.fleet.decision.target) == (running, running)
    assert (plan.fleet.decision.run_check, plan.fleet.decision.delete_pods, plan.fleet.decision.prune) == (
        False,
        (),
        (),
    )
    assert plan.fleet.decision.write_revision is not recorded
    assert plan.parts[0].replicas == 2
    assert plan.state.fleet.wanted == running


def test_fleet_whose_state_was_lost_is_good_again_once_all_of_its_workers_are_available() -> None:
    before = fleet()
    plan = plan_of(replace(before, state=GroupState()))
    assert plan.state.fleet.verdicts[hash_of(plan)] == RevisionVerdict(
        state=RevisionState.GOOD, since=NOW, checked=True
    )
    settled = plan_of(replace(before, state=plan.state))
    assert (settled.fleet.decision.phase, settled.state) == (RolloutPhase.SETTLED, plan.state)


def test_fleet_whose_state_was_lost_stays_while_a_new_revision_is_checked() -> None:
    plan = plan_of(fleet(state=GroupState(), group=CHANGED))
    assert plan.fleet.decision.run_check
    assert plan.fleet.decision.target == hash_of(plan_of(fleet())) != hash_of(plan)


def test_wanted_revision_without_its_record_is_written_again_without_another_check() -> None:
    before = fleet()
    plan = plan_of(replace(before, config_maps=()))
    assert (plan.fleet.decision.phase, plan.fleet.decision.target) == (RolloutPhase.SETTLED, hash_of(plan))
    assert (plan.fleet.decision.write_revision, plan.fleet.decision.run_check) == (True, False)
    assert plan.state == before.state


def test_checked_revision_without_its_record_is_written_and_applied_without_another_check() -> None:
    """The state is written first: the operator may die before the record is."""
    changed = plan_of(fleet(group=CHANGED))
    here = with_verdict(fleet(group=CHANGED), hash_of(changed), RevisionVerdict(since=NOW - 1, checked=True))
    plan = plan_of(here)
    assert (plan.fleet.decision.phase, plan.fleet.decision.target) == (RolloutPhase.APPLYING, hash_of(changed))
    assert (plan.fleet.decision.write_revision, plan.fleet.decision.run_check) == (True, False)


def test_refusal_outlives_the_record_of_its_revision() -> None:
    changed = plan_of(fleet(group=CHANGED))
    first = with_verdict(
        fleet(group=CHANGED),
        hash_of(changed),
        RevisionVerdict(
            state=RevisionState.REFUSED, since=NOW - 1, reason="HandlerImportFailed", request="asked before"
        ),
    )
    # Another request asks for another try; the answer to it stands.
    forgotten = plan_of(first).state.fleet.verdicts[hash_of(changed)]
    assert (forgotten.state, forgotten.reason) == (RevisionState.CANDIDATE, "")
    refused = replace(forgotten, state=RevisionState.REFUSED, since=NOW - 1, reason="HandlerImportFailed")
    here = with_verdict(fleet(group=CHANGED), hash_of(changed), refused)
    here = replace(here, state=replace(here.state, fleet=replace(here.state.fleet, wanted=hash_of(changed))))
    plan = plan_of(here)
    assert (plan.fleet.decision.phase, plan.fleet.decision.run_check) == (RolloutPhase.REFUSED, False)
    assert plan.fleet.decision.target == hash_of(plan_of(fleet()))


def test_verdict_stays_while_the_record_of_its_revision_is_not_read() -> None:
    """Records are read up to a limit, and one that is being deleted is none."""
    before = with_verdict(fleet(), OLDER)
    for unread in (older_record(), older_record(deletionTimestamp="2027-01-15T08:00:00Z")):
        plan = plan_of(replace(before, config_maps=(*before.config_maps, unread)))
        assert OLDER not in plan.fleet.records
        assert plan.state.fleet.verdicts[OLDER] == GOOD


def test_verdict_of_a_running_revision_stays_without_its_record() -> None:
    before = fleet()
    plan = plan_of(replace(before, group=CHANGED, config_maps=()))
    assert plan.state.fleet.verdicts[hash_of(plan_of(before))] == GOOD


def test_verdict_of_a_revision_that_nothing_names_any_more_goes() -> None:
    before = with_verdict(fleet(), OLDER)
    assert plan_of(before).state.fleet == FleetState(
        wanted=before.state.fleet.wanted, verdicts={before.state.fleet.wanted or "": GOOD}
    )


def test_verdict_of_a_pruned_revision_goes() -> None:
    """In the write before its ConfigMap is deleted."""
    before = fleet()
    data = {"pod-template.json": '{"spec": {}}'}
    stale = with_verdict(before, OLDER, RevisionVerdict(state=RevisionState.REFUSED, since=NOW - 9))
    plan = plan_of(replace(stale, config_maps=(*before.config_maps, {**older_record(), "data": data})))
    assert plan.fleet.decision.prune == (OLDER,)
    assert plan.state == before.state
