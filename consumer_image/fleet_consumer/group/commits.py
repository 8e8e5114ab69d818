"""Offset commits: building requests, classifying responses, deciding retries.

The group machine owns the member's identity and the coordinator's address. `CommitFlow` owns the commits. It returns a
response's effect on the membership as a `CommitJudgement`. Without a response, the outcome of a commit is unknown: its
offsets may have been stored. A commit must have one outcome, and the coordinator writes each request as a whole. So a
commit is one request, even if only some of its topics have known ids.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from fleet_consumer.group import errors
from fleet_consumer.group.classification import Api, Rule, Verdict, error_for, rule_for
from fleet_consumer.group.membership import GroupSettings, OffsetAndMetadata
from fleet_consumer.group.messages import Action, Channel, Commit, FinishCommit, ForCommit, MemberIdentity, Send
from fleet_consumer.group.timing import NEVER, Backoff
from fleet_consumer.record import TopicPartition, names
from fleet_consumer.wire.errors import ErrorCode, describe
from fleet_consumer.wire.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from fleet_consumer.wire.schema import ZERO_UUID

UNKNOWN_TOPIC_PATIENCE_S = 5.0
"""Seconds for which a commit is retried while the broker does not know its topic. Java hangs for a minute on a deleted
topic.

For a commit by topic name, the time starts when the user requests the commit. For a topic id, the time starts with the
first response that reports the id as unknown. Later commits share this start, because ids are never reused.
"""

NAMED_MAX = 20
"""Maximum number of refused partitions named in an error."""

COMMIT_PARTITIONS_MAX = 1_000
COMMIT_BYTES_MAX = 512 * 1024
"""Limits of one OffsetCommit request: the number of partitions, and their approximate bytes. The coordinator appends
the request as one batch to `__consumer_offsets`, which refuses a batch above `max.message.bytes` (1 MiB) as a whole."""
COMMIT_BYTES = 336
"""Maximum bytes that one partition adds to the batch, without topic name and metadata: 80 bytes, and 256 bytes for the
group id."""

UNANSWERED: Final = 1 << 16
"""Error code that this client sets for partitions that a response lacks. Kafka's codes have 16 bits, so no broker sends
this value. The offsets of these partitions may have been stored; committing the same offsets again is harmless."""
UNANSWERED_WORDS: Final = "the coordinator's response lacks partitions"

NOT_A_MEMBER = (
    "this consumer is currently not a member of the group, so other members may own its partitions; poll to join again"
)

_GRAVITY = (
    Verdict.FATAL,
    Verdict.RESET_MEMBER,
    Verdict.RESET_GENERATION,
    Verdict.REJOIN,
    Verdict.COORDINATOR_LOST,
    Verdict.REFUSED,
    Verdict.RETRY,
    Verdict.OK,
)
"""Verdicts, those with the largest effect on the member first. If a response contains several verdicts, the first of
them in this order decides."""


@dataclass(frozen=True, slots=True)
class CommitJudgement:
    """The rule that decides about a commit, the error `code` to which the rule applies, and the partitions with this
    code. `refused` has all partitions whose offsets were not stored, with the broker's refusal."""

    rule: Rule
    code: int
    partitions: tuple[TopicPartition, ...]
    refused: Mapping[TopicPartition, errors.Refusal]


@dataclass(frozen=True, slots=True)
class CommitContext:
    """The part of the member's state that commits depend on.

    - `holds`: the member is cooperative and owns partitions, so its commits can wait until a rebalance ends. The
      rebalance needs no callback on the user's thread, which the commit may block. A commit of an eager member cannot
      wait, because the member has already given up its partitions.
    - `may_commit`: the broker accepts commits now.
    - `joining`: the member waits for the JoinGroup response.
    - `keeps`: the member keeps partitions through the rebalance.
    - `expelled`: the member lost its generation while the user's thread still holds partitions.
    """

    identity: MemberIdentity
    coordinator: tuple[str, int] | None
    holds: bool
    may_commit: bool
    rebalancing: bool
    joining: bool
    keeps: bool
    expelled: bool


