"""Names on objects that the operator makes: labels, annotations, the container and the volume that it looks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fleet_operator.api.v1alpha1.consumergroup import WORKER_CONTAINER

GROUP_LABEL: Final = "consumerfleet.io/group"
POLICY_LABEL: Final = "consumerfleet.io/retry-policy"
"""On the ConfigMaps that record the content of a RetryPolicy; they belong to no group."""
REDRIVE_LABEL: Final = "consumerfleet.io/redrive"
JOB_NAME_LABEL: Final = "batch.kubernetes.io/job-name"
"""Set by the Job controller in the pods that it makes, which may lose their owner."""
BACKFILL_LABEL: Final = "consumerfleet.io/backfill"
RECORD: Final = "revision"
"""Value of the handler label on the operator's own ConfigMaps: one watch delivers these and the users' sources."""
NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"

REVISION_ANNOTATION: Final = "consumerfleet.io/revision"
HANDLER_ANNOTATION: Final = "consumerfleet.io/handler-config"
KNOWN_ANNOTATION: Final = "consumerfleet.io/known-revisions"
"""On the main StatefulSet: digests of the pod templates that the operator rendered."""
INPUTS_ANNOTATION: Final = "consumerfleet.io/revision-inputs"
"""On the main StatefulSet: digests of everything that its revision was planned from, of the group's own part of it, and
of the KafkaCluster's connection."""
APPLIED_ANNOTATION: Final = "consumerfleet.io/applied"
"""On children: digest of all that the operator wants of them. By it the next process knows what is in place."""
SIBLINGS_ANNOTATION: Final = "consumerfleet.io/applied-siblings"
"""On StatefulSets: digest of the Service and the PodDisruptionBudget that were applied before it."""
POLICIES_ANNOTATION: Final = "consumerfleet.io/retry-policies"
"""On pods: digest of the published policies. A change makes the kubelet sync the pod, and renew its mounted files, at
once instead of within a minute or two."""
SKIP_ANNOTATION: Final = "consumerfleet.io/skipped-records"
"""On pods: digest of the list of records to skip, for the same purpose."""
HASH_ANNOTATION: Final = "consumerfleet.io/policy-revision"
KAFKA_GROUP_ANNOTATION: Final = "consumerfleet.io/kafka-group"
"""The KafkaCluster and the Kafka group that an OperatorState is about."""
RATE_ANNOTATION: Final = "consumerfleet.io/records-per-second"

FINALIZER: Final = "consumerfleet.io/retry-topics"
"""Finalizer of a ConsumerGroup whose deletion has steps in Kafka."""
CLUSTER_FINALIZER: Final = "consumerfleet.io/groups"
"""Finalizer of a KafkaCluster, while groups with a finalizer refer to it."""
RESET_FINALIZER: Final = "consumerfleet.io/offsets"
"""Finalizer of an OffsetReset whose commit is under way."""
FOREGROUND: Final = "foregroundDeletion"
"""Kubernetes' own finalizer: its garbage collector is deleting the children."""
ORPHAN: Final = "orphan"
"""Kubernetes' own finalizer: its garbage collector is taking the owner references off the children, which stay."""

CONTAINER: Final = WORKER_CONTAINER
RETRY_VOLUME: Final = "consumer-fleet-retry"
SKIP_VOLUME: Final = "consumer-fleet-offsets"

APPLICATION: Final = "consumer-fleet-worker"
MANAGER: Final = "consumer-fleet"
"""Value of `managed-by`, and the field manager of server-side apply."""

WORKER: Final = "worker"
CHECK: Final = "check"
REVISION: Final = "revision"
HANDLER: Final = "handler-source"
RETRY: Final = "retry"
"""Component of the retry workers, their Service and budget, and of the published policies."""
POLICY: Final = "retry-policy"


def child_labels(name: str, component: str) -> dict[str, str]:
    return {
        NAME_LABEL: APPLICATION,
        INSTANCE_LABEL: name,
        COMPONENT_LABEL: component,
        MANAGED_BY_LABEL: MANAGER,
        GROUP_LABEL: name,
    }


def label_of(body: Mapping[str, Any], name: str) -> str | None:
    """A label of an object; None without it."""
    found: str | None = (body["metadata"].get("labels") or {}).get(name)
    return found


def annotation_of(body: Mapping[str, Any], name: str) -> str | None:
    """An annotation of an object; None without it."""
    found: str | None = (body["metadata"].get("annotations") or {}).get(name)
    return found


def selector_text(selector: dict[str, str]) -> str:
    """A selector in the text form of the scale subresource and of list requests."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
