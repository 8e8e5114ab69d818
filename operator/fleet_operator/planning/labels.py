"""Labels, annotations and names on the operator's objects."""

from collections.abc import Mapping
from typing import Any, Final

from fleet_operator.api.v1alpha1.consumergroup import WORKER_CONTAINER

GROUP_LABEL: Final = "consumerfleet.io/group"
POLICY_LABEL: Final = "consumerfleet.io/retry-policy"
"""Label of the ConfigMaps that record the content of a RetryPolicy. These ConfigMaps belong to no ConsumerGroup."""
REDRIVE_LABEL: Final = "consumerfleet.io/redrive"
JOB_NAME_LABEL: Final = "batch.kubernetes.io/job-name"
"""Label that the Job controller sets on its pods. This label names a pod's Job even if the pod has lost its owner
reference."""
BACKFILL_LABEL: Final = "consumerfleet.io/backfill"
RECORD: Final = "revision"
"""Value of the handler label on the operator's own ConfigMaps, so that the watch for handler sources also delivers
these ConfigMaps."""
NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"

REVISION_ANNOTATION: Final = "consumerfleet.io/revision"
HANDLER_ANNOTATION: Final = "consumerfleet.io/handler-config"
KNOWN_ANNOTATION: Final = "consumerfleet.io/known-revisions"
"""Annotation of the main StatefulSet: digests of the pod templates that the operator rendered."""
INPUTS_ANNOTATION: Final = "consumerfleet.io/revision-inputs"
"""Annotation of the main StatefulSet: the digests `whole`, `group` and `connection` of its `revision.Inputs`."""
APPLIED_ANNOTATION: Final = "consumerfleet.io/applied"
"""Annotation of children: digest of the whole object as last applied. From this digest, the next operator process knows
if the object must be applied again."""
SIBLINGS_ANNOTATION: Final = "consumerfleet.io/applied-siblings"
"""Annotation of StatefulSets: digest of the Service and the PodDisruptionBudget that were applied before the
StatefulSet."""
POLICIES_ANNOTATION: Final = "consumerfleet.io/retry-policies"
"""Annotation of pods: digest of the published policies. A change makes the kubelet sync the pod and update its mounted
files immediately, instead of after a minute or two."""
SKIP_ANNOTATION: Final = "consumerfleet.io/skipped-records"
"""Annotation of pods: digest of the list of records to skip. A change has the same effect as a change of
POLICIES_ANNOTATION."""
HASH_ANNOTATION: Final = "consumerfleet.io/policy-revision"
KAFKA_GROUP_ANNOTATION: Final = "consumerfleet.io/kafka-group"
"""Annotation of an OperatorState: the KafkaCluster and the Kafka group of its ConsumerGroup."""
RATE_ANNOTATION: Final = "consumerfleet.io/records-per-second"

FINALIZER: Final = "consumerfleet.io/retry-topics"
"""Finalizer of a ConsumerGroup whose deletion also deletes its Kafka group or its retry topics."""
CLUSTER_FINALIZER: Final = "consumerfleet.io/groups"
"""Finalizer of a KafkaCluster while ConsumerGroups with a finalizer refer to it."""
RESET_FINALIZER: Final = "consumerfleet.io/offsets"
"""Finalizer of an OffsetReset while its commit is in progress."""
FOREGROUND: Final = "foregroundDeletion"
"""Finalizer that Kubernetes sets on an owner while its garbage collector deletes the children."""
ORPHAN: Final = "orphan"
"""Finalizer that Kubernetes sets on an owner while its garbage collector orphans the children."""

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
"""Component of the retry workers, of their Service and PodDisruptionBudget, and of the published policies."""
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
    found: str | None = (body["metadata"].get("labels") or {}).get(name)
    return found


def annotation_of(body: Mapping[str, Any], name: str) -> str | None:
    found: str | None = (body["metadata"].get("annotations") or {}).get(name)
    return found


def selector_text(selector: dict[str, str]) -> str:
    """Convert a selector to a string, for the scale subresource and list requests."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
