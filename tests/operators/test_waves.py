"""Many groups under operators with other worker images: waves, canaries, a killed operator, a failed upgrade.

FLEET_WAVES_GROUPS sets their number; 200 take some minutes on two cores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Operator, Site
from tests.apiserver.nodes import Answer, Nodes
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

MakeSite = Callable[..., Site]
GROUPS, BOUND = int(os.environ.get("FLEET_WAVES_GROUPS", "60")), 5
NAMES = [f"orders-{number:03}" for number in range(GROUPS)]
CANARIES = {NAMES[57], NAMES[37]}
SUSPENDED = {NAMES[0], NAMES[30]}
OWN_IMAGE = {NAMES[1], NAMES[31]}
MOVING = set(NAMES) - SUSPENDED - OWN_IMAGE
SAMPLE_S = 0.5
ALL_MOVE_S = 600.0


@pytest.fixture(scope="module")
def nodes_there(quiet_api: ApiServer) -> Iterator[Nodes]:
    with Nodes(str(quiet_api.kubeconfig), steps=5) as running:
        yield running


def group_of(here: Site, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"image": "own:1"} if name in OWN_IMAGE else {}
    spec |= {"suspend": True} if name in SUSPENDED else {}
    body = objects.group(here.name, name=name, handler={"python": {"callable": "shop:handle"}}, **spec)
    labels = {"consumerfleet.io/canary": "true"} if name in CANARIES else {}
    return {**body, "metadata": {**body["metadata"], "labels": labels}}


def operator_with(here: Site, image: str) -> Operator:
    flags = ("--max-concurrent-rollouts", str(BOUND), "--resync-seconds", "20")
    return Operator(here.api, "--namespace", here.name, "--consumer-image", image, *flags)


def groups(here: Site) -> dict[str, dict[str, Any]]:
    return {body["metadata"]["name"]: body for body in here.every("consumergroups", "")}


def reason(body: dict[str, Any], kind: str) -> str:
    found = {each["type"]: str(each["reason"]) for each in body.get("status", {}).get("conditions", ())}
    return found.get(kind, "")


def complete(body: dict[str, Any], image: str) -> bool:
    status = body.get("status", {})
    return bool(status.get("image") == image and reason(body, "Progressing") == "Complete")


def uids(here: Site) -> dict[str, str]:
    """The workers' pods, by name."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in here.every("pods")}


class Watch:
    """Polls all groups: the highest number of upgrades at a time, and the order of their starts.

    A group is on its way from the write of `status` in which it `takes` the change until its rollout is Complete,
    whatever `status.upgrade` says.
    """

    def __init__(self, here: Site, takes: Callable[[dict[str, Any]], bool]) -> None:
        self.most, self.samples = 0, 0
        self.begun: list[str] = []
        self._here, self._takes = here, takes
        self._stop = threading.Event()

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            found = groups(self._here)
            taken = [name for name, body in found.items() if self._takes(body["status"])]
            self.begun += [name for name in sorted(taken) if name not in self.begun]
            self.most = max(self.most, sum(reason(found[name], "Progressing") != "Complete" for name in taken))
            self.samples += 1


def takes_image(image: str) -> Callable[[dict[str, Any]], bool]:
    return lambda status: bool(status.get("image") == image)


def wait_all(here: Site, image: str, names: set[str], *, at_least: int | None = None) -> None:
    wanted = len(names) if at_least is None else at_least

    def seen() -> bool:
        found = groups(here)
        arrived = [name for name in sorted(names) if name in found and complete(found[name], image)]
        assert len(arrived) >= wanted, f"{len(arrived)} of {wanted}"
        return True

    eventually(seen, timeout_s=ALL_MOVE_S, what=f"{wanted} groups with {image}")


def wait_at_rest(here: Site, names: set[str]) -> dict[str, str]:
    """Wait until these fleets have their one worker each, and no check is left; return the pods' uids."""

    def seen() -> dict[str, str]:
        found = uids(here)
        assert set(found) == {f"{name}-fleet-0" for name in names}
        return found

    return eventually(seen, timeout_s=PATIENCE_S, what="all workers")


