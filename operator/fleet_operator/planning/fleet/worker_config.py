"""Rendering of worker.json, a worker's settings file; `fleet_consumer.contract.worker_config` parses it."""

from __future__ import annotations

from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.pod import CONFIG_DIRECTORY, POLICIES_FILE, SKIP_FILE
from fleet_consumer.contract.worker_config import VERSION
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import CaSecretReference, KafkaCluster
from fleet_operator.planning.fleet.sidecar import worker_port

RETRY_DIRECTORY: Final = "/etc/fleet/retry"
RETRY_FILE: Final = f"{RETRY_DIRECTORY}/{POLICIES_FILE}"
SKIP_DIRECTORY: Final = "/etc/fleet/offsets"
SKIP_PATH: Final = f"{SKIP_DIRECTORY}/{SKIP_FILE}"
HANDLER_PATH: Final = "handler"
CREDENTIALS_PATH: Final = "credentials"
CA_FILE: Final = "tls/ca.crt"
CERT_FILE: Final = "tls/tls.crt"
KEY_FILE: Final = "tls/tls.key"
AUTHORITIES_DIRECTORY: Final = "/etc/fleet/authorities"
"""Mount of a whole Secret with authorities, of which a pattern chooses keys that nobody knows beforehand."""


def worker_config(group: ConsumerGroup, cluster: KafkaCluster, *, revision: str) -> dict[str, Any]:
    """The content of worker.json, the same for every worker of a fleet; workers differ by their pod's name."""
    spec, metadata = group.spec, group.metadata
    producer = spec.producer.properties
    return {
        "version": VERSION,
        "namespace": metadata.namespace,
        "name": metadata.name,
        "uid": metadata.uid,
        "groupId": group.group_id,
        "revision": revision,
        "topics": list(group.source_topics),
        "topicPattern": spec.topic_pattern,
        "connection": _connection(cluster),
        "handler": _handler(group),
        "consumer": _consumer(group),
        **({"producer": {"properties": dict(sorted(producer.items()))}} if producer else {}),
        # Policies are no part of a revision: running workers read them again when they change.
        "retry": {"policyFile": RETRY_FILE} if spec.retry is not None else None,
        # No part of a revision either: a fleet that dies at a record must not need a rollout to get past it.
        "skipFile": SKIP_PATH,
        "failedTopic": naming.failed_topic(group.group_id),
        "httpPort": worker_port(group),
        "drainSeconds": spec.drain_seconds,
        "log": log_config(group),
    }


def log_config(group: ConsumerGroup) -> dict[str, str]:
    """The `log` of worker.json, and of redrive.json."""
    return group.spec.log.model_dump()


def _connection(cluster: KafkaCluster) -> dict[str, Any]:
    """Mounted files have fixed names, whatever the keys of the Secrets are (see `pod_template`)."""
    tls, sasl = cluster.spec.tls, cluster.spec.sasl
    client = tls is not None and tls.client_cert_secret_ref is not None
    files = {
        "caFile": _ca_file(tls.ca_secret_ref) if tls is not None and tls.ca_secret_ref is not None else None,
        "certFile": f"{CONFIG_DIRECTORY}/{CERT_FILE}" if client else None,
        "keyFile": f"{CONFIG_DIRECTORY}/{KEY_FILE}" if client else None,
    }
    login: dict[str, Any] | None = None
    if sasl is not None:
        oauth = {"tokenEndpoint": sasl.oauth.token_endpoint, "scope": sasl.oauth.scope} if sasl.oauth else None
        directory = f"{CONFIG_DIRECTORY}/{CREDENTIALS_PATH}"
        login = {"mechanism": sasl.mechanism, "directory": directory, "identity": sasl.identity, "oauth": oauth}
    return {"bootstrapServers": list(cluster.spec.bootstrap_servers), "tls": files if tls else None, "sasl": login}


def _ca_file(reference: CaSecretReference) -> str:
    if reference.pattern is not None:
        return f"{AUTHORITIES_DIRECTORY}/{reference.pattern}"
    return f"{CONFIG_DIRECTORY}/{CA_FILE}"


def _handler(group: ConsumerGroup) -> dict[str, Any]:
    handler = group.spec.handler.model_dump(mode="json", by_alias=True)
    python = handler["python"]
    if python is not None:
        path = f"{CONFIG_DIRECTORY}/{HANDLER_PATH}" if python["configMapRef"] else None
        handler["python"] = {"callable": python["callable"], "path": path}
    return handler


def _consumer(group: ConsumerGroup) -> dict[str, Any]:
    consumer = group.spec.consumer.model_dump(mode="json", by_alias=True)
    return {"protocol": "Classic", **consumer.pop("classic"), **consumer}
