"""OffsetResets and Redrives by operators that are killed again and again, while their statuses are wiped in between.

Both are done once, also where an object that has ended is deleted and made again. There is no kubelet and no garbage
collector here: workers' pods are played, a member of the test reads in their place, and the run of a Redrive's Job is a
process of the test.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from fleet_consumer.contract import naming
from fleet_consumer.wire import offsets_topic
from fleet_operator.clients.kinds import OFFSET_RESET, REDRIVE, Kind
from fleet_operator.planning import times
from fleet_operator.planning.offsets.records import MARKER
from tests.apiserver import objects
from tests.apiserver.client import NAMES, Client
from tests.apiserver.conftest import PARTITIONS, Operator, Site, make_topic
from tests.apiserver.redrives import JOB, end_job, end_pod, make_pod, redrive
from tests.broker.workers import Kafka
from tests.killed.killed_operator import Moment
from tests.killed.test_operator_killed import Mortal, client, forks
from tests.retries.redrives import failed_record, start_redrive
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

__all__ = ["client", "forks"]

JsonObject = dict[str, Any]
TOPIC = "declared-while-killed"
RECORDS = 100
BEFORE = 60
FROM = 30
BEGAN = int(time.time()) - 3600
OWNED = ("operatorstates", "jobs", "configmaps", "pods")
FAILED = range(40)
MOMENTS: tuple[Moment, ...] = ("before", "after")


class Lives:
    """Namespaces with one run each, and their operators, one after the other."""

    def __init__(self, api: ApiServer, client: Client, forks: ForkServerContext, kind: Kind, word: str) -> None:
        self.api, self.client, self.kind = api, client, kind
        self.mortal = Mortal(forks, str(api.kubeconfig), writes_only=True)
        self.sites = {moment: Site(api, client, f"{word}-killed-{moment}") for moment in MOMENTS}

    def operator(self) -> Operator:
        """One that is not killed, for these namespaces only."""
        return Operator(self.api, *(word for site in self.every() for word in ("--namespace", site.name)))

    def every(self) -> list[Site]:
        return list(self.sites.values())

    def kill_all(self, name: str) -> None:
        """Kill each operator one write later than the last one, and wipe the run's status after each, until an operator
        needs no more writes."""
        left = dict(self.sites)
        for number in itertools.count(1):
            died = self.mortal.die_all({site.name: (number, moment) for moment, site in left.items()})
            for site in self.every():
                self.wipe(site, name)
            left = {moment: site for moment, site in left.items() if site.name in died}
            if not left:
                print(f"{number} operators of each namespace")
                assert number > 5, "too few writes to be killed at"
                return

    def wipe(self, site: Site, name: str) -> None:
        path = self.kind.path(site.name, name, "status")
        self.client.ask("PATCH", path, {"status": None}, kind="application/merge-patch+json")

    def make_again(self, manifest: Callable[[Site], JsonObject]) -> None:
        """Do what `kubectl replace --force` does, and the garbage collector after it."""
        for site in self.every():
            body = manifest(site)
            uid = site.get(self.kind.plural, body["metadata"]["name"])["metadata"]["uid"]
            self.client.delete(site.name, body)
            eventually(partial(self.is_empty, site), what="the object to be gone")
            self.collect(site, uid)
            self.client.create(site.name, body)

    def is_empty(self, site: Site) -> bool:
        return not self.client.list(self.kind.plural, site.name)

    def collect(self, site: Site, uid: str) -> None:
        """Delete what an object that is gone has owned."""
        for plural in OWNED:
            for body in self.client.list(plural, site.name):
                metadata = body["metadata"]
                if uid in {owner["uid"] for owner in metadata.get("ownerReferences", ())}:
                    path = NAMES[plural].path(site.name, metadata["name"])
                    # The default for Jobs waits for the garbage collector.
                    query = {"gracePeriodSeconds": "0", "propagationPolicy": "Background"}
                    self.client.ask("DELETE", path, query=query)
                    self.collect(site, metadata["uid"])

    def wait_done(self, name: str) -> None:
        """Wait until all statuses say that the runs have succeeded."""

        def done() -> bool:
            phases = [site.status(self.kind.plural, name).get("phase") for site in self.every()]
            assert set(phases) == {"Succeeded"}, phases
            return True

        eventually(done, timeout_s=90, what=f"each {self.kind.kind} to be done")


def knows_it_is_new(site: Site) -> bool:
    """True if the memory of the group began before its first commit; otherwise an OffsetReset may have been done."""
    return site.get("operatorstates", "flights.consumergroup")["data"]["offsets"].get("inherited") is False


def offset_reset(site: Site) -> JsonObject:
    spec = {"groupRef": {"name": "flights"}, "to": "Time", "time": times.to_text(BEGAN + FROM)}
    metadata = {"name": "again", "namespace": site.name}
    return {"apiVersion": objects.API_VERSION, "kind": "OffsetReset", "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def topic(broker: KafkaBroker) -> str:
    """A topic with a hundred records in each partition, at times of one second after another."""
    make_topic(broker, TOPIC)
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    for partition, number in itertools.product(range(PARTITIONS), range(RECORDS)):
        producer.produce(TOPIC, b"x", partition=partition, timestamp=(BEGAN + number) * 1000)
    assert producer.flush(60) == 0
    return TOPIC


def commit(broker: KafkaBroker, group: str, offset: int) -> None:
    """Commit an offset of all partitions without joining the group."""
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    places = [TopicPartition(TOPIC, number, offset) for number in range(PARTITIONS)]

    def committed() -> bool:
        try:  # a fresh broker is still creating the offsets topic
            return bool(member.commit(offsets=places, asynchronous=False))
        except KafkaException as error:
            raise AssertionError(str(error)) from error

    try:
        eventually(committed, what=f"the offsets of {group} to be committed", timeout_s=60)
    finally:
        member.close()


def read_on(broker: KafkaBroker, group: str, count: int) -> Counter[tuple[int, int]]:
    """Read so many records as a member of the group, and commit them; returns how often each was read."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False}
    member, read = Consumer(settings), Counter[tuple[int, int]]()
    member.subscribe([TOPIC])

    def all_read() -> bool:
        for message in member.consume(1000, 0.2):
            assert message.error() is None, message.error()
            read[message.partition() or 0, message.offset() or 0] += 1
        return read.total() >= count

    try:
        eventually(all_read, what=f"{count} records to be read", poll_s=0.0)
        member.commit(asynchronous=False)
    finally:
        member.close()
    return read


