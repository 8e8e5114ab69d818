"""Ready, Progressing, Serving and Stalled through a rollout: what clients of the API see of a revision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.fleet.rollout import RolloutDecision, RolloutPhase
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.status.rollout import is_being_made
from tests.unit.planning.builders import consumer_group, facts, pods, ready_fleet, scale_of
from tests.unit.planning.status.projecting import brand_new, cause, condition, message, project

OLD, NEW = "aaaaaaaaaa", "bbbbbbbbbb"
PULLING = Problem("ImagePullBackOff", "pod orders-1, container worker: Back-off pulling image")
LATE = "ProgressDeadlineExceeded"


def seen(phase: RolloutPhase, **changes: Any) -> dict[str, Any]:
    """The status of a fleet that runs OLD while NEW is wanted."""
    decision = changes.pop("decision", None) or RolloutDecision(phase=phase, target=OLD)
    ready_before = project(facts())
    given: dict[str, Any] = {"rollout": decision, "revision": NEW} | changes
    return project(facts(**given), ready_before)


def found(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {kind: condition(status, kind) for kind in ("Ready", "Progressing", "Serving", "Stalled")}


def test_revision_that_runs_is_complete() -> None:
    assert found(project(facts())) == {
        "Ready": ("True", "FleetReady"),
        "Progressing": ("False", "Complete"),
        "Serving": ("True", "NewestRevision"),
        "Stalled": ("False", "NotRefused"),
    }


def test_fleet_whose_objects_the_api_server_refuses_is_not_ready() -> None:
    """A change of the retry workers' resources makes no revision, and is refused all the same."""
    refused = project(facts(refusal=Problem("RefusedByApiServer", "requests above limits")), project(facts()))
    assert found(refused) == {
        "Ready": ("False", "RefusedByApiServer"),
        "Progressing": ("False", "Refused"),
        "Serving": ("True", "NewestRevision"),
        "Stalled": ("True", "Refused"),
    }


def test_refused_revision_is_refused_without_workers_too() -> None:
    decision = RolloutDecision(phase=RolloutPhase.REFUSED, target=OLD, cause=Problem(LATE, "pod orders-1 is late"))
    group = consumer_group(replicas=0)
    status = seen(RolloutPhase.REFUSED, decision=decision, group=group, scale=scale_of(group, None))
    assert found(status) == {
        "Ready": ("False", LATE),
        "Progressing": ("False", "Refused"),
        "Serving": ("False", "NoWorkersWanted"),
        "Stalled": ("True", "Refused"),
    }
    assert "keeps running" not in message(status, "Degraded")


@pytest.mark.parametrize(
    ("phase", "ready", "progressing"),
    [
        (RolloutPhase.CHECKING, "CheckingRevision", "Checking"),
        (RolloutPhase.APPLYING, "RollingOut", "RollingOut"),
        (RolloutPhase.WAITING, "RollingOut", "RollingOut"),
    ],
)
def test_newer_revision_on_its_way_ends_ready_while_the_last_good_one_serves(
    phase: RolloutPhase, ready: str, progressing: str
) -> None:
    status = seen(phase)
    assert found(status) == {
        "Ready": ("False", ready),
        "Progressing": ("True", progressing),
        "Serving": ("True", "LastGoodRevision"),
        "Stalled": ("False", "NotRefused"),
    }
    assert (status["revision"], status["updatedReplicas"]) == (NEW, 0)


def test_half_a_rollout_is_counted() -> None:
    first, second = pods()
    decision = RolloutDecision(phase=RolloutPhase.WAITING, target=NEW)
    status = seen(RolloutPhase.WAITING, decision=decision, pods=(first, replace(second, revision=NEW)))
    assert status["updatedReplicas"] == 1
    assert condition(status, "Serving") == ("True", "SeveralRevisions")
    assert message(status, "Progressing") == f"1 of 2 workers run revision {NEW}"


@pytest.mark.parametrize("phase", [RolloutPhase.CHECKING, RolloutPhase.WAITING])
def test_slow_cluster_is_waited_for_in_its_own_words(phase: RolloutPhase) -> None:
    status = seen(phase, decision=RolloutDecision(phase=phase, target=OLD, waits=PULLING))
    assert condition(status, "Progressing") == ("True", "Waiting")
    assert "Back-off pulling image" in message(status, "Progressing")
    assert condition(status, "Stalled") == ("False", "NotRefused")
    assert condition(status, "Ready")[0] == "False"


def test_check_that_fails_outside_waits_too() -> None:
    status = seen(RolloutPhase.CHECK_FAILED, decision=cause(RolloutPhase.CHECK_FAILED, "TopicNotFound", target=OLD))
    assert condition(status, "Progressing") == ("True", "Waiting")
    assert condition(status, "Degraded") == ("True", "RevisionHeld")
    assert condition(status, "Ready") == ("False", "TopicNotFound")


