"""The operator killed with SIGKILL after each of its calls to the API server, and before the first.

A death before any other call leaves the same state as one after the previous call: nothing else of the operator
persists.

Each index has its own namespace: an operator for that namespace alone runs until it is killed at its call. Then one
undisturbed operator serves all namespaces, and each must end in the same state as one whose operator was never killed.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from fleet_operator.planning.labels import (
    APPLIED_ANNOTATION,
    INPUTS_ANNOTATION,
    KNOWN_ANNOTATION,
    SIBLINGS_ANNOTATION,
)
from fleet_operator.runtime.settings import Settings
from tests.apiserver import objects
from tests.apiserver.client import Client
from tests.apiserver.conftest import Operator
from tests.apiserver.nodes import Nodes
from tests.killed import killed_operator
from tests.killed.killed_operator import Moment
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

UNDISTURBED = "never-killed"
AT_ONCE = 6
SILENT_S = 7.0
"""A rollout in progress is visited every 5 s; an operator that makes no call for longer is done."""
CHILDREN = ("statefulsets", "configmaps", "services", "poddisruptionbudgets", "pods")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
VOLATILE = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")
"""`generation` counts steps: a scaling and a new revision may be applied together or one after the other."""
DIGESTS = {APPLIED_ANNOTATION, INPUTS_ANNOTATION, SIBLINGS_ANNOTATION}
TOUCHED = "consumerfleet.io/retry-policies"
"""Pods created within the second of the publication are annotated once more than necessary."""
UNCOMPARED = ("coordinator", "transitions", "lagApproximate", "retry")
"""Depends on the group's name and on the number of polls, and on nothing that the operator did."""


@pytest.fixture(scope="module")
def client(quiet_api: ApiServer) -> Iterator[Client]:
    """An API server with its nodes, without operators of other tests."""
    with Client(quiet_api.kubeconfig) as made, Nodes(str(quiet_api.kubeconfig)):
        yield made


def apply(client: Client, bodies: Iterable[dict[str, Any]]) -> None:
    for body in bodies:
        client.apply(body)


