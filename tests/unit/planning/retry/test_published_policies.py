"""Published policy revisions: published once their topics exist, forgotten when nothing can name them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import RetryPolicy
from fleet_operator.planning.observation import ManagedTopic, RetryObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import DelayState, PolicyRevision, RetryIntent, expand
from fleet_operator.planning.retry.published_policies import (
    DRAINED_MAX,
    REVISIONS_MAX,
    SUPERSEDED_S,
    FlowFacts,
    next_published,
    plan_intent,
    report_kept,
)
from fleet_operator.planning.retry.records import Published, group_config_map, read_published
from fleet_operator.planning.state.group import RetriesState
from tests.unit.planning.builders import NOW, consumer_group

DAY = 86_400


def revision(*sequence: str, **spec: Any) -> PolicyRevision:
    """A policy's revision, without a budget unless `spec` has one."""
    metadata = {"name": "standard", "namespace": "shop", "uid": "p1"}
    spec = {"sequence": list(sequence), "budget": {"action": "None"}, **spec}
    return expand(RetryPolicy.model_validate({"metadata": metadata, "spec": spec}))


OLD, NEW, NEWER = revision("5s", "30s"), revision("5s", "1m"), revision("2h")


def draining(told: Published) -> tuple[str, ...]:
    return tuple(delay for delay, state in told.retiring.items() if state is DelayState.DRAINING)


@dataclass
class Group:
    """One group over time: what its policy says, what waits where, what its workers were told."""

    wanted: PolicyRevision | Problem | None = OLD
    deletion: str = "Keep"
    waiting: dict[str, int | None] = field(default_factory=dict)  # by delay; others are empty
    missing: set[str] = field(default_factory=set)
    told: Published | None = None
    now: float = NOW
    retry: bool = True
    source_bytes: int | None = 1_000_000
    reached: bool = True
    seen: RetryObservation | None = None

    @property
    def spec(self) -> dict[str, Any]:
        return {"retry": {"policyRef": {"name": "standard"}}} if self.retry else {}

    @property
    def intent(self) -> RetryIntent | None:
        group = consumer_group(**self.spec, deletion={"retryTopics": self.deletion})
        return plan_intent(group, self.wanted if self.retry else None, self.told)

    def visit(self, after_s: float = 0.0, *, ready: bool = True, blind: bool = False) -> Published | None:
        """One reconcile, `after_s` seconds later."""
        self.now += after_s
        group, intent = consumer_group(**self.spec, deletion={"retryTopics": self.deletion}), self.intent
        assert intent is not None
        self.seen = None if blind else self._observe(intent)
        flow = FlowFacts(topics_ready=ready, partitions=4, seen=self.seen, reached=self.reached)
        self.told = next_published(group, intent, self.told, flow, self.now)
        return self.told

    def _observe(self, intent: RetryIntent) -> RetryObservation:
        topics = {}
        for delay in (*intent.delays, *intent.drained_delays):
            error = "TopicNotFound" if delay in self.missing else None
            waiting = 0 if error else self.waiting.get(delay, 0)
            topics[naming.retry_topic("orders", delay)] = ManagedTopic(partitions=4, waiting=waiting, error=error)
        return RetryObservation(observed_at=self.now, topics=topics, source_max_message_bytes=self.source_bytes)

    @property
    def delays(self) -> tuple[str, ...]:
        assert self.told is not None
        return self.told.delays

    @property
    def draining(self) -> tuple[str, ...]:
        assert self.told is not None
        return draining(self.told)

    @property
    def known(self) -> set[str]:
        assert self.told is not None
        return {revision.hash for revision in self.told.known}


def test_nothing_is_published_before_the_topics_exist() -> None:
    group = Group()
    assert group.visit(ready=False) is None
    told = group.visit()
    assert told is not None
    assert (told.current, told.delays, told.max_message_bytes) == (OLD.hash, ("5s", "30s"), 1_065_536)


