"""A Redrive's phases: one thing at a time, in an order that no interruption can upset."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fleet_operator.api.v1alpha1 import Redrive
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.redrive.phase import JobReport, RedriveFacts, RedriveProgress, RunPod, decide
from fleet_operator.planning.run import Act, Ahead, JobFacts, RunDecision, RunState

OBSTACLE = Problem("TopicsNotReady", "topic _fleet.orders.redrive cannot be used yet")
UNREAD = Problem("RetryNotConfigured", "ConsumerGroup 'orders' has no spec.retry")
STARTED = {"startedAt": "2026-01-01T00:00:00Z", "phase": "Running"}


def redrive(*, status: dict[str, Any] | None = None, **spec: Any) -> Redrive:
    """A Redrive of group `orders`; `spec` in camelCase."""
    metadata = {"name": "fixed", "namespace": "shop", "uid": "r1", "generation": 1}
    return Redrive.model_validate(
        {"metadata": metadata, "spec": {"groupRef": {"name": "orders"}} | spec, "status": status or {}}
    )


def step(**facts: Any) -> RunDecision:
    return decide(RedriveFacts(**({"redrive": redrive()} | facts)))


ACTIVE, SUSPENDED = JobFacts(state=RunState.ACTIVE), JobFacts(state=RunState.SUSPENDED)
RUNS = RunPod(name="fixed-redrive-x")


@pytest.mark.parametrize(
    ("facts", "phase", "reason", "act"),
    [
        ({}, "Running", "Running", Act.CREATE),
        ({"obstacle": OBSTACLE}, "Pending", "TopicsNotReady", Act.NOTHING),
        ({"group_gone": True, "obstacle": OBSTACLE}, "Pending", "TopicsNotReady", Act.NOTHING),
        ({"ahead": Ahead("older", 1)}, "Pending", "AnotherRedriveRuns", Act.NOTHING),
        ({"pods": (RUNS,)}, "Pending", "WaitingForLastRun", Act.NOTHING),
        ({"job": ACTIVE}, "Running", "Running", Act.NOTHING),
        ({"job": ACTIVE, "obstacle": OBSTACLE, "ahead": Ahead("older", 1)}, "Running", "Running", Act.NOTHING),
        ({"job": ACTIVE, "group_gone": True}, "Cancelled", "GroupDeleted", Act.DELETE),
        ({"redrive": redrive(suspend=True)}, "Paused", "Suspended", Act.NOTHING),
        ({"redrive": redrive(suspend=True), "job": ACTIVE}, "Paused", "Suspended", Act.SUSPEND),
        ({"redrive": redrive(suspend=True), "job": SUSPENDED}, "Paused", "Suspended", Act.NOTHING),
        ({"job": SUSPENDED}, "Running", "WaitingForLastRun", Act.DELETE),
        ({"job": SUSPENDED, "ahead": Ahead("other", 2)}, "Pending", "AnotherRedriveRuns", Act.NOTHING),
        ({"job": SUSPENDED, "pods": (RUNS,)}, "Running", "WaitingForLastRun", Act.NOTHING),
        ({"job": replace(ACTIVE, rate=5)}, "Running", "RateChanged", Act.DELETE),
        ({"redrive": redrive(suspend=True), "job": replace(SUSPENDED, rate=5)}, "Paused", "RateChanged", Act.DELETE),
        ({"job": replace(ACTIVE, deleting=True)}, "Running", "WaitingForLastRun", Act.NOTHING),
        ({"redrive": redrive(status=STARTED), "pods": (RUNS,)}, "Running", "WaitingForLastRun", Act.NOTHING),
        ({"redrive": redrive(status=STARTED), "group_gone": True}, "Cancelled", "GroupDeleted", Act.NOTHING),
        ({"job": JobFacts(state=RunState.COMPLETE)}, "Succeeded", "AllMoved", Act.NOTHING),
        (
            {"job": JobFacts(state=RunState.COMPLETE), "redrive": redrive(dryRun=True)},
            "Succeeded",
            "AllCounted",
            Act.NOTHING,
        ),
        ({"refusal": Problem("FilterRefused", "no")}, "Failed", "FilterRefused", Act.NOTHING),
        ({"obstacle": UNREAD}, "Pending", "RetryNotConfigured", Act.NOTHING),
        ({"obstacle": UNREAD, "job": ACTIVE}, "Paused", "RetryNotConfigured", Act.SUSPEND),
        ({"obstacle": UNREAD, "job": SUSPENDED}, "Paused", "RetryNotConfigured", Act.NOTHING),
        ({"obstacle": UNREAD, "job": replace(ACTIVE, deleting=True)}, "Paused", "RetryNotConfigured", Act.NOTHING),
        ({"obstacle": UNREAD, "job": JobFacts(state=RunState.COMPLETE)}, "Succeeded", "AllMoved", Act.NOTHING),
        (
            {"obstacle": UNREAD, "redrive": redrive(suspend=True), "job": ACTIVE},
            "Paused",
            "Suspended",
            Act.SUSPEND,
        ),
        ({"obstacle": Problem("GroupIdTaken", "no"), "job": ACTIVE}, "Paused", "GroupIdTaken", Act.SUSPEND),
        ({"obstacle": Problem("ClusterIdChanged", "no"), "job": ACTIVE}, "Paused", "ClusterIdChanged", Act.SUSPEND),
    ],
)
def test_next_step(facts: dict[str, Any], phase: str, reason: str, act: Act) -> None:
    decision = step(**facts)
    assert (decision.phase, decision.reason, decision.act) == (phase, reason, act)
    assert decision.message


def test_failed_run_is_reported_with_its_own_message() -> None:
    failed = JobFacts(state=RunState.FAILED, problem=Problem("PodFailurePolicy", "exit code 20"))
    word = JobReport(ok=False, reason="SettingsInvalid", message="filter.errorRegex: no regular expression")
    pods = (RunPod(name="a", ended=True, report=JobReport(ok=True)), RunPod(name="b", ended=True, report=word))
    decision = step(job=failed, pods=pods)
    assert (decision.phase, decision.reason) == ("Failed", "SettingsInvalid")
    assert "errorRegex" in decision.message
    assert "another Redrive" in decision.message
    decision = step(job=failed)
    assert decision.reason == "JobFailed"
    assert "exit code 20" in decision.message


def test_refused_records_are_reported() -> None:
    word = RunPod(name="a", ended=True, report=JobReport(ok=True, counts=RedriveProgress(selected=5, moved=3)))
    decision = step(job=JobFacts(state=RunState.COMPLETE), pods=(word,))
    assert (decision.phase, decision.reason) == ("Succeeded", "SomeRefused")
    assert decision.message.startswith("2 selected records were refused")


def test_pod_that_cannot_start_is_reported() -> None:
    stuck = RunPod(name="a", waiting=Problem("ErrImagePull", "no such image"))
    decision = step(job=ACTIVE, pods=(stuck,))
    assert (decision.phase, decision.reason) == ("Running", "PodNotRunning")
    assert "ErrImagePull: no such image" in decision.message


@dataclass
class World:
    """A Job controller and users, as far as phases can tell. Steps are taken in a random order."""

    chance: random.Random
    rate: int | None = None
    suspend: bool = False
    job: JobFacts | None = None
    pods: list[RunPod] = field(default_factory=list)
    started: bool = False
    work: int = 4
    made: int = 0

    def facts(self) -> RedriveFacts:
        spec: dict[str, Any] = {"suspend": self.suspend}
        if self.rate is not None:
            spec["rate"] = {"recordsPerSecond": self.rate}
        body = redrive(status=STARTED if self.started else {}, **spec)
        return RedriveFacts(redrive=body, job=self.job, pods=tuple(self.pods))

    def operator(self) -> str:
        decision = decide(self.facts())
        match decision.act:
            case Act.CREATE:
                assert self.job is None
                self.job, self.started = JobFacts(state=RunState.ACTIVE, rate=self.rate), True
            case Act.DELETE:
                self.job = None
            case Act.SUSPEND:
                assert self.job is not None
                self.job = replace(self.job, state=RunState.SUSPENDED)
        return decision.phase

    def controller(self) -> None:
        """Pods come for a Job at work, one at a time; those of a Job that is gone or suspended end."""
        living = [pod for pod in self.pods if not pod.ended]
        active = self.job is not None and self.job.state is RunState.ACTIVE
        if active and not living:
            self.made += 1
            self.pods.append(RunPod(name=f"{self.job.rate if self.job else None}-{self.made}"))
        elif active and self.chance.random() < 0.3:
            self.work -= 1
            if self.work == 0:
                self.pods = [replace(pod, ended=True) for pod in self.pods]
                self.job = JobFacts(state=RunState.COMPLETE, rate=self.job.rate if self.job else None)
        elif not active and living and self.chance.random() < 0.3:
            self.pods = [replace(pod, ended=True) for pod in self.pods]

    def user(self) -> None:
        if self.chance.random() < 0.5:
            self.suspend = not self.suspend
        else:
            self.rate = self.chance.choice((None, 5, 10))


@pytest.mark.parametrize("seed", range(50))
def test_any_user_actions_leave_at_most_one_pod(seed: int) -> None:
    """Suspended, resumed and paced again at random: no second pod next to a first, and it ends once it is left
    alone."""
    world = World(random.Random(seed))
    for _ in range(200):
        world.chance.choice((world.operator, world.controller, world.controller, world.user))()
        assert len([pod for pod in world.pods if not pod.ended]) <= 1, f"seed {seed}"
    world.suspend = False
    for _ in range(400):
        if world.operator() == "Succeeded":
            break
        world.controller()
    else:
        raise AssertionError(f"seed {seed}: {decide(world.facts())}")
