"""Builders of a ConsumerGroup's children, as dicts for server-side apply.

Each builder returns all fields that the operator sets in an object. A builder changes none of its inputs, and equal
inputs give equal results.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.pod import WORKER_FILE
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning import labels
from fleet_operator.planning.fleet.parsing import POD_TEMPLATE_KEY
from fleet_operator.planning.fleet.parts import MAIN, Part
from fleet_operator.planning.fleet.pod_template import check_pod_spec
from fleet_operator.planning.fleet.revision import Revision
from fleet_operator.planning.fleet.sidecar import worker_port
from fleet_operator.planning.labels import POLICIES_ANNOTATION, SKIP_ANNOTATION
from fleet_operator.planning.objects import Owner, child_head, to_json

MIN_READY_S: Final = 5
"""Seconds that a worker must stay ready to count as available, so that a worker in a crash loop does not count."""


def headless_service(group: ConsumerGroup, part: Part = MAIN) -> dict[str, Any]:
    """Headless Service for the workers' DNS names. It also publishes unready workers, so that their metrics are
    scraped."""
    name = group.metadata.name
    return {
        **head("v1", "Service", group, part.child(name), part.component),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": part.selector(name),
            "ports": [{"name": "http", "port": worker_port(group), "targetPort": "http", "protocol": "TCP"}],
        },
    }


def disruption_budget(group: ConsumerGroup, part: Part = MAIN) -> dict[str, Any]:
    name = group.metadata.name
    return {
        **head("policy/v1", "PodDisruptionBudget", group, part.child(name), part.component),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": part.selector(name)},
        },
    }


def stateful_set(
    group: ConsumerGroup, *, revision: str, pod_template: Mapping[str, Any], replicas: int, part: Part = MAIN
) -> dict[str, Any]:
    """The workers' StatefulSet. `pod_template`: the unchanged template from the revision's ConfigMap."""
    name = group.metadata.name
    body = head("apps/v1", "StatefulSet", group, part.child(name), part.component)
    body["metadata"]["annotations"] = {labels.REVISION_ANNOTATION: revision}
    return {
        **body,
        "spec": {
            "replicas": replicas,
            "serviceName": part.child(name),
            "podManagementPolicy": "Parallel",
            "minReadySeconds": MIN_READY_S,
            "revisionHistoryLimit": 2,
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": part.selector(name)},
            "template": copy.deepcopy(dict(pod_template)),
        },
    }


def revision_config_map(group: ConsumerGroup, revision: Revision) -> dict[str, Any]:
    name = group.metadata.name
    body = head("v1", "ConfigMap", group, naming.revision_config(name, revision.hash), labels.REVISION)
    annotations = {labels.REVISION_ANNOTATION: revision.hash}
    if revision.handler_files is not None:
        annotations[labels.HANDLER_ANNOTATION] = naming.revision_handler(name, revision.hash)
    body["metadata"]["annotations"] = annotations
    data = {WORKER_FILE: to_json(revision.worker_config), POD_TEMPLATE_KEY: to_json(revision.pod_template)}
    return {**body, "immutable": True, "data": data}


def handler_config_map(group: ConsumerGroup, revision: Revision) -> dict[str, Any] | None:
    if revision.handler_files is None:
        return None
    name = naming.revision_handler(group.metadata.name, revision.hash)
    body = head("v1", "ConfigMap", group, name, labels.HANDLER)
    body["metadata"]["annotations"] = {labels.REVISION_ANNOTATION: revision.hash}
    return {**body, "immutable": True, "data": dict(revision.handler_files)}


def preflight_pod(group: ConsumerGroup, *, revision: str, pod_template: Mapping[str, Any]) -> dict[str, Any]:
    """Build the one-shot pod that checks a revision before its rollout."""
    name = group.metadata.name
    body = head("v1", "Pod", group, naming.preflight_pod(name, revision), labels.CHECK)
    template_metadata = pod_template["metadata"]
    body["metadata"]["labels"] = {**template_metadata["labels"], **body["metadata"]["labels"]}
    body["metadata"]["annotations"] = dict(template_metadata["annotations"])
    return {**body, "spec": check_pod_spec(pod_template)}


def head(api_version: str, kind: str, group: ConsumerGroup, name: str, component: str) -> dict[str, Any]:
    metadata = group.metadata
    owner = Owner("ConsumerGroup", metadata.namespace, metadata.name, metadata.uid)
    return child_head(api_version, kind, name, owner=owner, labels=labels.child_labels(metadata.name, component))


NOTICES: Final = (POLICIES_ANNOTATION, SKIP_ANNOTATION)

Notices = Mapping[str, Mapping[str, str]]
"""Annotations to set on pods, keyed by the pod's uid."""


def notices(pods: Iterable[Mapping[str, Any]], *wanted: Notices) -> list[dict[str, Any]]:
    """Patches that annotate pods. A changed annotation makes the kubelet update the pod's mounted files immediately.

    Each patch repeats the pod's other notices (see `NOTICES`). Otherwise the server-side apply would remove them,
    because an earlier apply set them."""
    patches = []
    for pod in pods:
        metadata = pod["metadata"]
        new = {key: value for each in wanted for key, value in each.get(metadata["uid"], {}).items()}
        if not new or metadata.get("deletionTimestamp"):
            continue
        known = metadata.get("annotations") or {}
        where = {key: metadata[key] for key in ("name", "namespace", "uid")}
        annotations = {key: known[key] for key in NOTICES if key in known} | new
        patches.append({"apiVersion": "v1", "kind": "Pod", "metadata": {**where, "annotations": annotations}})
    return patches
