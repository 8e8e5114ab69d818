"""Rendering of worker.json, a worker's settings file; `fleet_consumer.contract.worker_config` parses it."""

from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.pod import CONFIG_DIRECTORY, POLICIES_FILE, SKIP_FILE
from fleet_consumer.contract.worker_config import VERSION
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
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
"""Mount path of a Secret with CA certificates, mounted as a whole because a pattern may choose keys added later."""


def worker_config(group: ConsumerGroup, cluster: KafkaCluster) -> dict[str, Any]:
    """Build the settings that all workers of a fleet share, without the revision's name. Workers read their pod's name
    from their environment."""
    spec, metadata = group.spec, group.metadata
    consumer, producer = spec.consumer.model_dump(mode="json", by_alias=True), spec.producer.properties
    return {
        "version": VERSION,
        "namespace": metadata.namespace,
        "name": metadata.name,
        "uid": metadata.uid,
        "groupId": group.group_id,
        "revision": "",
        "topics": list(group.source_topics),
        "topicPattern": spec.topic_pattern,
        "connection": _connection(cluster),
        "handler": _handler(group),
        "consumer": {"protocol": "Classic", **consumer.pop("classic"), **consumer},
        **({"producer": {"properties": dict(sorted(producer.items()))}} if producer else {}),
        # Policies are not part of a revision, because running workers reload them.
        "retry": {"policyFile": RETRY_FILE} if spec.retry is not None else None,
        # The skip list is not part of a revision either: a fleet that dies at a record must get past this record
        # without a rollout.
        "skipFile": SKIP_PATH,
        "failedTopic": naming.failed_topic(group.group_id),
        "httpPort": worker_port(group),
        "drainSeconds": spec.drain_seconds,
        "log": spec.log.model_dump(),
    }


def _connection(cluster: KafkaCluster) -> dict[str, Any]:
    """Build the connection settings. Mounted files have fixed names, independent of the keys in the Secrets (see
    `pod_template`)."""
    tls, sasl = cluster.spec.tls, cluster.spec.sasl
    ca, client = (tls.ca_secret_ref, tls.client_cert_secret_ref is not None) if tls is not None else (None, False)
    ca_file = f"{CONFIG_DIRECTORY}/{CA_FILE}" if ca is not None else None
    if ca is not None and ca.pattern is not None:
        ca_file = f"{AUTHORITIES_DIRECTORY}/{ca.pattern}"
    files = {
        "caFile": ca_file,
        "certFile": f"{CONFIG_DIRECTORY}/{CERT_FILE}" if client else None,
        "keyFile": f"{CONFIG_DIRECTORY}/{KEY_FILE}" if client else None,
    }
    login: dict[str, Any] | None = None
    if sasl is not None:
        oauth = {"tokenEndpoint": sasl.oauth.token_endpoint, "scope": sasl.oauth.scope} if sasl.oauth else None
        directory = f"{CONFIG_DIRECTORY}/{CREDENTIALS_PATH}"
        login = {"mechanism": sasl.mechanism, "directory": directory, "identity": sasl.identity, "oauth": oauth}
    return {"bootstrapServers": list(cluster.spec.bootstrap_servers), "tls": files if tls else None, "sasl": login}


def _handler(group: ConsumerGroup) -> dict[str, Any]:
    handler = group.spec.handler.model_dump(mode="json", by_alias=True)
    python = handler["python"]
    if python is not None:
        path = f"{CONFIG_DIRECTORY}/{HANDLER_PATH}" if python["configMapRef"] else None
        handler["python"] = {"callable": python["callable"], "path": path}
    return handler
