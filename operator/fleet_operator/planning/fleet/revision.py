"""Revisions of a fleet. Each revision is rendered once and named by a hash.

Any change in the content of a revision replaces the pods. So a revision does not contain `replicas`, or settings that
running workers reload. The hash covers only the content. So one spec gives the same revision in every operator process.

Another version of the operator may render the same spec differently, and this difference alone must not replace pods.
So the StatefulSet also carries a digest of its revision's inputs. While the inputs are the same, the StatefulSet keeps
its revision.

A revision is recorded in a ConfigMap, and the operator runs pods from the template in this ConfigMap. Permission to
write ConfigMaps must not become permission to run any pod. So the StatefulSet carries the digests of the templates that
were rendered from the spec. The operator ignores a ConfigMap if the digest of its template is missing on the
StatefulSet. This is safe, because anyone who may change a StatefulSet may run any pod anyway.

Decision: docs/decisions/0003-revisions.md.
"""

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
from fleet_operator.planning.fleet.parsing import read_fleet, read_revision
from fleet_operator.planning.fleet.pod_template import platform_gives_users, pod_template, settings_volume
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord
from fleet_operator.planning.fleet.worker_config import worker_config
from fleet_operator.planning.foreign_json import read_object
from fleet_operator.planning.labels import INPUTS_ANNOTATION, KNOWN_ANNOTATION, REVISION_ANNOTATION, annotation_of
from fleet_operator.planning.state.group import RevisionState, RevisionVerdict

