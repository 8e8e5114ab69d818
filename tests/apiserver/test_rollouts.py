"""Rollouts on a real API server, and what clients see of them: slow clusters, quotas, refusals, other tries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Site
from tests.apiserver.nodes import NOW, Answer, Nodes
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.together]

MakeSite = Callable[..., Site]
DEADLINE_S = 3
LONGER_S = 15.0
"""Several reconciles of the operator beyond the deadline."""

UNREADY = {"type": "Ready", "status": "False", "lastTransitionTime": NOW}
NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
UNSCHEDULABLE = {"phase": "Pending", "conditions": [NO_NODE], "containerStatuses": []}


def waiting(reason: str, message: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    worker = {"name": "worker", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": "Pending", "conditions": [UNREADY], "containerStatuses": [worker]}


PULLING = waiting("ImagePullBackOff", "Back-off pulling image of 5 GB")
SECRET_MISSING = waiting("CreateContainerConfigError", 'secret "db" not found')
CRASHING = waiting("CrashLoopBackOff", "back-off 40s restarting failed container")
HANGING = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [
        {
            "name": "worker",
            "image": "none",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": NOW}},
        }
    ],
}


@pytest.fixture
def start(site: MakeSite, broker: KafkaBroker, nodes: Nodes) -> Iterator[Callable[..., Site]]:
    """Make a namespace with a fleet of short deadlines that is Ready; its pods are no longer held afterwards."""
    made = []

    def make(name: str, **spec: Any) -> Site:
        here = site(name)
        made.append(here.name)
        here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
        here.apply(group(here, **spec))
        here.wait_condition("consumergroups", "flights", "Progressing", status="False", reason="Complete")
        here.wait_ready_replicas(1)
        return here

    yield make
    for name in made:
        for component in ("check", "worker"):
            nodes.held.pop((name, component), None)


def group(here: Site, callable_: str = "handler:handle", **spec: Any) -> dict[str, Any]:
    rollout = {"progressDeadlineSeconds": DEADLINE_S, "checkDeadlineSeconds": DEADLINE_S}
    return objects.group(here.name, callable_=callable_, **({"rollout": rollout} | spec))


def wait_for(here: Site, **conditions: tuple[str, str]) -> str:
    """Wait for these conditions of one status; the message of the first of them."""

    def seen() -> str:
        body = here.get("consumergroups", "flights")
        found = {each["type"]: each for each in body["status"]["conditions"]}
        assert {kind: (found[kind]["status"], found[kind]["reason"]) for kind in conditions} == conditions, found
        for kind in conditions:
            assert found[kind]["observedGeneration"] == body["metadata"]["generation"]
        return str(found[next(iter(conditions))]["message"])

    return eventually(seen, timeout_s=PATIENCE_S, what=f"{conditions} of {here.name}")


def stays_unrefused(here: Site) -> None:
    """Watch a rollout for longer than its deadline."""
    since = time.monotonic()

    def passed() -> bool:
        assert here.condition("consumergroups", "flights", "Stalled")["status"] == "False"
        assert here.condition("consumergroups", "flights", "Progressing")["reason"] == "Waiting"
        return time.monotonic() - since >= LONGER_S

    while not passed():
        time.sleep(0.5)


def revision_of(here: Site) -> str:
    return str(here.get("statefulsets", "flights-fleet")["metadata"]["annotations"]["consumerfleet.io/revision"])


@pytest.mark.parametrize(
    ("name", "held", "words"),
    [
        ("unschedulable", UNSCHEDULABLE, "Unschedulable: pod {pod} has no node"),
        ("pulling", PULLING, "ImagePullBackOff: pod {pod}, container worker: Back-off pulling image of 5 GB"),
        ("secret", SECRET_MISSING, 'CreateContainerConfigError: pod {pod}, container worker: secret "db" not found'),
    ],
)
def test_slow_cluster_refuses_nothing(
    start: Callable[..., Site], nodes: Nodes, name: str, held: dict[str, Any], words: str
) -> None:
    """First the check waits, then the worker, each for longer than its deadline; then the revision runs."""
    here = start(name)
    before = revision_of(here)
    for component in ("check", "worker"):
        nodes.held[here.name, component] = held
    here.apply(group(here, "handler:renamed"))
    message = wait_for(
        here, Progressing=("True", "Waiting"), Serving=("True", "LastGoodRevision"), Stalled=("False", "NotRefused")
    )
    assert message.startswith(
        words.format(pod=f"flights-fleet-check-{here.status('consumergroups', 'flights')['revision']}")
    )
    stays_unrefused(here)
    assert revision_of(here) == before
    del nodes.held[here.name, "check"]
    eventually(lambda: revision_of(here) != before, timeout_s=PATIENCE_S, what="the new revision to be applied")
    message = wait_for(here, Progressing=("True", "Waiting"), Serving=("False", "NoWorkerReady"))
    assert message.startswith(words.format(pod="flights-fleet-0"))
    stays_unrefused(here)
    del nodes.held[here.name, "worker"]
    wait_for(here, Progressing=("False", "Complete"), Serving=("True", "NewestRevision"))
    found = here.status("consumergroups", "flights")
    assert (found["revision"], found["updatedReplicas"]) == (revision_of(here), 1)
    assert found["revision"] != before


def set_quota(here: Site, pods: int, used: int) -> None:
    """A ResourceQuota with the status that its controller would give it; the API server itself enforces it."""
    hard = {"hard": {"pods": str(pods)}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": hard}
    here.kubectl("apply", "-f", "-", text=json.dumps(quota))
    status = json.dumps({"status": {**hard, "used": {"pods": str(used)}}})
    here.kubectl("patch", "resourcequota/few", "--subresource=status", "--type=merge", "-p", status)


def test_quota_holds_a_rollout_up_and_refuses_nothing(start: Callable[..., Site]) -> None:
    here = start("quota")
    before = revision_of(here)
    set_quota(here, pods=1, used=1)
    here.apply(group(here, "handler:renamed", replicas=2))
    message = wait_for(here, Progressing=("True", "Waiting"), Stalled=("False", "NotRefused"))
    assert message.startswith("ForbiddenByApiServer: ")
    assert "exceeded quota: few" in message
    wait_for(here, Serving=("True", "LastGoodRevision"))

    def scaled() -> bool:
        return bool(here.get("statefulsets", "flights-fleet")["spec"]["replicas"] == 2)

    eventually(scaled, timeout_s=PATIENCE_S, what="the good fleet to be scaled while the check is forbidden")
    assert revision_of(here) == before
    # Room for the check and the second worker. Nobody counts what is deleted, so their replacements have none.
    set_quota(here, pods=3, used=1)
    eventually(lambda: revision_of(here) != before, timeout_s=PATIENCE_S, what="the new revision to be applied")

    def not_created() -> bool:
        found = here.condition("consumergroups", "flights", "Progressing")
        assert (found["reason"], found["message"].split(":")[0]) == ("Waiting", "PodsNotCreated"), found
        return True

    eventually(not_created, timeout_s=PATIENCE_S, what="the missing pods to be reported")
    assert here.condition("consumergroups", "flights", "Stalled")["status"] == "False"
    set_quota(here, pods=20, used=1)
    wait_for(here, Progressing=("False", "Complete"), Ready=("False", "WaitingForGroup"))


def test_refused_revision_is_tried_again_by_the_annotation(start: Callable[..., Site], nodes: Nodes) -> None:
    here = start("again")
    nodes.answers[here.name] = Answer(20, "HandlerImportFailed", "no module named `shop`")
    here.apply(group(here, "handler:renamed"))
    message = wait_for(
        here, Stalled=("True", "Refused"), Progressing=("False", "Refused"), Serving=("True", "LastGoodRevision")
    )
    assert "no module named `shop`" in message
    assert "consumerfleet.io/retry-rollout" in message
    refused = here.status("consumergroups", "flights")["revision"]
    del nodes.answers[here.name]
    here.kubectl("annotate", "kcg/flights", "consumerfleet.io/retry-rollout=1")
    wait_for(here, Stalled=("False", "NotRefused"), Progressing=("False", "Complete"))
    assert (revision_of(here), here.status("consumergroups", "flights")["revision"]) == (refused, refused)


def test_worker_that_keeps_dying_is_refused_and_tried_again(start: Callable[..., Site], nodes: Nodes) -> None:
    here = start("crashing")
    before = revision_of(here)
    nodes.held[here.name, "worker"] = CRASHING
    here.apply(group(here, "handler:renamed"))
    message = wait_for(here, Stalled=("True", "Refused"), Progressing=("False", "Refused"))
    assert "ProgressDeadlineExceeded: pod flights-fleet-0 ran without being ready for" in message
    eventually(lambda: revision_of(here) == before, timeout_s=PATIENCE_S, what="the last good revision to return")
    del nodes.held[here.name, "worker"]
    wait_for(here, Serving=("True", "LastGoodRevision"), Stalled=("True", "Refused"))
    here.kubectl("annotate", "kcg/flights", "consumerfleet.io/retry-rollout=now")
    wait_for(here, Progressing=("False", "Complete"), Serving=("True", "NewestRevision"))
    assert revision_of(here) != before


def test_check_that_hangs_is_refused_and_a_longer_deadline_tries_it_again(
    start: Callable[..., Site], nodes: Nodes
) -> None:
    here = start("hanging")
    nodes.held[here.name, "check"] = HANGING
    here.apply(group(here, "handler:renamed"))
    message = wait_for(here, Stalled=("True", "Refused"), Serving=("True", "LastGoodRevision"))
    assert f"CheckDeadlineExceeded: the check has run for {DEADLINE_S} s" in message
    refused = here.status("consumergroups", "flights")["revision"]
    del nodes.held[here.name, "check"]
    here.apply(group(here, "handler:renamed", rollout={"checkDeadlineSeconds": 600}))
    wait_for(here, Progressing=("False", "Complete"), Stalled=("False", "NotRefused"))
    assert revision_of(here) == refused, "deadlines are no part of a revision"