def test_topics_left_by_an_earlier_object_are_drained() -> None:
    """A group deleted with its topics kept and created again under another policy: nobody else reads what waits
    there."""
    group, intent = consumer_group(retry={"policyRef": {"name": "standard"}}), None

    def told(left: tuple[str, ...] | None) -> Published | None:
        nonlocal intent
        intent = plan_intent(group, OLD, None, left)
        assert intent is not None
        return next_published(group, intent, None, FlowFacts(topics_ready=True, partitions=4, seen=None), NOW)

    assert told(None) is None, "nobody has asked for it yet"
    made = told(("30s", "1h"))
    assert made is not None
    assert (draining(made), made.delays) == (("1h",), ("5s", "30s", "1h"))
    assert intent is not None
    assert intent.delays == ("5s", "30s", "1h"), "it is checked before it is read"
    again = plan_intent(group, OLD, made, ("30s", "1h", "2h"))
    assert again is not None
    assert again.delays == made.delays, "what is remembered counts from then on"


def test_topic_that_is_to_be_deleted_is_read_again_when_something_waits_in_it() -> None:
    group = Group(deletion="Delete")
    group.visit()
    group.wanted = NEWER
    group.visit(5)
    group.visit(2 * SUPERSEDED_S)
    assert group.told is not None
    assert (group.told.leaving, group.delays) == (("5s", "30s"), ("2h",))
    group.waiting = {"30s": 1}
    group.visit(5)
    assert (group.told.leaving, group.draining, group.delays) == (("5s",), ("30s",), ("30s", "2h"))
    group.waiting = {}
    group.visit(5)
    assert (group.told.leaving, group.draining) == (("5s", "30s"), ())


def test_nothing_is_forgotten_while_a_worker_is_cut_off() -> None:
    """It may go on by an older file for as long as its node is away, and write where nobody would read."""
    group = Group()
    group.visit()
    group.wanted, group.reached = NEWER, False
    group.visit(5)
    group.visit(10 * SUPERSEDED_S)
    assert (group.known, group.delays) == ({OLD.hash, NEWER.hash}, ("5s", "30s", "2h"))
    group.reached = True
    group.visit(5)
    assert (group.known, set(group.draining)) == ({NEWER.hash}, {"5s", "30s"})


def test_size_limit_is_raised_after_the_topics_and_never_lowered() -> None:
    """A record that got in under the higher limit must be able to pass its retry publishes, into a topic that still
    takes it."""
    group = Group()
    group.visit()
    group.source_bytes = 5_000_000

    def limit(*, ready: bool = True) -> int:
        told = group.visit(60, ready=ready)
        assert told is not None
        return told.max_message_bytes

    assert limit(ready=False) == 1_065_536, "the topics do not take as much yet"
    assert limit() == 5_065_536
    group.source_bytes = 1_000_000
    assert limit() == 5_065_536
    group.source_bytes = None
    assert limit() == 5_065_536


def test_edit_keeps_waiting_records_on_their_revision() -> None:
    """Two edits with records waiting: each revision stays until nothing of it can wait."""
    group = Group(waiting={"30s": 2})
    group.visit()
    group.wanted = NEW
    group.visit(60, ready=False)
    assert group.known == {OLD.hash}, "the new revision waits for its topics"
    group.visit(5)
    assert group.told is not None
    assert (group.told.current, group.known) == (NEW.hash, {OLD.hash, NEW.hash})
    assert list(group.delays) == ["5s", "30s", "1m"]
    group.wanted, group.waiting = NEWER, {"30s": 2, "1m": 3}
    group.visit(60)
    assert group.known == {OLD.hash, NEW.hash, NEWER.hash}
    group.visit(DAY)
    assert group.known == {OLD.hash, NEW.hash, NEWER.hash}
    group.waiting = {"1m": 3}
    group.visit(60)
    assert group.known == {NEW.hash, NEWER.hash}
    assert list(group.delays) == ["5s", "30s", "1m", "2h"], "no revision uses 30s, and its topic is there"
    group.waiting = {}
    group.visit(60)
    assert (group.known, set(group.draining)) == ({NEWER.hash}, {"5s", "30s", "1m"})
    group.missing = {"5s", "30s", "1m"}
    group.visit(60)
    assert list(group.delays) == ["2h"]


