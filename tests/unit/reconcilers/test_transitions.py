"""Events are for people: each transition, once, as good or bad."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from fleet_operator.reconcilers.transitions import find_transitions


def status(**conditions: tuple[str, str]) -> dict[str, Any]:
    listed = [
        {"type": kind, "status": verdict, "reason": reason, "message": f"{kind} is {verdict}"}
        for kind, (verdict, reason) in conditions.items()
    ]
    return {"conditions": listed}


def test_new_object_in_progress_posts_no_event() -> None:
    assert find_transitions({}, status(Ready=("False", "CheckingRevision"), Serving=("False", "NoWorkerReady"))) == []


def test_new_object_posts_no_event_until_it_is_ready() -> None:
    """Each of thousands would post every step; FleetCreated tells of the fleet, and Ready of the end."""
    reasons = ("NotYetObserved", "CheckingRevision", "RollingOut", "WaitingForGroup")
    steps = [status(Ready=("False", reason)) for reason in reasons]
    assert [transition for before, after in pairwise(steps) for transition in find_transitions(before, after)] == []
    assert [transition.reason for transition in find_transitions(steps[-1], status(Ready=("True", "FleetReady")))] == [
        "FleetReady"
    ]


def test_first_failure_is_a_warning() -> None:
    (transition,) = find_transitions({}, status(Ready=("False", "TopicNotFound")))
    assert (transition.type, transition.reason) == ("Warning", "TopicNotFound")


def test_cause_that_several_conditions_give_in_the_same_words_is_posted_once() -> None:
    names, same = ("Ready", "ClusterReachable", "Degraded"), {"reason": "BrokerUnreachable", "message": "no broker"}
    verdicts = dict(zip(names, ("False", "False", "True"), strict=True))
    failing = {"conditions": [{"type": name, "status": verdicts[name], **same} for name in names]}
    assert [transition.note for transition in find_transitions({}, failing)] == ["Ready: no broker"]
    failing["conditions"][2]["message"] = "another broker"
    assert len(find_transitions({}, failing)) == 2


def test_unchanged_failure_is_posted_once() -> None:
    failing = status(Ready=("False", "TopicNotFound"), Degraded=("True", "TopicNotFound"))
    assert find_transitions(failing, failing) == []


def test_other_reason_for_the_same_failure_is_posted() -> None:
    before, after = status(Ready=("False", "TopicNotFound")), status(Ready=("False", "BrokerUnreachable"))
    assert [transition.reason for transition in find_transitions(before, after)] == ["BrokerUnreachable"]


def test_recovery_is_posted_as_normal() -> None:
    (transition,) = find_transitions(
        status(Degraded=("True", "RevisionRefused")), status(Degraded=("False", "AsWanted"))
    )
    assert (transition.type, transition.reason) == ("Normal", "AsWanted")


def test_becoming_ready_is_posted_and_other_first_good_conditions_are_not() -> None:
    told = find_transitions({}, status(Ready=("True", "FleetReady"), Degraded=("False", "AsWanted")))
    assert [transition.reason for transition in told] == ["FleetReady"]


def test_end_of_what_nobody_was_warned_of_is_posted_for_ready_alone() -> None:
    """Of a thousand new groups each would say it for each of its conditions."""
    before = status(Ready=("False", "TopicsChanging"), TopicsReady=("False", "TopicNotCreated"))
    after = status(Ready=("True", "AsWanted"), TopicsReady=("True", "AllTopicsFound"))
    assert [transition.note for transition in find_transitions(before, after)] == ["Ready: Ready is True"]
    warned = status(Ready=("False", "TopicNotFound"), TopicsReady=("False", "TopicNotFound"))
    assert len(find_transitions(warned, after)) == 2


def test_change_to_unknown_is_not_posted() -> None:
    assert (
        find_transitions(status(ClusterReachable=("True", "Reached")), status(ClusterReachable=("Unknown", "X"))) == []
    )


def test_each_step_of_a_rollout_is_posted_once() -> None:
    """By Ready and Degraded, which name the cause; Progressing, Serving and Stalled say the same to machines."""
    seen = [
        status(Ready=("True", "FleetReady"), Progressing=("False", "Complete"), Degraded=("False", "AsWanted")),
        status(Ready=("False", "CheckingRevision"), Progressing=("True", "Checking"), Degraded=("False", "AsWanted")),
        status(Ready=("False", "Waiting"), Progressing=("True", "Waiting"), Degraded=("False", "AsWanted")),
        status(Ready=("False", "RollingOut"), Progressing=("True", "RollingOut"), Degraded=("False", "AsWanted")),
        status(Ready=("True", "FleetReady"), Progressing=("False", "Complete"), Degraded=("False", "AsWanted")),
    ]
    told = [
        (transition.type, transition.reason)
        for before, after in pairwise(seen)
        for transition in find_transitions(before, after)
    ]
    assert told == [
        ("Normal", "CheckingRevision"),
        ("Warning", "Waiting"),
        ("Normal", "RollingOut"),
        ("Normal", "FleetReady"),
    ]


def entry(before: str, after: str, at: str) -> dict[str, Any]:
    return {"from": before, "to": after, "at": at, "cause": "the group was deleted", "inferred": True}


def test_group_that_is_gone_is_a_warning_once_and_a_new_one_is_none() -> None:
    new = {"transitions": [entry("Unknown", "Dead", "1")]}
    worked = {
        "transitions": [*new["transitions"], entry("Dead", "PreparingRebalance", "2"), entry("Stable", "Empty", "3")]
    }
    gone = {"transitions": [*worked["transitions"], entry("Empty", "Dead", "4")]}
    assert find_transitions({}, new) == find_transitions(new, worked) == find_transitions(gone, gone) == []
    (transition,) = find_transitions(worked, gone)
    assert (transition.type, transition.reason) == ("Warning", "GroupDead")
    assert "the group was deleted" in transition.note


def test_upgrade_is_told_of_when_it_begins_arrives_or_fails() -> None:
    rolling = {"upgrade": {"phase": "Rolling", "image": "worker:2"}}
    (begun,) = find_transitions({}, rolling)
    assert (begun.type, begun.reason) == ("Normal", "UpgradeBegun")
    assert "worker:2" in begun.note
    assert find_transitions(rolling, rolling) == []
    (arrived,) = find_transitions(rolling, {"upgrade": {"phase": "Complete", "image": "worker:2"}})
    assert (arrived.type, arrived.reason) == ("Normal", "UpgradeComplete")
    failed = {"upgrade": {"phase": "Failed", "connection": "d"}} | status(Progressing=("False", "Refused"))
    (stopped,) = find_transitions(rolling, failed)
    assert (stopped.type, stopped.reason) == ("Warning", "UpgradeStopped")
    assert "connection" in stopped.note
    assert "Progressing is False" in stopped.note


def test_run_that_succeeds_is_told_of_though_nobody_was_warned() -> None:
    (transition,) = find_transitions(status(Complete=("False", "Running")), status(Complete=("True", "AllMoved")))
    assert (transition.type, transition.reason, transition.note) == ("Normal", "AllMoved", "Complete: Complete is True")


def test_fleet_that_falls_behind_is_posted_once_and_a_bound_that_somebody_set_is_not() -> None:
    within, bounded = status(ScalingLimited=("False", "WithinBounds")), status(ScalingLimited=("True", "MaxReplicas"))
    lagging = status(ScalingLimited=("True", "Lagging"))
    assert [(transition.type, transition.reason) for transition in find_transitions(within, lagging)] == [
        ("Warning", "Lagging")
    ]
    assert [transition.reason for transition in find_transitions(bounded, lagging)] == ["Lagging"]
    assert (
        find_transitions(lagging, lagging)
        == find_transitions(within, bounded)
        == find_transitions(lagging, within)
        == []
    )
