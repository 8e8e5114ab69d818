"""Constants for all types and reasons of conditions that the operator writes, and functions that merge conditions.

A condition's `lastTransitionTime` changes only with its status (Kubernetes API conventions). An unchanged failure
therefore leaves the object's status unchanged byte for byte.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Status = Literal["True", "False", "Unknown"]

REASON_CHARACTERS_MAX: Final = 128
UNNAMED: Final = "Unnamed"
"""Replaces an empty reason, which the API server refuses."""
MESSAGE_CHARACTERS_MAX: Final = 1024
"""Maximum length of a condition's message; longer messages are cut. A message may contain text of other programs. The
API server allows 32 KiB; a terminal shows much less."""

# --- types -----------------------------------------------------------------------------------------------------------
READY: Final = "Ready"  # the newest revision runs, its workers are ready, and the Kafka group has been Stable
PROGRESSING: Final = "Progressing"  # the newest revision is being rolled out to the workers
SERVING: Final = "Serving"  # ready workers handle records, whatever their revision
STALLED: Final = "Stalled"  # the newest revision is refused; kstatus (Helm, Flux) counts this condition as a failure
CLUSTER_REACHABLE: Final = (
    "ClusterReachable"  # the observer can connect to the brokers with the credentials of the KafkaCluster
)
LAG_KNOWN: Final = "LagKnown"  # lag, members and state are up to date
SCALING_ACTIVE: Final = "ScalingActive"  # the number of workers follows the load
SCALING_LIMITED: Final = "ScalingLimited"  # a limit keeps the fleet from its computed size
PAUSED: Final = "Paused"  # the fleet is suspended, or an annotation stops the operator
STUCK: Final = "Stuck"  # a partition does not advance beyond a record
DEGRADED: Final = "Degraded"  # a problem needs attention, even if the fleet still works
TOPICS_READY: Final = "TopicsReady"  # source, output and failed topics exist
GROUP_SHARED: Final = "GroupShared"  # the Kafka group has members that are not workers of the fleet
UPGRADE_AVAILABLE: Final = (
    "UpgradeAvailable"  # the operator would give a new group another image, connection or pod template
)
COMPLETE: Final = "Complete"  # a run has processed all chosen records; also the reason of Progressing after a rollout
FAILED: Final = "Failed"  # a run has failed, or has ended because its ConsumerGroup was deleted
SPARK_AVAILABLE: Final = "SparkAvailable"  # the API server accepts SparkApplications
RANGE_RESOLVED: Final = "RangeResolved"  # a Backfill's range has been resolved to offsets
HANDLER_SUPPORTED: Final = "HandlerSupported"  # a Backfill can run the group's handler
OFFSETS_TOPIC_SIZED: Final = "OffsetsTopicSized"  # __consumer_offsets has the settings that the KafkaCluster asks for
COORDINATORS_AVAILABLE: Final = "CoordinatorsAvailable"  # every partition of __consumer_offsets has a leader
COORDINATORS_BALANCED: Final = "CoordinatorsBalanced"  # no broker coordinates far more groups than its share
OFFSETS_KEPT: Final = "OffsetsKept"  # the group's committed offsets are not about to expire
RETRIES_KEPT: Final = "RetriesKept"  # retention is not about to delete waiting records from retry topics

GOOD: Final[Mapping[str, Status]] = {
    READY: "True",
    SERVING: "True",
    STALLED: "False",
    CLUSTER_REACHABLE: "True",
    LAG_KNOWN: "True",
    PAUSED: "False",
    STUCK: "False",
    DEGRADED: "False",
    TOPICS_READY: "True",
    GROUP_SHARED: "False",
    COMPLETE: "True",
    OFFSETS_TOPIC_SIZED: "True",
    COORDINATORS_AVAILABLE: "True",
    COORDINATORS_BALANCED: "True",
    OFFSETS_KEPT: "True",
    RETRIES_KEPT: "True",
}
"""The status that needs no attention, for each type of condition that has one."""

CONSUMER_GROUP_CONDITIONS: Final = (
    READY,
    PROGRESSING,
    SERVING,
    STALLED,
    CLUSTER_REACHABLE,
    LAG_KNOWN,
    SCALING_ACTIVE,
    SCALING_LIMITED,
    PAUSED,
    STUCK,
    DEGRADED,
    TOPICS_READY,
    GROUP_SHARED,
    UPGRADE_AVAILABLE,
    OFFSETS_KEPT,
    RETRIES_KEPT,
)
KAFKA_CLUSTER_CONDITIONS: Final = (
    READY,
    CLUSTER_REACHABLE,
    OFFSETS_TOPIC_SIZED,
    COORDINATORS_AVAILABLE,
    COORDINATORS_BALANCED,
)
RUN_CONDITIONS: Final = (READY, COMPLETE, FAILED)
BACKFILL_CONDITIONS: Final = (*RUN_CONDITIONS, SPARK_AVAILABLE, RANGE_RESOLVED, HANDLER_SUPPORTED)

# --- reasons: the spec and Kubernetes --------------------------------------------------------------------------------
SPEC_INVALID: Final = "SpecInvalid"
STATE_UNREADABLE: Final = "StateUnreadable"  # the OperatorState was edited, or written by a newer operator
SPEC_TOO_LARGE: Final = "SpecTooLarge"
CLUSTER_NOT_FOUND: Final = "ClusterNotFound"
CLUSTER_INVALID: Final = "ClusterInvalid"
HANDLER_SOURCE_NOT_FOUND: Final = "HandlerSourceNotFound"
HANDLER_SOURCE_TOO_LARGE: Final = "HandlerSourceTooLarge"
HANDLER_CONTAINER_NOT_FOUND: Final = "HandlerContainerNotFound"
TEMPLATE_REFUSED: Final = "TemplateRefused"
TOPIC_PATTERN_REFUSED: Final = "TopicPatternRefused"
SCHEDULE_REFUSED: Final = "ScheduleRefused"
SECRET_NOT_FOUND: Final = "SecretNotFound"
SECRET_NOT_LABELLED: Final = "SecretNotLabelled"
SECRET_FORBIDDEN: Final = "SecretForbidden"
SECRET_INCOMPLETE: Final = "SecretIncomplete"
TOO_MANY_CONNECTIONS: Final = "TooManyConnections"
GROUP_ID_TAKEN: Final = "GroupIdTaken"
REFUSED_BY_API_SERVER: Final = "RefusedByApiServer"
NAME_TAKEN: Final = "NameTaken"
FORBIDDEN_BY_API_SERVER: Final = "ForbiddenByApiServer"
RETRY_POLICY_NOT_FOUND: Final = "RetryPolicyNotFound"
TOO_MANY_DELAYS: Final = "TooManyDelays"
MESSAGE_REGEX_REFUSED: Final = "MessageRegexRefused"
POLICY_ACCEPTED: Final = "PolicyAccepted"

# --- reasons: Kafka (also those of connection errors and pre-flight checks) ------------------------------------------
NOT_YET_OBSERVED: Final = "NotYetObserved"
OBSERVATION_STALE: Final = "ObservationStale"
REACHED: Final = "Reached"
BROKER_UNREACHABLE: Final = "BrokerUnreachable"
AUTHENTICATION_FAILED: Final = "AuthenticationFailed"
CLUSTER_ID_CHANGED: Final = "ClusterIdChanged"
TOPIC_NOT_FOUND: Final = "TopicNotFound"
TOPIC_NOT_CREATED: Final = "TopicNotCreated"
TOPIC_NOT_CORRECTED: Final = "TopicNotCorrected"
TOPIC_NAME_COLLIDES: Final = "TopicNameCollides"
NOT_ENOUGH_BROKERS: Final = "NotEnoughBrokers"
AUTHORIZATION_FAILED: Final = "AuthorizationFailed"
OUTPUT_NOT_LISTED: Final = "OutputNotListed"
HANDLER_MISCONFIGURED: Final = "HandlerMisconfigured"
TOPICS_CHANGING: Final = "TopicsChanging"
BREAKER_OPEN: Final = "BreakerOpen"
TOPICS_EXIST: Final = "TopicsExist"
ALL_PARTITIONS_KNOWN: Final = "AllPartitionsKnown"
PARTITIONS_UNKNOWN: Final = "PartitionsUnknown"
COMMIT_BEYOND_END: Final = "CommitBeyondEnd"
NOT_COMMITTED_YET: Final = "NotCommittedYet"
ONLY_OUR_MEMBERS: Final = "OnlyOurMembers"
FOREIGN_MEMBERS: Final = "ForeignMembers"
ALL_PARTITIONS_MOVE: Final = "AllPartitionsMove"
PARTITION_STUCK: Final = "PartitionStuck"
BROKER_CONFIG_MISMATCH: Final = "BrokerConfigMismatch"
BROKER_CONFIG_UNKNOWN: Final = "BrokerConfigUnknown"
OFFSETS_TOPIC_ABSENT: Final = "OffsetsTopicAbsent"
OFFSETS_TOPIC_REFUSED: Final = "OffsetsTopicRefused"
PARTITIONS_OFFLINE: Final = "PartitionsOffline"
BROKERS_SILENT: Final = "BrokersSilent"
ALL_COORDINATED: Final = "AllCoordinated"
COORDINATOR_CROWDED: Final = "CoordinatorCrowded"
EVENLY_SPREAD: Final = "EvenlySpread"
PARTITIONS_DIFFER: Final = "PartitionsDiffer"
REPLICATION_TOO_LOW: Final = "ReplicationTooLow"
NOT_COMPACTED: Final = "NotCompacted"
SEGMENTS_TOO_LARGE: Final = "SegmentsTooLarge"
NOT_CREATED_YET: Final = "NotCreatedYet"
AS_WANTED: Final = "AsWanted"
GROUP_ACTIVE: Final = "GroupActive"
NOTHING_COMMITTED: Final = "NothingCommitted"
NOT_YET_KEPT: Final = "NotYetKept"
VISITED: Final = "Visited"
EXPIRY_ALLOWED: Final = "ExpiryAllowed"
OTHER_PROTOCOL: Final = "OtherProtocol"
OFFSETS_GONE: Final = "OffsetsGone"
NOTHING_WAITS: Final = "NothingWaits"
KEPT_WITHOUT_LIMIT: Final = "KeptWithoutLimit"
WITHIN_RETENTION: Final = "WithinRetention"
RETENTION_SET: Final = "RetentionSet"
RETENTION_ENDS: Final = "RetentionEnds"

# --- reasons: the fleet ----------------------------------------------------------------------------------------------
FLEET_READY: Final = "FleetReady"
SUSPENDED: Final = "Suspended"
PAUSED_BY_ANNOTATION: Final = "PausedByAnnotation"
NOT_PAUSED: Final = "NotPaused"
NO_WORKERS_WANTED: Final = "NoWorkersWanted"
CHECKING_REVISION: Final = "CheckingRevision"
CHECKING: Final = "Checking"
ROLLING_OUT: Final = "RollingOut"
WAITING: Final = "Waiting"
REFUSED: Final = "Refused"
NOT_REFUSED: Final = "NotRefused"
NEWEST_REVISION: Final = "NewestRevision"
LAST_GOOD_REVISION: Final = "LastGoodRevision"
SEVERAL_REVISIONS: Final = "SeveralRevisions"
NO_WORKER_READY: Final = "NoWorkerReady"
CHECK_DEADLINE_EXCEEDED: Final = "CheckDeadlineExceeded"
PODS_NOT_CREATED: Final = "PodsNotCreated"
POD_TERMINATING: Final = "PodTerminating"
REVISION_REFUSED: Final = "RevisionRefused"
REVISION_HELD: Final = "RevisionHeld"
PROGRESS_DEADLINE_EXCEEDED: Final = "ProgressDeadlineExceeded"
WAITING_FOR_REPLICAS: Final = "WaitingForReplicas"
WAITING_FOR_GROUP: Final = "WaitingForGroup"
WORKERS_FAILING: Final = "WorkersFailing"
RETRY_WORKERS_FAILING: Final = "RetryWorkersFailing"
WORKER_REPORTS_ERROR: Final = "WorkerReportsError"
DATA_UNREADABLE: Final = "DataUnreadable"
COMMITS_REFUSED: Final = "CommitsRefused"
REBALANCE_TAKES_LONG: Final = "RebalanceTakesLong"
TRANSACTION_HANGS: Final = "TransactionHangs"
WORKERS_SILENT: Final = "WorkersSilent"
FIXED_REPLICAS: Final = "FixedReplicas"
SCALED_BY_LOAD: Final = "ScaledByLoad"
SCALE_FIELD_IGNORED: Final = "ScaleFieldIgnored"
DRY_RUN: Final = "DryRun"
LOAD_UNKNOWN: Final = "LoadUnknown"
"""Reason of ScalingActive. Its other reasons, and all reasons of ScalingLimited, are values of `status.limit`."""
RESETTING_OFFSETS: Final = "ResettingOffsets"
OFFSET_RESET_WAITS: Final = "OffsetResetWaits"
OFFSET_RESET_CANCELLED: Final = "OffsetResetCancelled"
STOPPING_WORKERS: Final = "StoppingWorkers"
WORKERS_REMAIN: Final = "WorkersRemain"
OFFSETS_REFUSED: Final = "OffsetsRefused"
OFFSETS_OVERTAKEN: Final = "OffsetsOvertaken"
ANOTHER_RESET_RUNS: Final = "AnotherResetRuns"
OFFSETS_SET: Final = "OffsetsSet"
OFFSETS_SHOWN: Final = "OffsetsShown"
NOT_AFTER_PASSED: Final = "NotAfterPassed"
MEMORY_LOST: Final = "MemoryLost"
WITHIN_BOUNDS: Final = "WithinBounds"
MORE_WORKERS_THAN_PARTITIONS: Final = "MoreWorkersThanPartitions"

IMAGE_FROM_SPEC: Final = "ImageFromSpec"
UP_TO_DATE: Final = "UpToDate"
DEFAULT_IMAGE_DIFFERS: Final = "DefaultImageDiffers"
PLANNED_BY_ANOTHER_VERSION: Final = "PlannedByAnotherVersion"
CANARY_RUNNING: Final = "CanaryRunning"
WAITING_FOR_WAVE: Final = "WaitingForWave"
WAITING_FOR_FLEET: Final = "WaitingForFleet"
UPGRADE_STOPPED: Final = "UpgradeStopped"
UPGRADING: Final = "Upgrading"

# --- reasons: a Redrive ----------------------------------------------------------------------------------------------
GROUP_NOT_FOUND: Final = "GroupNotFound"
GROUP_INVALID: Final = "GroupInvalid"  # the ConsumerGroup or its OperatorState cannot be read
GROUP_DELETED: Final = "GroupDeleted"
RETRY_NOT_CONFIGURED: Final = "RetryNotConfigured"
GROUP_SUSPENDED: Final = "GroupSuspended"
TOPICS_NOT_READY: Final = "TopicsNotReady"
FILTER_REFUSED: Final = "FilterRefused"
ANOTHER_REDRIVE_RUNS: Final = "AnotherRedriveRuns"
WAITING_FOR_LAST_RUN: Final = "WaitingForLastRun"
READY_TO_RUN: Final = "ReadyToRun"
RUNNING: Final = "Running"
RATE_CHANGED: Final = "RateChanged"
POD_NOT_RUNNING: Final = "PodNotRunning"
ALL_MOVED: Final = "AllMoved"
SOME_REFUSED: Final = "SomeRefused"
ALL_COUNTED: Final = "AllCounted"
JOB_FAILED: Final = "JobFailed"

# --- reasons: a Backfill ---------------------------------------------------------------------------------------------
SOURCE_TOPIC_REQUIRED: Final = "SourceTopicRequired"
SOURCE_TOPIC_NOT_FOUND: Final = "SourceTopicNotFound"
PARTITION_NOT_FOUND: Final = "PartitionNotFound"
OFFSETS_BEYOND_END: Final = "OffsetsBeyondEnd"
RANGE_REFUSED: Final = "RangeRefused"
RANGE_TOO_LARGE: Final = "RangeTooLarge"
RANGE_EXPIRED: Final = "RangeExpired"
RANGE_LOST: Final = "RangeLost"
RANGE_EMPTY: Final = "RangeEmpty"
RESOLVING: Final = "Resolving"
RESOLVED: Final = "Resolved"
EXPIRED_IGNORED: Final = "ExpiredIgnored"
HANDLER_UNSUPPORTED: Final = "HandlerUnsupported"
HANDLER_RUNNABLE: Final = "HandlerRunnable"
SPARK_IMAGE_REQUIRED: Final = "SparkImageRequired"
SPARK_CONF_REFUSED: Final = "SparkConfRefused"
SPARK_NOT_INSTALLED: Final = "SparkNotInstalled"
SPARK_INSTALLED: Final = "SparkInstalled"
SPARK_NOT_NEEDED: Final = "SparkNotNeeded"
SPARK_NOT_ASKED: Final = "SparkNotAsked"
SINK_TOPIC_REFUSED: Final = "SinkTopicRefused"
OPEN_TRANSACTION: Final = "OpenTransaction"
SINK_TOPIC_NOT_FOUND: Final = "SinkTopicNotFound"
FAILED_TOPIC_NOT_FOUND: Final = "FailedTopicNotFound"
CANDIDATE_SOURCE_NOT_FOUND: Final = "CandidateSourceNotFound"
SETTINGS_LOST: Final = "SettingsLost"
STARTING: Final = "Starting"
STOPPING: Final = "Stopping"
STOPPED: Final = "Stopped"
PASS_DONE: Final = "PassDone"
WAITING_TO_RETRY: Final = "WaitingToRetry"
APPLICATION_GONE: Final = "ApplicationGone"
DRIVER_FAILED: Final = "DriverFailed"
SUBMISSION_FAILED: Final = "SubmissionFailed"
DRIVER_NOT_STARTED: Final = "DriverNotStarted"
SPARK_OPERATOR_NOT_RESPONDING: Final = "SparkOperatorNotResponding"
NO_PROGRESS: Final = "NoProgress"
LEDGER_UNREADABLE: Final = "LedgerUnreadable"
ENDED_WITHOUT_LEDGER: Final = "EndedWithoutLedger"
ALL_HANDLED: Final = "AllHandled"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition without `lastTransitionTime`, which `with_conditions` sets."""

    type: str
    status: Status
    reason: str
    message: str


