"""Children that the API server refuses, and objects of others under a child's name: each holds up itself alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from fleet_consumer.contract import naming
from fleet_operator.clients import kinds
from fleet_operator.clients.kube import KubeError, KubeForbiddenError, KubeInvalidError
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.revision import with_known
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import RevisionState
from fleet_operator.reconcilers.consumergroup.children import Children
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.plan import Plan, make_plan
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.registry import WATCHED
from fleet_operator.runtime.store import Store
from tests.unit.planning.builders import IMAGE, NOW, consumer_group, kafka_cluster, remembered
from tests.unit.planning.retry.test_plan import cluster, flow
from tests.unit.reconcilers.consumergroup.test_decide import gathered
from tests.unit.runtime.memory_kube import MemoryKube
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual


def scaled_with_another_template() -> tuple[Gathered, Plan]:
    """A good fleet of one worker that is to have five, and a new revision to check."""
    here = gathered(cluster=kafka_cluster(), group=consumer_group(replicas=1), policy=None)
    first = make_plan(here, NOW, image=IMAGE).fleet.wanted
    assert first is not None
    verdict = RevisionRecord(hash=first.hash, state=RevisionState.GOOD, since=NOW - 60, checked=True)
    good = manifests.revision_config_map(here.group, first)
    fleet = with_known(
        manifests.stateful_set(here.group, revision=first.hash, pod_template=first.pod_template, replicas=1),
        {first.hash: first.pod_template},
    )
    group = consumer_group(replicas=5, template={"metadata": {"labels": {"team": "another"}}})
    observed = cluster(flow(found_delays=()))
    found = gathered(cluster=kafka_cluster(), group=group, policy=None, observation=observed, stateful_set=fleet)
    found = replace(found, state=remembered(verdict), config_maps=(good,))
    return found, make_plan(found, NOW, image=IMAGE)


def carry_out(
    found: Gathered, plan: Plan, before: Callable[[str, str, str], None], *others: kinds.JsonObject
) -> tuple[Problem | None, MemoryKube]:
    kube = MemoryKube()

    async def main() -> Problem | None:
        clock = VirtualClock(asyncio.get_running_loop())
        store = Store(kube, clock, WATCHED)
        owner = {"apiVersion": "consumerfleet.io/v1alpha1", "kind": "ConsumerGroup", **found.body}
        owner = await kube.create(owner)
        store.learn(kinds.CONSUMER_GROUP, owner)
        for body in others:
            store.learn(kinds.kind_of(body), await kube.create(body))
        kube.before = before
        here = replace(found, body=owner)
        return await Children(cast("Context", _Context(store, clock)), here, plan).carry_out()

    return run_virtual(main()), kube


class _Context:
    """The parts of a Context that children need."""

    def __init__(self, store: Store, clock: Any) -> None:
        self.store = store
        self.clock = clock
        self.events = self

    def record(self, event: Any) -> None:
        """Events are of no concern here."""


def refuse(kind: str, error: KubeError) -> Callable[[str, str, str], None]:
    def before(verb: str, found: str, name: str) -> None:
        if found == kind and verb in ("apply", "create"):
            raise error

    return before


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KubeInvalidError("no such volume", status=422), "RefusedByApiServer"),
        (KubeForbiddenError("quota", status=403), "ForbiddenByApiServer"),
    ],
)
def test_refused_check_is_reported_and_does_not_hold_up_the_good_fleet(error: KubeError, reason: str) -> None:
    found, plan = scaled_with_another_template()
    assert plan.fleet.decision.run_check
    refusal, kube = carry_out(found, plan, refuse("Pod", error))
    assert refusal is not None
    assert refusal.reason == reason
    fleets = {name: body for (kind, _, name), body in kube.objects.items() if kind == "StatefulSet"}
    assert [body["spec"]["replicas"] for body in fleets.values()] == [5]


def test_refused_template_does_not_hold_up_the_size_of_the_fleet_that_runs() -> None:
    """Nothing but the StatefulSet is refused, as by an admission policy, and the fleet is to grow."""
    found, plan = scaled_with_another_template()
    main, fleet = plan.parts[0], found.parts[MAIN].fleet
    assert (plan.fleet.wanted is not None, fleet is not None, main.replicas) == (True, True, 5)
    assert plan.fleet.wanted is not None
    moved = replace(plan, parts=(replace(main, target=plan.fleet.wanted.hash),))
    refused: list[str] = []

    def new_template(verb: str, kind: str, name: str) -> None:
        if (verb, kind) == ("apply", "StatefulSet") and not refused:
            refused.append(name)
            raise KubeForbiddenError("policy: no such registry", status=403)

    refusal, kube = carry_out(found, moved, new_template)
    assert refusal is not None
    assert "no such registry" in refusal.message
    (body,) = [body for (kind, _, _), body in kube.objects.items() if kind == "StatefulSet"]
    assert fleet is not None
    assert (body["metadata"]["annotations"]["consumerfleet.io/revision"], body["spec"]["replicas"]) == (
        fleet.revision,
        5,
    )


def test_refused_record_does_not_hold_up_the_size_of_the_fleet_that_runs() -> None:
    """As by a quota of ConfigMaps: nothing of the new revision is made, and the workers that run get their number."""
    found, plan = scaled_with_another_template()
    fleet = found.parts[MAIN].fleet
    assert fleet is not None
    refusal, kube = carry_out(found, plan, refuse("ConfigMap", KubeForbiddenError("count/configmaps", status=403)))
    assert refusal is not None
    assert refusal.reason == "ForbiddenByApiServer"
    (body,) = [body for (kind, _, _), body in kube.objects.items() if kind == "StatefulSet"]
    assert body["metadata"]["annotations"]["consumerfleet.io/revision"] == fleet.revision
    assert body["spec"]["replicas"] == 5
    assert "Pod" not in {kind for kind, _, _ in kube.objects}


def test_refused_part_holds_up_removals_and_no_other_part() -> None:
    found, plan = scaled_with_another_template()
    main = plan.parts[0]
    both = replace(plan, parts=(replace(main, delete_pods=("orders-0",)), main))
    refused: list[str] = []

    def first_service(verb: str, kind: str, name: str) -> None:
        if (verb, kind) == ("apply", "Service") and not refused:
            refused.append(name)
            raise KubeInvalidError("refused once", status=422)

    refusal, kube = carry_out(found, both, first_service)
    assert refusal is not None
    assert "refused once" in refusal.message
    assert any(kind == "StatefulSet" for kind, _, _ in kube.objects), "the second part was applied"
    assert not [verb for verb, _, _ in kube.writes if verb == "delete"]


def test_config_map_of_somebody_else_is_in_the_way_of_no_group_without_skips() -> None:
    found, plan = scaled_with_another_template()
    name = naming.skip_config(found.group.metadata.name)
    metadata = {
        "namespace": found.group.metadata.namespace,
        "name": name,
        "labels": {"consumerfleet.io/handler": "true"},
    }
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"handler.py": ""}}
    refusal, kube = carry_out(found, plan, lambda *_: None, foreign)
    assert refusal is None
    assert kube.objects["ConfigMap", found.group.metadata.namespace, name]["data"] == {"handler.py": ""}


def test_file_of_a_step_comes_before_its_workers_and_its_refusal_is_in_the_way_of_nothing() -> None:
    found, plan = scaled_with_another_template()
    name = naming.skip_config(found.group.metadata.name)
    refusal, kube = carry_out(found, plan, lambda *_: None)
    assert refusal is None
    written = [(kind, each) for _, kind, each in kube.writes]
    assert written.index(("ConfigMap", name)) < written.index(("StatefulSet", MAIN.child(found.group.metadata.name)))
    assert "join.json" in kube.objects["ConfigMap", found.group.metadata.namespace, name]["data"]

    def quota(verb: str, kind: str, each: str) -> None:
        if (kind, each) == ("ConfigMap", name) and verb in ("apply", "create"):
            raise KubeForbiddenError("quota", status=403)

    refusal, kube = carry_out(found, plan, quota)
    assert refusal is None
    assert [body["spec"]["replicas"] for (kind, _, _), body in kube.objects.items() if kind == "StatefulSet"] == [5]
