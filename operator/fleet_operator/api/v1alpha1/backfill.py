"""Backfill (`kbf`): runs a ConsumerGroup's handler over a bounded range of records, on Spark."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field

from fleet_operator.api.v1alpha1.model import (
    INT32_MAX,
    CallableName,
    Model,
    ObjectReference,
    Offset,
    PartitionNumber,
    Quantity,
    RunResource,
    RunSpec,
    TopicName,
)

NAME_CHARACTERS_MAX: Final = 40
"""Maximum length of a Backfill's name. Spark limits the length of names of applications and pods, which contain the
Backfill's name."""

DeadlineSeconds = Annotated[int, Field(ge=10, le=86_400)]
ImageName = Annotated[str, Field(min_length=1, max_length=1024)]
Cores = Annotated[int, Field(ge=1, le=256)]
IgnoredNames = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], Field(max_length=100)]

SampleSize = Annotated[
    str,
    Field(
        max_length=16,
        pattern=r"^(0[.][0-9]{0,2}[1-9]%|[1-9][0-9]?([.][0-9]{1,3})?%|[1-9][0-9]{0,14})$",
        coerce_numbers_to_str=True,
    ),
]
"""Sample size: a percentage of the range, such as 0.5%, or a number of offsets."""

SPARK_CONF: Final = (
    r"^spark[.](memory|network|rpc|shuffle|storage|reducer|io|broadcast|locality|cleaner"
    r"|sql[.](catalog|execution[.]arrow|files|parquet|adaptive|shuffle)|hadoop[.](fs[.](s3a|gs|azure)|parquet))"
    r"[.][A-Za-z0-9_.-]+$|^spark[.](task[.]maxFailures|executor[.]heartbeatInterval|driver[.]maxResultSize)$"
)
"""Pattern of the Spark settings that users may set; the CRD has the same pattern. Settings that affect more than the
run's pods are not allowed, such as service accounts, volumes, images, and the submitter's files and classes."""


class Source(Model):
    """The source topic (None: the only topic of the group) and its partitions (None: all partitions)."""

    topic: TopicName | None = None
    partitions: Annotated[tuple[PartitionNumber, ...], Field(min_length=1, max_length=5000)] | None = None


class TimeRange(Model):
    """A range of record timestamps (RFC 3339); the end is exclusive. A partition is read up to its first record at or
    after the end plus `late_seconds`. If `late_seconds` is None, the partition is read up to the log end."""

    from_: Annotated[str, Field(alias="from")]
    to: str
    late_seconds: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None


class PartitionRange(Model):
    """A range of offsets in one partition; the end is exclusive."""

    partition: PartitionNumber
    from_: Annotated[Offset, Field(alias="from")]
    to: Offset


class LastRange(Model):
    """A range that covers the given number of seconds before the start of the Backfill."""

    seconds: Annotated[int, Field(ge=1, le=INT32_MAX)]


class Range(Model):
    """The range of records to handle; exactly one of `time`, `offsets` and `last` is set."""

    time: TimeRange | None = None
    offsets: Annotated[tuple[PartitionRange, ...], Field(min_length=1, max_length=1000)] | None = None
    last: LastRange | None = None
    sample: SampleSize | None = None
    expired: Literal["Fail", "Ignore"] = "Fail"


class Filter(Model):
    """Selects records within the range. A record must match all criteria that are set."""

    key_regex: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    header_equals: Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=16)] = Field(
        default_factory=dict
    )


class Slice(Model):
    max_records: Annotated[int, Field(ge=1, le=100_000_000)] = 10_000_000
    max_seconds: Annotated[int, Field(ge=1, le=3600)] = 15


class Rate(Model):
    records_per_second: Annotated[int, Field(ge=1, le=10_000_000)]


class Guard(Model):
    """Pauses the Backfill while the live group's oldest uncommitted record is older than this limit."""

    max_live_behind_seconds: Annotated[int, Field(ge=1, le=604_800)]


class Compare(Model):
    """The second handler of a comparison: either `callable` with `config_map_ref` or `image`, or `self`, which runs the
    live handler twice."""

    itself: Annotated[bool | None, Field(alias="self")] = None
    callable: CallableName | None = None
    config_map_ref: ObjectReference | None = None
    image: ImageName | None = None
    ignore_fields: IgnoredNames = ()
    ignore_headers: IgnoredNames = ()


class NoSink(Model):
    """A sink that writes nothing. Records that the handler returns are only counted."""


class SinkTopic(Model):
    name: TopicName


class Claim(Model):
    claim_name: Annotated[str, Field(min_length=1, max_length=253)]


class SinkVolume(Model):
    """A volume to which all pods of a run write; exactly one field is set. `nfs` is not allowed, because the Pod
    Security level "restricted" forbids it. A PersistentVolumeClaim can use the same NFS server."""

    persistent_volume_claim: Claim | None = None
    csi: dict[str, Any] | None = None


class ParquetSink(Model):
    """A sink that writes returned records to Parquet files below `path`, which is a URI or a path in the volume."""

    path: Annotated[str, Field(min_length=1, max_length=1024)]
    volume: SinkVolume | None = None


