"""Published policies whose state is lost, or ahead of the ConfigMap that workers read."""

from __future__ import annotations

from fleet_operator.planning.retry.published_policies import SUPERSEDED_S
from fleet_operator.planning.retry.records import group_config_map, read_published
from fleet_operator.planning.state.group import RetriesState
from tests.unit.planning.builders import consumer_group
from tests.unit.planning.retry.test_published_policies import DAY, NEW, NEWER, OLD, Group


def test_revisions_whose_state_was_lost_leave_later_and_nothing_that_waits_is_forgotten() -> None:
    """The ConfigMap still has them; for how long they have been superseded is counted from the first plan on."""
    group = Group(waiting={"30s": 1})
    group.visit()
    group.wanted = NEW
    group.visit(10)
    group.wanted = NEWER
    before = group.visit(10)
    assert before is not None
    group.told = read_published(group_config_map(consumer_group(), before), RetriesState())
    assert group.told is not None
    assert group.told.file == before.file
    group.visit(DAY, blind=True)
    assert group.told.file == before.file
    times = {each.hash: each.superseded_at for each in group.told.known}
    assert times == {OLD.hash: group.now, NEW.hash: group.now, NEWER.hash: None}
    group.visit(SUPERSEDED_S - 1)
    assert group.known == {OLD.hash, NEW.hash, NEWER.hash}
    group.visit(1)
    assert group.known == {OLD.hash, NEWER.hash}, "a record waits under the first one"
    group.waiting = {}
    group.visit(60)
    assert (group.known, set(group.draining)) == ({NEWER.hash}, {"5s", "30s", "1m"})


def test_state_that_is_ahead_of_the_config_map_supersedes_no_current_revision() -> None:
    """The operator died between the two writes: workers go on by the revision that the ConfigMap calls current."""
    group = Group()
    first = group.visit()
    group.wanted = NEW
    second = group.visit(10)
    assert first is not None
    assert second is not None
    ahead = second.state(RetriesState())
    assert set(ahead.superseded) == {OLD.hash}
    group.told = read_published(group_config_map(consumer_group(), first), ahead)
    assert group.told is not None
    assert (group.told.current, group.told.known) == (OLD.hash, first.known)
    group.wanted = OLD
    group.visit(DAY)
    assert (group.told.current, group.told.known) == (OLD.hash, first.known)
    group.wanted = NEW
    group.visit(10)
    assert {each.hash: each.superseded_at for each in group.told.known} == {OLD.hash: group.now, NEW.hash: None}
    group.visit(SUPERSEDED_S - 1)
    assert group.known == {OLD.hash, NEW.hash}, "its time starts when another one has taken its place"
    group.visit(1)
    assert group.known == {NEW.hash}
