"""The retry workers: the main workers in another role, at a revision that knows retries, told of policies in time."""

from __future__ import annotations

import copy
import json
from typing import Any

from fleet_consumer.contract import naming
from fleet_consumer.contract.worker_config import parse_config
from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.planning import times
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.manifests import notices
from fleet_operator.planning.fleet.parts import MAIN, RETRY
from fleet_operator.planning.fleet.revision import Revision, plan_revision
from fleet_operator.planning.retry.fleet import pods_with_old_policies, retry_stateful_set
from fleet_operator.planning.retry.plan import retry_target
from fleet_operator.planning.retry.records import Published
from fleet_operator.planning.status.consumergroup import project_consumergroup_status
from tests.unit.planning.builders import IMAGE, NOW, consumer_group, facts, kafka_cluster, ready_fleet, with_worker
from tests.unit.planning.retry.test_published_policies import NEW, OLD

RETRIES: dict[str, Any] = {"policyRef": {"name": "standard"}}


def revision_of(group: ConsumerGroup) -> Revision:
    return plan_revision(group, kafka_cluster(), handler_files=None, image=IMAGE)


def retry_fleet(group: ConsumerGroup, *, replicas: int = 2) -> dict[str, Any]:
    revision = revision_of(group)
    return retry_stateful_set(group, revision=revision.hash, pod_template=revision.pod_template, replicas=replicas)


def worker_of(template: dict[str, Any]) -> dict[str, Any]:
    return next(dict(found) for found in template["spec"]["containers"] if found["name"] == "worker")


def told(*, at: float = NOW) -> Published:
    return Published(
        policy="standard", current=OLD.hash, known=(OLD,), partitions=4, max_message_bytes=1, published_at=at
    )


def pod(name: str = "orders-0", *, created_at: float = NOW - 60, told_of: str | None = None) -> dict[str, Any]:
    annotations = {"consumerfleet.io/retry-policies": told_of} if told_of else {}
    metadata = {"name": name, "namespace": "shop", "uid": f"u-{name}", "annotations": annotations}
    return {"metadata": {**metadata, "creationTimestamp": times.to_text(created_at)}}


def test_retry_worker_differs_in_role_labels_and_nothing_else() -> None:
    group = consumer_group(retry=RETRIES)
    main = copy.deepcopy(dict(revision_of(group).pod_template))
    retry = retry_fleet(group)["spec"]["template"]
    assert worker_of(retry)["args"] == [*worker_of(main)["args"], "--role", "retry"]
    worker = next(found for found in retry["spec"]["containers"] if found["name"] == "worker")
    worker["args"] = worker_of(main)["args"]
    assert retry["spec"] == main["spec"]
    assert retry["metadata"]["annotations"] == main["metadata"]["annotations"]
    main["metadata"]["labels"]["app.kubernetes.io/component"] = "retry"
    assert retry["metadata"]["labels"] == main["metadata"]["labels"]


def test_retry_worker_may_have_resources_of_its_own() -> None:
    given, own = {"limits": {"memory": "1Gi"}}, {"limits": {"memory": "128Mi"}}
    group = consumer_group(retry=RETRIES, template=with_worker(resources=given))
    assert worker_of(retry_fleet(group)["spec"]["template"])["resources"] == given
    group = consumer_group(retry={**RETRIES, "worker": {"resources": own}}, template=with_worker(resources=given))
    assert worker_of(retry_fleet(group)["spec"]["template"])["resources"] == own
    assert worker_of(dict(revision_of(group).pod_template))["resources"] == given
    group = consumer_group(retry={**RETRIES, "worker": {"resources": {}}}, template=with_worker(resources=given))
    assert worker_of(retry_fleet(group)["spec"]["template"])["resources"] == {}


def test_neither_partner_selects_the_others_workers() -> None:
    group = consumer_group(retry=RETRIES)
    retry = retry_fleet(group)
    assert retry["spec"]["selector"]["matchLabels"].items() <= retry["spec"]["template"]["metadata"]["labels"].items()
    labels = dict(revision_of(group).pod_template["metadata"]["labels"])
    assert MAIN.selector("orders").items() <= labels.items()
    assert not RETRY.selector("orders").items() <= labels.items()
    assert not MAIN.selector("orders").items() <= retry["spec"]["template"]["metadata"]["labels"].items()
    names = {retry["metadata"]["name"], manifests.headless_service(group, RETRY)["metadata"]["name"]}
    assert names == {"orders-fleet-retry"} == {retry["spec"]["serviceName"]}