def commits(broker: KafkaBroker, group: str) -> dict[int, list[tuple[int, bool]]]:
    """Every commit of each partition of a group ever made, by offset and by whether it has the marker of a reset;
    repetitions count as one."""
    found: dict[int, list[tuple[int, bool]]] = {number: [] for number in range(PARTITIONS)}
    for each in Kafka(broker.bootstrap).read(offsets_topic.TOPIC):
        entry = offsets_topic.decode(each.key, each.value)
        if isinstance(entry, offsets_topic.CommittedOffset) and entry.group == group and entry.value is not None:
            found[entry.partition.partition].append((entry.value.offset, entry.value.metadata.startswith(MARKER)))
    return {number: [each for each, _ in itertools.groupby(made)] for number, made in found.items()}


@pytest.mark.timeout(400)
def test_reset_by_operators_that_are_killed_is_done_once(
    quiet_api: ApiServer, client: Client, forks: ForkServerContext, broker: KafkaBroker, topic: str
) -> None:
    lives = Lives(quiet_api, client, forks, OFFSET_RESET, "reset")
    for site in lives.every():
        site.apply(objects.namespace(site.name), objects.handler_source(site.name))
        site.apply(objects.cluster(site.name, broker.bootstrap), objects.group(site.name, topics=[topic], replicas=1))
    with lives.operator():
        for site in lives.every():
            site.wait_ready_replicas(1)
            eventually(partial(knows_it_is_new, site), what="the operator to know that the group had no commits")
    for site in lives.every():
        commit(broker, f"{site.name}.flights", BEFORE)
        site.apply(offset_reset(site))
    lives.kill_all("again")
    once = Counter(itertools.product(range(PARTITIONS), range(FROM, RECORDS)))
    with lives.operator():
        lives.wait_done("again")
        for site in lives.every():
            status = site.status("offsetresets", "again")
            assert {each["offset"] for each in status["previous"]} == {BEFORE}
            assert {each["offset"] for each in status["resolved"]} == {FROM}
            assert read_on(broker, f"{site.name}.flights", once.total()) == once
        lives.make_again(offset_reset)
        lives.wait_done("again")
    lives.make_again(offset_reset)
    with lives.operator():
        lives.wait_done("again")
    for site in lives.every():
        made = [(BEFORE, False), (FROM, True), (RECORDS, False)]
        assert commits(broker, f"{site.name}.flights") == dict.fromkeys(range(PARTITIONS), made)