def test_drained_delay_stays_read_until_its_topic_is_gone() -> None:
    """Brokers delete commits of a topic that no member of a Stable group subscribes to: a delay that came back later
    would have all records of its topic handled again."""
    group = Group()
    group.visit()
    group.wanted = NEW
    group.visit(10)
    group.visit(DAY)
    assert group.known == {NEW.hash}
    for _ in range(9):
        group.visit(DAY)
        assert group.delays == ("5s", "30s", "1m")
    group.wanted = OLD
    group.visit(10)
    assert (group.delays, group.draining) == (("5s", "30s", "1m"), ())
    group.visit(DAY)
    group.missing = {"1m"}
    assert group.visit(60) is not None
    assert (group.delays, group.draining) == (("5s", "30s"), ())
    assert group.told is not None
    assert group.told.drained == ()


def test_topic_that_should_be_deleted_and_is_kept_after_all_is_read_again() -> None:
    group = Group(deletion="Delete")
    group.visit()
    group.wanted = NEW
    group.visit(10)
    group.visit(DAY)
    assert group.told is not None
    assert group.told.leaving == ("30s",)
    group.deletion = "Keep"
    kept = group.visit(60)
    assert kept is not None
    assert (kept.leaving, kept.delays) == ((), ("5s", "30s", "1m"))


def test_often_edited_policy_leaves_the_longest_drained_delays_unread_and_says_so() -> None:
    group = Group(waiting={"1m": 1})
    told: list[str] = []
    for minutes in range(1, DRAINED_MAX + 4):
        group.wanted = revision(f"{minutes}m")
        group.visit(10)
        before = group.told
        group.visit(2 * SUPERSEDED_S)
        assert before is not None
        assert group.told is not None
        told += report_kept("orders", before, group.told, group.seen)
        group.told = read_published(group_config_map(consumer_group(), group.told), group.told.state(RetriesState()))
    assert group.told is not None
    assert len(group.told.drained) == DRAINED_MAX
    assert "1m" in group.delays, "a record waits in it"
    assert "2m" not in group.delays, "drained longest"
    assert {"3m", "4m", "5m"} <= set(group.delays)
    dropped = [note for note in told if "no worker reads" in note]
    assert len(dropped) == 1
    assert "_fleet.orders.retry.2m" in dropped[0]
    assert len([note for note in told if "until you delete" in note]) == DRAINED_MAX + 1
    group.visit(2 * SUPERSEDED_S, blind=True)
    assert len(group.told.drained) == DRAINED_MAX, "nothing is dropped while nothing is seen"


def test_topic_that_the_user_deletes_is_not_reported() -> None:
    group = Group()
    group.visit()
    group.wanted = NEW
    group.visit(10)
    group.visit(DAY)
    before, group.missing = group.told, {"30s"}
    group.visit(60)
    assert before is not None
    assert group.told is not None
    assert before.drained == ("30s",)
    assert report_kept("orders", before, group.told, group.seen) == []


def test_drained_topics_prove_nothing_until_workers_have_the_new_file() -> None:
    group = Group()
    group.visit()
    group.wanted = NEW
    group.visit(10)
    group.visit(SUPERSEDED_S - 1)
    assert group.known == {OLD.hash, NEW.hash}
    group.visit(1)
    assert group.known == {NEW.hash}


def test_topics_that_cannot_be_observed_stay() -> None:
    group = Group(waiting={"30s": None})
    group.visit()
    group.wanted = NEW
    group.visit(10)
    group.visit(DAY, blind=True)
    group.visit(DAY)
    assert group.known == {OLD.hash, NEW.hash}


def test_revision_leaves_when_the_brokers_must_have_dropped_its_last_record() -> None:
    group = Group(waiting={"5s": 1, "30s": 1})
    group.visit()
    group.wanted = NEW
    group.visit(10)
    group.visit(2 * 30 * DAY - 60)
    assert group.known == {OLD.hash, NEW.hash}
    group.visit(120)
    assert group.known == {NEW.hash}
    assert group.told is not None
    assert (group.draining, group.told.drained) == (("30s",), ()), "its topic holds something"
    group.waiting = {"5s": 1}
    group.visit(60)
    assert (group.draining, group.told.drained) == (("30s",), ("30s",))


