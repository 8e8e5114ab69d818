"""Revision: everything that rolls the pods of a fleet when it changes, rendered once and named by its hash.

`replicas` is no part of it, nor is anything that running workers reload. The hash covers content only, so that
the same spec gives the same revision on every operator and after every restart.

A revision's record is a ConfigMap, and the operator runs pods from the template in it. So that the right to write
ConfigMaps does not become the right to run any pod, the StatefulSet carries the digests of the templates rendered from
the spec: whoever may change a StatefulSet may run pods anyway. A record without a digest there is ignored, whatever its
content. A StatefulSet without the annotation is older than the annotation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet_consumer.contract.naming import content_hash
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning.fleet.pod_template import pod_template
from fleet_operator.planning.fleet.rollout import RevisionRecord
from fleet_operator.planning.fleet.worker_config import worker_config
from fleet_operator.planning.foreign_json import read_object
from fleet_operator.planning.labels import KNOWN_ANNOTATION


@dataclass(frozen=True, slots=True)
class Revision:
    """A planned revision; `handler_files` is None when the handler's source is in the image."""

    hash: str
    worker_config: Mapping[str, Any]
    handler_files: Mapping[str, str] | None
    pod_template: Mapping[str, Any]


def plan_revision(
    group: ConsumerGroup, cluster: KafkaCluster, *, handler_files: Mapping[str, str] | None, image: str
) -> Revision:
    """The revision for a spec.

    `handler_files` is the content of the ConfigMap that the handler refers to (None when it refers to none); `image` is
    the workers' image.
    """
    keys = tuple(sorted(handler_files)) if handler_files is not None else None

    def render(revision: str) -> tuple[dict[str, Any], dict[str, Any]]:
        template = pod_template(group, cluster, revision=revision, handler_keys=keys, image=image)
        return worker_config(group, cluster, revision=revision), template

    # The rendered objects carry the hash themselves, hence the first rendering without it.
    unnamed_config, unnamed_template = render("")
    files = dict(handler_files) if handler_files is not None else None
    named = content_hash({"config": unnamed_config, "handler": files, "template": unnamed_template})
    config, template = render(named)
    return Revision(hash=named, worker_config=config, handler_files=files, pod_template=template)


def template_digest(pod_template: Mapping[str, Any]) -> str:
    """Digest of a template, independent of the order of its keys."""
    canonical = json.dumps(pod_template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def is_known(stateful_set: Mapping[str, Any] | None, record: RevisionRecord) -> bool:
    """True if a record's template may be run: the fleet's StatefulSet names it.

    Without a StatefulSet nothing was ever run, so there is nothing to go back to.
    """
    if stateful_set is None:
        return False
    if KNOWN_ANNOTATION not in (stateful_set["metadata"].get("annotations") or {}):
        return True
    return _digests(stateful_set).get(record.hash) == template_digest(record.pod_template)


def known_to(stateful_set: Mapping[str, Any] | None) -> frozenset[str]:
    """The revisions with a digest on the StatefulSet."""
    return frozenset(_digests(stateful_set or {}))


def _digests(stateful_set: Mapping[str, Any]) -> dict[str, Any]:
    text = (stateful_set.get("metadata", {}).get("annotations") or {}).get(KNOWN_ANNOTATION, "")
    return read_object(text) or {}


def with_known(stateful_set: Mapping[str, Any], templates: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The StatefulSet with the digests of these templates, by revision."""
    digests = {revision: template_digest(template) for revision, template in sorted(templates.items())}
    metadata = stateful_set["metadata"]
    annotations = {**metadata["annotations"], KNOWN_ANNOTATION: json.dumps(digests, sort_keys=True)}
    return {**stateful_set, "metadata": {**metadata, "annotations": annotations}}