@pytest.mark.timeout(900)
def test_groups_go_over_in_waves_canaries_first_and_stop_at_a_failed_canary(
    quiet_site: MakeSite, broker: KafkaBroker, nodes_there: Nodes
) -> None:
    here = quiet_site("waves")
    here.apply(objects.cluster(here.name, broker.bootstrap), *(group_of(here, name) for name in NAMES))
    with operator_with(here, "worker:1"):
        wait_all(here, "worker:1", MOVING)
        wait_all(here, "own:1", OWN_IMAGE)
        before = wait_at_rest(here, MOVING | OWN_IMAGE)
    with Watch(here, takes_image("worker:2")) as watch:
        with operator_with(here, "worker:2") as operator:
            wait_all(here, "worker:2", MOVING, at_least=GROUPS // 3)
            operator.kill()
        with operator_with(here, "worker:2"):
            wait_all(here, "worker:2", MOVING)
            after = wait_at_rest(here, MOVING | OWN_IMAGE)
    print(f"{watch.samples} samples, at most {watch.most} on their way at once, first: {watch.begun[:8]}")
    assert watch.most == BOUND
    assert set(watch.begun[:2]) == CANARIES
    assert set(watch.begun) == MOVING, "none went over that need not"
    kept = {name for name, uid in before.items() if after[name] == uid}
    assert kept == {f"{name}-fleet-0" for name in OWN_IMAGE}
    found = groups(here)
    assert {reason(found[name], "UpgradeAvailable") for name in MOVING} == {"UpToDate"}
    assert {reason(found[name], "UpgradeAvailable") for name in SUSPENDED} == {"WaitingForFleet"}
    assert_failed_canary_stops(here, nodes_there)


def assert_failed_canary_stops(here: Site, nodes: Nodes) -> None:
    """An image whose checks fail: the canaries keep their pods, and no other group is touched."""
    others = MOVING - CANARIES
    before = wait_at_rest(here, MOVING | OWN_IMAGE)
    nodes.answers[here.name] = Answer(20, "HandlerNotCallable", "module `shop` has no `handle`")
    with Watch(here, takes_image("worker:3")) as watch, operator_with(here, "worker:3"):
        here.wait_condition("consumergroups", min(CANARIES), "Stalled", status="True", reason="Refused")

        def stopped() -> bool:
            found = groups(here)
            told = [name for name in others if reason(found[name], "UpgradeAvailable") == "UpgradeStopped"]
            assert len(told) == len(others), f"{len(told)} of {len(others)}"
            assert {found[name]["status"]["image"] for name in others} == {"worker:2"}
            return True

        eventually(stopped, timeout_s=PATIENCE_S, what="all others to know")
        message = here.condition("consumergroups", max(others), "UpgradeAvailable")["message"]
        assert any(f"{here.name}/{name}" in message for name in CANARIES), message
        assert {f"{name}-fleet-0": before[f"{name}-fleet-0"] for name in MOVING | OWN_IMAGE}.items() <= uids(
            here
        ).items()
        assert set(watch.begun) <= CANARIES
        assert here.condition("consumergroups", min(CANARIES), "Serving")["status"] == "True"
        here.wait_condition("consumergroups", min(CANARIES), "UpgradeAvailable", status="True", reason="UpgradeStopped")


@pytest.mark.usefixtures("nodes_there")
def test_changed_connection_goes_over_in_waves_with_the_canary_first(quiet_site: MakeSite, broker: KafkaBroker) -> None:
    here = quiet_site("moved")
    working = set(NAMES[34:40])  # with a canary among them
    names = working | SUSPENDED
    here.apply(objects.cluster(here.name, broker.bootstrap), *(group_of(here, name) for name in sorted(names)))
    with operator_with(here, "worker:1"):
        wait_all(here, "worker:1", working)
        before = wait_at_rest(here, working)
        known = {body["status"]["connection"] for body in groups(here).values()}
        assert len(known) == 1, "that of the one KafkaCluster"
        with Watch(here, lambda status: status["connection"] not in known) as watch:
            here.apply(objects.cluster(here.name, broker.bootstrap.replace("127.0.0.1", "localhost")))

            def moved() -> bool:
                found = groups(here)
                phases = {name: found[name]["status"].get("upgrade", {}).get("phase") for name in working}
                assert set(phases.values()) == {"Complete"}, phases
                return True

            eventually(moved, timeout_s=PATIENCE_S, what="all to have the new connection")
        print(f"{watch.samples} samples, at most {watch.most} on their way at once, in this order: {watch.begun}")
        begun = [name for name in watch.begun if name in working]
        assert begun[0] == NAMES[37]
        assert 1 <= watch.most <= BOUND
        assert set(begun) == working
        after = wait_at_rest(here, working)
        assert not set(before.values()) & set(after.values())
        assert reason(groups(here)[NAMES[0]], "UpgradeAvailable") == "UpToDate", "it has no fleet that could wait"
