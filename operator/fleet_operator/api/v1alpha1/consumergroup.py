"""ConsumerGroup (`kcg`): a fleet of consumers; its status mirrors the Kafka group.

Decision on the default of `assignors`: docs/decisions/0011-default-assignor.md.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from fleet_consumer.contract.managed_topics import FAILED_RETENTION_SECONDS
from fleet_operator.api.v1alpha1.model import (
    INT32_MAX,
    PAUSED_ANNOTATION,
    CallableName,
    CustomResource,
    Model,
    ObjectReference,
    PartitionOffset,
    TopicName,
)
from fleet_operator.api.v1alpha1.refs import default_group_id

NAME_CHARACTERS_MAX: Final = 40
"""Maximum length of a ConsumerGroup's name. With their suffixes, names of its child objects have at most 63
characters."""

REPLICAS_MAX: Final = 1000

WORKER_CONTAINER: Final = "worker"
"""Name of the worker's container in pods and in `spec.template`."""

Decoder = Literal["Bytes", "String", "Json"]
Replicas = Annotated[int, Field(ge=0, le=REPLICAS_MAX)]
GroupNumber = Annotated[int, Field(ge=0, le=INT32_MAX)]
Seconds = Annotated[int, Field(ge=1, le=86_400)]


class PythonHandler(Model):
    """A Python callable in the image, or in a module whose source is in a ConfigMap."""

    callable: CallableName
    config_map_ref: ObjectReference | None = None


class HttpHandler(Model):
    """An HTTP endpoint of a container in the same pod."""

    port: Annotated[int, Field(ge=1, le=65_535)] = 8080
    path: Annotated[str, Field(max_length=1024, pattern=r"^/")] = "/records"
    batch: bool = False


class Decode(Model):
    """Decoders that convert record keys and values to Python values for the handler."""

    key: Decoder = "Bytes"
    value: Decoder = "Bytes"


class Handler(Model):
    """The handler that processes the records; exactly one of `python` and `http` is set."""

    python: PythonHandler | None = None
    http: HttpHandler | None = None
    timeout_seconds: Seconds = 60
    decode: Decode = Decode()
    outputs: Annotated[tuple[TopicName, ...], Field(max_length=100)] = ()
    concurrency: Annotated[int, Field(ge=1, le=64)] = 1


class Log(Model):
    level: Literal["Debug", "Info", "Warning", "Error"] = "Info"
    format: Literal["Json", "Text"] = "Json"


class Classic(Model):
    """Settings of the classic group protocol."""

    assignors: Annotated[
        tuple[
            Annotated[
                str,
                Field(
                    max_length=512,
                    pattern=r"^(range|roundrobin|sticky|cooperative-sticky|cooperative-weighted"
                    r"|[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*)$",
                ),
            ],
            ...,
        ],
        Field(min_length=1, max_length=10),
    ] = ("cooperative-sticky",)
    session_timeout_seconds: Annotated[int, Field(ge=1, le=1800)] = 45
    heartbeat_interval_seconds: Annotated[int, Field(ge=1, le=600)] = 3


Properties = Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=50)]


class ConsumerSettings(Model):
    classic: Classic = Classic()
    static_membership: bool = True
    max_poll_interval_seconds: Seconds = 300
    max_poll_records: Annotated[int, Field(ge=1, le=100_000)] = 500
    auto_offset_reset: Literal["Earliest", "Latest", "None"] = "Earliest"
    isolation_level: Literal["ReadUncommitted", "ReadCommitted"] = "ReadUncommitted"
    commit_interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 5
    properties: Properties = Field(default_factory=dict)


class ProducerSettings(Model):
    """Settings of the producers that write outputs, retries and failed records."""

    properties: Properties = Field(default_factory=dict)


class ManagedTopics(Model):
    """Settings of the retry, redrive and failed topics; the operator derives settings that are None.

    These settings are not part of `spec.retry`, because every group has a failed topic. Removing `spec.retry` must not
    change this topic.
    """

    partitions: Annotated[int, Field(ge=1, le=10_000)] | None = None
    replication_factor: Annotated[int, Field(ge=1, le=32)] | None = None
    retention_seconds: Annotated[int, Field(ge=60, le=INT32_MAX)] | None = None
    failed_retention_seconds: Annotated[int, Field(ge=60, le=INT32_MAX)] = FAILED_RETENTION_SECONDS


class RetryWorker(Model):
    """Settings of the workers that read the retry topics."""

    min_replicas: Replicas = 0
    max_replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] | None = None
    resources: dict[str, Any] | None = None


class Retry(Model):
    policy_ref: ObjectReference
    worker: RetryWorker = RetryWorker()


class Offsets(Model):
    """The records to skip, and the choice to keep the committed offsets of an empty group or to let them expire."""

    expiry: Literal["Keep", "Allow"] = "Keep"
    skip: Annotated[tuple[PartitionOffset, ...], Field(max_length=100)] = ()