class Column(Model):
    """A column of the sink's table. `field` is a path in the record value, such as `meta.at`."""

    name: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    type: Annotated[
        str,
        Field(
            max_length=32,
            pattern=r"^(string|int|bigint|double|boolean|timestamp|date"
            r"|decimal[(]([1-9]|[12][0-9]|3[0-8]),([0-9]|[12][0-9]|3[0-8])[)])$",
        ),
    ]
    from_: Annotated[Literal["Value", "Key", "Topic", "Partition", "Offset", "Timestamp"], Field(alias="from")] = (
        "Value"
    )
    field: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    required: bool = False


class TableSink(ParquetSink):
    format: Literal["Parquet", "Delta", "Iceberg"]
    name: (
        Annotated[str, Field(max_length=512, pattern=r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*){2,8}$")]
        | None
    ) = None
    mode: Literal["Append", "Replace"] = "Append"
    partition_by: (
        Annotated[tuple[Annotated[str, Field(max_length=128)], ...], Field(min_length=1, max_length=8)] | None
    ) = None
    columns: Annotated[tuple[Column, ...], Field(min_length=1, max_length=200)] | None = None


class Sink(Model):
    """Destination of the records that the handler returns; exactly one of the first four fields is set. `secret_ref`
    names the Secret with the credentials of the object store."""

    none: NoSink | None = None
    topic: SinkTopic | None = None
    parquet: ParquetSink | None = None
    table: TableSink | None = None
    secret_ref: ObjectReference | None = None

    @property
    def files(self) -> ParquetSink | None:
        """The sink that writes files (Parquet or a table); None if the sink writes no files."""
        return self.table or self.parquet


class Deadlines(Model):
    """Seconds after which the operator ends an attempt whose driver has not started, or makes no progress."""

    start_seconds: DeadlineSeconds = 300
    progress_seconds: DeadlineSeconds = 900


class DriverSize(Model):
    memory: Quantity = "512Mi"
    memory_overhead: Quantity = "200Mi"
    cores: Cores = 1
    core_request: Quantity = "100m"
    core_limit: Quantity | None = None


class ExecutorSize(DriverSize):
    memory_overhead: Quantity = "384Mi"
    core_request: Quantity = "250m"


class Placement(Model):
    """Nodes and priority of a run's pods. For a field that is None, the group's template applies."""

    node_selector: Annotated[dict[str, str], Field(max_length=32)] | None = None
    tolerations: Annotated[tuple[dict[str, Any], ...], Field(max_length=32)] | None = None
    priority_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None


class DynamicAllocation(Model):
    """Spark's dynamic allocation: the number of executors follows the amount of work."""

    min_executors: Annotated[int, Field(ge=1, le=1000)] = 1


class Spark(Model):
    image: ImageName | None = None
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    driver: DriverSize = DriverSize()
    executor: ExecutorSize = ExecutorSize()
    dynamic_allocation: DynamicAllocation | None = None
    ui: bool = False
    event_log: bool = False
    placement: Placement | None = None
    spark_conf: Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=50)] = Field(
        default_factory=dict
    )


class BackfillSpec(RunSpec):
    suspend: bool = False
    retry: Annotated[int, Field(ge=0, le=1000)] = 0
    source: Source | None = None
    range: Range
    filter: Filter | None = None
    ordering: Literal["Partition", "None"] = "Partition"
    slice: Slice = Slice()
    rate: Rate | None = None
    guard: Guard | None = None
    on_error: Literal["Fail", "Skip", "FailedTopic"] = "Fail"
    compare: Compare | None = None
    sink: Sink
    parallelism: Annotated[int, Field(ge=1, le=1000)] = 2
    deadlines: Deadlines = Deadlines()
    spark: Spark = Spark()


class Backfill(RunResource):
    spec: BackfillSpec

    @property
    def only_counts(self) -> bool:
        """True for a dry run without a sample. Such a run only asks the brokers for offsets and handles no records."""
        return self.spec.dry_run and self.spec.range.sample is None

    @property
    def played(self) -> Self:
        """The Backfill to run. For a dry run with a sample, a copy without a sink and without a comparison."""
        if not self.spec.dry_run or self.only_counts:
            return self
        nowhere = {"sink": Sink(none=NoSink()), "on_error": "Skip", "compare": None}
        return self.model_copy(update={"spec": self.spec.model_copy(update=nowhere)})

    @property
    def rate(self) -> int | None:
        return self.spec.rate.records_per_second if self.spec.rate else None

    @property
    def topic(self) -> str | None:
        return self.spec.source.topic if self.spec.source else None

    @property
    def partitions(self) -> tuple[int, ...] | None:
        """The partitions that the spec names; None means all partitions."""
        return self.spec.source.partitions if self.spec.source else None

    @property
    def retries(self) -> int:
        """The last value of `spec.retry` for which the operator has started an attempt."""
        found = self.status.get("retries")
        return found if isinstance(found, int) else 0

    @property
    def is_reopened(self) -> bool:
        return self.status.get("phase") == "Failed" and self.attempts > 0 and self.spec.retry > self.retries

    @property
    def takes_handler(self) -> bool:
        """True if the newest attempt copies the group's handler: the first attempt, and the first after a retry."""
        return self.attempts <= 1 or self.attempts == self.status.get("handlerAttempt")

    @property
    def attempts(self) -> int:
        """The number of the newest attempt; 0 before the first attempt."""
        found = self.status.get("attempts")
        return found if isinstance(found, int) else 0
