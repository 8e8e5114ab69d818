"""Objects for the tests of the CRDs: a small good one of each kind, one with every field, and ways to change them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

JsonObject = dict[str, Any]

REMOVED = object()
"""As a change: take the field out."""


def kafka_cluster(changes: Mapping[str, Any] | None = None) -> JsonObject:
    """A good KafkaCluster, changed; see `changed`."""
    body = {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "KafkaCluster",
        "metadata": {"name": "main"},
        "spec": {"bootstrapServers": ["kafka:9092"]},
    }
    return changed(body, changes or {})


def consumer_group(changes: Mapping[str, Any] | None = None) -> JsonObject:
    """A good ConsumerGroup, changed; see `changed`."""
    body = {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "orders"},
        "spec": {
            "clusterRef": {"name": "main"},
            "topics": ["orders"],
            "handler": {"python": {"callable": "shop.orders:handle"}},
        },
    }
    return changed(body, changes or {})


def retry_policy(changes: Mapping[str, Any] | None = None) -> JsonObject:
    """A good RetryPolicy, changed; see `changed`."""
    body = {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "RetryPolicy",
        "metadata": {"name": "standard"},
        "spec": {"sequence": ["5m", "5m", "30m", "30m", "30m", "1h"]},
    }
    return changed(body, changes or {})


def full_retry_policy() -> JsonObject:
    """Every field of a RetryPolicy set (of exclusive ones the second) to something else than its default."""
    return retry_policy(
        {
            "spec.sequence": REMOVED,
            "spec.generate": {"initial": "10s", "factorPercent": 150, "max": "2h", "count": 9},
            "spec.classify": [
                {"when": {"exception": "shop.errors.OutOfStock"}, "then": "Retry"},
                {"when": {"httpStatus": "4xx"}, "then": "Fail"},
                {"when": {"messageRegex": "duplicate (key|row)"}, "then": "Drop"},
            ],
            "spec.undecodable": "Drop",
            "spec.maxTotalSeconds": 3600,
            "spec.headerProfile": "Spring",
            "spec.budget": {
                "maxFailurePercent": 20,
                "windowSeconds": 30,
                "minRecords": 10,
                "action": "Fail",
                "cooldownSeconds": 5,
            },
        }
    )


def redrive(changes: Mapping[str, Any] | None = None) -> JsonObject:
    """A good Redrive, changed; see `changed`."""
    body = {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "Redrive",
        "metadata": {"name": "fixed"},
        "spec": {"groupRef": {"name": "orders"}},
    }
    return changed(body, changes or {})


def full_redrive() -> JsonObject:
    """Every field of a Redrive set to something else than its default."""
    return redrive(
        {
            "spec.filter": {
                "reasons": ["Exhausted", "Timeout"],
                "errorRegex": "^shop\\.Refused: no stock",
                "keyRegex": "^eu-",
                "fromTime": "2026-01-31T12:00:00Z",
                "toTime": "2026-02-01T12:00:00.5+01:00",
            },
            "spec.rate": {"recordsPerSecond": 100},
            "spec.records": [{"partition": 3, "offset": 17}, {"partition": 0, "offset": 17}],
            "spec.maxRecords": 5000,
            "spec.maxRedrives": 1,
            "spec.dryRun": True,
            "spec.suspend": True,
            "spec.ttlSecondsAfterFinished": 86400,
        }
    )


def changed(body: JsonObject, changes: Mapping[str, Any]) -> JsonObject:
    """A copy with changes such as `{"spec.suspend": True}`; parents are made, `REMOVED` takes a field out."""
    copied = copy.deepcopy(body)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = copied
        for name in parents:
            place = place.setdefault(name, {})
        if value is REMOVED:
            place.pop(last, None)
        else:
            place[last] = value
    return copied


REFUSED_PATHS: Final = (
    *("/etc/consumer-fleet", "/etc/consumer-fleet/", "/etc/consumer-fleet/handler", "/etc/fleet", "/etc/fleet/retry"),
    *("etc/fleet", "/etc//fleet", "//etc/fleet", "/etc/./fleet", "/etc/x/../fleet", "/etc/fleet/..", "/data/.", "../x"),
)
"""Paths at which nothing is mounted into the worker: its settings, and roundabout ways that might lead to them."""
ACCEPTED_PATHS: Final = (
    "/etc/fleetwood",
    "/etc/consumer-fleets/a",
    "/etc/.fleet",
    "/data/..x",
    "/data/etc/fleet",
    "/tmp/",
)


def full_kafka_cluster() -> JsonObject:
    """Every field of a KafkaCluster set to something else than its default."""
    return kafka_cluster(
        {
            "spec.bootstrapServers": ["kafka-0:9092", "[::1]:9093"],
            "spec.tls": {
                "caSecretRef": {"name": "ca", "key": "root.pem"},
                "clientCertSecretRef": {"name": "client", "certKey": "user.crt", "keyKey": "user.key"},
            },
            "spec.sasl": {
                "mechanism": "OAUTHBEARER",
                "secretRef": {"name": "login", "clientSecretKey": "secret"},
                "oauth": {"tokenEndpoint": "https://login.example/token", "clientId": "fleet", "scope": "kafka"},
                "allowWithoutTls": True,
            },
            "spec.observeIntervalSeconds": 10,
            "spec.offsetsTopic": {
                "partitions": 10,
                "replicationFactor": 1,
                "segmentBytes": 1048576,
                "manage": "Observe",
            },
        }
    )


def full_consumer_group() -> JsonObject:
    """Every field of a ConsumerGroup set (of exclusive ones the first) to something else than its default."""
    return consumer_group(
        {
            "spec.groupId": "shop.orders_v2",
            "spec.image": "registry.example/shop:1",
            "spec.imagePullPolicy": "Always",
            "spec.replicas": 3,
            "spec.suspend": True,
            "spec.rollout": {"progressDeadlineSeconds": 1200, "checkDeadlineSeconds": 600, "drainSeconds": 30},
            "spec.log": {"level": "Debug", "format": "Text"},
            "spec.handler": {
                "python": {"callable": "shop:Orders.handle", "configMapRef": {"name": "source"}},
                "timeoutSeconds": 5,
                "decode": {"key": "String", "value": "Json"},
                "outputs": ["orders-done"],
                "concurrency": 4,
            },
            "spec.consumer": {
                "classic": {
                    "assignors": ["sticky", "shop.assign:Mine"],
                    "sessionTimeoutSeconds": 30,
                    "heartbeatIntervalSeconds": 10,
                },
                "staticMembership": False,
                "maxPollIntervalSeconds": 60,
                "maxPollRecords": 100,
                "autoOffsetReset": "None",
                "isolationLevel": "ReadCommitted",
                "commitIntervalSeconds": 1,
                "properties": {"fetch.min.bytes": "65536"},
            },
            "spec.producer": {"properties": {"compression.type": "zstd"}},
            "spec.retry": {
                "policyRef": {"name": "standard"},
                "worker": {"minReplicas": 1, "maxReplicas": 2, "resources": {"limits": {"memory": "1Gi", "cpu": 1}}},
            },
            "spec.managedTopics": {
                "partitions": 3,
                "replicationFactor": 3,
                "retentionSeconds": 86400,
                "failedRetentionSeconds": 604800,
            },
            "spec.offsets": {
                "skip": [{"topic": "orders", "partition": 3, "offset": 1734}],
                "expiry": "Allow",
            },
            "spec.scaling": full_scaling(),
            "spec.deletion": {"group": "Delete", "retryTopics": "Drain", "timeoutSeconds": 60},
            "spec.template": full_template(),
        }
    )


def full_scaling() -> JsonObject:
    """Every field of scaling, with one schedule."""
    return {
        "minReplicas": 0,
        "maxReplicas": 12,
        "catchUpSeconds": 60,
        "maxLagSeconds": 30,
        "scaleDownStabilizationSeconds": 60,
        "maxRebalancesPerHour": 6,
        "downstreamBrake": "Disabled",
        "schedules": [
            {
                "name": "office-hours",
                "cron": "*/30 8-17 * jan-nov MON-FRI",
                "timeZone": "America/Argentina/Buenos_Aires",
                "durationSeconds": 1800,
                "minReplicas": 4,
                "maxReplicas": 24,
            }
        ],
        "paused": True,
        "dryRun": True,
    }


def full_template() -> JsonObject:
    """Every part of the pod template, with something of Kubernetes' own types in each."""
    secret_key = {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}
    worker = {
        "name": "worker",
        "resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "512Mi"}},
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": secret_key}],
        "envFrom": [{"configMapRef": {"name": "c"}, "prefix": "P_"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True, "subPath": "x"}],
    }
    return {
        "metadata": {"labels": {"team": "shop"}, "annotations": {"note": "a"}},
        "spec": {
            "containers": [worker, full_container()],
            "initContainers": [{"name": "first", "image": "i", "restartPolicy": "Always"}],
            "volumes": full_volumes(),
            "imagePullSecrets": [{"name": "pull"}],
            "nodeSelector": {"disk": "fast"},
            "tolerations": [
                {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5}
            ],
            "affinity": full_affinity(),
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["db"]}],
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["10.0.0.2"], "options": [{"name": "ndots", "value": "1"}]},
            "runtimeClassName": "sandbox",
            "schedulerName": "batch",
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "priorityClassName": "high",
            "serviceAccountName": "shop",
            "securityContext": {
                "runAsUser": 1000,
                "runAsGroup": 0,
                "runAsNonRoot": True,
                "fsGroup": 1000,
                "fsGroupChangePolicy": "OnRootMismatch",
                "supplementalGroups": [2000],
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }


