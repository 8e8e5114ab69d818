"""Builders of a Backfill's children: settings, the driver's account and rights, and its application.

Each states the full intent of its object and changes none of its inputs. The ledger is the exception: it is made empty,
and only the driver writes it from then on.

Executors are the worker's pod with another program: credentials, placement, environment, volumes and helpers of the
group's template, so what reaches the brokers and the handler's back ends from a worker reaches them from there. Spark
fills in image, arguments, memory and processors. Only the driver has a token for Kubernetes. So it gets placement,
labels and user of the group's template, and nothing that runs or that tells a webhook to run something: no containers,
environment, volumes, sources or annotations.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fleet_consumer.contract import naming
from fleet_consumer.contract.backfill_config import VERSION
from fleet_consumer.contract.backfill_ledger import CONTROL_KEY, Control, control_text
from fleet_consumer.contract.pod import (
    BACKFILL_CONFIG,
    BACKFILL_FILE,
    CANDIDATE_DIRECTORY,
    CONFIG_DIRECTORY,
    SINK_DIRECTORY,
)
from fleet_operator.api.v1alpha1.backfill import Backfill, Compare, DriverSize, Sink, SinkVolume
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning.backfill.ranges import ResolvedRange, identity
from fleet_operator.planning.backfill.spark import (
    DRIVER_CONTAINER,
    DRIVER_PROGRAM,
    EXECUTOR_CONTAINER,
    SPARK_VERSION,
    spark_memory,
)
from fleet_operator.planning.fleet.pod_template import accompany, files_of, platform_gives_users
from fleet_operator.planning.fleet.worker_config import HANDLER_PATH
from fleet_operator.planning.objects import to_json
from fleet_operator.planning.run import run_config_map, run_head, run_pod


class SourceFiles(NamedTuple):
    """File names of the handlers' copied sources; None where an image has the source."""

    handler: Collection[str] | None = None
    candidate: Collection[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """The handler to run and its source. `worker` is worker.json of the revision whose handler it is.

    Files are None where an image has the source.
    """

    worker: Mapping[str, Any]
    handler_files: Mapping[str, str] | None = None
    candidate_files: Mapping[str, str] | None = None

    @property
    def files(self) -> SourceFiles:
        both = (self.handler_files, self.candidate_files)
        return SourceFiles(*(sorted(files) if files is not None else None for files in both))


def backfill_config(
    backfill: Backfill, resolved: ResolvedRange, worker: Mapping[str, Any], handlers: str
) -> dict[str, Any]:
    """The content of backfill.json for one pass. Times are epoch milliseconds."""
    spec, metadata = backfill.spec, backfill.metadata
    chosen = spec.filter
    return {
        "version": VERSION,
        "id": metadata.uid,
        "name": metadata.name,
        "namespace": metadata.namespace,
        "worker": dict(worker),
        "topic": resolved.topic,
        # Left out where they are not known: such a range is read as it was before they were kept.
        **identity(resolved),
        "ranges": {str(partition): list(bounds) for partition, bounds in resolved.ranges.items()},
        "filter": {
            "keyRegex": chosen.key_regex if chosen else None,
            "headerEquals": dict(chosen.header_equals) if chosen else {},
            "fromTime": resolved.from_ms,
            # The last seconds end with the log. A producer whose clock is fast has written records inside the range
            # with a time after its end, and nothing would say that they were left out.
            "toTime": resolved.to_ms if spec.range.last is None else None,
        },
        "ordering": spec.ordering,
        "sliceRecords": spec.slice.max_records,
        "sliceSeconds": spec.slice.max_seconds,
        "progressSeconds": spec.deadlines.progress_seconds,
        "onError": spec.on_error,
        "parallelism": spec.parallelism,
        "sink": _sink(spec.sink),
        "eventLog": spec.spark.event_log and spec.sink.files is not None,
        "dryRun": spec.dry_run,
        "compare": _compare(spec.compare, worker, handlers) if spec.compare is not None else None,
        "ledger": naming.backfill_ledger(metadata.name),
        "control": naming.backfill_control(metadata.name),
    }


def for_attempt(config: Mapping[str, Any], connection: Mapping[str, Any], handlers: str) -> dict[str, Any]:
    """The settings of an earlier attempt for the next one: the brokers may have another address, the pass be another.

    Nothing else follows the ConsumerGroup: records of one Backfill are handled alike.
    """
    renewed = {**config, "worker": {**config["worker"], "connection": dict(connection)}}
    if config.get("compare") is not None:
        renewed["compare"] = {**config["compare"], "handlers": handlers}
    return renewed


def _sink(sink: Sink) -> dict[str, Any]:
    rendered: dict[str, Any] = {"topic": sink.topic and sink.topic.name, "parquet": None, "table": None}
    if sink.files is not None:
        path = f"{SINK_DIRECTORY}/{sink.files.path}" if sink.files.volume is not None else sink.files.path
        rendered["parquet"] = path
    if sink.table is not None:
        table = sink.table.model_dump(mode="json", by_alias=True, exclude={"volume"})
        table |= {"path": path, "partitionBy": table["partitionBy"] or []}
        rendered |= {"parquet": None, "table": table}
    return rendered


def _compare(compare: Compare, worker: Mapping[str, Any], handlers: str) -> dict[str, Any]:
    path = CANDIDATE_DIRECTORY if compare.config_map_ref is not None else None
    live = dict(worker["handler"]["python"] or {})
    return {
        "candidate": live if compare.itself else {"callable": compare.callable, "path": path},
        "ignoreFields": list(compare.ignore_fields),
        "ignoreHeaders": list(compare.ignore_headers),
        "handlers": handlers,
    }


RBAC: Final = "rbac.authorization.k8s.io"
DEFAULT_ACCOUNT: Final = "default"
KEPT_SECONDS: Final = 86_400
"""Time for which a finished application and its pods' logs are kept; the Backfill's own status stays."""
CONF: Final = {
    "spark.eventLog.enabled": "false",
    # An executor on a node that is drained ends the task in hand: see decom.sh of the Spark image.
    "spark.decommission.enabled": "true",
    # A record handled twice at the same time is worse than a slow task.
    "spark.speculation": "false",
    # Executors that die one after the other are those of one task, which Spark gives up after four, by its name.
    "spark.executor.maxNumFailures": "100",
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
    return run_config_map(backfill, naming.backfill_settings(backfill.metadata.name), {BACKFILL_FILE: to_json(config)})


def sources(backfill: Backfill, handlers: Handlers) -> list[dict[str, Any]]:
    """Copies of the handlers' sources, so that every attempt handles records alike."""
    name = backfill.metadata.name
    copies = (
        (naming.backfill_handler(name), handlers.handler_files),
        (naming.backfill_candidate(name), handlers.candidate_files),
    )
    return [run_config_map(backfill, copy, files) for copy, files in copies if files is not None]


def ledger(backfill: Backfill) -> dict[str, Any]:
    """The ledger as it is made, for the driver to write."""
    return run_config_map(backfill, naming.backfill_ledger(backfill.metadata.name), {})


def control(backfill: Backfill, orders: Control) -> dict[str, Any]:
    """The orders to a running driver."""
    data = {CONTROL_KEY: control_text(orders)}
    return run_config_map(backfill, naming.backfill_control(backfill.metadata.name), data)


def driver_rights(backfill: Backfill, cluster_role: str, account: str = DEFAULT_ACCOUNT) -> list[dict[str, Any]]:
    """The driver's account with its rights: to its ledger and control, and by a ClusterRole to its executors.

    The right to `use` the `account` of executors is for the chart's policy, which lets a driver make no pods of others.
    """
    name, namespace = naming.backfill_driver(backfill.metadata.name), backfill.metadata.namespace
    run = backfill.metadata.name
    named = ((naming.backfill_ledger(run), ["get", "update"]), (naming.backfill_control(run), ["get"]))
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [each], "verbs": verbs}
        for each, verbs in named
    ]
    if account != DEFAULT_ACCOUNT:
        used = {"resources": ["serviceaccounts"], "resourceNames": [account], "verbs": ["use"]}
        rules.append({"apiGroups": [""], **used})
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]

    def binding(binding_name: str, kind: str, role: str) -> dict[str, Any]:
        reference = {"apiGroup": RBAC, "kind": kind, "name": role}
        head = run_head(f"{RBAC}/v1", "RoleBinding", backfill, binding_name)
        return {**head, "roleRef": reference, "subjects": subjects}

    return [
        # Only pods whose template asks for the token get it.
        {**run_head("v1", "ServiceAccount", backfill, name), "automountServiceAccountToken": False},
        {**run_head(f"{RBAC}/v1", "Role", backfill, name), "rules": rules},
        binding(name, "Role", name),
        binding(f"{name}-pods", "ClusterRole", cluster_role),
    ]