def test_refused_revision_behind_a_working_fleet() -> None:
    """The old fleet works on, and no client takes the newest revision for running."""
    status = seen(RolloutPhase.REFUSED, decision=cause(RolloutPhase.REFUSED, "HandlerImportFailed", target=OLD))
    assert found(status) == {
        "Ready": ("False", "HandlerImportFailed"),
        "Progressing": ("False", "Refused"),
        "Serving": ("True", "LastGoodRevision"),
        "Stalled": ("True", "Refused"),
    }
    assert condition(status, "Degraded") == ("True", "RevisionRefused")
    for kind in ("Progressing", "Stalled", "Degraded"):
        for part in ("HandlerImportFailed", "what to do", f"{OLD} keeps running"):
            assert part in message(status, kind), kind
    assert "consumerfleet.io/retry-rollout" in message(status, "Progressing")


def test_first_revision_that_never_becomes_ready_is_refused_with_nothing_serving() -> None:
    late = RolloutDecision(phase=RolloutPhase.WAITING, target=NEW, cause=Problem(LATE, "pod orders-0 ran"))
    dead = tuple(replace(pod, revision=NEW, ready=False) for pod in pods())
    status = seen(RolloutPhase.WAITING, decision=late, pods=dead, fleet=ready_fleet(revision=NEW, ready=0))
    assert found(status) == {
        "Ready": ("False", LATE),
        "Progressing": ("False", "Refused"),
        "Serving": ("False", "NoWorkerReady"),
        "Stalled": ("True", "Refused"),
    }


@pytest.mark.parametrize(
    ("why", "reason", "progressing"),
    [
        ("may be created", "ClusterNotFound", ("True", "Waiting")),
        ("may be created", "HandlerSourceNotFound", ("True", "Waiting")),
        ("time does not correct it", "TopicPatternRefused", ("False", "Refused")),
        ("time does not correct it", "TemplateRefused", ("False", "Refused")),
    ],
)
def test_spec_that_cannot_become_a_revision(why: str, reason: str, progressing: tuple[str, str]) -> None:
    held = cause(RolloutPhase.HELD, reason, target=OLD)
    status = seen(RolloutPhase.HELD, decision=held, revision=None)
    assert condition(status, "Progressing") == progressing, why
    assert condition(status, "Ready") == ("False", reason)
    assert condition(status, "Serving")[0] == "True"
    assert "revision" not in status


@pytest.mark.parametrize(
    ("reason", "progressing", "stalled"),
    [
        ("ForbiddenByApiServer", ("True", "Waiting"), "False"),
        ("NameTaken", ("True", "Waiting"), "False"),
        ("RefusedByApiServer", ("False", "Refused"), "True"),
    ],
)
def test_api_server_may_forbid_for_now_or_refuse_for_good(
    reason: str, progressing: tuple[str, str], stalled: str
) -> None:
    status = seen(RolloutPhase.CHECKING, refusal=Problem(reason, "exceeded quota: pods"))
    assert condition(status, "Progressing") == progressing
    assert condition(status, "Stalled")[0] == stalled
    assert "exceeded quota" in message(status, "Progressing")


def test_paused_object_waits_for_its_annotation() -> None:
    group = consumer_group(replicas=2, annotations={"consumerfleet.io/paused": "true"})
    status = seen(RolloutPhase.CHECKING, group=group)
    assert condition(status, "Progressing") == ("True", "Waiting")
    assert "consumerfleet.io/paused" in message(status, "Progressing")
    assert condition(project(facts(group=group)), "Progressing") == ("False", "Complete")


def test_group_without_workers_has_no_rollout() -> None:
    nothing = RolloutDecision(phase=RolloutPhase.HELD, target=None)
    suspended = brand_new(rollout=nothing, group=consumer_group(suspend=True), wanted_replicas=0)
    status = project(suspended)
    assert condition(status, "Progressing") == ("False", "Complete")
    assert condition(status, "Serving") == ("False", "Suspended")
    assert condition(status, "Ready") == ("False", "Suspended")
    none = project(brand_new(rollout=nothing, wanted_replicas=0))
    assert condition(none, "Serving") == ("False", "NoWorkersWanted")
    assert condition(none, "Ready") == ("True", "FleetReady")


def made(reason: str, ready: str = "False", **fields: Any) -> dict[str, Any]:
    return {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": ready, "reason": reason}], **fields}


@pytest.mark.parametrize(
    ("after", "on_the_way"),
    [
        (made("RollingOut"), True),
        (made("RollingOut", readyReplicas=1), False),
        (made("RevisionRefused"), False),
        (made("FleetReady", ready="True"), False),
        (made("RollingOut", observedGeneration=2), False),
    ],
)
def test_fleet_is_being_made_until_a_worker_is_ready_a_problem_shows_or_its_spec_changes(
    after: dict[str, Any], on_the_way: bool
) -> None:
    assert is_being_made(made("CheckingRevision"), after) is on_the_way
    assert not is_being_made({}, after), "nothing was shown yet"
