"""Next step of a Redrive: its phase, and the one thing to do about its Job. Pure.

Everything is judged from what is there (the object, its Job, pods), so it does not matter between which two calls an
operator was killed. Two runs must never move records at the same time, neither of one Redrive nor of two Redrives of
one group: each reads the ledger when it starts, and would not see what the other moves after that. So a Job is made,
and a suspended one resumed, only when no pod of any earlier run is left.

Nor may a run go on when nobody reads the records that it moves, or when they are another group's: its Job is suspended,
and resumed once the reason is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.redrive import Phase, Redrive
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import Act, JobFacts, RunState, removal, suspension

HALTING: Final = frozenset({c.RETRY_NOT_CONFIGURED, c.GROUP_SUSPENDED, c.GROUP_ID_TAKEN, c.CLUSTER_ID_CHANGED})
"""Obstacles that suspend a run which is under way. The others only keep one from being started: a run deals itself with
a cluster that does not answer, for instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The last line of a run; of one that failed only `reason` and `message` are set.

    `redriven_to` is None from a run of an earlier version.
    """

    ok: bool
    selected: int = 0
    moved: int = 0
    guarded: int = 0
    moved_before: int = 0
    failed_again: int = 0
    redriven_to: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPod:
    """A pod of a run; `waiting` is why it does not run yet."""

    name: str
    ended: bool = False
    report: JobReport | None = None
    waiting: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveFacts:
    """A Redrive and what it depends on.

    `obstacle` is why no run could be started now; `refusal` why there can never be one; `group_gone` that the
    ConsumerGroup is being deleted or is no more; `rival` names the Redrive of the same group whose turn it is.
    `failed_topic_id` is that of the failed topic at the newest look, None while unknown.
    """

    redrive: Redrive
    obstacle: Problem | None = None
    refusal: Problem | None = None
    failed_topic_id: str | None = None
    group_gone: bool = False
    job: JobFacts | None = None
    pods: tuple[RunPod, ...] = ()
    rival: str | None = None

    @property
    def started(self) -> bool:
        """True if a run was ever created."""
        return self.job is not None or "startedAt" in self.redrive.status

    @property
    def halted(self) -> bool:
        """True if no run may be under way, whatever the spec says."""
        return self.obstacle is not None and self.obstacle.reason in HALTING

    @property
    def report(self) -> JobReport | None:
        """The last word of the newest run that left one; pods come in the order of their making."""
        return next((pod.report for pod in reversed(self.pods) if pod.report is not None), None)


@dataclass(frozen=True, slots=True)
class RedriveDecision:
    """The phase, why, in a sentence, and what to do."""

    phase: Phase
    reason: str
    message: str
    act: Act = Act.NOTHING


def decide(facts: RedriveFacts) -> RedriveDecision:
    """The next step of a Redrive that has not ended. The first rule that applies wins."""
    job = facts.job
    if job is not None and job.state is RunState.COMPLETE:
        return _succeeded(facts)
    if job is not None and job.state is RunState.FAILED:
        problem = _failure(facts, job)
        return RedriveDecision("Failed", problem.reason, problem.message)
    if facts.refusal is not None:
        return RedriveDecision("Failed", facts.refusal.reason, facts.refusal.message, removal(job))
    if facts.group_gone and facts.started:
        name = facts.redrive.spec.group_ref.name
        message = f"ConsumerGroup {name!r} was deleted; the records moved so far stay moved"
        return RedriveDecision("Cancelled", c.GROUP_DELETED, message, removal(job))
    if job is not None and not job.deleting and job.rate != facts.redrive.rate:
        phase: Phase = "Paused" if facts.redrive.spec.suspend else "Running"
        return RedriveDecision(phase, c.RATE_CHANGED, "the Job is being replaced by one with the new rate", Act.DELETE)
    if facts.redrive.spec.suspend:
        return RedriveDecision("Paused", c.SUSPENDED, "spec.suspend is true", suspension(job))
    if facts.halted and facts.started:
        assert facts.obstacle is not None, "an obstacle halts it"
        message = f"{facts.obstacle.message}; no record is moved until then, and those moved so far stay moved"
        return RedriveDecision("Paused", facts.obstacle.reason, message, suspension(job))
    if job is not None and job.at_work:
        return _running(facts)
    return _start(facts)


def _start(facts: RedriveFacts) -> RedriveDecision:
    """A run is wanted and there is none, or only a suspended one."""
    obstacle = facts.obstacle
    if obstacle is not None:
        return RedriveDecision("Pending", obstacle.reason, obstacle.message)
    left = next((pod.name for pod in facts.pods if not pod.ended), None)
    if left is not None or (facts.job is not None and facts.job.deleting):
        message = f"waiting for pod {left} of the last run to end" if left else "waiting for the last Job to be deleted"
        return RedriveDecision("Running" if facts.started else "Pending", c.WAITING_FOR_LAST_RUN, message)
    if facts.rival is not None:
        message = f"Redrives of one group take turns: waiting for Redrive {facts.rival!r}"
        return RedriveDecision("Pending", c.ANOTHER_REDRIVE_RUNS, message)
    act = Act.CREATE if facts.job is None else Act.RESUME
    return RedriveDecision("Running", c.RUNNING, _progress(facts), act)


def _running(facts: RedriveFacts) -> RedriveDecision:
    """A Job is at work. A pod that cannot start is reported: no record is moved meanwhile."""
    waiting = next((pod.waiting for pod in facts.pods if pod.waiting is not None and not pod.ended), None)
    if waiting is not None:
        return RedriveDecision("Running", c.POD_NOT_RUNNING, f"{waiting.reason}: {waiting.message}")
    return RedriveDecision("Running", c.RUNNING, _progress(facts))


def _succeeded(facts: RedriveFacts) -> RedriveDecision:
    if facts.redrive.spec.dry_run:
        message = "every failed record in range was checked, none was moved (dry run)"
        return RedriveDecision("Succeeded", c.ALL_COUNTED, message)
    report = facts.report
    if report is not None and report.ok and report.moved < report.selected:
        message = (
            f"{report.selected - report.moved} selected records were refused by the redrive topic and stay in the "
            "failed topic; the Job's log names them"
        )
        return RedriveDecision("Succeeded", c.SOME_REFUSED, message)
    if report is None:
        message = (
            "every failed record in range was checked; the run's own counts are no longer available, see the Job's log"
        )
        return RedriveDecision("Succeeded", c.ALL_MOVED, message)
    return RedriveDecision("Succeeded", c.ALL_MOVED, "every selected record was moved and acknowledged")


def _failure(facts: RedriveFacts, job: JobFacts) -> Problem:
    """The run's own error where it left one, else the Job controller's."""
    remedy = "fix the cause and create another Redrive, which continues where this one stopped"
    report = facts.report
    if report is not None and not report.ok and report.reason:
        return Problem(report.reason, f"{report.message}: {remedy}")
    if job.problem is not None:
        return Problem(c.JOB_FAILED, f"{job.problem.reason}: {job.problem.message}: {remedy}")
    return Problem(c.JOB_FAILED, f"the Job failed without a reason, see its log: {remedy}")


def _progress(facts: RedriveFacts) -> str:
    doing = "counting" if facts.redrive.spec.dry_run else "moving"
    rate = facts.redrive.rate
    return f"{doing} failed records" + (f", at most {rate} in a second" if rate is not None else "")
