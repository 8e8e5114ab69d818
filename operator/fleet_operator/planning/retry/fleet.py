"""Retry workers of a fleet: the main workers' pod in another role; notification of pods about new policies.

Both roles come from one revision, checked once: same image, handler, settings and credentials. Only the role argument,
the labels, and the resources (if the spec has others) differ.
"""

from __future__ import annotations

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
    """True if pods of this template mount retry policies: those of older revisions may not."""
    spec = pod_template.get("spec") or {}
    return any(volume.get("name") == RETRY_VOLUME for volume in spec.get("volumes", ()))


def retry_stateful_set(
    group: ConsumerGroup, *, revision: str, pod_template: Mapping[str, Any], replicas: int
) -> dict[str, Any]:
    """The retry workers' StatefulSet; `pod_template` is the revision's."""
    template = copy.deepcopy(dict(pod_template))
    template["metadata"]["labels"] |= labels.child_labels(group.metadata.name, labels.RETRY)
    worker = next(container for container in template["spec"]["containers"] if container["name"] == CONTAINER)
    worker["args"] = [*worker["args"], "--role", "retry"]
    retry = group.spec.retry
    if retry is not None and retry.worker.resources is not None:
        worker["resources"] = copy.deepcopy(retry.worker.resources)
    return manifests.stateful_set(group, revision=revision, pod_template=template, replicas=replicas, part=RETRY)


def pods_with_old_policies(pods: Iterable[Mapping[str, Any]], published: Published) -> Notices:
    """The annotation for pods that may have mounted older policies; pods created after the publication have not."""
    digest, found = published.digest, {}
    for pod in pods:
        metadata = pod["metadata"]
        created_at = times.from_text(metadata.get("creationTimestamp")) or 0.0
        seen = (metadata.get("annotations") or {}).get(POLICIES_ANNOTATION)
        if seen != digest and created_at <= published.published_at:
            found[metadata["uid"]] = {POLICIES_ANNOTATION: digest}
    return found
