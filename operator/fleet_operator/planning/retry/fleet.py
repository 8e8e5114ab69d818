"""StatefulSet of the retry workers, and the pod annotation that makes kubelets update mounted policies.

Main and retry workers run the same revision, so one check covers both: they have the same image, handler, settings and
credentials. Only the `--role` argument, the labels and, if the spec sets them, the resources differ.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning import labels, times
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.manifests import Notices
from fleet_operator.planning.fleet.parts import RETRY
from fleet_operator.planning.labels import CONTAINER, POLICIES_ANNOTATION, RETRY_VOLUME
from fleet_operator.planning.retry.records import Published


def has_retries(pod_template: Mapping[str, Any]) -> bool:
    """True if pods of this template mount retry policies. They mount none if the revision is older than the setting
    `spec.retry`."""
    spec = pod_template.get("spec") or {}
    return any(volume.get("name") == RETRY_VOLUME for volume in spec.get("volumes", ()))


def retry_stateful_set(
    group: ConsumerGroup, *, revision: str, pod_template: Mapping[str, Any], replicas: int
) -> dict[str, Any]:
    template = copy.deepcopy(dict(pod_template))
    template["metadata"]["labels"] |= labels.child_labels(group.metadata.name, labels.RETRY)
    worker = next(container for container in template["spec"]["containers"] if container["name"] == CONTAINER)
    worker["args"] = [*worker["args"], "--role", "retry"]
    retry = group.spec.retry
    if retry is not None and retry.worker.resources is not None:
        worker["resources"] = copy.deepcopy(retry.worker.resources)
    return manifests.stateful_set(group, revision=revision, pod_template=template, replicas=replicas, part=RETRY)


def pods_with_old_policies(pods: Iterable[Mapping[str, Any]], published: Published) -> Notices:
    """Return the policies annotation, keyed by pod UID, for each pod created before the ConfigMap's last change. Such a
    pod may still have older policies mounted."""
    digest = published.digest
    return {
        pod["metadata"]["uid"]: {POLICIES_ANNOTATION: digest}
        for pod in pods
        if labels.annotation_of(pod, POLICIES_ANNOTATION) != digest
        and (times.from_text(pod["metadata"].get("creationTimestamp")) or 0.0) <= published.published_at
    }
