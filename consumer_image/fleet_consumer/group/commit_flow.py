"""The commits that are under way: who may commit now, what an answer means for the caller, what is tried again.

The machine owns identity and coordinator; this part owns the commits and says, as a verdict, what an answer means for
the rest. Unknown is a result of its own: a commit that got no answer is neither done nor failed.
"""

from __future__ import annotations

from fleet_consumer.group import errors
from fleet_consumer.group.classification import Api, Verdict, error_for
from fleet_consumer.group.commits import UNKNOWN_TOPIC_PATIENCE_S, CommitJudgement, commit_request, judge
from fleet_consumer.group.messages import Action, Address, Commit, FinishCommit, ForCommit, Identity, Lane, Send
from fleet_consumer.group.settings import GroupSettings
from fleet_consumer.group.states import IN_REBALANCE, State
from fleet_consumer.group.timing import Backoff
from fleet_consumer.wire.errors import ErrorCode, describe
from fleet_consumer.wire.offset_commit import OffsetCommitResponse

MAY_COMMIT = frozenset({State.STABLE, State.REVOKING})
"""While REVOKING the group is still in PreparingRebalance at the broker, which takes commits of the old generation."""


class CommitFlow:
    """All commits of one member that have not come to their end."""

    def __init__(self, settings: GroupSettings, backoff: Backoff) -> None:
        self._settings = settings
        self._backoff = backoff
        self._waiting: list[tuple[float, Commit]] = []
        self._in_flight: list[Commit] = []

    @property
    def next_at(self) -> float | None:
        """When a waiting commit is due."""
        return min((at for at, _ in self._waiting), default=None)

    @property
    def pending(self) -> bool:
        """Whether a commit has not come to its end."""
        return bool(self._waiting or self._in_flight)

    def advance(self, state: State, identity: Identity, coordinator: Address | None, now: float) -> list[Action]:
        """Send what is due, and end what can no longer succeed or has run out of time."""
        due = [commit for at, commit in self._waiting if now >= at]
        self._waiting = [(at, commit) for at, commit in self._waiting if now < at]
        return [action for commit in due for action in self.start(commit, state, identity, coordinator, now)]

    def start(
        self, commit: Commit, state: State, identity: Identity, coordinator: Address | None, now: float
    ) -> list[Action]:
        """Send a commit, or say why it cannot be sent."""
        if commit.deadline is not None and now >= commit.deadline:
            return [FinishCommit(commit, errors.RetriableCommitFailed(self._about("not confirmed in time")))]
        if state not in MAY_COMMIT or not identity.valid:
            return [FinishCommit(commit, self._not_a_member(state))]
        if coordinator is None:
            return self._later(commit, now, "the group's coordinator is not known just now")
        commit.sent_as = identity
        self._in_flight.append(commit)
        request = commit_request(self._settings, identity, commit.offsets)
        return [Send(coordinator, Lane.MAIN, request, self._settings.request_timeout_s, ForCommit(commit))]

    def answered(
        self, commit: Commit, response: OffsetCommitResponse, state: State, identity: Identity, now: float
    ) -> tuple[list[Action], CommitJudgement]:
        """What the answer means for the commit (actions) and for the membership (judgement)."""
        self._in_flight.remove(commit)
        judgement = judge(response)
        error: Exception | None
        match judgement.rule.verdict:
            case Verdict.OK:
                self._backoff.reset()
                error = None
            case Verdict.RETRY if self._worth_retrying(commit, judgement, now):
                return self._later(commit, now, describe(judgement.code)), judgement
            case Verdict.COORDINATOR_LOST:
                return self._later(commit, now, describe(judgement.code)), judgement
            case Verdict.RETRY:
                error = errors.CommitRefused(self._about(f"{describe(judgement.code)} for {judgement.partitions}"))
            case Verdict.REJOIN:
                error = errors.RebalanceInProgress(self._about("the group is rebalancing; poll and commit again"))
            case Verdict.RESET_MEMBER | Verdict.RESET_GENERATION:
                error = self._stale(commit, judgement.code, state, identity)
            case Verdict.FATAL if commit.sent_as is not identity and judgement.code == ErrorCode.FENCED_INSTANCE_ID:
                error = self._stale(commit, judgement.code, state, identity)
            case _:
                error = error_for(Api.OFFSET_COMMIT, judgement.code, self._settings.group_id, judgement.rule)
        return [FinishCommit(commit, error)], judgement

    def unanswered(self, commit: Commit, cause: Exception, now: float) -> list[Action]:
        """No answer: whether the offsets were stored is unknown. Storing them again does no harm."""
        self._in_flight.remove(commit)
        return self._later(commit, now, str(cause))

    def abandon(self, error: Exception) -> list[Action]:
        """End all commits: nothing more will be sent or heard."""
        ended = [commit for _, commit in self._waiting] + self._in_flight
        self._waiting, self._in_flight = [], []
        return [FinishCommit(commit, error) for commit in ended]

    def knows(self, commit: Commit) -> bool:
        """Whether an answer to this commit is still awaited."""
        return commit in self._in_flight

    def _later(self, commit: Commit, now: float, why: str) -> list[Action]:
        if commit.deadline is None or now >= commit.deadline:
            return [FinishCommit(commit, errors.RetriableCommitFailed(self._about(f"{why}; commit again")))]
        self._waiting.append((min(now + self._backoff.next(), commit.deadline), commit))
        return []

    def _worth_retrying(self, commit: Commit, judgement: CommitJudgement, now: float) -> bool:
        unknown_topic = judgement.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return not (unknown_topic and now - commit.requested_at >= UNKNOWN_TOPIC_PATIENCE_S)

    def _stale(self, commit: Commit, code: int, state: State, identity: Identity) -> errors.ConsumerError:
        """The answer to a member that the coordinator does not know: was it an older self, or is it us?"""
        if commit.sent_as is not identity and state in IN_REBALANCE:
            return errors.RebalanceInProgress(self._about("a newer generation is being joined; commit what stays ours"))
        return errors.CommitFailed(
            self._about(f"{describe(code)}: the group has moved on without this member, its partitions may be others'")
        )

    def _not_a_member(self, state: State) -> errors.ConsumerError:
        if state in IN_REBALANCE:
            return errors.RebalanceInProgress(self._about("the group is rebalancing; poll and commit again"))
        return errors.CommitFailed(self._about("this consumer is no member of the group now, others may be ahead"))

    def _about(self, what: str) -> str:
        return f"group {self._settings.group_id!r}: offsets not committed: {what}"
