"""The commits that are under way: who may commit now, what an answer means for the caller, what is tried again.

The machine owns identity and coordinator; this part owns the commits and says, as a verdict, what an answer means for
the rest. Unknown is a result of its own: a commit that got no answer is neither done nor failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from fleet_consumer.group import errors
from fleet_consumer.group.classification import Api, Verdict, error_for
from fleet_consumer.group.commits import UNKNOWN_TOPIC_PATIENCE_S, CommitJudgement, commit_request, judge
from fleet_consumer.group.messages import (
    Action,
    Address,
    Channel,
    Commit,
    FinishCommit,
    ForCommit,
    MemberIdentity,
    Send,
)
from fleet_consumer.group.settings import GroupSettings
from fleet_consumer.group.states import IN_REBALANCE, State
from fleet_consumer.group.timing import Backoff
from fleet_consumer.wire.errors import ErrorCode, describe
from fleet_consumer.wire.offset_commit import OffsetCommitResponse

MAY_COMMIT = frozenset({State.STABLE, State.REVOKING})
"""While REVOKING the group is still in PreparingRebalance at the broker, which takes commits of the old generation."""

NAMED_MAX = 20
"""How many refused partitions an error names."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a member is just now, as far as commits are concerned.

    `holds`: it is cooperative and owns partitions. Its commits can wait for the end of a rebalance: that needs no
    callback on the user's thread, which may be the one that waits. An eager member has given up everything by then.
    """

    state: State
    identity: MemberIdentity
    coordinator: Address | None
    holds: bool

    @property
    def may_commit(self) -> bool:
        """Whether the broker takes commits: while it waits for others to join, it takes the old generation's."""
        allowed = self.state in MAY_COMMIT or (self.state is State.JOINING and self.holds)
        return allowed and self.identity.valid

    @property
    def keeps(self) -> bool:
        """Whether this is a rebalance through which partitions are kept."""
        return self.holds and self.identity.valid and self.state in (*IN_REBALANCE, State.UNJOINED)


