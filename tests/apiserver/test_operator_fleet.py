"""Children and status of a ConsumerGroup on a real API server and a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from fleet_operator.api.v1alpha1.conditions import CONSUMER_GROUP_CONDITIONS
from fleet_operator.planning import times
from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Site
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.together]

MakeSite = Callable[..., Site]


def start_fleet(site: Site, broker: KafkaBroker, **spec: Any) -> None:
    site.apply(objects.handler_source(site.name), objects.cluster(site.name, broker.bootstrap))
    site.apply(objects.group(site.name, **spec))


def revision_of(site: Site) -> str:
    return str(site.get("statefulsets", "flights-fleet")["metadata"]["annotations"]["consumerfleet.io/revision"])


def marks_of(site: Site) -> dict[str, dict[str, Any]]:
    """The verdicts of the fleet's revisions, by their hash."""
    found: dict[str, dict[str, Any]] = site.get("operatorstates", "flights.consumergroup")["data"]["fleet"]["verdicts"]
    return found


def state_of(site: Site, revision: str) -> str:
    """The state of a revision; one at its default is left out of the document."""
    return str(marks_of(site)[revision].get("state", "Candidate"))


def wait_good(site: Site, revision: str) -> None:
    """Wait until the revision is recorded as good: some seconds after its last worker is ready."""
    eventually(lambda: state_of(site, revision) == "Good", timeout_s=PATIENCE_S, what=f"revision {revision} to be good")


def wait_no_check(site: Site) -> None:
    """Wait until the check pod is gone."""
    site.wait_names("pods", selector="app.kubernetes.io/component=check")


