"""Plans of groups whose image or connection has changed outside of their spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.api.v1alpha1 import KafkaCluster
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.blocking import cluster_not_found
from fleet_operator.planning.fleet.parts import MAIN, PartPlan
from fleet_operator.planning.fleet.revision import connection_digest
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import PodFacts, RevisionRecord
from fleet_operator.planning.fleet.waves import Slot
from fleet_operator.planning.labels import INPUTS_ANNOTATION
from fleet_operator.planning.state.document import read_state, write_state
from fleet_operator.planning.state.group import GroupState, Phase, RevisionState, Upgrade, UpgradeState
from fleet_operator.planning.trimming import trim_stateful_set
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.plan import Plan, make_plan
from tests.unit.planning.builders import IMAGE, NOW, consumer_group, kafka_cluster, observation, remembered, unreachable
from tests.unit.planning.retry.test_plan import CAREFUL, flow
from tests.unit.planning.retry.test_plan import cluster as flowing
from tests.unit.planning.retry.test_published_policies import OLD
from tests.unit.reconcilers.consumergroup.test_decide import gathered

NEW = "worker:2"
ID = {"clusterId": "cluster-a"}
WAITS = Slot(waves=True)


def cluster(address: str = "kafka:9092") -> KafkaCluster:
    return kafka_cluster(status=ID, bootstrapServers=[address])


def seen(of: KafkaCluster) -> Any:
    return observation(connection=of.spec.connection)


def plan_of(found: Gathered, image: str = IMAGE) -> Plan:
    return make_plan(found, NOW, image=image)


def upgrade_of(plan: Plan) -> UpgradeState:
    return plan.state.upgrade


def hash_of(plan: Plan) -> str:
    assert plan.fleet.wanted is not None
    return plan.fleet.wanted.hash


def fleet(**spec: Any) -> Gathered:
    """A fleet at its good revision, as the API server and the caches have it."""
    of = cluster()
    policy = spec.pop("policy", None)
    group = consumer_group(**spec)
    observed = seen(of) if policy is None else flowing(flow(found_delays=()))
    found = gathered(cluster=of, group=group, policy=policy, observation=observed)
    plan = plan_of(found)
    assert plan.fleet.wanted is not None
    verdict = RevisionRecord(hash=plan.fleet.wanted.hash, state=RevisionState.GOOD, since=NOW - 60, checked=True)
    record = manifests.revision_config_map(group, plan.fleet.wanted)
    body = plan.fleet.stateful_set(found, PartPlan(part=MAIN, target=plan.fleet.wanted.hash, replicas=1))
    fields = {"namespace": "shop", "uid": "s", "resourceVersion": "1", "generation": 1}
    body = {**body, "metadata": {**body["metadata"], **fields}, "status": {"observedGeneration": 1}}
    kept = gathered(
        cluster=of,
        group=group,
        state=replace(plan.state, fleet=remembered(verdict, wanted=verdict.hash).fleet),
        policy=policy,
        observation=observed,
        stateful_set=trim_stateful_set(body),
        config_maps=(record,),
    )
    return replace(kept, slot=WAITS)


def moved(before: Gathered, **changes: Any) -> Gathered:
    """The same fleet after an edit of its KafkaCluster."""
    new = cluster("elsewhere:9092")
    return replace(before, cluster=new, observation=seen(new), **changes)


def test_image_of_the_operator_is_taken_with_the_slot_and_not_before() -> None:
    before = fleet()
    first = plan_of(before)
    waiting = plan_of(before, NEW)
    assert (hash_of(waiting), waiting.upgrade.image.name, waiting.fleet.decision.phase) == (
        hash_of(first),
        IMAGE,
        RolloutPhase.SETTLED,
    )
    going = plan_of(replace(before, slot=Slot(waves=True, image=True)), NEW)
    assert going.upgrade.image.name == NEW
    assert hash_of(going) != hash_of(first)
    assert upgrade_of(going) == UpgradeState(
        image=NEW, source="Operator", connection=upgrade_of(first).connection, last=Upgrade(Phase.ROLLING, NEW)
    )


def test_changed_connection_waits_for_a_slot() -> None:
    before = fleet()
    first = plan_of(before)
    held = plan_of(moved(before))
    assert hash_of(held) == hash_of(first)
    assert held.fleet.decision.phase is RolloutPhase.SETTLED
    assert upgrade_of(held).connection == upgrade_of(first).connection
    assert not held.facts.kept, "no other version of the operator has planned it"
    body = held.fleet.stateful_set(before, PartPlan(part=MAIN, target=hash_of(held), replicas=1))
    main = before.parts[MAIN].body
    assert main is not None
    assert body["metadata"]["annotations"][INPUTS_ANNOTATION] == main["metadata"]["annotations"][INPUTS_ANNOTATION]
    going = plan_of(moved(before, slot=Slot(waves=True, connection=True)))
    assert hash_of(going) != hash_of(first)
    assert upgrade_of(going).connection == connection_digest(cluster("elsewhere:9092"))


def test_connection_that_was_begun_is_gone_on_with() -> None:
    before = fleet()
    begun = replace(before.state.upgrade, connection=connection_digest(cluster("elsewhere:9092")))
    state = replace(before.state, upgrade=begun)
    assert hash_of(plan_of(moved(before, state=state))) != hash_of(plan_of(before))


def test_lost_state_does_not_roll_a_connection() -> None:
    before = fleet()
    held = plan_of(moved(before, state=GroupState()))
    assert hash_of(held) == hash_of(plan_of(before))
    assert upgrade_of(held).connection == upgrade_of(plan_of(before)).connection, "so that it is known to be behind"


def test_own_change_does_not_wait_and_takes_the_connection_along() -> None:
    before = fleet()
    group = consumer_group(handler={"python": {"callable": "shop:other"}})
    plan = plan_of(moved(before, group=group))
    assert hash_of(plan) != hash_of(plan_of(before))
    assert upgrade_of(plan).connection == connection_digest(cluster("elsewhere:9092"))


def test_without_waves_a_changed_connection_rolls_at_once() -> None:
    before = fleet()
    assert hash_of(plan_of(moved(before, slot=Slot()))) != hash_of(plan_of(before))


def test_fleet_whose_inputs_are_not_known_does_not_wait() -> None:
    before = fleet()
    main = before.parts[MAIN].body
    assert main is not None
    del main["metadata"]["annotations"][INPUTS_ANNOTATION]
    assert hash_of(plan_of(moved(before))) != hash_of(plan_of(replace(before, cluster=cluster())))


@pytest.mark.parametrize("spec", [{}, {"image": "own:1"}, {"suspend": True}, {"replicas": 0}])
def test_other_default_image_alone_rolls_nothing(spec: dict[str, Any]) -> None:
    before = fleet(**spec)
    plan = plan_of(before, NEW)
    assert hash_of(plan) == hash_of(plan_of(before))
    assert not plan.upgrade.slot.begins


def test_edited_retry_policy_rolls_nothing() -> None:
    """Running workers read it again."""
    before = fleet(retry={"policyRef": {"name": "standard"}}, policy=OLD)
    after = plan_of(replace(before, policy=CAREFUL))
    assert hash_of(after) == hash_of(plan_of(before))
    assert after.fleet.decision.phase is RolloutPhase.SETTLED


def test_nothing_begins_while_nothing_could_come_of_it() -> None:
    slot = Slot(waves=True, image=True)
    for changes in (
        {"observation": unreachable()},
        {"observation": None},
        {"cluster": cluster_not_found("shop", "main")},
    ):
        plan = plan_of(replace(fleet(), slot=slot, **changes), NEW)
        assert not plan.upgrade.slot.begins
        assert plan.upgrade.slot.wait is not None
        assert plan.upgrade.slot.wait.reason == "WaitingForFleet"
        assert plan.upgrade.image.name == IMAGE
        assert upgrade_of(plan).last is None


def test_fleet_that_is_down_takes_over_the_connection_without_an_upgrade() -> None:
    alone = Slot(waves=True, connection=True, alone=True)
    before = fleet()
    going = plan_of(moved(before, slot=alone))
    assert upgrade_of(going).connection == connection_digest(cluster("elsewhere:9092"))
    assert upgrade_of(going).last is None
    silent = replace(moved(before, slot=alone), observation=unreachable())
    assert hash_of(plan_of(silent)) == hash_of(plan_of(before)), "of silent brokers nothing could come"
    main = before.parts[MAIN]
    ready = PodFacts(name="orders-0", revision="r", ordinal=0)
    serves = {**before.parts, MAIN: replace(main, workers=(ready,), pods=({"spec": {}},))}
    waits = plan_of(moved(before, slot=alone, parts=serves))
    assert hash_of(waits) == hash_of(plan_of(before)), "the status was of a moment ago"
    assert "ready again" in str(waits.upgrade.slot.wait)


def test_fleet_of_a_former_object_goes_over_to_the_new_ones_identity() -> None:
    """Static members and the list of records to skip are known by the object's uid."""
    before = fleet()
    metadata = before.group.metadata.model_copy(update={"uid": "another"})
    group = before.group.model_copy(update={"metadata": metadata})
    plan = plan_of(replace(before, group=group))
    assert hash_of(plan) != hash_of(plan_of(before))
    assert plan.fleet.decision.target == hash_of(plan_of(before)), "what runs is kept until the new one is checked"


@pytest.mark.parametrize("image", ["${IMAGE}", " shop/app:1", "shop/app:1\n", "{{ image }}", "x" * 1024])
@pytest.mark.parametrize("of_spec", [True, False])
def test_image_that_is_no_reference_leaves_a_state_that_can_be_read(image: str, *, of_spec: bool) -> None:
    """A template that was not filled in: no pod can run it, but the next edit must take effect."""
    found = gathered(group=consumer_group(image=image) if of_spec else consumer_group())
    state = plan_of(found, image=IMAGE if of_spec else image).state
    assert state.upgrade.image == image
    assert read_state(GroupState, write_state(state, {}), "orders") == state