class Jobs:
    """Plays the Job controller and the kubelet for the Jobs of Redrives, on a thread for each Job; a context manager.

    `begun` counts the runs of each namespace.
    """

    def __init__(self, sites: list[Site], folder: Path) -> None:
        self.begun = Counter[str]()
        self._sites, self._folder = sites, folder
        self._uids = set[str]()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._watch, name="job-controller")]

    def __enter__(self) -> Jobs:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in list(self._threads):
            thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            for site in self._sites:
                for job in site.every("jobs"):
                    if job["metadata"]["uid"] not in self._uids and not job["spec"].get("suspend"):
                        self._uids.add(job["metadata"]["uid"])
                        self.begun[site.name] += 1
                        thread = threading.Thread(target=self._run, args=(site, job), name="kubelet")
                        self._threads.append(thread)
                        thread.start()

    def _run(self, site: Site, job: JsonObject) -> None:
        pod = f"run-{self.begun[site.name]}"
        make_pod(site, job, pod)
        settings = json.loads(site.get("configmaps", JOB)["data"]["redrive.json"])
        ended = start_redrive(settings, self._folder).end()
        end_pod(site, pod, dict(ended.result), code=ended.code)
        end_job(site)


@pytest.mark.timeout(400)
def test_redrive_by_operators_that_are_killed_puts_each_record_back_once(
    quiet_api: ApiServer, client: Client, forks: ForkServerContext, broker: KafkaBroker, tmp_path: Path
) -> None:
    lives = Lives(quiet_api, client, forks, REDRIVE, "redrive")
    for site in lives.every():
        site.apply(objects.namespace(site.name), objects.handler_source(site.name))
        site.apply(objects.cluster(site.name, broker.bootstrap), objects.policy(site.name, "5s"))
        site.apply(objects.group(site.name, retry=objects.retry()))
    with lives.operator():
        for site in lives.every():
            site.wait_condition(
                "consumergroups", "flights", "TopicsReady", status="True", reason="TopicsExist", timeout_s=60
            )
    for site in lives.every():
        write_failed(broker, f"{site.name}.flights")
        site.apply(slow_redrive(site))
    with Jobs(lives.every(), tmp_path) as jobs:
        lives.kill_all("fixed")
        with lives.operator():
            lives.wait_done("fixed")
            assert {site.status("redrives", "fixed")["moved"] for site in lives.every()} == {len(FAILED)}
            lives.make_again(slow_redrive)
            lives.wait_done("fixed")
        lives.make_again(slow_redrive)
        with lives.operator():
            lives.wait_done("fixed")
        assert [site.names("jobs") for site in lives.every()] == [[], []]
    for site in lives.every():
        assert jobs.begun[site.name] == 1
        moved = Kafka(broker.bootstrap).read(naming.redrive_topic(f"{site.name}.flights"))
        assert sorted(json.loads(each.value or b"")["n"] for each in moved) == list(FAILED)


def slow_redrive(site: Site) -> JsonObject:
    """One whose run outlives some operators."""
    return redrive(site, rate={"recordsPerSecond": 8})


def write_failed(broker: KafkaBroker, group: str) -> None:
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    for number in FAILED:
        producer.produce(naming.failed_topic(group), **failed_record(group, number))
    assert producer.flush(60) == 0
