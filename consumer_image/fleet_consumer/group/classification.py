"""The meaning of each error code in the response of each group API, as one table.

Follows Java's response handlers (`AbstractCoordinator`, `ConsumerCoordinator`, `OffsetFetcherUtils`). A code that is
not listed ends the consumer with UnexpectedAnswer, unless `OTHERWISE` has a rule for the API.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from fleet_consumer.group import errors
from fleet_consumer.wire.errors import ErrorCode, describe


class Api(Enum):
    """APIs whose responses carry group errors."""

    FIND_COORDINATOR = "FindCoordinator"
    JOIN_GROUP = "JoinGroup"
    SYNC_GROUP = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    OFFSET_COMMIT = "OffsetCommit"
    OFFSET_FETCH = "OffsetFetch"
    LIST_OFFSETS = "ListOffsets"
    OFFSET_FOR_LEADER_EPOCH = "OffsetForLeaderEpoch"
    FETCH = "Fetch"


class Verdict(Enum):
    OK = auto()
    RETRY = auto()
    """Send the same request again, after the backoff."""
    REJOIN = auto()
    """Join again immediately; the identity is kept."""
    COORDINATOR_LOST = auto()
    """Look up the coordinator, then continue; the identity is kept."""
    ADOPT_MEMBER_ID = auto()
    """Join again immediately with the member id in the response (KIP-394)."""
    RESET_GENERATION = auto()
    """Forget the generation, keep the member id, join again."""
    RESET_MEMBER = auto()
    """Forget generation and member id, join again."""
    REFUSED = auto()
    """Raise the rule's error from the user's call; the membership does not change."""
    FATAL = auto()
    """End the consumer."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The verdict on an error code. `error` and `advice` form the exception for FATAL, REFUSED or exhausted retries."""

    verdict: Verdict
    error: type[errors.ConsumerError] | None = None
    advice: str = ""


