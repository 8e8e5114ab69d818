"""Builders of a Backfill's children: settings, the driver's account and permissions, and its application.

Each builder returns the complete object and does not modify its arguments. Only the ledger is incomplete: it is created
empty, and after that only the driver writes it. A Backfill needs no finalizer, because it owns all its objects. Records
written to a sink stay when the Backfill is deleted.

An executor's pod is a worker's pod with another program. It has the credentials, placement, environment, volumes and
additional containers of the group's template, so an executor reaches the brokers and the handler's back ends if a
worker does. Spark fills in image, arguments, memory and CPU.

Only the driver's pod has a token for the Kubernetes API. So the driver must not run user code. It gets only placement,
labels and user from the group's template, and no containers, environment, volumes or sources. The driver also gets no
annotations, because admission webhooks read annotations to decide what to inject. Executors communicate with the driver
over Spark's protocol. The driver has to trust them, because PySpark unpickles every task's accumulators in the driver.

Decision: docs/decisions/0051-driver-permissions.md.
"""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fleet_consumer.contract import naming, pod
from fleet_consumer.contract.backfill_config import VERSION
from fleet_consumer.contract.backfill_ledger import CONTROL_KEY, Control, control_text
from fleet_operator.api.v1alpha1.backfill import Backfill, Compare, DriverSize, Sink
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning.backfill import spark
from fleet_operator.planning.backfill.ranges import ResolvedRange, identity
from fleet_operator.planning.fleet.pod_template import accompany, files_of, platform_gives_users
from fleet_operator.planning.fleet.worker_config import HANDLER_PATH
from fleet_operator.planning.objects import to_json
from fleet_operator.planning.run import run_config_map, run_head, run_pod