@pytest.fixture(scope="module")
def forks() -> ForkServerContext:
    """Processes that start with the operator imported, so that a hundred of them cost seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([killed_operator.__name__])
    return context


def first_act(name: str, broker: KafkaBroker) -> list[dict[str, Any]]:
    """A new fleet."""
    return [
        objects.handler_source(name),
        objects.cluster(name, broker.bootstrap),
        objects.group(name, replicas=2),
    ]


def second_act(name: str) -> list[dict[str, Any]]:
    """A new revision with one worker less."""
    source = "def handle(record):\n    raise ValueError('no')\n"
    return [objects.handler_source(name, source=source), objects.group(name, replicas=1)]


@dataclass(frozen=True)
class Snapshot:
    """All objects on the API server at about one moment, by namespace."""

    groups: dict[str, dict[str, Any]]
    children: dict[str, list[dict[str, Any]]]
    states: dict[str, dict[str, Any]]

    @classmethod
    def take(cls, client: Client) -> Snapshot:
        children = defaultdict(list)
        for plural in CHILDREN:
            for body in client.list(plural, None, "consumerfleet.io/group"):
                children[body["metadata"]["namespace"]].append(body)
        groups = {body["metadata"]["namespace"]: body for body in client.list("consumergroups")}
        states = {
            body["metadata"]["namespace"]: body["data"]
            for body in client.list("operatorstates")
            if body["metadata"]["name"] == "flights.consumergroup"
        }
        return cls(groups, children, states)

    def settled(self, namespace: str, replicas: int) -> Any:
        """Return the state of the namespace once the newest revision is good and all workers run it; fail before."""
        body = self.groups[namespace]
        status = body.get("status", {})
        assert status.get("observedGeneration") == body["metadata"]["generation"], status
        counts = [status.get(key) for key in ("readyReplicas", "replicas", "targetReplicas")]
        assert counts == [replicas] * 3, status
        seen = picture(body, self.children[namespace])
        records = {
            revision_of(child)
            for child in self.children[namespace]
            if child["metadata"]["labels"]["app.kubernetes.io/component"] == "revision"
        }
        assert namespace in self.states, "the group's state is not written yet"
        found = {name: verdict.get("state") for name, verdict in self.states[namespace]["fleet"]["verdicts"].items()}
        assert found == dict.fromkeys(records, "Good"), found
        assert "ConfigMap/flights-fleet-NEWEST" in seen["children"], list(seen["children"])
        assert not [name for name in seen["children"] if "-check-" in name], list(seen["children"])
        return seen


def picture(owner: dict[str, Any], children: list[dict[str, Any]]) -> Any:
    """Children and status of a namespace, without parts that always differ: names, uids, hashes, times."""
    fleets = {child["metadata"]["name"]: child for child in children if child["kind"] == "StatefulSet"}
    fleet = fleets["flights-fleet"]
    newest = revision_of(fleet)
    texts = {
        f"{child['kind']}/{child['metadata']['name']}": {
            **{key: value for key, value in child.items() if key not in ("metadata", "spec", "status")},
            "metadata": {k: v for k, v in child["metadata"].items() if k not in VOLATILE}
            | {"annotations": annotations_of(child)},
            # The server adds addresses to Services, and defaults to Pods.
            "spec": child["spec"] if child["kind"] in ("StatefulSet", "PodDisruptionBudget") else None,
            "phase": child.get("status", {}).get("phase"),
        }
        for child in children
    }
    status = {key: value for key, value in owner["status"].items() if key not in UNCOMPARED}
    text = json.dumps({"children": texts, "status": status}, sort_keys=True)
    records = [child for child in children if child["metadata"]["labels"]["app.kubernetes.io/component"] == "revision"]
    for older in {revision_of(record) for record in records} - {newest}:
        text = text.replace(older, "OLDER")
    text = text.replace(newest, "NEWEST").replace(owner["metadata"]["namespace"], "NAMESPACE")
    text = text.replace(owner["metadata"]["uid"], "UID").replace(fleet["metadata"]["uid"], "FLEET")
    return json.loads(TIME.sub("TIME", text))


def annotations_of(child: dict[str, Any]) -> dict[str, Any]:
    """The annotations of a child, without digests, which depend on the namespace."""
    found: dict[str, Any] = {k: v for k, v in child["metadata"].get("annotations", {}).items() if k != TOUCHED}
    for name in DIGESTS & found.keys():
        found[name] = "known"
    if KNOWN_ANNOTATION in found:
        found[KNOWN_ANNOTATION] = dict.fromkeys(json.loads(found[KNOWN_ANNOTATION]), "known")
    return found


def differences(seen: Any, expected: Any, path: str = "") -> Iterator[str]:
    """The differences of two states."""
    if isinstance(seen, dict) and isinstance(expected, dict):
        for key in sorted(seen.keys() | expected.keys()):
            yield from differences(seen.get(key), expected.get(key), f"{path}.{key}")
    elif isinstance(seen, list) and isinstance(expected, list) and len(seen) == len(expected):
        for index, pair in enumerate(zip(seen, expected, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif seen != expected:
        yield f"{path}: {seen!r} instead of {expected!r}"


def revision_of(body: dict[str, Any]) -> str:
    return str(body["metadata"]["annotations"]["consumerfleet.io/revision"])


@dataclass
class Run:
    """One operator that will be killed, and the time of its last call."""

    process: ForkServerProcess
    calls: Any
    counted: Any
    since: float
    made: int = 0

    def is_busy(self, now: float) -> bool:
        """Return whether it has yet to make its first call, or made one recently."""
        if not self.made and not self.calls.value:
            return True
        if self.calls.value != self.made:
            self.made, self.since = self.calls.value, now
        return now - self.since < SILENT_S


@dataclass(frozen=True)
class Mortal:
    """Operators of one namespace each, as processes that may be killed."""

    forks: ForkServerContext
    kubeconfig: str
    writes_only: bool = False
    image: str = Settings().consumer_image

    def die_all(self, deaths: Mapping[str, tuple[int, Moment]]) -> set[str]:
        """Run an operator in each namespace until its fatal call; return the namespaces whose operator was killed.

        The others finished with fewer calls. One thread does it all: multiprocessing's bookkeeping of children loses
        exit codes when several threads share it.
        """
        waiting, running, died = list(deaths.items()), dict[str, Run](), set[str]()
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                name, (fatal, moment) = waiting.pop(0)
                running[name] = Run(*self._start(name, fatal, moment), since=time.monotonic())
            wait([run.process.sentinel for run in running.values()], timeout=0.2)
            for name, run in list(running.items()):
                if run.process.exitcode is not None:
                    assert run.process.exitcode == -signal.SIGKILL, f"{name}: {run.process.exitcode}"
                    died.add(name)
                elif run.is_busy(time.monotonic()):
                    continue
                elif not self._stop(run.process):
                    died.add(name)
                del running[name]
        return died

    def count_calls(self, namespace: str, settled: Callable[[], Any]) -> tuple[int, Any]:
        """Return the calls of an undisturbed operator until its fleet is settled, and the state then."""
        process, calls, counted = self._start(namespace, 0, "before")
        eventually(settled, timeout_s=120, what="the undisturbed fleet to settle")
        needed: int = counted.value

        def at_rest() -> Any:
            made, seen = calls.value, settled()
            process.join(SILENT_S)
            assert calls.value == made, "calls are still being made"
            return seen

        seen = eventually(at_rest, timeout_s=120, what="the undisturbed operator to come to rest")
        assert self._stop(process)
        return needed, seen

    def _start(self, namespace: str, fatal: int, moment: Moment) -> tuple[ForkServerProcess, Any, Any]:
        calls, counted = self.forks.Value("i", 0), self.forks.Value("i", 0)
        arguments = (self.kubeconfig, namespace, calls, counted, fatal, moment, self.writes_only, self.image)
        process = self.forks.Process(target=killed_operator.run, args=arguments, daemon=True)
        process.start()
        return process, calls, counted

    def _stop(self, process: ForkServerProcess) -> bool:
        """End an operator that seems to be at rest; return False if it was killed at its call after all."""
        process.terminate()
        process.join(30)
        assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
        return process.exitcode == 0


@pytest.mark.timeout(900)
def test_operator_killed_at_any_call_converges_after_a_restart(
    quiet_api: ApiServer, client: Client, broker: KafkaBroker, forks: ForkServerContext
) -> None:
    """Two acts: a fleet is created; then it gets a new revision and one worker less."""
    mortal = Mortal(forks, str(quiet_api.kubeconfig))

    def settled(namespace: str, replicas: int) -> Any:
        return Snapshot.take(client).settled(namespace, replicas)

    apply(client, [objects.namespace(UNDISTURBED), *first_act(UNDISTURBED, broker)])
    first, expected_first = mortal.count_calls(UNDISTURBED, partial(settled, UNDISTURBED, 2))
    apply(client, second_act(UNDISTURBED))
    second, expected_second = mortal.count_calls(UNDISTURBED, partial(settled, UNDISTURBED, 1))

    deaths: dict[str, tuple[int, Moment]] = {"before-1": (1, "before")}
    deaths |= {f"after-{k}": (k, "after") for k in range(1, max(first, second) + 1)}
    apply(client, [objects.namespace(name) for name in deaths])
    apply(client, [body for name in deaths for body in first_act(name, broker)])
    for replicas, made, expected in ((2, first, expected_first), (1, second, expected_second)):
        if replicas == 1:
            apply(client, [body for name in deaths for body in second_act(name)])
        # An operator that finds a fleet makes fewer calls than one that makes it.
        fatal = {name: (k, moment) for name, (k, moment) in deaths.items() if k <= made}
        died = mortal.die_all(fatal)
        print(f"{len(died)} of {len(fatal)} operators died at their call, of {made} calls")
        assert len(died) > len(fatal) * 0.8

        def all_alike(replicas: int = replicas, expected: Any = expected) -> bool:
            snapshot = Snapshot.take(client)
            for name in deaths:
                assert list(differences(snapshot.settled(name, replicas), expected)) == [], name
            return True

        with Operator(quiet_api):
            eventually(all_alike, what="every fleet to be like the undisturbed one", poll_s=1.0)


def act_with_retries(name: str, broker: KafkaBroker) -> list[dict[str, Any]]:
    """A fleet with retries whose deletion removes its topics and groups."""
    deletion = {"group": "Delete", "retryTopics": "Delete"}
    return [
        objects.handler_source(name),
        objects.cluster(name, broker.bootstrap),
        objects.policy(name, "1h", "2h"),
        objects.group(name, retry=objects.retry(), managedTopics={"partitions": 1}, deletion=deletion),
    ]


def managed_topics(broker: KafkaBroker, namespaces: Iterable[str]) -> set[str]:
    """The topics and groups of these namespaces that are left in Kafka."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    prefixes = tuple(f"_fleet.{name}.flights." for name in namespaces)
    return {topic for topic in admin.list_topics(timeout=20).topics if topic.startswith(prefixes)}