def test_policies_are_no_part_of_a_revision() -> None:
    """Pods must not roll when a policy is edited, nor when the group changes to another one."""
    group = consumer_group(retry=RETRIES)
    assert revision_of(group).hash == revision_of(consumer_group(retry={"policyRef": {"name": "other"}})).hash
    assert revision_of(group).hash != revision_of(consumer_group()).hash
    more = {**RETRIES, "worker": {"minReplicas": 2, "resources": {"limits": {"cpu": 1}}}}
    shaped = consumer_group(retry=more, managedTopics={"partitions": 3})
    assert revision_of(group).hash == revision_of(shaped).hash


def test_worker_reads_where_its_policies_stand() -> None:
    def config(**spec: Any) -> Any:
        return parse_config(json.loads(json.dumps(revision_of(consumer_group(**spec)).worker_config)))

    assert config(retry=RETRIES).policy_file == "/etc/fleet/retry/policies.json"
    assert config().policy_file is None
    mounts = worker_of(dict(revision_of(consumer_group(retry=RETRIES)).pod_template))["volumeMounts"]
    assert {"name": "consumer-fleet-retry", "mountPath": "/etc/fleet/retry", "readOnly": True} in mounts
    assert not [mount for mount in mounts if mount.get("subPath")], "what is mounted by subPath is never renewed"


def test_retry_workers_follow_the_main_ones_unless_those_know_no_retries() -> None:
    with_retries, without = revision_of(consumer_group(retry=RETRIES)), revision_of(consumer_group())
    templates = {found.hash: found.pod_template for found in (with_retries, without)}
    old, new = ready_fleet(revision=with_retries.hash), ready_fleet(revision="gone")
    assert retry_target(None, with_retries.hash, templates, ending=False) == with_retries.hash
    assert retry_target(old, without.hash, templates, ending=False) == with_retries.hash
    assert retry_target(None, without.hash, templates, ending=False) is None
    assert retry_target(old, with_retries.hash, {}, ending=False) is None
    assert retry_target(old, without.hash, templates, ending=True) == with_retries.hash
    assert retry_target(new, with_retries.hash, templates, ending=True) is None


def test_pods_are_annotated_once_for_a_file_not_yet_mounted() -> None:
    published = told()
    (patch,) = notices([pod()], pods_with_old_policies([pod()], published))
    assert patch["metadata"]["annotations"] == {"consumerfleet.io/retry-policies": published.digest}
    assert set(patch["metadata"]) == {"name", "namespace", "uid", "annotations"}, "nothing else of a pod is ours"
    done = pod(told_of=published.digest)
    younger = pod("orders-1", created_at=NOW + 5)
    leaving = pod("orders-2")
    leaving["metadata"]["deletionTimestamp"] = times.to_text(NOW)
    every = [done, younger, leaving]
    assert notices(every, pods_with_old_policies(every, published)) == []
    edited = Published(
        policy="standard", current=NEW.hash, known=(OLD, NEW), partitions=4, max_message_bytes=1, published_at=NOW + 10
    )
    assert len(notices(every, pods_with_old_policies(every, edited))) == 2


def test_one_patch_has_all_annotations_for_else_an_apply_would_take_one_away() -> None:
    published, known = told(), pod(told_of="old")
    known["metadata"]["annotations"]["consumerfleet.io/skipped-records"] = "list"
    (patch,) = notices([known], pods_with_old_policies([known], published))
    assert patch["metadata"]["annotations"] == {
        "consumerfleet.io/retry-policies": published.digest,
        "consumerfleet.io/skipped-records": "list",
    }
    (both,) = notices([pod()], {pod()["metadata"]["uid"]: {"a": "1"}}, {pod()["metadata"]["uid"]: {"b": "2"}})
    assert both["metadata"]["annotations"] == {"a": "1", "b": "2"}


def test_status_shows_how_many_retry_workers_there_are() -> None:
    found = facts(retry_fleet=ready_fleet(3, ready=2))
    status = project_consumergroup_status(found, {}, NOW)
    assert (status["retry"]["replicas"], status["retry"]["readyReplicas"]) == (3, 2)
    assert "replicas" not in project_consumergroup_status(facts(), status, NOW).get("retry", {})


def test_names_fit_for_the_longest_name() -> None:
    name = naming.retry_workers("a" * 40)
    assert len(f"{name}-0123456789") <= 63, "the label that the StatefulSet's controller gives its pods"
