"""Pod templates of a Backfill's driver and executors.

Executors are the worker's pod with another program: credentials, placement, environment, volumes and helpers of the
group's template, so what reaches the brokers and the handler's back ends from a worker reaches them from there. Spark
fills in image, arguments, memory and processors.

Only the driver has a token for Kubernetes. So it gets placement, labels and user of the group's template, and nothing
that runs or that tells a webhook to run something: no containers, environment, volumes, sources or annotations.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.pod import BACKFILL_FILE, CANDIDATE_DIRECTORY, CONFIG_DIRECTORY, SINK_DIRECTORY
from fleet_operator.api.v1alpha1.backfill import Backfill, SinkVolume
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning import labels
from fleet_operator.planning.backfill.spark import DRIVER_CONTAINER, EXECUTOR_CONTAINER
from fleet_operator.planning.fleet.pod_template import (
    SETTINGS_VOLUME,
    accompany,
    platform_gives_users,
    pod_template,
    serve_nothing,
)
from fleet_operator.planning.fleet.worker_config import HANDLER_PATH
from fleet_operator.planning.labels import BACKFILL_LABEL, REVISION_ANNOTATION

DRIVER: Final = "backfill-driver"
EXECUTOR: Final = "backfill-executor"
"""Components of the pods."""
SPARK_USER: Final = 185
SPARK_GROUP: Final = 0
"""User and group of Consumer Fleet's Spark image; that group owns the files which Spark writes."""
SINK_VOLUME: Final = "consumer-fleet-sink"
SPARK_FILLS_IN: Final = ("image", "imagePullPolicy", "command", "args", "resources")
CANDIDATE_PATH: Final = CANDIDATE_DIRECTORY.removeprefix(f"{CONFIG_DIRECTORY}/")


def child_labels(backfill: Backfill, component: str) -> dict[str, str]:
    """The group's labels too, so that one watch of pods delivers both."""
    own = {BACKFILL_LABEL: backfill.metadata.name}
    return {**labels.child_labels(backfill.spec.group_ref.name, component), **own}


def spark_pod(
    backfill: Backfill,
    group: ConsumerGroup,
    cluster: KafkaCluster,
    *,
    component: str,
    handler_keys: Collection[str] | None,
    candidate_keys: Collection[str] | None,
) -> dict[str, Any]:
    """The template of one kind of pods. Keys are file names of the sources, None where an image has them."""
    if component == DRIVER:
        group, handler_keys, candidate_keys = _bare(group), None, None
    template = pod_template(group, cluster, revision="", handler_keys=None, image="")
    metadata, spec = template["metadata"], template["spec"]
    metadata["annotations"].pop(REVISION_ANNOTATION)
    metadata["labels"] |= child_labels(backfill, component)
    container = serve_nothing(spec, [])
    accompany(spec, container)
    for key in SPARK_FILLS_IN:
        container.pop(key, None)
    container["name"] = DRIVER_CONTAINER if component == DRIVER else EXECUTOR_CONTAINER
    settings = next(volume for volume in spec["volumes"] if volume["name"] == SETTINGS_VOLUME)
    credentials = [source for source in settings["projected"]["sources"] if "configMap" not in source]
    settings["projected"]["sources"] = [
        *_sources(backfill.metadata.name, handler_keys, candidate_keys),
        *copy.deepcopy(credentials),
    ]
    sink = backfill.spec.sink.parquet
    if sink is not None and sink.volume is not None:
        spec["volumes"].append({"name": SINK_VOLUME, **_sink_volume(sink.volume)})
        container["volumeMounts"].append({"name": SINK_VOLUME, "mountPath": SINK_DIRECTORY})
    spec.pop("serviceAccountName", None)
    return {
        "metadata": metadata,
        "spec": {
            **spec,
            "containers": [container],
            "automountServiceAccountToken": component == DRIVER,
            "securityContext": {**spec["securityContext"], **({} if platform_gives_users(group) else _user(group))},
        },
    }


def _bare(group: ConsumerGroup) -> ConsumerGroup:
    """The group without what its template runs."""
    template = group.spec.template
    spec = template.spec.model_copy(update={"containers": (), "init_containers": (), "volumes": ()})
    metadata = template.metadata.model_copy(update={"annotations": {}})
    bare = template.model_copy(update={"metadata": metadata, "spec": spec})
    return group.model_copy(update={"spec": group.spec.model_copy(update={"template": bare})})


def _user(group: ConsumerGroup) -> dict[str, int]:
    """User and groups of the image. A group of files that the template asks for stays: its volumes may need it."""
    given = group.spec.template.spec.security_context.fs_group
    file_group = SPARK_USER if given is None else given
    return {"runAsUser": SPARK_USER, "runAsGroup": SPARK_GROUP, "fsGroup": file_group}


def _sources(
    name: str, handler_keys: Collection[str] | None, candidate_keys: Collection[str] | None
) -> list[dict[str, Any]]:
    """ConfigMaps of the settings and of copied sources."""
    settings = {"name": naming.backfill_settings(name), "items": [{"key": BACKFILL_FILE, "path": BACKFILL_FILE}]}
    copies = (
        (naming.backfill_handler(name), HANDLER_PATH, handler_keys),
        (naming.backfill_candidate(name), CANDIDATE_PATH, candidate_keys),
    )
    found: list[dict[str, Any]] = [{"configMap": settings}]
    for config_map, path, keys in copies:
        if keys is not None:
            items = [{"key": key, "path": f"{path}/{key}"} for key in sorted(keys)]
            found.append({"configMap": {"name": config_map, "items": items}})
    return found


def _sink_volume(volume: SinkVolume) -> dict[str, Any]:
    if volume.persistent_volume_claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.persistent_volume_claim.claim_name}}
    return {"csi": copy.deepcopy(volume.csi)}
