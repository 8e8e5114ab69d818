"""Revision: everything that rolls the pods of a fleet when it changes, rendered once and named by its hash.

`replicas` is no part of it, nor is anything that running workers reload. The hash covers content only, so that
the same spec gives the same revision on every operator and after every restart.

Another version of the operator may render the same spec in another way, and that alone must not roll pods. So the
StatefulSet also carries a digest of the inputs of its revision, and as long as they are the same, its revision stays.

A revision's record is a ConfigMap, and the operator runs pods from the template in it. So that the right to write
ConfigMaps does not become the right to run any pod, the StatefulSet carries the digests of the templates rendered from
the spec: whoever may change a StatefulSet may run pods anyway. A record without a digest there is ignored, whatever its
content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from fleet_consumer.contract.naming import content_hash, revision_config
from fleet_consumer.contract.pod import WORKER_FILE
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.api.v1alpha1.model import RETRY_ROLLOUT_ANNOTATION
from fleet_operator.planning.fleet.pod_template import named, platform_gives_users, pod_template
from fleet_operator.planning.fleet.readings import read_fleet, read_revision
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord
from fleet_operator.planning.fleet.worker_config import worker_config
from fleet_operator.planning.foreign_json import read_object
from fleet_operator.planning.labels import INPUTS_ANNOTATION, KNOWN_ANNOTATION
from fleet_operator.planning.state.group import RevisionMark, RevisionState

CONNECTION_CHARACTERS: Final = 16


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digests of what a revision was planned from: of the `whole`, of the group's own part, and of the `connection`."""

    whole: str
    group: str
    connection: str


@dataclass(frozen=True, slots=True)
class Revision:
    """A planned revision.

    `handler_files` is None when the handler's source is in the image. `inputs` are the digests of what it was planned
    from; `kept` is True if another version of the operator rendered it.
    """

    hash: str
    worker_config: Mapping[str, Any]
    handler_files: Mapping[str, str] | None
    pod_template: Mapping[str, Any]
    inputs: Inputs
    kept: bool = False


NO_INPUTS: Final = frozenset({"image", "replicas", "suspend", "rollout", "retry", "scaling", "offsets", "deletion"})
"""Fields of a ConsumerGroup's spec that are not rendered as they are. Too few of them are harmless: then pods that an
earlier operator planned may roll once when such a field changes."""


def plan_revision(
    group: ConsumerGroup, cluster: KafkaCluster, *, handler_files: Mapping[str, str] | None, image: str
) -> Revision:
    """The revision for a spec.

    `handler_files` is the content of the ConfigMap that the handler refers to (None when it refers to none); `image` is
    the workers' image.
    """
    keys = tuple(sorted(handler_files)) if handler_files is not None else None
    files = dict(handler_files) if handler_files is not None else None
    config = worker_config(group, cluster, revision="")
    template = pod_template(group, cluster, handler_keys=keys, image=image)
    revision = content_hash({"config": config, "handler": files, "template": template})
    return Revision(
        hash=revision,
        worker_config={**config, "revision": revision},
        handler_files=files,
        pod_template=named(template, group, cluster, revision=revision, handler_keys=keys),
        inputs=_inputs(group, cluster, handler_files=files, image=image),
    )


def _inputs(
    group: ConsumerGroup, cluster: KafkaCluster, *, handler_files: Mapping[str, str] | None, image: str
) -> Inputs:
    """Digests of everything that is rendered. Fields at their default do not count: later versions have more fields."""
    spec = group.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    own = {
        "spec": {key: value for key, value in spec.items() if key not in NO_INPUTS},
        "retries": group.spec.retry is not None,
        "drain": group.spec.drain_seconds,
        "handler": handler_files,
        "image": image,
        **({"users": "platform"} if platform_gives_users(group) else {}),
    }
    whole = {**own, "connection": _connection(cluster)}
    return Inputs(whole=_digest(whole), group=_digest(own), connection=connection_digest(cluster))


def _connection(cluster: KafkaCluster) -> dict[str, Any]:
    fields = {"bootstrap_servers", "tls", "sasl"}
    return cluster.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=fields)


def connection_digest(cluster: KafkaCluster) -> str:
    """Digest of what a revision takes from its KafkaCluster. Another form of it would roll every fleet."""
    return _digest(_connection(cluster))[:CONNECTION_CHARACTERS]


