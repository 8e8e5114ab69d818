"""Commits in flight: building requests, classifying responses, deciding retries.

The machine owns identity and coordinator; `CommitFlow` owns the commits, and returns as a judgement what a response
means for the membership. Without a response a commit is neither stored nor failed: its outcome is unknown.
"""

from __future__ import annotations

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
"""Retry time of a commit for a topic unknown to the broker. Java retries until its own timer ends, and so hangs for a
minute on a deleted topic. By name the time runs from the commit on, by id from the first such response about the id:
ids are never reused, so the finding holds for later commits, too."""

NAMED_MAX = 20
"""Refused partitions that an error names."""

COMMIT_PARTITIONS_MAX = 1_000
COMMIT_BYTES_MAX = 512 * 1024
"""Partitions of one request, and about the bytes that they take. The coordinator appends a request as one batch to its
topic, which refuses one above `max.message.bytes` (1 MiB): as a whole, whatever is in it."""
COMMIT_BYTES = 336
"""At most the bytes of one partition there, without its topic's name and metadata: 80, and a group id."""

UNANSWERED: Final = 1 << 16
"""The code of partitions that an answer leaves out: none of the protocol's, which have 16 bits. Nothing is known of
them, and committing the same offsets again does no harm."""
UNANSWERED_WORDS: Final = "the coordinator's answer leaves partitions out"

NOT_A_MEMBER = "this consumer is not a member of the group now, others may own its partitions; poll to join again"

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
"""Order of verdicts: of several in one response, the first counts, which changes most."""


@dataclass(frozen=True, slots=True)
class CommitJudgement:
    """Verdict on a whole commit: the rule, its error code, and the partitions that got it. `refused` has all that are
    not stored."""

    rule: Rule
    code: int
    partitions: tuple[TopicPartition, ...]
    refused: Mapping[TopicPartition, errors.Refusal]