def application(
    backfill: Backfill, group: ConsumerGroup, cluster: KafkaCluster, files: SourceFiles, *, image: str
) -> dict[str, Any]:
    """The application of the newest attempt. Pod settings go by pod templates, which need no webhook."""
    spec, metadata = backfill.spec, backfill.metadata
    own = {key: value for key, value in spec.spark.spark_conf.items() if not key.startswith("spark.network.crypto.")}
    name = naming.backfill_application(metadata.name, backfill.attempts)

    def pods(size: DriverSize, account: str, component: str) -> dict[str, Any]:
        return {
            **size.model_dump(by_alias=True, exclude_none=True),
            "memory": spark_memory(size.memory),
            "memoryOverhead": spark_memory(size.memory_overhead),
            "serviceAccount": account,
            "template": spark_pod(backfill, group, cluster, files, component=component),
        }

    most, dynamic = -(-spec.parallelism // spec.spark.executor.cores), spec.spark.dynamic_allocation
    executors = most if dynamic is None else min(dynamic.min_executors, most)
    bounds = {"initialExecutors": executors, "minExecutors": executors, "maxExecutors": most}
    switches = {"spark.ui.enabled": spec.spark.ui, "spark.dynamicAllocation.enabled": dynamic is not None}
    return {
        **run_head("sparkoperator.k8s.io/v1beta2", "SparkApplication", backfill, name),
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": SPARK_VERSION,
            "image": image,
            "imagePullPolicy": spec.spark.image_pull_policy,
            "mainApplicationFile": DRIVER_PROGRAM,
            "arguments": ["--config", BACKFILL_CONFIG, "--attempt", str(backfill.attempts)],
            "restartPolicy": {"type": "Never"},
            "timeToLiveSeconds": KEPT_SECONDS,
            "sparkConf": {**CONF, **own, **SECURE, **{name: str(on).lower() for name, on in switches.items()}},
            "dynamicAllocation": {"enabled": dynamic is not None, **bounds, "shuffleTrackingEnabled": True},
            "driver": pods(spec.spark.driver, naming.backfill_driver(metadata.name), DRIVER),
            "executor": {"instances": executors, **pods(spec.spark.executor, executor_account(group), EXECUTOR)},
        },
    }