def commit_request(settings: GroupSettings, identity: MemberIdentity, commit: Commit) -> OffsetCommitRequest:
    """Build the OffsetCommit of this member and generation. An empty identity makes it a commit without a membership,
    which the broker accepts while the group has no members.

    As in Java's client, topics are identified by id if the broker accepts ids and all ids are known, otherwise by name.
    The id of a topic is unknown if none of its partitions was read, or with brokers before Kafka 2.8.
    """
    topics: dict[tuple[str, UUID], list[OffsetCommitRequestPartition]] = {}
    for part, entry in commit.offsets.items():
        topic, partition = part
        topics.setdefault((topic, commit.ids.get(part, ZERO_UUID)), []).append(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=entry.offset,
                committed_leader_epoch=entry.leader_epoch,
                committed_metadata=entry.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=settings.group_id,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=settings.instance_id if identity.valid else None,
        topics=tuple(
            OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=tuple(parts))
            for (topic, topic_id), parts in topics.items()
        ),
    )


def commit_parts(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> Iterator[dict[TopicPartition, OffsetAndMetadata]]:
    """Split a commit into requests that are small enough for the coordinator; each request has its own outcome."""
    part, size = dict[TopicPartition, OffsetAndMetadata](), 0
    for each, entry in offsets.items():
        # A character has at most four bytes in UTF-8.
        length = COMMIT_BYTES + len(each.topic) + 4 * len(entry.metadata)
        if part and (len(part) == COMMIT_PARTITIONS_MAX or size + length > COMMIT_BYTES_MAX):
            yield part
            part, size = {}, 0
        part[each] = entry
        size += length
    if part:
        yield part


def judge(
    response: OffsetCommitResponse,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ids: Mapping[TopicPartition, UUID],
) -> CommitJudgement:
    """Return the verdict with the largest effect. Partitions of `offsets` that the response lacks count as not stored.
    `ids` are the commit's topic ids, for responses without topic names."""
    names = {topic_id: part.topic for part, topic_id in ids.items()}
    by_code: dict[int, list[TopicPartition]] = {}
    for topic in response.topics:
        name = topic.name or names.get(topic.topic_id, str(topic.topic_id))
        for part in topic.partitions:
            by_code.setdefault(part.error_code, []).append(TopicPartition(name, part.partition_index))
    answered = {part for parts in by_code.values() for part in parts}
    if unanswered := [part for part in offsets if part not in answered]:
        by_code[UNANSWERED] = unanswered
    refused = {part: _refusal(code) for code, parts in by_code.items() if code != ErrorCode.NONE for part in parts}
    judgements = [CommitJudgement(_rule(code), code, tuple(parts), refused) for code, parts in by_code.items()]
    stored = CommitJudgement(_rule(ErrorCode.NONE), ErrorCode.NONE, (), {})
    return min(judgements, key=lambda judgement: _GRAVITY.index(judgement.rule.verdict), default=stored)


def _rule(code: int) -> Rule:
    return Rule(Verdict.RETRY) if code == UNANSWERED else rule_for(Api.OFFSET_COMMIT, code)


def _words(code: int) -> str:
    return UNANSWERED_WORDS if code == UNANSWERED else describe(code)


def _refusal(code: int) -> errors.Refusal:
    rule = _rule(code)
    lasting = rule.verdict is Verdict.REFUSED and rule.error in (errors.CommitRefused, errors.TopicAuthorizationFailed)
    return errors.Refusal(_words(code) + (f"; {rule.advice}" if lasting else ""), lasting)


class CommitFlow:
    def __init__(self, settings: GroupSettings, backoff: Backoff) -> None:
        self._settings = settings
        self._backoff = backoff
        self._waiting: list[tuple[float, Commit]] = []
        self._in_flight: list[Commit] = []
        # Times of the first responses that reported a topic id as unknown, keyed by topic id.
        self._unknown_ids: dict[UUID, float] = {}

    @property
    def next_at(self) -> float:
        return min((at for at, _ in self._waiting), default=NEVER)

    @property
    def pending(self) -> bool:
        return bool(self._waiting or self._in_flight)

    def advance(self, context: CommitContext, now: float) -> list[Action]:
        """Send the commits that are due; finish commits that can no longer succeed or have run out of time."""
        due = [commit for at, commit in self._waiting if now >= at]
        self._waiting = [(at, commit) for at, commit in self._waiting if now < at]
        return [action for commit in due for action in self.start(commit, context, now)]

    def start(self, commit: Commit, context: CommitContext, now: float) -> list[Action]:
        """Send a commit, keep it for later, or finish it with an error."""
        if commit.deadline is not None and now >= commit.deadline:
            return self._later(commit, now, self._rebalancing() if context.keeps else self._retriable("timed out"))
        if not commit.alone and not context.may_commit:
            if context.keeps:
                return self._later(commit, now, self._rebalancing())
            rejoins = context.rebalancing and not context.expelled
            error = self._rebalancing() if rejoins else errors.CommitFailed(self._about(NOT_A_MEMBER))
            return [FinishCommit(commit, error)]
        if context.coordinator is None:
            # A consumer without a membership looks up its coordinator only when needed, so its first commit waits.
            waits = commit.alone and commit.deadline is None and commit.sent_as is None
            if waits and now < commit.requested_at + self._settings.request_timeout_s:
                # Due now rather than after a backoff, so that waiting commits are sent in the order in which they were
                # requested.
                self._waiting.append((now, commit))
                return []
            return self._later(commit, now, self._retriable("the group's coordinator is unknown"))
        commit.sent_as = MemberIdentity() if commit.alone else context.identity
        self._in_flight.append(commit)
        request = commit_request(self._settings, commit.sent_as, commit)
        return [Send(context.coordinator, Channel.MAIN, request, self._settings.request_timeout_s, ForCommit(commit))]

    def answered(
        self, commit: Commit, response: OffsetCommitResponse, context: CommitContext, now: float
    ) -> tuple[list[Action], CommitJudgement]:
        """Handle a response. Returns the actions for the commit, and the judgement with its effect on the
        membership."""
        self._in_flight.remove(commit)
        judgement = judge(response, commit.offsets, commit.ids)
        self._record_ids(commit, judgement, now)
        older = commit.sent_as is not context.identity
        error: Exception | None
        match judgement.rule.verdict:
            case Verdict.OK:
                self._backoff.reset()
                error = None
            case Verdict.RETRY | Verdict.COORDINATOR_LOST if not self._in_vain(commit, judgement, now):
                failure = self._retriable(_words(judgement.code))
                failure.not_committed = judgement.refused
                return self._later(commit, now, failure), judgement
            case Verdict.REJOIN | Verdict.RESET_MEMBER | Verdict.RESET_GENERATION if self._overtaken(
                commit, judgement, context
            ):
                return self._later(commit, now, self._rebalancing()), judgement
            case Verdict.REJOIN:
                error = self._rebalancing()
            case Verdict.RESET_MEMBER | Verdict.RESET_GENERATION:
                error = self._stale(commit, judgement.code, context)
            case Verdict.FATAL if older and judgement.code == ErrorCode.FENCED_INSTANCE_ID:
                error = self._stale(commit, judgement.code, context)
            case Verdict.FATAL:
                error = error_for(Api.OFFSET_COMMIT, judgement.code, self._settings.group_id)
            case _:
                error = self._refused(judgement)
        return [FinishCommit(commit, error)], judgement

    def unanswered(self, commit: Commit, cause: Exception, now: float) -> list[Action]:
        """Retry a commit whose request or response was lost; storing the same offsets again is harmless."""
        self._in_flight.remove(commit)
        return self._later(commit, now, self._retriable(str(cause)))

    def abandon(self, error: Exception) -> list[Action]:
        """Finish all commits with `error`; later responses are ignored."""
        ended = [commit for _, commit in self._waiting] + self._in_flight
        self._waiting, self._in_flight = [], []
        return [FinishCommit(commit, error) for commit in ended]

    def knows(self, commit: Commit) -> bool:
        """True while a response to `commit` is awaited."""
        return commit in self._in_flight

    def _later(self, commit: Commit, now: float, failure: errors.ConsumerError) -> list[Action]:
        """Retry after the backoff. If the commit has no deadline (no retries) or the deadline has passed, finish it
        with `failure`."""
        if commit.deadline is None or now >= commit.deadline:
            return [FinishCommit(commit, failure)]
        self._waiting.append((min(now + self._backoff.next(), commit.deadline), commit))
        return []

    def _overtaken(self, commit: Commit, judgement: CommitJudgement, context: CommitContext) -> bool:
        """True if a rebalance began before the commit was stored. The member keeps its partitions through the
        rebalance, so it can commit again afterwards."""
        if not context.holds or not context.identity.valid:
            return False
        older = commit.sent_as is not context.identity or context.joining
        return older or judgement.rule.verdict is Verdict.REJOIN

    def _record_ids(self, commit: Commit, judgement: CommitJudgement, now: float) -> None:
        """Record when the coordinator first reported a topic id as unknown. Brokers learn new ids within moments."""
        if judgement.code == ErrorCode.UNKNOWN_TOPIC_ID:
            for part in judgement.partitions:
                if part in commit.ids:
                    self._unknown_ids.setdefault(commit.ids[part], now)
        elif judgement.rule.verdict is Verdict.OK:
            for topic_id in commit.ids.values():
                self._unknown_ids.pop(topic_id, None)

    def _in_vain(self, commit: Commit, judgement: CommitJudgement, now: float) -> bool:
        """True if the topics have been unknown to the broker for UNKNOWN_TOPIC_PATIENCE_S seconds. They then count as
        deleted; before, they may be new topics that the broker does not know yet."""
        if judgement.code == ErrorCode.UNKNOWN_TOPIC_ID:
            since = [self._unknown_ids[commit.ids[part]] for part in judgement.partitions if part in commit.ids]
            return now - max(since, default=commit.requested_at) >= UNKNOWN_TOPIC_PATIENCE_S
        unknown_topic = judgement.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return unknown_topic and now - commit.requested_at >= UNKNOWN_TOPIC_PATIENCE_S

    def _refused(self, judgement: CommitJudgement) -> errors.ConsumerError:
        """Return the error for refused partitions; the broker may have stored the offsets of the other partitions."""
        kind = judgement.rule.error or errors.CommitRefused
        advice = f"; {judgement.rule.advice}" if judgement.rule.advice else ""
        parts = judgement.partitions
        if judgement.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            named = "topics " + ", ".join(sorted({part.topic for part in parts}))
        else:
            named = names(parts[:NAMED_MAX])
            named += f" and {len(parts) - NAMED_MAX} more" if len(parts) > NAMED_MAX else ""
        error = kind(self._about(f"{named}: {describe(judgement.code)}{advice}"))
        error.not_committed = judgement.refused
        return error

    def _stale(self, commit: Commit, code: int, context: CommitContext) -> errors.ConsumerError:
        """Return the error for a commit whose member id or generation the coordinator refuses."""
        if commit.alone:
            return errors.CommitFailed(
                self._about(
                    f"{describe(code)}: the group has members, and only they may commit; give the consumer with "
                    "manually assigned partitions its own group id"
                )
            )
        if commit.sent_as is not context.identity and context.rebalancing:
            return errors.RebalanceInProgress(
                self._about("the member is joining a newer generation; poll, then commit the partitions still assigned")
            )
        return errors.CommitFailed(self._about(f"{describe(code)}: {NOT_A_MEMBER}"))

    def _rebalancing(self) -> errors.ConsumerError:
        return errors.RebalanceInProgress(self._about("the group is rebalancing; poll and commit again"))

    def _retriable(self, why: str) -> errors.ConsumerError:
        return errors.RetriableCommitFailed(self._about(f"{why}; commit again"))

    def _about(self, what: str) -> str:
        return f"group {self._settings.group_id!r}: offsets not committed: {what}"