def full_affinity() -> JsonObject:
    """Affinity to nodes and to pods, preferred and required."""
    expression = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    near = {"labelSelector": {"matchExpressions": [expression], "matchLabels": {"a": "b"}}, "topologyKey": "zone"}
    return {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": [expression]}}
            ],
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [expression]}]
            },
        },
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": near}]
        },
    }


def full_container() -> JsonObject:
    """A container next to the worker with every field that it may have."""
    probe = {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 5}
    return {
        "name": "side",
        "image": "i",
        "imagePullPolicy": "Always",
        "command": ["serve"],
        "args": ["--port", "80"],
        "workingDir": "/data",
        "resources": {"limits": {"cpu": 1}},
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "envFrom": [{"secretRef": {"name": "s"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
        "livenessProbe": probe,
        "readinessProbe": {"tcpSocket": {"port": 80}},
        "startupProbe": {"exec": {"command": ["true"]}},
        "lifecycle": {"postStart": {"exec": {"command": ["true"]}}, "preStop": {"httpGet": {"port": 80}}},
        "terminationMessagePath": "/dev/last",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "runAsUser": 1001,
            "runAsGroup": 1001,
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            "seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/side.json"},
        },
    }


def full_volumes() -> list[JsonObject]:
    """A volume of every type that is allowed; those that only a newer Kubernetes has are left out."""
    claim = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    fields = [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
    sources = [{"configMap": {"name": "c"}}, {"secret": {"name": "s"}}, {"downwardAPI": {"items": fields}}]
    return [
        {"name": "data", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
        {"name": "files", "configMap": {"name": "c", "items": [{"key": "a", "path": "a"}]}},
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "own", "ephemeral": {"volumeClaimTemplate": claim}},
        {"name": "about", "downwardAPI": {"items": fields}},
        {"name": "all", "projected": {"defaultMode": 288, "sources": sources}},
        {"name": "vault", "csi": {"driver": "secrets-store.csi.k8s.io", "readOnly": True}},
        {"name": "model", "image": {"reference": "registry.example/model:1"}},
    ]