class SourceFiles(NamedTuple):
    """File names of the copied sources of both handlers, each None if the image contains the source."""

    handler: Collection[str] | None = None
    candidate: Collection[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """The group's own handler and, for a comparison, the candidate. `worker`: the worker.json of the group's revision.
    `handler_files` and `candidate_files`: the sources; None if the image contains the source."""

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
    """Build the content of backfill.json for one pass. Times are epoch milliseconds."""
    spec, metadata = backfill.spec, backfill.metadata
    chosen = spec.filter
    return {
        "version": VERSION,
        "id": metadata.uid,
        "name": metadata.name,
        "namespace": metadata.namespace,
        "worker": dict(worker),
        "topic": resolved.topic,
        # Unknown ids are left out; the driver then does not check them.
        **identity(resolved),
        "ranges": {str(partition): list(bounds) for partition, bounds in resolved.ranges.items()},
        "filter": {
            "keyRegex": chosen.key_regex if chosen else None,
            "headerEquals": dict(chosen.header_equals) if chosen else {},
            "fromTime": resolved.from_ms,
            # A `range.last` ends at the end of the log and not at a time. An end time would silently leave out records
            # of a producer whose clock is fast.
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
    """Return an earlier attempt's settings with the present connection and pass. All other settings stay as they were,
    even if the ConsumerGroup changes. So all records of one Backfill are handled in the same way."""
    renewed = {**config, "worker": {**config["worker"], "connection": dict(connection)}}
    if config.get("compare") is not None:
        renewed["compare"] = {**config["compare"], "handlers": handlers}
    return renewed


def _sink(sink: Sink) -> dict[str, Any]:
    rendered: dict[str, Any] = {"topic": sink.topic and sink.topic.name, "parquet": None, "table": None}
    if sink.files is not None:
        path = f"{pod.SINK_DIRECTORY}/{sink.files.path}" if sink.files.volume is not None else sink.files.path
        rendered["parquet"] = path
    if sink.table is not None:
        table = sink.table.model_dump(mode="json", by_alias=True, exclude={"volume"})
        table |= {"path": path, "partitionBy": table["partitionBy"] or []}
        rendered |= {"parquet": None, "table": table}
    return rendered


def _compare(compare: Compare, worker: Mapping[str, Any], handlers: str) -> dict[str, Any]:
    path = pod.CANDIDATE_DIRECTORY if compare.config_map_ref is not None else None
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
"""Seconds for which a finished application and the logs of its pods are kept. The Backfill's status is kept longer."""
CONF: Final = {
    "spark.eventLog.enabled": "false",
    # An executor on a node that is being drained finishes its current task: see decom.sh of the Spark image.
    "spark.decommission.enabled": "true",
    # Speculative copies of slow tasks would handle records twice at the same time.
    "spark.speculation": "false",
    # If executors die one after another, the cause is usually one task. After four failures of this task, Spark gives
    # up the task and names it in the error. The limit of failed executors must not be reached before that.
    "spark.executor.maxNumFailures": "100",
    # With these four settings, the driver needs no permissions on ConfigMaps, Services and PersistentVolumeClaims.
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
}

SECURE: Final = {
    # Tasks contain the password and the private key for Kafka, so traffic is authenticated and encrypted. Spark creates
    # a secret for each application, and passes it to the executors in their environment.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    # The default version 1 exists only for older peers. The cipher is the default AES/CTR: with AES/GCM, Spark 4.0.0
    # opens no session, because its first messages get no response.
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.saslFallback": "false",
}
"""Settings of the protocol between driver and executors, which `sparkConf` cannot change."""


def settings(backfill: Backfill, config: Mapping[str, Any]) -> dict[str, Any]:
    """Build the ConfigMap with the driver's settings. Its content changes only while no driver runs."""
    name = naming.backfill_settings(backfill.metadata.name)
    return run_config_map(backfill, name, {pod.BACKFILL_FILE: to_json(config)})


def sources(backfill: Backfill, handlers: Handlers) -> list[dict[str, Any]]:
    """Build ConfigMaps with copies of the handlers' sources, so that every attempt handles records alike."""
    name = backfill.metadata.name
    copies = (
        (naming.backfill_handler(name), handlers.handler_files),
        (naming.backfill_candidate(name), handlers.candidate_files),
    )
    return [run_config_map(backfill, copy, files) for copy, files in copies if files is not None]


def ledger(backfill: Backfill) -> dict[str, Any]:
    return run_config_map(backfill, naming.backfill_ledger(backfill.metadata.name), {})


def control(backfill: Backfill, words: Control) -> dict[str, Any]:
    data = {CONTROL_KEY: control_text(words)}
    return run_config_map(backfill, naming.backfill_control(backfill.metadata.name), data)


def driver_permissions(backfill: Backfill, cluster_role: str, account: str = DEFAULT_ACCOUNT) -> list[dict[str, Any]]:
    """Build the driver's service account, a Role, and two role bindings. The Role has the permissions on the ledger and
    control ConfigMaps; `cluster_role` has the permissions on executor pods.

    The chart's admission policy lets a driver create pods with the default service account. For any other account, the
    driver needs the permission to `use` this account. So the driver gets this permission for the executors'
    `account`."""
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
        # A pod gets the token only if its template requests the token.
        {**run_head("v1", "ServiceAccount", backfill, name), "automountServiceAccountToken": False},
        {**run_head(f"{RBAC}/v1", "Role", backfill, name), "rules": rules},
        binding(name, "Role", name),
        binding(f"{name}-pods", "ClusterRole", cluster_role),
    ]


def application(
    backfill: Backfill, group: ConsumerGroup, cluster: KafkaCluster, files: SourceFiles, *, image: str
) -> dict[str, Any]:
    """Build the newest attempt's SparkApplication. It contains pod templates, so the Spark operator's webhook is not
    needed."""
    spec, metadata = backfill.spec, backfill.metadata
    own = {key: value for key, value in spec.spark.spark_conf.items() if not key.startswith("spark.network.crypto.")}
    name = naming.backfill_application(metadata.name, backfill.attempts)

    def pods(size: DriverSize, account: str, component: str) -> dict[str, Any]:
        return {
            **size.model_dump(by_alias=True, exclude_none=True),
            "memory": spark.spark_memory(size.memory),
            "memoryOverhead": spark.spark_memory(size.memory_overhead),
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
            "sparkVersion": spark.SPARK_VERSION,
            "image": image,
            "imagePullPolicy": spec.spark.image_pull_policy,
            "mainApplicationFile": spark.DRIVER_PROGRAM,
            "arguments": ["--config", pod.BACKFILL_CONFIG, "--attempt", str(backfill.attempts)],
            "restartPolicy": {"type": "Never"},
            "timeToLiveSeconds": KEPT_SECONDS,
            "sparkConf": {**CONF, **own, **SECURE, **{name: str(on).lower() for name, on in switches.items()}},
            "dynamicAllocation": {"enabled": dynamic is not None, **bounds, "shuffleTrackingEnabled": True},
            "driver": pods(spec.spark.driver, naming.backfill_driver(metadata.name), DRIVER),
            "executor": {"instances": executors, **pods(spec.spark.executor, executor_account(group), EXECUTOR)},
        },
    }


def executor_account(group: ConsumerGroup) -> str:
    return group.spec.template.spec.service_account_name or DEFAULT_ACCOUNT


DRIVER: Final = "backfill-driver"
EXECUTOR: Final = "backfill-executor"
SPARK_USER: Final = 185
SPARK_GROUP: Final = 0
"""User and group ids of Consumer Fleet's Spark image; the group owns the files that Spark writes."""
SINK_VOLUME: Final = "consumer-fleet-sink"
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": False, "AWS_SECRET_ACCESS_KEY": False, "AWS_SESSION_TOKEN": True}
"""Environment variables with an object store's credentials. Each name is also the key in the Secret. The value is True
if the key is optional in the Secret."""
SPARK_FILLS_IN: Final = ("image", "imagePullPolicy", "command", "args", "resources")
CANDIDATE_PATH: Final = pod.CANDIDATE_DIRECTORY.removeprefix(f"{pod.CONFIG_DIRECTORY}/")


def spark_pod(
    backfill: Backfill, group: ConsumerGroup, cluster: KafkaCluster, files: SourceFiles, *, component: str
) -> dict[str, Any]:
    if component == DRIVER:
        group, files = _bare(group), SourceFiles()
    template, container, sources = run_pod(backfill, group, cluster, component, [], image="")
    metadata, spec = template["metadata"], template["spec"]
    accompany(spec, container)
    for key in SPARK_FILLS_IN:
        container.pop(key, None)
    container["name"] = spark.DRIVER_CONTAINER if component == DRIVER else spark.EXECUTOR_CONTAINER
    sources[:0] = _sources(backfill.metadata.name, files)
    sink = backfill.spec.sink
    if sink.files is not None and sink.files.volume is not None:
        claim = sink.files.volume.persistent_volume_claim
        csi = {"csi": copy.deepcopy(sink.files.volume.csi)}
        source = csi if claim is None else {"persistentVolumeClaim": {"claimName": claim.claim_name}}
        spec["volumes"].append({"name": SINK_VOLUME, **source})
        container["volumeMounts"].append({"name": SINK_VOLUME, "mountPath": pod.SINK_DIRECTORY})
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
    template = group.spec.template
    spec = template.spec.model_copy(update={"containers": (), "init_containers": (), "volumes": ()})
    metadata = template.metadata.model_copy(update={"annotations": {}})
    bare = template.model_copy(update={"metadata": metadata, "spec": spec})
    return group.model_copy(update={"spec": group.spec.model_copy(update={"template": bare})})


def _user(group: ConsumerGroup) -> dict[str, int]:
    """User and group ids of the Spark image. An `fsGroup` in the ConsumerGroup's template is kept, because its volumes
    may need it."""
    given = group.spec.template.spec.security_context.fs_group
    file_group = SPARK_USER if given is None else given
    return {"runAsUser": SPARK_USER, "runAsGroup": SPARK_GROUP, "fsGroup": file_group}


def _sources(name: str, files: SourceFiles) -> list[dict[str, Any]]:
    found = [files_of("configMap", naming.backfill_settings(name), [(pod.BACKFILL_FILE, pod.BACKFILL_FILE)])]
    copies = (
        (naming.backfill_handler(name), HANDLER_PATH, files.handler),
        (naming.backfill_candidate(name), CANDIDATE_PATH, files.candidate),
    )
    for config_map, path, keys in copies:
        if keys is not None:
            found.append(files_of("configMap", config_map, [(key, f"{path}/{key}") for key in sorted(keys)]))
    return found
