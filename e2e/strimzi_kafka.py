"""A Kafka node in a namespace of its own, with the listeners of a Strimzi cluster: mutual TLS, and TLS with SCRAM.

It is restarted with other certificates as Strimzi restarts brokers: the pod is replaced, its data stays.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any, Final

from e2e.cluster import PATIENCE_S, eventually
from e2e.install import Installation
from e2e.local_cluster.kafka_image import KAFKA_IMAGE, KAFKA_USER
from e2e.local_cluster.kafka_node import format_properties, node_properties
from e2e.strimzi import CLUSTER, Strimzi

POD: Final = f"{CLUSTER}-kafka-0"
SERVICE: Final = f"{CLUSTER}-kafka-bootstrap"
CLUSTER_ID: Final = "c3RyaW16aS1rYWZrYS0tLQ"
FILES: Final = "/etc/kafka-files"
RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
PORTS: Final = {"PLAIN": 9092, "TLS": 9093, "SCRAM": 9094}
"""The listeners: for the tests' own tools, for users with certificates, for users with passwords."""


class StrimziKafka:
    """The node; `namespace` exists."""

    def __init__(self, installation: Installation, namespace: str, strimzi: Strimzi, users: dict[str, str]) -> None:
        self._cluster = installation.cluster
        self._namespace = namespace
        self._strimzi = strimzi
        self._users = users
        self._host = f"{SERVICE}.{namespace}.svc.cluster.local"
        self._data = installation.instance.directory / f"kafka-{namespace}"

    def bootstrap(self, listener: str) -> str:
        """`host:port` of a listener."""
        return f"{self._host}:{PORTS[listener]}"

    def start(self) -> None:
        """Create the Service and the node, and wait until it serves."""
        self._data.mkdir(exist_ok=True)
        os.chown(self._data, KAFKA_USER, KAFKA_USER)
        ports = [{"name": name.lower(), "port": port} for name, port in PORTS.items()]
        # Clients that cannot resolve the broker's name during a restart would cache the failure for a while.
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": POD}, "ports": ports}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE}, "spec": spec}
        self._cluster.apply([service], namespace=self._namespace)
        self._run(None)

    def roll(self, generation: int | None = None) -> None:
        """Restart with a certificate of the cluster's authority, of an earlier key if one is named."""
        self._cluster.kubectl("delete", "pod", POD, "--namespace", self._namespace, "--timeout=290s")
        self._run(generation)

    def change_password(self, tools: str, user: str, password: str) -> None:
        """Change a user's password in Kafka as the User Operator does; `tools` is a pod with confluent-kafka."""
        program = (
            "import sys; from confluent_kafka.admin import *; "
            "bootstrap, user, password = sys.argv[1:]; "
            "info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096); "
            "change = UserScramCredentialUpsertion(user, info, password.encode()); "
            "admin = AdminClient({'bootstrap.servers': bootstrap}); "
            "[done.result(60) for done in admin.alter_user_scram_credentials([change]).values()]"
        )
        command = ["exec", tools, "--namespace", self._namespace, "--", "python", "-c", program]
        self._cluster.kubectl(*command, self.bootstrap("PLAIN"), user, password)

    def _run(self, generation: int | None) -> None:
        self._cluster.apply([self._settings(generation), self._pod()], namespace=self._namespace)

        def ready() -> bool:
            found = self._cluster.get("pod", POD, namespace=self._namespace) or {}
            statuses = found.get("status", {}).get("containerStatuses", [])
            assert [entry["ready"] for entry in statuses] == [True], found.get("status")
            return True

        eventually(ready, timeout_s=PATIENCE_S, what="Strimzi's Kafka is ready")

    def _settings(self, generation: int | None) -> dict[str, Any]:
        keystore, truststore = self._strimzi.broker_files([f"DNS:{self._host}"], generation)
        data = {"server.properties": self._properties(), "broker.pem": keystore, "clients-ca.pem": truststore}
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": POD}, "data": encoded}

    def _properties(self) -> str:
        settings = node_properties(
            data="/var/lib/kafka/data",
            listeners={name: f":{port}" for name, port in PORTS.items()},
            advertised={name: f"{self._host}:{port}" for name, port in PORTS.items()},
            controller="localhost:9095",
            inter_broker="PLAIN",
        )
        settings["listener.security.protocol.map"] = "PLAIN:PLAINTEXT,TLS:SSL,SCRAM:SASL_SSL,CONTROLLER:PLAINTEXT"
        for name, asked in (("tls", "required"), ("scram", "none")):
            prefix = f"listener.name.{name}"
            settings |= {
                f"{prefix}.ssl.keystore.type": "PEM",
                f"{prefix}.ssl.keystore.location": f"{FILES}/broker.pem",
                f"{prefix}.ssl.truststore.type": "PEM",
                f"{prefix}.ssl.truststore.location": f"{FILES}/clients-ca.pem",
                f"{prefix}.ssl.client.auth": asked,
            }
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        settings |= {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": module,
        }
        return format_properties(settings)

    def _pod(self) -> dict[str, Any]:
        format_arguments = ["kafka.tools.StorageTool", "format", "--standalone", "--ignore-formatted"]
        format_arguments += ["--cluster-id", CLUSTER_ID, "--config", f"{FILES}/server.properties"]
        for user, password in self._users.items():
            format_arguments += ["--add-scram", f"SCRAM-SHA-512=[name={user},password={password}]"]
        mounts = [
            {"name": "files", "mountPath": FILES, "readOnly": True},
            {"name": "data", "mountPath": "/var/lib/kafka"},
            {"name": "scratch", "mountPath": "/tmp"},
        ]
        common = {"image": KAFKA_IMAGE, "imagePullPolicy": "IfNotPresent", "securityContext": RESTRICTED}
        broker = {
            **common,
            "name": "kafka",
            "args": ["kafka.Kafka", f"{FILES}/server.properties"],
            "volumeMounts": mounts,
            "readinessProbe": {"tcpSocket": {"port": PORTS["SCRAM"]}, "periodSeconds": 1},
            "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        }
        spec = {
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 20,
            "securityContext": {"runAsUser": KAFKA_USER, "runAsGroup": KAFKA_USER, "runAsNonRoot": True},
            "initContainers": [{**common, "name": "format", "args": format_arguments, "volumeMounts": mounts}],
            "containers": [broker],
            "volumes": [
                {"name": "files", "secret": {"secretName": POD}},
                {"name": "data", "hostPath": {"path": str(self._data), "type": "Directory"}},
                {"name": "scratch", "emptyDir": {}},
            ],
        }
        metadata = {"name": POD, "labels": {"app": POD}}
        made: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        return json.loads(json.dumps(made))  # type: ignore[no-any-return]