def keep_running(
    planned: Revision,
    stateful_set: Mapping[str, Any] | None,
    config_maps: Iterable[Mapping[str, Any]],
    marks: Mapping[str, RevisionMark],
    *,
    connection_waits: bool = False,
) -> Revision:
    """The revision that the StatefulSet runs, if it was planned from the same inputs as `planned`; else `planned`.

    `config_maps` are the group's, records with their content; `marks` are what its state says of revisions. A refused
    revision is not kept, nor is one whose record is gone or is not the one that was applied, nor one of a former
    ConsumerGroup of the name. With `connection_waits` the connection may be another one.
    """
    running = read_fleet(stateful_set)
    if stateful_set is None or running is None or running.revision == planned.hash:
        return planned
    noted, wanted = inputs_of(stateful_set), planned.inputs
    if noted is None:
        return planned
    same = noted.whole == wanted.whole
    if not same and not (connection_waits and noted.group == wanted.group):
        return planned
    name = revision_config(planned.worker_config["name"], running.revision)
    for config_map in (each for each in config_maps if each["metadata"]["name"] == name):
        record = read_revision(config_map, marks, config_map_names=())
        if record is None or record.hash != running.revision or record.state is RevisionState.REFUSED:
            continue
        config = read_object((config_map.get("data") or {}).get(WORKER_FILE))
        if config is None or config.get("uid") != planned.worker_config["uid"] or not is_known(stateful_set, record):
            continue
        kept = replace(planned, hash=record.hash, worker_config=config, pod_template=record.pod_template, kept=same)
        return kept if same else replace(kept, inputs=noted)
    return planned


def request_digest(group: ConsumerGroup) -> str:
    """Digest of what asks for a revision: the spec, and the annotation that asks for another try.

    A refused revision is tried again when it changes. The number of workers is no part of it: an autoscaler must not
    have a refused revision tried again each time.
    """
    spec = group.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"replicas", "scaling"})
    return content_hash({"spec": spec, "again": group.metadata.annotations.get(RETRY_ROLLOUT_ANNOTATION, "")})


def template_digest(pod_template: Mapping[str, Any]) -> str:
    """Digest of a template, independent of the order of its keys."""
    return _digest(pod_template)


def _digest(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def is_known(stateful_set: Mapping[str, Any] | None, record: RevisionRecord) -> bool:
    """True if a record's template may be run: the fleet's StatefulSet names it.

    Without a StatefulSet nothing was ever run, so there is nothing to go back to.
    """
    return _digests(stateful_set or {}).get(record.hash) == template_digest(record.pod_template)


def known_to(stateful_set: Mapping[str, Any] | None) -> frozenset[str]:
    """The revisions with a digest on the StatefulSet."""
    return frozenset(_digests(stateful_set or {}))


def _digests(stateful_set: Mapping[str, Any]) -> dict[str, Any]:
    text = (stateful_set.get("metadata", {}).get("annotations") or {}).get(KNOWN_ANNOTATION, "")
    return read_object(text) or {}


def with_inputs(stateful_set: Mapping[str, Any], inputs: Inputs | None) -> dict[str, Any]:
    """The StatefulSet with the digests of its revision's inputs, if they are known."""
    return dict(stateful_set) if inputs is None else _noted(stateful_set, INPUTS_ANNOTATION, asdict(inputs))


def inputs_of(stateful_set: Mapping[str, Any] | None) -> Inputs | None:
    """The noted digests of the inputs of the StatefulSet's revision."""
    annotations = (stateful_set or {}).get("metadata", {}).get("annotations") or {}
    found = read_object(annotations.get(INPUTS_ANNOTATION)) or {}
    names = [each.name for each in fields(Inputs)]
    return Inputs(*(str(found[name]) for name in names)) if found.keys() >= set(names) else None


def with_known(stateful_set: Mapping[str, Any], templates: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The StatefulSet with the digests of these templates, by revision."""
    digests = {revision: template_digest(template) for revision, template in templates.items()}
    return _noted(stateful_set, KNOWN_ANNOTATION, digests)


def _noted(stateful_set: Mapping[str, Any], annotation: str, digests: Mapping[str, str]) -> dict[str, Any]:
    metadata = stateful_set["metadata"]
    annotations = {**metadata["annotations"], annotation: json.dumps(digests, sort_keys=True)}
    return {**stateful_set, "metadata": {**metadata, "annotations": annotations}}