def executor_account(group: ConsumerGroup) -> str:
    """The service account of executors, which is that of the group's workers."""
    return group.spec.template.spec.service_account_name or DEFAULT_ACCOUNT


DRIVER: Final = "backfill-driver"
EXECUTOR: Final = "backfill-executor"
"""Components of the pods."""
SPARK_USER: Final = 185
SPARK_GROUP: Final = 0
"""User and group of Consumer Fleet's Spark image; that group owns the files which Spark writes."""
SINK_VOLUME: Final = "consumer-fleet-sink"
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": False, "AWS_SECRET_ACCESS_KEY": False, "AWS_SESSION_TOKEN": True}
"""Variables with the credentials of an object store, which are the Secret's keys; True for one that may be missing."""
SPARK_FILLS_IN: Final = ("image", "imagePullPolicy", "command", "args", "resources")
CANDIDATE_PATH: Final = CANDIDATE_DIRECTORY.removeprefix(f"{CONFIG_DIRECTORY}/")


def spark_pod(
    backfill: Backfill, group: ConsumerGroup, cluster: KafkaCluster, files: SourceFiles, *, component: str
) -> dict[str, Any]:
    """The template of one kind of pods."""
    if component == DRIVER:
        group, files = _bare(group), SourceFiles()
    template, container, sources = run_pod(backfill, group, cluster, component, [], image="")
    metadata, spec = template["metadata"], template["spec"]
    accompany(spec, container)
    for key in SPARK_FILLS_IN:
        container.pop(key, None)
    container["name"] = DRIVER_CONTAINER if component == DRIVER else EXECUTOR_CONTAINER
    sources[:0] = _sources(backfill.metadata.name, files)
    sink = backfill.spec.sink
    if sink.files is not None and sink.files.volume is not None:
        spec["volumes"].append({"name": SINK_VOLUME, **_sink_volume(sink.files.volume)})
        container["volumeMounts"].append({"name": SINK_VOLUME, "mountPath": SINK_DIRECTORY})
    if sink.secret_ref is not None:
        container["env"] = [each for each in container["env"] if each["name"] not in CREDENTIALS]
        for name, optional in CREDENTIALS.items():
            reference = {"name": sink.secret_ref.name, "key": name, "optional": optional}
            container["env"].append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    spec.pop("serviceAccountName", None)
    if backfill.spec.spark.placement is not None:
        spec |= backfill.spec.spark.placement.model_dump(mode="json", by_alias=True, exclude_none=True)
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


def _sources(name: str, files: SourceFiles) -> list[dict[str, Any]]:
    """ConfigMaps of the settings and of copied sources."""
    found = [files_of("configMap", naming.backfill_settings(name), [(BACKFILL_FILE, BACKFILL_FILE)])]
    copies = (
        (naming.backfill_handler(name), HANDLER_PATH, files.handler),
        (naming.backfill_candidate(name), CANDIDATE_PATH, files.candidate),
    )
    for config_map, path, keys in copies:
        if keys is not None:
            found.append(files_of("configMap", config_map, [(key, f"{path}/{key}") for key in sorted(keys)]))
    return found


def _sink_volume(volume: SinkVolume) -> dict[str, Any]:
    if volume.persistent_volume_claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.persistent_volume_claim.claim_name}}
    return {"csi": copy.deepcopy(volume.csi)}