class CommitFlow:
    """All commits of one member that have not come to their end."""

    def __init__(self, settings: GroupSettings, backoff: Backoff) -> None:
        self._settings = settings
        self._backoff = backoff
        self._waiting: list[tuple[float, Commit]] = []
        self._in_flight: list[Commit] = []
        # Topic ids of which the coordinator knows no topic, and since when.
        self._unknown_ids: dict[UUID, float] = {}

    @property
    def next_at(self) -> float | None:
        """When a waiting commit is due."""
        return min((at for at, _ in self._waiting), default=None)

    @property
    def pending(self) -> bool:
        """Whether a commit has not come to its end."""
        return bool(self._waiting or self._in_flight)

    def advance(self, standing: Standing, now: float) -> list[Action]:
        """Send what is due, and end what can no longer succeed or has run out of time."""
        due = [commit for at, commit in self._waiting if now >= at]
        self._waiting = [(at, commit) for at, commit in self._waiting if now < at]
        return [action for commit in due for action in self.start(commit, standing, now)]

    def start(self, commit: Commit, standing: Standing, now: float) -> list[Action]:
        """Send a commit, or say why it cannot be sent."""
        if commit.deadline is not None and now >= commit.deadline:
            return self._later(commit, now, self._rebalancing() if standing.keeps else self._retriable("time is up"))
        if not commit.alone and not standing.may_commit:
            if standing.keeps:
                return self._later(commit, now, self._rebalancing())
            return [FinishCommit(commit, self._not_a_member(standing))]
        if standing.coordinator is None:
            if self._may_wait_for_the_coordinator(commit, now):
                # Due at once, so that commits that wait for it are sent in the order in which they were asked for.
                self._waiting.append((now, commit))
                return []
            return self._later(commit, now, self._retriable("the group's coordinator is not known just now"))
        commit.sent_as = MemberIdentity() if commit.alone else standing.identity
        self._in_flight.append(commit)
        request = commit_request(self._settings, commit.sent_as, commit)
        return [Send(standing.coordinator, Channel.MAIN, request, self._settings.request_timeout_s, ForCommit(commit))]

    def answered(
        self, commit: Commit, response: OffsetCommitResponse, standing: Standing, now: float
    ) -> tuple[list[Action], CommitJudgement]:
        """What the answer means for the commit (actions) and for the membership (judgement)."""
        self._in_flight.remove(commit)
        judgement = judge(response, commit.ids)
        self._note_ids(commit, judgement, now)
        older = commit.sent_as is not standing.identity
        error: Exception | None
        match judgement.rule.verdict:
            case Verdict.OK:
                self._backoff.reset()
                error = None
            case Verdict.RETRY if not self._in_vain(commit, judgement, now):
                return self._later(commit, now, self._retriable(describe(judgement.code))), judgement
            case Verdict.COORDINATOR_LOST:
                return self._later(commit, now, self._retriable(describe(judgement.code))), judgement
            case Verdict.REJOIN | Verdict.RESET_MEMBER | Verdict.RESET_GENERATION if self._overtaken(
                commit, judgement, standing
            ):
                return self._later(commit, now, self._rebalancing()), judgement
            case Verdict.RETRY:
                error = self._refused(judgement)
            case Verdict.REJOIN:
                error = self._rebalancing()
            case Verdict.RESET_MEMBER | Verdict.RESET_GENERATION:
                error = self._stale(commit, judgement.code, standing)
            case Verdict.FATAL if older and judgement.code == ErrorCode.FENCED_INSTANCE_ID:
                error = self._stale(commit, judgement.code, standing)
            case Verdict.FATAL:
                error = error_for(Api.OFFSET_COMMIT, judgement.code, self._settings.group_id, judgement.rule)
            case _:
                error = self._refused(judgement)
        return [FinishCommit(commit, error)], judgement

    def unanswered(self, commit: Commit, cause: Exception, now: float) -> list[Action]:
        """No answer: whether the offsets were stored is unknown. Storing them again does no harm."""
        self._in_flight.remove(commit)
        return self._later(commit, now, self._retriable(str(cause)))

    def abandon(self, error: Exception) -> list[Action]:
        """End all commits: nothing more will be sent or heard."""
        ended = [commit for _, commit in self._waiting] + self._in_flight
        self._waiting, self._in_flight = [], []
        return [FinishCommit(commit, error) for commit in ended]

    def knows(self, commit: Commit) -> bool:
        """Whether an answer to this commit is still awaited."""
        return commit in self._in_flight

    def _later(self, commit: Commit, now: float, failure: errors.ConsumerError) -> list[Action]:
        """Try again after the backoff, or end with `failure` what has no time left or was not to be repeated."""
        if commit.deadline is None or now >= commit.deadline:
            return [FinishCommit(commit, failure)]
        self._waiting.append((min(now + self._backoff.next(), commit.deadline), commit))
        return []

    def _may_wait_for_the_coordinator(self, commit: Commit, now: float) -> bool:
        """Whether a commit without retries may wait until it can be sent for the first time.

        A consumer without a membership has no coordinator before it asks for one, which is at its first commit.
        """
        waits = commit.alone and commit.deadline is None and commit.sent_as is None
        return waits and now < commit.requested_at + self._settings.request_timeout_s

    def _overtaken(self, commit: Commit, judgement: CommitJudgement, standing: Standing) -> bool:
        """Whether a rebalance that this member takes part in, with its partitions in hand, overtook the commit.

        After it, the same offsets can be committed in the new generation.
        """
        if not standing.holds or not standing.identity.valid:
            return False
        older = commit.sent_as is not standing.identity or standing.state is State.JOINING
        return older or judgement.rule.verdict is Verdict.REJOIN

    def _note_ids(self, commit: Commit, judgement: CommitJudgement, now: float) -> None:
        """Remember since when the coordinator has not known a topic id. Brokers hear of new topics within moments."""
        if judgement.code == ErrorCode.UNKNOWN_TOPIC_ID:
            for part in judgement.partitions:
                if part in commit.ids:
                    self._unknown_ids.setdefault(commit.ids[part], now)
        elif judgement.rule.verdict is Verdict.OK:
            for topic_id in commit.ids.values():
                self._unknown_ids.pop(topic_id, None)

    def _in_vain(self, commit: Commit, judgement: CommitJudgement, now: float) -> bool:
        """Whether topics have been unknown for so long that they are gone, all of them: others may only be new."""
        if judgement.code == ErrorCode.UNKNOWN_TOPIC_ID:
            since = [self._unknown_ids[commit.ids[part]] for part in judgement.partitions if part in commit.ids]
            return now - max(since, default=commit.requested_at) >= UNKNOWN_TOPIC_PATIENCE_S
        unknown_topic = judgement.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return unknown_topic and now - commit.requested_at >= UNKNOWN_TOPIC_PATIENCE_S

    def _refused(self, judgement: CommitJudgement) -> errors.ConsumerError:
        """Names what the broker refused, and only that: it may have stored the rest."""
        kind = judgement.rule.error or errors.CommitRefused
        advice = f"; {judgement.rule.advice}" if judgement.rule.advice else ""
        parts = judgement.partitions
        if judgement.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            named = "topics " + ", ".join(sorted({part.topic for part in parts}))
        else:
            named = ", ".join(f"{part.topic}-{part.partition}" for part in parts[:NAMED_MAX])
            named += f" and {len(parts) - NAMED_MAX} more" if len(parts) > NAMED_MAX else ""
        return kind(self._about(f"{named}: {describe(judgement.code)}{advice}"))

    def _stale(self, commit: Commit, code: int, standing: Standing) -> errors.ConsumerError:
        """The answer to a member that the coordinator does not know: was it an older self, or is it us?"""
        if commit.alone:
            return errors.CommitFailed(
                self._about(
                    f"{describe(code)}: the group has members, and only they may commit; give the consumer that "
                    "assigns its partitions itself a group id of its own"
                )
            )
        if commit.sent_as is not standing.identity and standing.state in IN_REBALANCE:
            return errors.RebalanceInProgress(self._about("a newer generation is being joined; commit what stays ours"))
        return errors.CommitFailed(
            self._about(f"{describe(code)}: the group has moved on without this member, its partitions may be others'")
        )

    def _not_a_member(self, standing: Standing) -> errors.ConsumerError:
        lost = standing.state is State.REVOKING and not standing.identity.valid
        if standing.state in IN_REBALANCE and not lost:
            return self._rebalancing()
        return errors.CommitFailed(self._about("this consumer is no member of the group now, others may be ahead"))

    def _rebalancing(self) -> errors.ConsumerError:
        return errors.RebalanceInProgress(self._about("the group is rebalancing; poll and commit again"))

    def _retriable(self, why: str) -> errors.ConsumerError:
        return errors.RetriableCommitFailed(self._about(f"{why}; commit again"))

    def _about(self, what: str) -> str:
        return f"group {self._settings.group_id!r}: offsets not committed: {what}"