_OK = Rule(Verdict.OK)
_RETRY = Rule(Verdict.RETRY)
_REJOIN = Rule(Verdict.REJOIN)
_LOST = Rule(Verdict.COORDINATOR_LOST)
_RESET_GENERATION = Rule(Verdict.RESET_GENERATION)
_RESET_MEMBER = Rule(Verdict.RESET_MEMBER)
_FENCED = Rule(
    Verdict.FATAL,
    errors.FencedInstance,
    "another consumer joined with the same group_instance_id; give each member its own",
)
_GROUP_AUTHORIZATION = Rule(
    Verdict.FATAL, errors.GroupAuthorizationFailed, "allow the principal Read on the group, then start again"
)
_JOIN_REFUSALS: Mapping[int, Rule] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: Rule(
        Verdict.FATAL,
        errors.InconsistentProtocol,
        "this member and the group have no assignor in common, or the group is not a consumer group; "
        "list an assignor that all members have",
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: Rule(
        Verdict.FATAL,
        errors.InvalidSessionTimeout,
        "choose session_timeout_ms within the broker's group.min/max.session.timeout.ms",
    ),
    ErrorCode.INVALID_GROUP_ID: Rule(Verdict.FATAL, errors.InvalidGroupId, "choose another group id"),
    ErrorCode.GROUP_MAX_SIZE_REACHED: Rule(
        Verdict.FATAL, errors.GroupFull, "the group has group.max.size members; run fewer or raise this limit"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _GROUP_AUTHORIZATION,
}
_BY_COORDINATOR: Mapping[int, Rule] = {
    ErrorCode.NONE: _OK,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _LOST,
    ErrorCode.NOT_COORDINATOR: _LOST,
}
_CURRENT_MEMBER: Mapping[int, Rule] = {
    **_BY_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS: _REJOIN,
    ErrorCode.UNKNOWN_MEMBER_ID: _RESET_MEMBER,
    ErrorCode.ILLEGAL_GENERATION: _RESET_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID: _FENCED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _GROUP_AUTHORIZATION,
}
"""Rules for requests that carry the member's generation."""

_LOOKUP_REFUSED = Rule(Verdict.REFUSED, errors.OffsetLookupFailed, "the lookup is repeated; see the broker's log")
_LEADER_MOVES: Mapping[int, Rule] = {
    ErrorCode.NONE: _OK,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _RETRY,
    ErrorCode.REPLICA_NOT_AVAILABLE: _RETRY,
    ErrorCode.KAFKA_STORAGE_ERROR: _RETRY,
    ErrorCode.OFFSET_NOT_AVAILABLE: _RETRY,
    ErrorCode.LEADER_NOT_AVAILABLE: _RETRY,
    ErrorCode.FENCED_LEADER_EPOCH: _RETRY,
    ErrorCode.UNKNOWN_LEADER_EPOCH: _RETRY,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _RETRY,
    ErrorCode.REQUEST_TIMED_OUT: _RETRY,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _RETRY,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Rule(
        Verdict.REFUSED, errors.TopicAuthorizationFailed, "allow the principal Describe on the topic"
    ),
}
"""Rules for lookups at a partition's leader; retries go to the current leader."""

RULES: Mapping[Api, Mapping[int, Rule]] = {
    Api.FIND_COORDINATOR: {
        ErrorCode.NONE: _OK,
        ErrorCode.COORDINATOR_NOT_AVAILABLE: _RETRY,
        ErrorCode.NOT_COORDINATOR: _RETRY,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _RETRY,
        ErrorCode.REQUEST_TIMED_OUT: _RETRY,
        **_JOIN_REFUSALS,
    },
    Api.JOIN_GROUP: {
        **_BY_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _RETRY,
        ErrorCode.REBALANCE_IN_PROGRESS: _REJOIN,
        ErrorCode.UNKNOWN_MEMBER_ID: _RESET_MEMBER,
        ErrorCode.MEMBER_ID_REQUIRED: Rule(Verdict.ADOPT_MEMBER_ID),
        ErrorCode.FENCED_INSTANCE_ID: _FENCED,
        ErrorCode.UNSUPPORTED_VERSION: Rule(
            Verdict.FATAL, errors.UnsupportedByCoordinator, "unset group_instance_id or use Kafka 2.3 or later"
        ),
        **_JOIN_REFUSALS,
    },
    Api.SYNC_GROUP: {
        **_CURRENT_MEMBER,
        # A coordinator that is still loading the group does not know this rebalance. Before Kafka 4, such a coordinator
        # returned REBALANCE_IN_PROGRESS. Java's client treats COORDINATOR_LOAD_IN_PROGRESS as fatal here.
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _REJOIN,
        # Java's client raises this error itself if the protocol name is wrong; brokers have returned it since Kafka 2.5
        # (KIP-559).
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: _JOIN_REFUSALS[ErrorCode.INCONSISTENT_GROUP_PROTOCOL],
    },
    Api.HEARTBEAT: {**_CURRENT_MEMBER, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _RETRY},
    Api.OFFSET_COMMIT: {
        **_CURRENT_MEMBER,
        ErrorCode.REQUEST_TIMED_OUT: _LOST,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _RETRY,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _RETRY,
        # Either the topic was deleted, or this broker does not know it yet. `CommitFlow` retries the commit for at most
        # UNKNOWN_TOPIC_PATIENCE_S seconds.
        ErrorCode.UNKNOWN_TOPIC_ID: Rule(
            Verdict.RETRY,
            errors.TopicDeleted,
            "the topic was deleted after it was read; these positions are not valid in a new topic of the same name, "
            "which is read from its beginning",
        ),
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: Rule(
            Verdict.REFUSED, errors.TopicAuthorizationFailed, "allow the principal Read on the topic"
        ),
        ErrorCode.OFFSET_METADATA_TOO_LARGE: Rule(
            Verdict.REFUSED, errors.CommitRefused, "shorten the metadata below the broker's offset.metadata.max.bytes"
        ),
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE: Rule(
            Verdict.REFUSED, errors.CommitRefused, "commit fewer partitions at once"
        ),
    },
    Api.OFFSET_FETCH: {
        **_BY_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT: _RETRY,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _RETRY,
        # An open transaction may still change the offset (KIP-447).
        ErrorCode.UNSTABLE_OFFSET_COMMIT: _RETRY,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: _GROUP_AUTHORIZATION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: _LEADER_MOVES[ErrorCode.TOPIC_AUTHORIZATION_FAILED],
    },
    Api.LIST_OFFSETS: _LEADER_MOVES,
    Api.OFFSET_FOR_LEADER_EPOCH: _LEADER_MOVES,
    Api.FETCH: _LEADER_MOVES,
}

OTHERWISE: Mapping[Api, Rule] = {
    # The outcome is unknown; committing the same offsets again is harmless.
    Api.OFFSET_COMMIT: Rule(Verdict.REFUSED, errors.RetriableCommitFailed, "commit the same or later offsets again"),
    # This partition remains unknown; lookups of other partitions continue.
    Api.OFFSET_FETCH: _LOOKUP_REFUSED,
    Api.LIST_OFFSETS: _LOOKUP_REFUSED,
    Api.OFFSET_FOR_LEADER_EPOCH: _LOOKUP_REFUSED,
    Api.FETCH: _LOOKUP_REFUSED,
}

_UNEXPECTED = Rule(
    Verdict.FATAL, errors.UnexpectedAnswer, "the protocol does not allow this error here; see the broker's log"
)


def rule_for(api: Api, code: int) -> Rule:
    return RULES[api].get(code) or OTHERWISE.get(api, _UNEXPECTED)


def error_for(api: Api, code: int, group_id: str) -> errors.ConsumerError:
    """Return the exception for a code with a FATAL or REFUSED rule; UnexpectedAnswer if the rule has no error class."""
    rule = rule_for(api, code)
    kind = rule.error or errors.UnexpectedAnswer
    advice = f"; {rule.advice}" if rule.advice else ""
    return kind(f"group {group_id!r}: {api.value} returned {describe(code)}{advice}")