CONNECTION_CHARACTERS: Final = 16


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digests of a revision's inputs: of all inputs (`whole`), of those from the ConsumerGroup (`group`), and of those
    from the KafkaCluster (`connection`)."""

    whole: str
    group: str
    connection: str


@dataclass(frozen=True, slots=True)
class Revision:
    """A planned revision. `handler_files`: None if the image contains the handler's source. `kept`: the revision may
    have been rendered by another version of the operator."""

    hash: str
    worker_config: Mapping[str, Any]
    handler_files: Mapping[str, str] | None
    pod_template: Mapping[str, Any]
    inputs: Inputs
    kept: bool = False


NO_INPUTS: Final = frozenset({"image", "replicas", "suspend", "rollout", "retry", "scaling", "offsets", "deletion"})
"""Fields of a ConsumerGroup's spec that are not part of the digest of a revision's inputs, because pods depend on them
only indirectly or not at all. If a field is missing in this set by mistake, the harm is small. A change of the field
may then replace, once, pods that an earlier version of the operator rendered."""


def plan_revision(
    group: ConsumerGroup, cluster: KafkaCluster, *, handler_files: Mapping[str, str] | None, image: str
) -> Revision:
    """Plan a revision. `handler_files`: the content of the handler's ConfigMap; None if the spec refers to no
    ConfigMap."""
    files = dict(handler_files) if handler_files is not None else None
    config = worker_config(group, cluster)
    template = pod_template(group, cluster, handler_keys=files, image=image)
    revision = content_hash({"config": config, "handler": files, "template": template})
    template["metadata"]["annotations"][REVISION_ANNOTATION] = revision
    template["spec"]["volumes"][0] = settings_volume(group, cluster, revision, files)
    # Fields with their default value are omitted. Otherwise a field that a later version adds would change the digest.
    spec = group.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    own = {
        "spec": {key: value for key, value in spec.items() if key not in NO_INPUTS},
        "retries": group.spec.retry is not None,
        "drain": group.spec.drain_seconds,
        "handler": files,
        "image": image,
        **({"users": "platform"} if platform_gives_users(group) else {}),
    }
    whole = _digest({**own, "connection": _connection(cluster)})
    return Revision(
        hash=revision,
        worker_config={**config, "revision": revision},
        handler_files=files,
        pod_template=template,
        inputs=Inputs(whole=whole, group=_digest(own), connection=connection_digest(cluster)),
    )


def _connection(cluster: KafkaCluster) -> dict[str, Any]:
    fields = {"bootstrap_servers", "tls", "sasl"}
    return cluster.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=fields)


def connection_digest(cluster: KafkaCluster) -> str:
    """Return the connection's digest. Never change how this digest is computed: the pods of every fleet would be
    replaced."""
    return _digest(_connection(cluster))[:CONNECTION_CHARACTERS]


def keep_running(
    planned: Revision,
    stateful_set: Mapping[str, Any] | None,
    config_maps: Iterable[Mapping[str, Any]],
    verdicts: Mapping[str, RevisionVerdict],
    *,
    connection_waits: bool = False,
) -> Revision:
    """Return the StatefulSet's revision if it was planned from the same inputs as `planned`, else `planned`.

    With `connection_waits`, the StatefulSet's revision is also kept if only the connection differs. `config_maps`: the
    group's ConfigMaps; the ConfigMaps of revisions include their data. The StatefulSet's revision is never kept

    - if it is refused,
    - if its ConfigMap is missing or differs from the applied template, or
    - if it belongs to a former ConsumerGroup of this name.
    """
    running, known, wanted = read_fleet(stateful_set), inputs_of(stateful_set), planned.inputs
    if running is None or known is None or running.revision == planned.hash:
        return planned
    same = known.whole == wanted.whole
    if not same and not (connection_waits and known.group == wanted.group):
        return planned
    name = revision_config(planned.worker_config["name"], running.revision)
    for config_map in (each for each in config_maps if each["metadata"]["name"] == name):
        record = read_revision(config_map, verdicts, config_map_names=())
        if record is None or record.hash != running.revision or record.state is RevisionState.REFUSED:
            continue
        config = read_object((config_map.get("data") or {}).get(WORKER_FILE))
        if config is None or config.get("uid") != planned.worker_config["uid"] or not is_known(stateful_set, record):
            continue
        kept = replace(planned, hash=record.hash, worker_config=config, pod_template=record.pod_template, kept=same)
        return kept if same else replace(kept, inputs=known)
    return planned


def request_digest(group: ConsumerGroup) -> str:
    """Digest of the spec and of the annotation that requests another try. A refused revision is tried again when this
    digest changes. The digest excludes the number of workers. Otherwise each scaling by an autoscaler would request the
    refused revision again."""
    spec = group.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"replicas", "scaling"})
    return content_hash({"spec": spec, "again": group.metadata.annotations.get(RETRY_ROLLOUT_ANNOTATION, "")})


def _digest(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def is_known(stateful_set: Mapping[str, Any] | None, record: RevisionRecord) -> bool:
    """True if the template in a record may run: the StatefulSet has the template's digest. Always False without a
    StatefulSet, because no revision has run yet that the fleet could return to."""
    return _digests(stateful_set).get(record.hash) == _digest(record.pod_template)


def known_to(stateful_set: Mapping[str, Any] | None) -> frozenset[str]:
    """Hashes of the revisions whose template digests are on the StatefulSet."""
    return frozenset(_digests(stateful_set))


def _digests(stateful_set: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if stateful_set is None else read_object(annotation_of(stateful_set, KNOWN_ANNOTATION)) or {}


def inputs_of(stateful_set: Mapping[str, Any] | None) -> Inputs | None:
    text = None if stateful_set is None else annotation_of(stateful_set, INPUTS_ANNOTATION)
    found = read_object(text) or {}
    names = [each.name for each in fields(Inputs)]
    return Inputs(*(str(found[name]) for name in names)) if found.keys() >= set(names) else None


def with_known(
    stateful_set: Mapping[str, Any], templates: Mapping[str, Mapping[str, Any]], inputs: Inputs | None = None
) -> dict[str, Any]:
    """Annotate the StatefulSet with digests of `templates`, keyed by revision, and with `inputs`, if known."""
    digests: dict[str, Any] = {KNOWN_ANNOTATION: {name: _digest(template) for name, template in templates.items()}}
    digests |= {INPUTS_ANNOTATION: asdict(inputs)} if inputs is not None else {}
    metadata = stateful_set["metadata"]
    texts = {annotation: json.dumps(value, sort_keys=True) for annotation, value in digests.items()}
    return {**stateful_set, "metadata": {**metadata, "annotations": {**metadata["annotations"], **texts}}}