def test_fleet_has_every_child_and_each_belongs_to_it(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("children")
    start_fleet(here, broker, replicas=2)
    owner = here.wait_ready_replicas(2)
    revision = revision_of(here)
    wait_good(here, revision)
    assert here.names("statefulsets") == ["flights-fleet"]
    assert here.names("services") == ["flights-fleet"]
    assert here.names("poddisruptionbudgets") == ["flights-fleet"]
    assert here.names("configmaps") == [f"flights-fleet-{revision}", f"flights-fleet-{revision}-handler"]
    here.wait_names("pods", "flights-fleet-0", "flights-fleet-1")  # and no check pod any more
    for kind in ("statefulsets", "services", "poddisruptionbudgets", "configmaps"):
        for child in here.every(kind):
            (reference,) = child["metadata"]["ownerReferences"]
            assert (reference["uid"], reference["controller"]) == (owner["metadata"]["uid"], True)
            assert reference["blockOwnerDeletion"] is True


def test_failed_topic_is_made_like_the_source(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("topic")
    start_fleet(here, broker)
    here.wait_condition("consumergroups", "flights", "TopicsReady", status="True", reason="TopicsExist")
    name = f"_fleet.{here.name}.flights.failed"
    words = ("--bootstrap-server", broker.bootstrap, "--describe", "--topic", name)
    described = broker.tool("org.apache.kafka.tools.TopicCommand", *words)
    assert "PartitionCount: 6" in described
    assert "retention.ms=2592000000" in described


def test_group_without_an_id_is_called_by_its_namespace_and_name(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("unnamed")
    start_fleet(here, broker)
    here.wait_condition("consumergroups", "flights", "TopicsReady", status="True", reason="TopicsExist")
    assert "groupId" not in here.get("consumergroups", "flights")["spec"]
    wanted = f"{here.name}.flights"
    chosen = here.kubectl("get", "kcg", "--field-selector", f"status.groupId={wanted}", "-o", "name")
    assert chosen.split() == ["consumergroup.consumerfleet.io/flights"]


def test_all_conditions_are_there_from_the_first_visit(site: MakeSite) -> None:
    here = site("conditions")
    here.apply(objects.group(here.name))
    here.wait_condition("consumergroups", "flights", "Ready", status="False", reason="ClusterNotFound")
    found = here.get("consumergroups", "flights")["status"]["conditions"]
    assert len(found) == len(CONSUMER_GROUP_CONDITIONS)
    for condition in found:
        assert condition["reason"], condition
        assert condition["message"], condition
        assert condition["observedGeneration"] == 1


def test_scaling_changes_replicas_and_nothing_else(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("scale")
    start_fleet(here, broker)
    here.wait_ready_replicas(1)
    wait_no_check(here)
    revision = revision_of(here)
    here.kubectl("scale", "kcg/flights", "--replicas=3")
    here.wait_ready_replicas(3)
    assert revision_of(here) == revision
    assert here.names("pods", "app.kubernetes.io/component=check") == []
    here.kubectl("scale", "kcg/flights", "--replicas=0")
    here.wait_ready_replicas(0)


def test_changed_handler_source_rolls_the_fleet_at_once(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("source")
    start_fleet(here, broker)
    here.wait_ready_replicas(1)
    before = revision_of(here)
    wait_good(here, before)
    here.apply(objects.handler_source(here.name, source="def handle(record):\n    raise ValueError\n"))
    eventually(lambda: revision_of(here) != before, timeout_s=15, what="a new revision")
    wait_good(here, revision_of(here))
    assert state_of(here, before) == "Good", "the older good revision is kept to go back to"


def test_bad_revision_leaves_the_running_fleet_alone(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("bad")
    start_fleet(here, broker)
    here.wait_ready_replicas(1)
    wait_good(here, revision_of(here))
    good = here.get("statefulsets", "flights-fleet")
    pod = here.get("pods", "flights-fleet-0")["metadata"]["uid"]
    here.apply(objects.group(here.name, callable_="handler:missing"))
    degraded = here.wait_condition("consumergroups", "flights", "Degraded", status="True", reason="RevisionRefused")
    assert "has no `missing`" in degraded["message"]
    here.wait_condition("consumergroups", "flights", "Progressing", status="False", reason="Refused")
    here.wait_condition("consumergroups", "flights", "Stalled", status="True", reason="Refused")
    here.wait_condition("consumergroups", "flights", "Serving", status="True", reason="LastGoodRevision")
    assert here.condition("consumergroups", "flights", "Ready")["status"] == "False"
    now = here.get("statefulsets", "flights-fleet")
    assert now["spec"] == good["spec"]
    assert now["metadata"]["generation"] == good["metadata"]["generation"]
    assert here.get("pods", "flights-fleet-0")["metadata"]["uid"] == pod
    here.apply(objects.group(here.name))
    here.wait_condition("consumergroups", "flights", "Degraded", status="False", reason="AsWanted")
    here.wait_condition("consumergroups", "flights", "Progressing", status="False", reason="Complete")


def test_object_with_the_name_of_a_child_is_not_taken_over(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("foreign")
    metadata = {"name": "flights-fleet", "namespace": here.name}
    spec = {"ports": [{"port": 80}], "selector": {"app": "theirs"}}
    here.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    start_fleet(here, broker)
    found = here.wait_condition("consumergroups", "flights", "Ready", status="False", reason="NameTaken")
    assert "Service `flights-fleet`" in found["message"]
    assert here.get("services", "flights-fleet")["spec"]["selector"] == {"app": "theirs"}


def test_application_may_have_objects_of_the_groups_own_name(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("beside")
    metadata = {"name": "flights", "namespace": here.name}
    pods = {"matchLabels": {"app": "theirs"}}
    template = {"metadata": {"labels": {"app": "theirs"}}, "spec": {"containers": [{"name": "app", "image": "theirs"}]}}
    theirs: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}], "selector": {"app": "theirs"}}},
        {"apiVersion": "v1", "kind": "ConfigMap", "data": {"theirs": "yes"}},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"minAvailable": 1, "selector": pods}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet"}
        | {"spec": {"serviceName": "flights", "replicas": 0, "selector": pods, "template": template}},
    ]
    here.apply(*({**body, "metadata": metadata} for body in theirs))
    start_fleet(here, broker)
    here.wait_ready_replicas(1)
    here.wait_condition("consumergroups", "flights", "Degraded", status="False", reason="AsWanted")
    for kind in ("services", "configmaps", "poddisruptionbudgets", "statefulsets"):
        assert "ownerReferences" not in here.get(kind, "flights")["metadata"], kind


def test_paused_object_is_not_touched_until_it_is_resumed(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("paused")
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    body = objects.group(here.name)
    body["metadata"]["annotations"] = {"consumerfleet.io/paused": "true"}
    here.apply(body)
    here.wait_condition("consumergroups", "flights", "Paused", status="True", reason="PausedByAnnotation")
    assert [here.names(kind) for kind in ("configmaps", "pods", "statefulsets", "services")] == [[]] * 4
    here.kubectl("annotate", "kcg/flights", "consumerfleet.io/paused-")
    here.wait_ready_replicas(1)


def test_changed_child_is_restored(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("drift")
    start_fleet(here, broker)
    here.wait_ready_replicas(1)
    here.kubectl("scale", "statefulset/flights-fleet", "--replicas=4")

    def put_right() -> bool:
        return bool(here.get("statefulsets", "flights-fleet")["spec"]["replicas"] == 1)

    eventually(put_right, timeout_s=PATIENCE_S, what="1 replica again")


def test_additions_to_the_pod_template_by_other_hands_are_taken_out_and_reported(
    site: MakeSite, broker: KafkaBroker
) -> None:
    here = site("added")
    start_fleet(here, broker)
    here.wait_ready_replicas(1)
    before = here.get("statefulsets", "flights-fleet")["spec"]["template"]
    miner = {"name": "miner", "image": "example.org/miner"}
    worker = {"name": "worker", "env": [{"name": "MORE", "value": "1"}]}
    added = {"hostNetwork": True, "containers": [miner, worker], "nodeSelector": {"disk": "ssd"}}
    added |= {"volumes": [{"name": "more", "emptyDir": {}}]}
    template = {"metadata": {"annotations": {"example.org/inject": "true"}}, "spec": added}
    here.kubectl("patch", "statefulset/flights-fleet", "-p", json.dumps({"spec": {"template": template}}))

    def taken_out() -> bool:
        return bool(here.get("statefulsets", "flights-fleet")["spec"]["template"] == before)

    eventually(taken_out, timeout_s=PATIENCE_S, what="the template as it was")

    wait_told(here, "StatefulSet `flights-fleet`", "kubectl-patch")


def test_pod_with_another_image_is_reported(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("swapped")
    start_fleet(here, broker)
    here.wait_ready_replicas(1)
    created = times.from_text(here.get("pods", "flights-fleet-0")["metadata"]["creationTimestamp"])
    assert created is not None
    eventually(lambda: time.time() > created + 1, timeout_s=PATIENCE_S, what="another second")
    here.kubectl("set", "image", "pod/flights-fleet-0", "worker=example.org/other:1")
    wait_told(here, "Pod `flights-fleet-0`", "kubectl-set")


def wait_told(here: Site, what: str, manager: str) -> None:
    """Wait for the Event about a change by another hand."""

    def told() -> bool:
        notes = [each["note"] for each in here.every("events", "") if each["reason"] == "ChangedByOthers"]
        return any(what in note and manager in note for note in notes)

    eventually(told, timeout_s=PATIENCE_S, what=f"the Event about {what}")


def test_younger_object_for_the_same_group_waits(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("rivals")
    start_fleet(here, broker, group_id="shared-by-two")
    here.wait_ready_replicas(1)
    here.apply(objects.group(here.name, name="later", group_id="shared-by-two", scaling={"minReplicas": 3}))
    found = here.wait_condition("consumergroups", "later", "Ready", status="False", reason="GroupIdTaken")
    assert f"{here.name}/flights" in found["message"]
    assert here.names("statefulsets") == ["flights-fleet"]
    status = here.status("consumergroups", "later")
    assert (status["replicas"], status["targetReplicas"]) == (0, 0)
    assert here.condition("consumergroups", "later", "ScalingActive")["status"] == "False"
    here.kubectl("delete", "kcg/flights")
    here.wait_ready_replicas(3, "later")