def test_topic_of_a_removed_delay_is_deleted_if_the_spec_requests_it() -> None:
    group = Group(deletion="Drain", waiting={"30s": 2})
    group.visit()
    group.wanted = NEW
    group.visit(10)
    group.visit(DAY)
    assert group.told is not None
    assert group.intent is not None
    assert (group.told.leaving, group.intent.drained_delays) == ((), ()), "something waits in it"
    group.waiting = {}
    group.visit(60)
    assert (group.told.leaving, group.intent.drained_delays) == (("30s",), ("30s",))
    assert "30s" not in group.told.delays
    group.missing = {"30s"}
    group.visit(60)
    assert (group.told.leaving, group.intent.drained_delays) == ((), ())


def test_delay_that_comes_back_is_not_deleted() -> None:
    group = Group(deletion="Delete")
    group.visit()
    group.wanted = NEW
    group.visit(10)
    group.visit(DAY)
    group.wanted = OLD
    assert group.intent is not None
    assert group.intent.drained_delays == ()
    group.visit(10)
    assert group.told is not None
    assert (group.told.leaving, group.told.current) == ((), OLD.hash)


def test_going_back_to_an_older_revision_makes_it_current_again() -> None:
    group = Group(waiting={"30s": 1, "1m": 1})
    group.visit()
    for wanted in (NEW, OLD):
        group.wanted = wanted
        group.visit(10)
    assert group.told is not None
    assert (group.told.current, group.known) == (OLD.hash, {OLD.hash, NEW.hash})
    assert {r.hash: r.superseded_at is None for r in group.told.known} == {OLD.hash: True, NEW.hash: False}


def test_policy_that_cannot_be_used_changes_nothing() -> None:
    group = Group(waiting={"30s": 1})
    before = group.visit()
    group.wanted = Problem("RetryPolicyNotFound", "it is gone")
    assert group.visit(DAY) == before
    assert group.intent is not None
    assert group.intent.problem == group.wanted


def test_file_is_the_same_as_long_as_nothing_changes() -> None:
    """The digest decides whether pods are told: it must not move with the clock."""
    group = Group()
    first = group.visit()
    assert group.visit(DAY) == first
    group.wanted = NEW
    second = group.visit(10)
    assert first is not None
    assert second is not None
    assert (second.digest != first.digest, second.published_at) == (True, group.now)


def test_many_edits_keep_the_newest_revisions() -> None:
    group = Group()
    group.visit()
    for minutes in range(1, REVISIONS_MAX + 10):
        group.wanted = revision(f"{minutes}m")
        group.waiting[naming.canonical_delay(minutes * 60)] = 1
        group.visit(1)
    assert group.told is not None
    assert len(group.told.known) == REVISIONS_MAX
    assert group.told.current == group.wanted.hash if isinstance(group.wanted, PolicyRevision) else False


def test_removed_retries_continue_until_nothing_waits() -> None:
    group = Group(waiting={"30s": 1})
    before = group.visit()
    assert before is not None
    group.retry = False
    after = group.visit(60)
    assert after is not None
    assert (after.file, after.ending_since) == (before.file, group.now)
    assert group.intent is not None
    assert group.intent.ending
    group.retry = True
    again = group.visit(60)
    assert again is not None
    assert again.ending_since is None


def test_group_that_never_had_retries_has_no_intent() -> None:
    assert plan_intent(consumer_group(), None, None) is None


def test_group_may_pause_while_any_living_revision_has_a_budget() -> None:
    """Also one that was superseded: records that wait under it are still judged by it."""

    def with_budget(**budget: Any) -> PolicyRevision:
        metadata = {"name": "standard", "namespace": "shop", "uid": "p1"}
        spec = {"sequence": ["5s"], "budget": {"maxFailurePercent": 50, **budget}}
        return expand(RetryPolicy.model_validate({"metadata": metadata, "spec": spec}))

    assert not RetryIntent(policy="standard", wanted=OLD, known=(OLD,)).may_pause
    assert not RetryIntent(policy="standard", wanted=with_budget(action="None")).may_pause
    assert RetryIntent(policy="standard", wanted=with_budget(action="Pause")).may_pause
    assert RetryIntent(policy="standard", wanted=OLD, known=(with_budget(action="Fail"), OLD)).may_pause
