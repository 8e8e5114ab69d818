"""Builders of a Backfill's children: ConfigMaps, the driver's account and rights, and the application to launch.

Each states the full intent of its object and changes none of its inputs. The ledger is the exception: it is made empty,
and only the driver writes it from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.backfill_ledger import CONTROL_KEY, Control, control_text
from fleet_consumer.contract.pod import BACKFILL_CONFIG, BACKFILL_FILE
from fleet_operator.api.v1alpha1.backfill import Backfill
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning.backfill.config import Handlers
from fleet_operator.planning.backfill.pods import DRIVER, EXECUTOR, child_labels, spark_pod
from fleet_operator.planning.backfill.spark import Launch
from fleet_operator.planning.objects import Owner, child_head, to_json

COMPONENT: Final = "backfill"
RBAC: Final = "rbac.authorization.k8s.io"
DEFAULT_ACCOUNT: Final = "default"
CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    # A record handled twice at the same time is worse than a slow task.
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    # What follows spares the driver rights on ConfigMaps, Services and claims.
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
}

SECURE: Final = {
    # Tasks hold the password and the key for Kafka. Spark makes the secret, one for each application, and gives it to
    # executors in their environment.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    # The default is for peers of older versions. The cipher stays AES/CTR: with AES/GCM a session of Spark 4.0.0 does
    # not come up, as its first messages get no answer.
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.saslFallback": "false",
}
"""Settings of the protocol between driver and executors, which `sparkConf` cannot change."""


def settings(backfill: Backfill, config: Mapping[str, Any]) -> dict[str, Any]:
    """The driver's settings. Changed only while no driver is at work."""
    return _config_map(backfill, naming.backfill_settings(backfill.metadata.name), {BACKFILL_FILE: to_json(config)})


def sources(backfill: Backfill, handlers: Handlers) -> list[dict[str, Any]]:
    """Copies of the handlers' sources, so that every attempt handles records alike."""
    name = backfill.metadata.name
    copies = (
        (naming.backfill_handler(name), handlers.handler_files),
        (naming.backfill_candidate(name), handlers.candidate_files),
    )
    return [_config_map(backfill, copy, files) for copy, files in copies if files is not None]


def ledger(backfill: Backfill) -> dict[str, Any]:
    """The ledger as it is made, for the driver to write."""
    return _config_map(backfill, naming.backfill_ledger(backfill.metadata.name), {})


def control(backfill: Backfill, orders: Control) -> dict[str, Any]:
    """The orders to a running driver."""
    data = {CONTROL_KEY: control_text(orders)}
    return _config_map(backfill, naming.backfill_control(backfill.metadata.name), data)


def driver_rights(backfill: Backfill, cluster_role: str, account: str = DEFAULT_ACCOUNT) -> list[dict[str, Any]]:
    """The driver's account with its rights: to its ledger and control, and by a ClusterRole to its executors.

    The right to `use` the `account` of executors is for the chart's policy, which lets a driver make no pods of others.
    """
    name, namespace = naming.backfill_driver(backfill.metadata.name), backfill.metadata.namespace
    ledger_name, control_name = (
        naming.backfill_ledger(backfill.metadata.name),
        naming.backfill_control(backfill.metadata.name),
    )
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [ledger_name], "verbs": ["get", "update"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [control_name], "verbs": ["get"]},
    ]
    if account != DEFAULT_ACCOUNT:
        used = {"resources": ["serviceaccounts"], "resourceNames": [account], "verbs": ["use"]}
        rules.append({"apiGroups": [""], **used})
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]

    def binding(binding_name: str, kind: str, role: str) -> dict[str, Any]:
        reference = {"apiGroup": RBAC, "kind": kind, "name": role}
        return {
            **_head(f"{RBAC}/v1", "RoleBinding", backfill, binding_name),
            "roleRef": reference,
            "subjects": subjects,
        }

    return [
        # Only pods whose template asks for the token get it.
        {**_head("v1", "ServiceAccount", backfill, name), "automountServiceAccountToken": False},
        {**_head(f"{RBAC}/v1", "Role", backfill, name), "rules": rules},
        binding(name, "Role", name),
        binding(f"{name}-pods", "ClusterRole", cluster_role),
    ]


def launch(
    backfill: Backfill,
    group: ConsumerGroup,
    cluster: KafkaCluster,
    *,
    image: str,
    handler_keys: Collection[str] | None,
    candidate_keys: Collection[str] | None,
) -> Launch:
    """The application of the newest attempt."""
    spec, metadata = backfill.spec, backfill.metadata
    own = {key: value for key, value in spec.spark.spark_conf.items() if not key.startswith("spark.network.crypto.")}
    name = naming.backfill_application(metadata.name, backfill.attempts)
    driver, executor = (
        spark_pod(
            backfill,
            group,
            cluster,
            component=component,
            handler_keys=handler_keys,
            candidate_keys=candidate_keys,
        )
        for component in (DRIVER, EXECUTOR)
    )
    return Launch(
        metadata=_head("", "", backfill, name)["metadata"],
        image=image,
        pull_policy=spec.spark.image_pull_policy,
        arguments=("--config", BACKFILL_CONFIG, "--attempt", str(backfill.attempts)),
        conf={**CONF, **own, **SECURE},
        driver=spec.spark.driver,
        driver_account=naming.backfill_driver(metadata.name),
        driver_template=driver,
        executor=spec.spark.executor,
        executors=-(-spec.parallelism // spec.spark.executor.cores),
        executor_account=executor_account(group),
        executor_template=executor,
    )


def executor_account(group: ConsumerGroup) -> str:
    """The service account of executors, which is that of the group's workers."""
    return group.spec.template.spec.service_account_name or DEFAULT_ACCOUNT


def _config_map(backfill: Backfill, name: str, data: Mapping[str, str]) -> dict[str, Any]:
    return {**_head("v1", "ConfigMap", backfill, name), "data": dict(data)}


def _head(api_version: str, kind: str, backfill: Backfill, name: str) -> dict[str, Any]:
    metadata = backfill.metadata
    owner = Owner("Backfill", metadata.namespace, metadata.name, metadata.uid)
    return child_head(api_version, kind, name, owner=owner, labels=child_labels(backfill, COMPONENT))