def with_conditions(
    status: Mapping[str, Any],
    new: Iterable[Condition],
    now_text: str,
    generation: int,
    previous: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return `status` with the conditions `new`, in this order, and `generation` as `observedGeneration`.

    `previous` is the status before this change, by default `status`. A condition keeps its `lastTransitionTime` if
    `previous` has it with the same status. Conditions that only `previous` has are dropped, because the operator owns
    the whole list.
    """
    known = (status if previous is None else previous).get("conditions") or ()
    before = {condition.get("type"): condition for condition in known}
    merged = []
    for condition in new:
        old = before.get(condition.type, {})
        same = old.get("status") == condition.status and old.get("lastTransitionTime")
        merged.append(
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason[:REASON_CHARACTERS_MAX] or UNNAMED,
                "message": shorten(condition.message),
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if same else now_text,
            }
        )
    return {**status, "observedGeneration": generation, "conditions": merged}


def invalid_status(
    kinds: Iterable[str], reason: str, message: str, body: Mapping[str, Any], now_text: str
) -> dict[str, Any]:
    """The status of an object that the CRD should have refused.

    This is the last known status, with conditions of the types `kinds` that explain why the object is not reconciled.
    """
    verdicts = (Condition(kind, "False" if kind == READY else "Unknown", reason, message) for kind in kinds)
    return with_conditions(body.get("status") or {}, verdicts, now_text, body["metadata"].get("generation", 0))


def find_condition(conditions: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def shorten(text: str, limit: int = MESSAGE_CHARACTERS_MAX) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
