"""Revision: everything that rolls the pods of a fleet when it changes, rendered once and named by its hash.

`replicas` is no part of it, nor is anything that running workers reload. The hash covers content only, so that
the same spec gives the same revision on every operator and after every restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet_consumer.contract.naming import content_hash
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning.fleet.pod_template import pod_template
from fleet_operator.planning.fleet.worker_config import worker_config


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
    used where the spec names none.
    """
    keys = tuple(sorted(handler_files)) if handler_files is not None else None
    used_image = group.spec.image or image

    def render(revision: str) -> tuple[dict[str, Any], dict[str, Any]]:
        template = pod_template(group, cluster, revision=revision, handler_keys=keys, image=used_image)
        return worker_config(group, cluster, revision=revision), template

    # The rendered objects carry the hash themselves, hence the first rendering without it.
    unnamed_config, unnamed_template = render("")
    files = dict(handler_files) if handler_files is not None else None
    named = content_hash({"config": unnamed_config, "handler": files, "template": unnamed_template})
    config, template = render(named)
    return Revision(hash=named, worker_config=config, handler_files=files, pod_template=template)