@pytest.mark.timeout(900)
def test_operator_killed_at_any_call_completes_retries_and_deletions(
    quiet_api: ApiServer, client: Client, broker: KafkaBroker, forks: ForkServerContext
) -> None:
    """Two acts: a fleet with retries is created; then it is deleted with its topics. Killed after each write."""
    mortal = Mortal(forks, str(quiet_api.kubeconfig), writes_only=True)
    alone = "never-killed-with-retries"

    def settled(namespace: str) -> Any:
        seen = Snapshot.take(client).settled(namespace, 1)
        assert {"StatefulSet/flights-fleet-retry", "ConfigMap/flights-fleet-retry"} <= seen["children"].keys()
        return seen

    def gone(namespaces: Iterable[str]) -> bool:
        left = {body["metadata"]["namespace"] for body in client.list("consumergroups")}
        assert not left.intersection(namespaces), left
        assert managed_topics(broker, namespaces) == set()
        return True

    def delete(namespaces: Iterable[str]) -> None:
        for name in namespaces:
            client.delete(name, objects.group(name))

    apply(client, [objects.namespace(alone), *act_with_retries(alone, broker)])
    making, expected = mortal.count_calls(alone, partial(settled, alone))
    delete([alone])
    ending, _ = mortal.count_calls(alone, partial(gone, [alone]))

    # A fleet's own writes are the other test's; every second one leaves no step of the retries out.
    deaths: dict[str, tuple[int, Moment]] = {f"mortal-{k}": (k, "after") for k in range(1, making + 1, 2)}
    assert len(deaths) > ending
    apply(client, [objects.namespace(name) for name in deaths])
    apply(client, [body for name in deaths for body in act_with_retries(name, broker)])
    died = mortal.die_all(deaths)
    print(f"{len(died)} of {len(deaths)} operators died while making, of {making} writes")
    assert len(died) > len(deaths) * 0.8

    def all_alike() -> bool:
        for name in deaths:
            assert list(differences(settled(name), expected)) == [], name
        return True

    with Operator(quiet_api):
        eventually(all_alike, what="every fleet to be like the undisturbed one", poll_s=1.0)
    delete(deaths)
    last = {name: (k, moment) for k, (name, (_, moment)) in enumerate(deaths.items(), start=1) if k <= ending}
    died = mortal.die_all(last)
    print(f"{len(died)} of {len(last)} operators died while deleting, of {ending} writes")
    assert len(died) > len(last) * 0.8
    with Operator(quiet_api):
        eventually(partial(gone, list(deaths)), what="every fleet and its topics to be gone", poll_s=1.0)


