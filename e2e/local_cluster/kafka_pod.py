"""Kafka in the embedded cluster: one node as a pod, which pods reach by name, and the host at the node's address."""

import hashlib
import json
import os
import textwrap
from collections.abc import Mapping

from e2e.local_cluster.access import ClusterAccess
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.kafka_image import KAFKA_IMAGE, KAFKA_USER, kafka_archive
from e2e.local_cluster.kafka_node import (
    SASL_LISTENER,
    format_properties,
    node_properties,
    sasl_properties,
    scram_arguments,
)
from e2e.local_cluster.kafka_probe import brokers
from e2e.local_cluster.node_state import NodeSettings
from e2e.local_cluster.steps import step
from e2e.local_cluster.waiting import wait_until

__all__ = [
    "HOST_PORT",
    "INSIDE_BOOTSTRAP",
    "SASL_BOOTSTRAP",
    "SASL_USERS",
    "ensure_foreign_kafka",
    "ensure_kafka",
    "host_bootstrap",
]

SERVICE = "kafka.kafka.svc.cluster.local"
INSIDE_BOOTSTRAP = f"{SERVICE}:9092"
SASL_BOOTSTRAP = f"{SERVICE}:9094"
HOST_PORT = 30092
# Not a secret: it allows tests of a wrong password.
SASL_USERS = {"alice": "alice-secret"}
# An arbitrary id; a fixed one makes a second formatting harmless.
CLUSTER_ID = "bG9jYWwtY2x1c3Rlci1rYQ"
DATA = "/var/lib/kafka"
START_TIMEOUT_S = 180.0


def ensure_kafka(cluster: LocalCluster) -> None:
    """Run Kafka and wait until it serves clients on the host. Its data outlives the pod and ends with the cluster.

    Raises ClusterError (``NotRunning``, ``TimedOut``, and those of making the image).
    """
    archive, fingerprint = kafka_archive()
    with step("kafka: load image"):
        cluster.load_image(archive, fingerprint=fingerprint)
    with step("kafka: answers") as current:
        data = cluster.instance.directory / "kafka"
        data.mkdir(exist_ok=True)
        os.chown(data, KAFKA_USER, KAFKA_USER)
        volume = {"hostPath": {"path": str(data), "type": "Directory"}}
        _apply(cluster.access, KAFKA_IMAGE, volume, revision=fingerprint)
        host, port = host_bootstrap(cluster).split(":")
        wait_until(
            lambda: brokers(host, int(port)) > 0,
            what=f"Kafka at {host}:{port}",
            timeout_s=START_TIMEOUT_S,
            interval_s=0.1,
            last_seen=lambda: _explain(cluster.access),
        )
        current.note = f"{host}:{port}"


def ensure_foreign_kafka(access: ClusterAccess) -> None:
    """Run Kafka in a foreign cluster; its data ends with its pod.

    Its nodes must have the image, under its own name or that in ``FLEET_KAFKA_IMAGE``: the cluster's owner loads it.
    Raises ClusterError (``TimedOut``) with the archive to load if it does not start.
    """
    image = os.environ.get("FLEET_KAFKA_IMAGE") or KAFKA_IMAGE
    with step(f"kafka: {image} ready"):
        try:
            _apply(access, image, {"emptyDir": {}}, revision=image)
        except ClusterError as error:
            archive, _ = kafka_archive()
            hint = f"if its nodes lack the image {image}: push {archive} to a registry and set FLEET_KAFKA_IMAGE"
            raise ClusterError(error.reason, f"{error.message}\n{hint}") from error


def host_bootstrap(cluster: LocalCluster) -> str:
    """``host:port`` under which programs on the host reach Kafka. Raises ClusterError (``NotRunning``)."""
    settings = NodeSettings.read(cluster.instance.settings_file)
    if settings is None:
        raise ClusterError("NotRunning", f"cluster {cluster.instance.name} does not run; start it with `up`")
    return f"{settings.node_address}:{HOST_PORT}"


def _listeners() -> dict[str, str]:
    return {"PLAIN": ":9092", SASL_LISTENER: ":9094", "HOST": ":9095"}


def _properties() -> str:
    # The address advertised to the host's clients is known only in the pod: see _run_arguments.
    settings = node_properties(
        data=f"{DATA}/data",
        listeners=_listeners(),
        advertised={"PLAIN": INSIDE_BOOTSTRAP, SASL_LISTENER: SASL_BOOTSTRAP, "HOST": f"localhost:{HOST_PORT}"},
        controller="localhost:9093",
        inter_broker="PLAIN",
    )
    return format_properties(settings | sasl_properties(SASL_USERS))


def _format_arguments() -> list[str]:
    tool = ["kafka.tools.StorageTool", "format", "--standalone", "--ignore-formatted", "--cluster-id", CLUSTER_ID]
    return [*tool, "--config", "/etc/kafka/server.properties", *scram_arguments(SASL_USERS)]


def _run_arguments() -> list[str]:
    advertised = f"PLAIN://{INSIDE_BOOTSTRAP},{SASL_LISTENER}://{SASL_BOOTSTRAP},HOST://$(HOST_ADDRESS):{HOST_PORT}"
    return ["kafka.Kafka", "/etc/kafka/server.properties", "--override", f"advertised.listeners={advertised}"]


def _apply(access: ClusterAccess, image: str, volume: Mapping[str, object], *, revision: str) -> None:
    """Apply the manifest and wait until a pod of it, not of an earlier one, is ready.

    ``revision`` identifies the image's content, which its name does not show.
    """
    properties = _properties()
    variables = {
        "IMAGE": image,
        "USER": str(KAFKA_USER),
        "HOST_PORT": str(HOST_PORT),
        "PROPERTIES": textwrap.indent(properties, "    ").rstrip(),
        "SETTINGS_DIGEST": hashlib.sha256((properties + revision).encode()).hexdigest()[:16],
        "FORMAT_ARGUMENTS": json.dumps(_format_arguments()),
        "RUN_ARGUMENTS": json.dumps(_run_arguments()),
        "VOLUME": json.dumps({"name": "data", **volume}),
    }
    access.apply("kafka.yaml", variables)
    wait = ["rollout", "status", "statefulset/kafka", "-n", "kafka", f"--timeout={START_TIMEOUT_S:.0f}s"]
    try:
        access.kubectl(*wait, timeout_s=START_TIMEOUT_S + 10)
    except ClusterError as error:
        raise ClusterError("TimedOut", f"Kafka's pod did not become ready; last seen: {_explain(access)}") from error


def _explain(access: ClusterAccess) -> str:
    try:
        pods = access.kubectl("get", "pods", "-n", "kafka", "-o", "wide")
        logs = access.kubectl("logs", "-n", "kafka", "kafka-0", "--all-containers", "--tail=15")
    except ClusterError as error:
        return error.message
    return f"\n{pods}{logs}"