@dataclass(frozen=True, slots=True)
class Standing:
    """The member's situation, as far as commits depend on it.

    `holds`: it is cooperative and owns partitions. Its commits can wait for the end of a rebalance: that needs no
    callback on the user's thread, which may be the one that waits. An eager member has given up everything by then.
    `may_commit`: the broker takes commits now. `rebalancing`: a rebalance is under way, `joining`: it waits for the
    JoinGroup response. `keeps`: it keeps partitions through the rebalance. `expelled`: it lost its generation, and the
    user's thread still holds partitions.
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
    """Build the OffsetCommit of this member and generation, or of no member while the group is empty.

    Topics go by id if the broker takes ids and all of them are known, else all by name, as in Java's client. An id is
    unknown with brokers before Kafka 2.8, which take none either, and for partitions that were not read.
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
    """Cut a commit into as many requests as it takes; each has an outcome of its own."""
    part, size = dict[TopicPartition, OffsetAndMetadata](), 0
    for each, entry in offsets.items():
        # Characters have at most four bytes.
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
    """The gravest verdict among the partitions of a commit: those of `offsets` that are not answered are not stored.

    `ids` are those of the commit, for responses without names.
    """
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
    """The unfinished commits of one member."""

    def __init__(self, settings: GroupSettings, backoff: Backoff) -> None:
        self._settings = settings
        self._backoff = backoff
        self._waiting: list[tuple[float, Commit]] = []
        self._in_flight: list[Commit] = []
        # Topic ids unknown to the coordinator, and since when.
        self._unknown_ids: dict[UUID, float] = {}

    @property
    def next_at(self) -> float:
        """The time at which the next waiting commit is due; NEVER without one."""
        return min((at for at, _ in self._waiting), default=NEVER)

    @property
    def pending(self) -> bool:
        """True while a commit is unfinished."""
        return bool(self._waiting or self._in_flight)

    def advance(self, standing: Standing, now: float) -> list[Action]:
        """Send due commits; finish those that cannot succeed any more or have run out of time."""
        due = [commit for at, commit in self._waiting if now >= at]
        self._waiting = [(at, commit) for at, commit in self._waiting if now < at]
        return [action for commit in due for action in self.start(commit, standing, now)]

    def start(self, commit: Commit, standing: Standing, now: float) -> list[Action]:
        """Send a commit, keep it for later, or finish it with an error."""
        if commit.deadline is not None and now >= commit.deadline:
            return self._later(commit, now, self._rebalancing() if standing.keeps else self._retriable("time is up"))
        if not commit.alone and not standing.may_commit:
            if standing.keeps:
                return self._later(commit, now, self._rebalancing())
            rejoins = standing.rebalancing and not standing.expelled
            error = self._rebalancing() if rejoins else errors.CommitFailed(self._about(NOT_A_MEMBER))
            return [FinishCommit(commit, error)]
        if standing.coordinator is None:
            # A consumer without a membership looks for a coordinator no sooner than at its first commit.
            waits = commit.alone and commit.deadline is None and commit.sent_as is None
            if waits and now < commit.requested_at + self._settings.request_timeout_s:
                # Due at once, so that waiting commits are sent in the order of their requests.
                self._waiting.append((now, commit))
                return []
            return self._later(commit, now, self._retriable("the group's coordinator is unknown"))
        commit.sent_as = MemberIdentity() if commit.alone else standing.identity
        self._in_flight.append(commit)
        request = commit_request(self._settings, commit.sent_as, commit)
        return [Send(standing.coordinator, Channel.MAIN, request, self._settings.request_timeout_s, ForCommit(commit))]

    def answered(
        self, commit: Commit, response: OffsetCommitResponse, standing: Standing, now: float
    ) -> tuple[list[Action], CommitJudgement]:
        """Take a response. Returns actions for the commit, and the judgement for the membership."""
        self._in_flight.remove(commit)
        judgement = judge(response, commit.offsets, commit.ids)
        self._note_ids(commit, judgement, now)
        older = commit.sent_as is not standing.identity
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
                commit, judgement, standing
            ):
                return self._later(commit, now, self._rebalancing()), judgement
            case Verdict.REJOIN:
                error = self._rebalancing()
            case Verdict.RESET_MEMBER | Verdict.RESET_GENERATION:
                error = self._stale(commit, judgement.code, standing)
            case Verdict.FATAL if older and judgement.code == ErrorCode.FENCED_INSTANCE_ID:
                error = self._stale(commit, judgement.code, standing)
            case Verdict.FATAL:
                error = error_for(Api.OFFSET_COMMIT, judgement.code, self._settings.group_id)
            case _:
                error = self._refused(judgement)
        return [FinishCommit(commit, error)], judgement

    def unanswered(self, commit: Commit, cause: Exception, now: float) -> list[Action]:
        """Retry after a lost request: the offsets may be stored, and storing them again does no harm."""
        self._in_flight.remove(commit)
        return self._later(commit, now, self._retriable(str(cause)))

    def abandon(self, error: Exception) -> list[Action]:
        """Finish all commits with `error`; no response will be taken any more."""
        ended = [commit for _, commit in self._waiting] + self._in_flight
        self._waiting, self._in_flight = [], []
        return [FinishCommit(commit, error) for commit in ended]

    def knows(self, commit: Commit) -> bool:
        """True while a response to `commit` is awaited."""
        return commit in self._in_flight

    def _later(self, commit: Commit, now: float, failure: errors.ConsumerError) -> list[Action]:
        """Retry after the backoff, or finish with `failure` without retries or time left."""
        if commit.deadline is None or now >= commit.deadline:
            return [FinishCommit(commit, failure)]
        self._waiting.append((min(now + self._backoff.next(), commit.deadline), commit))
        return []

    def _overtaken(self, commit: Commit, judgement: CommitJudgement, standing: Standing) -> bool:
        """True if a rebalance overtook the commit of a member that keeps its partitions: the new generation commits."""
        if not standing.holds or not standing.identity.valid:
            return False
        older = commit.sent_as is not standing.identity or standing.joining
        return older or judgement.rule.verdict is Verdict.REJOIN

    def _note_ids(self, commit: Commit, judgement: CommitJudgement, now: float) -> None:
        """Remember since when the coordinator has not known a topic id. Brokers learn of new topics within moments."""
        if judgement.code == ErrorCode.UNKNOWN_TOPIC_ID:
            for part in judgement.partitions:
                if part in commit.ids:
                    self._unknown_ids.setdefault(commit.ids[part], now)
        elif judgement.rule.verdict is Verdict.OK:
            for topic_id in commit.ids.values():
                self._unknown_ids.pop(topic_id, None)

    def _in_vain(self, commit: Commit, judgement: CommitJudgement, now: float) -> bool:
        """True if all refused topics have been unknown for so long that they are gone; others may be new."""
        if judgement.code == ErrorCode.UNKNOWN_TOPIC_ID:
            since = [self._unknown_ids[commit.ids[part]] for part in judgement.partitions if part in commit.ids]
            return now - max(since, default=commit.requested_at) >= UNKNOWN_TOPIC_PATIENCE_S
        unknown_topic = judgement.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return unknown_topic and now - commit.requested_at >= UNKNOWN_TOPIC_PATIENCE_S

    def _refused(self, judgement: CommitJudgement) -> errors.ConsumerError:
        """The error for refused partitions; the broker may have stored the others."""
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

    def _stale(self, commit: Commit, code: int, standing: Standing) -> errors.ConsumerError:
        """The error for a commit under an unknown member id or generation, an earlier or the current one."""
        if commit.alone:
            return errors.CommitFailed(
                self._about(
                    f"{describe(code)}: the group has members, and only they may commit; give the consumer that "
                    "assigns its partitions itself a group id of its own"
                )
            )
        if commit.sent_as is not standing.identity and standing.rebalancing:
            return errors.RebalanceInProgress(
                self._about("a newer generation is being joined; poll, then commit the partitions still assigned")
            )
        return errors.CommitFailed(self._about(f"{describe(code)}: {NOT_A_MEMBER}"))

    def _rebalancing(self) -> errors.ConsumerError:
        return errors.RebalanceInProgress(self._about("the group is rebalancing; poll and commit again"))

    def _retriable(self, why: str) -> errors.ConsumerError:
        return errors.RetriableCommitFailed(self._about(f"{why}; commit again"))

    def _about(self, what: str) -> str:
        return f"group {self._settings.group_id!r}: offsets not committed: {what}"