@pytest.mark.timeout(900)
def test_operator_killed_at_any_write_leaves_a_fleet_of_one_image(
    quiet_api: ApiServer, client: Client, broker: KafkaBroker, forks: ForkServerContext
) -> None:
    """The next operator has another worker image. Whatever the first had made stays, and nothing is made twice."""
    mortal = Mortal(forks, str(quiet_api.kubeconfig), writes_only=True, image="worker:1")
    deaths: dict[str, tuple[int, Moment]] = {f"one-image-{k}": (k, "after") for k in range(1, 13)}
    deaths["one-image-before"] = (1, "before")
    apply(client, [objects.namespace(name) for name in deaths])
    apply(client, [body for name in deaths for body in first_act(name, broker)])
    died = mortal.die_all(deaths)
    print(f"{len(died)} of {len(deaths)} operators died")
    assert len(died) > len(deaths) * 0.8
    states = {
        body["metadata"]["namespace"]: body["data"]
        for body in client.list("operatorstates", None, "consumerfleet.io/group=flights")
    }
    pinned = {name: states.get(name, {}).get("upgrade", {}).get("image") for name in deaths}
    print(f"pinned when the operator died: {pinned}")
    assert {"worker:1", None} == set(pinned.values())

    def settled() -> bool:
        snapshot = Snapshot.take(client)
        for name in deaths:
            seen = snapshot.settled(name, 2)
            revisions = [child for child in snapshot.children[name] if child["kind"] == "ConfigMap"]
            images = {container["image"] for container in workers_of(seen)}
            assert images == {snapshot.groups[name]["status"]["image"]} == {pinned[name] or "worker:2"}
            assert len(revisions) == 2, "one revision and its handler"
        return True

    with Operator(quiet_api, "--consumer-image", "worker:2"):
        eventually(settled, what="every fleet to run one image", poll_s=1.0)


def workers_of(seen: Any) -> Iterator[dict[str, Any]]:
    """The containers of the fleet's StatefulSet."""
    yield from seen["children"]["StatefulSet/flights-fleet"]["spec"]["template"]["spec"]["containers"]