class ScalingSchedule(Model):
    """Bounds on the number of workers. They apply for `duration_seconds` after each time that `cron` matches."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] | None = None
    cron: Annotated[str, Field(min_length=9, max_length=128)]
    time_zone: Annotated[
        str, Field(max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9][A-Za-z0-9_+-]*){0,2}$")
    ] = "UTC"
    duration_seconds: Annotated[int, Field(ge=60, le=604_800)]
    min_replicas: Replicas
    max_replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] | None = None


class Scaling(Model):
    """Scaling of the number of workers by load. If a ConsumerGroup has no `spec.scaling`, the number is fixed."""

    min_replicas: Replicas = 1
    max_replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] | None = None
    catch_up_seconds: Seconds = 90
    max_lag_seconds: Seconds | None = None
    scale_down_stabilization_seconds: Annotated[int, Field(ge=0, le=86_400)] = 300
    max_rebalances_per_hour: Annotated[int, Field(ge=1, le=3600)] = 12
    downstream_brake: Literal["Enabled", "Disabled"] = "Enabled"
    schedules: Annotated[tuple[ScalingSchedule, ...], Field(max_length=20)] = ()
    paused: bool = False
    dry_run: bool = False

    @property
    def acts(self) -> bool:
        """True if scaling decisions are applied; False if the status only shows them."""
        return not (self.paused or self.dry_run)


class Deletion(Model):
    """The parts of the Kafka group that the operator deletes together with the ConsumerGroup."""

    group: Literal["Keep", "Delete"] = "Keep"
    retry_topics: Literal["Keep", "Drain", "Delete"] = "Keep"
    timeout_seconds: Seconds = 600


class TemplateMetadata(Model):
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class SeccompProfile(Model):
    """A pod's seccomp profile; `Unconfined` is not allowed."""

    type: Literal["RuntimeDefault", "Localhost"]
    localhost_profile: Annotated[str, Field(max_length=1024)] | None = None


class PodSecurityContext(Model):
    run_as_user: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    run_as_group: GroupNumber | None = None
    run_as_non_root: bool | None = None
    fs_group: GroupNumber | None = None
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    supplemental_groups: Annotated[tuple[GroupNumber, ...], Field(max_length=32)] = ()
    seccomp_profile: SeccompProfile | None = None


class PodSpec(Model):
    """The fields of a pod's spec that users may set. Values of Kubernetes types are copied unchanged."""

    containers: tuple[dict[str, Any], ...] = ()
    init_containers: tuple[dict[str, Any], ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    image_pull_secrets: tuple[ObjectReference, ...] = ()
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    affinity: dict[str, Any] = Field(default_factory=dict)
    topology_spread_constraints: tuple[dict[str, Any], ...] = ()
    host_aliases: tuple[dict[str, Any], ...] = ()
    dns_policy: Literal["ClusterFirst", "Default", "None"] | None = None
    dns_config: dict[str, Any] = Field(default_factory=dict)
    runtime_class_name: Annotated[str, Field(max_length=253)] | None = None
    scheduler_name: Annotated[str, Field(max_length=253)] | None = None
    priority_class_name: Annotated[str, Field(max_length=253)] | None = None
    service_account_name: Annotated[str, Field(max_length=253)] | None = None
    security_context: PodSecurityContext = PodSecurityContext()


class Template(Model):
    """The fields of a pod template that users may set."""

    metadata: TemplateMetadata = TemplateMetadata()
    spec: PodSpec = PodSpec()

    @property
    def worker(self) -> dict[str, Any]:
        return next((each for each in self.spec.containers if each.get("name") == WORKER_CONTAINER), {})

    @property
    def other_containers(self) -> tuple[dict[str, Any], ...]:
        return tuple(each for each in self.spec.containers if each.get("name") != WORKER_CONTAINER)


DRAIN_MARGIN_S: Final = 10
"""Default drain time of a worker in seconds, in addition to the handler's timeout."""


class Rollout(Model):
    """Deadlines for the rollout of a new revision, and the drain time of a stopping worker."""

    progress_deadline_seconds: Seconds = 600
    check_deadline_seconds: Seconds = 300
    drain_seconds: Seconds | None = None


class ConsumerGroupSpec(Model):
    cluster_ref: ObjectReference
    group_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,200}$")] | None = None
    topics: Annotated[tuple[TopicName, ...], Field(min_length=1, max_length=100)] | None = None
    topic_pattern: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    replicas: Replicas | None = None
    suspend: bool = False
    rollout: Rollout = Rollout()
    log: Log = Log()
    handler: Handler
    consumer: ConsumerSettings = ConsumerSettings()
    producer: ProducerSettings = ProducerSettings()
    retry: Retry | None = None
    managed_topics: ManagedTopics = ManagedTopics()
    offsets: Offsets = Offsets()
    scaling: Scaling | None = None
    deletion: Deletion = Deletion()
    template: Template = Template()

    @property
    def drain_seconds(self) -> int:
        """Seconds that a worker has after SIGTERM to finish the records in its handler."""
        given = self.rollout.drain_seconds
        return self.handler.timeout_seconds + DRAIN_MARGIN_S if given is None else given


class ConsumerGroup(CustomResource):
    spec: ConsumerGroupSpec

    @property
    def group_id(self) -> str:
        return self.spec.group_id or default_group_id(self.metadata.namespace, self.metadata.name)

    @property
    def source_topics(self) -> tuple[str, ...]:
        """Topics that the spec names. Empty for a topic pattern, whose topics are known only from the Kafka cluster."""
        return self.spec.topics or ()

    @property
    def paused(self) -> bool:
        return self.metadata.annotations.get(PAUSED_ANNOTATION) == "true"
