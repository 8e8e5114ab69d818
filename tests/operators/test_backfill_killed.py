"""Backfills with an operator that is killed after any of its writes, and without the Spark operator's CRD.

The tests play the Spark operator. Each index of a write has its own namespace, as in `test_operator_killed`.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from typing import Any

import pytest

from tests.apiserver import objects, spark
from tests.apiserver.client import Client, RefusedError
from tests.apiserver.conftest import PARTITIONS, Operator, Site, make_topic
from tests.killed import killed_operator
from tests.killed.killed_operator import Moment
from tests.killed.test_operator_killed import Mortal
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

TOPIC = "backfilled-while-killed"
KINDS = ("configmaps", "serviceaccounts", "roles", "rolebindings", "sparkapplications")
UNDISTURBED = "backfill-never-killed"
WATCHED = "consumerfleet.io/backfill"


@pytest.fixture(scope="module")
def topic(broker: KafkaBroker) -> str:
    make_topic(broker, TOPIC)
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    for number in range(PARTITIONS):
        producer.produce(TOPIC, str(number), partition=number)
    assert producer.flush(30) == 0
    return TOPIC


def play(site: Site) -> None:
    """One step of the Spark operator and of drivers, for all applications of a namespace.

    The first driver fails before it notes anything, the second covers all.
    """
    for body in site.every("sparkapplications", WATCHED):
        number = int(body["metadata"]["name"].rpartition("-")[2])
        state = body.get("status", {}).get("applicationState", {}).get("state", "")
        if state == "":
            spark.make_driver(site, number)
            spark.set_state(site, number, "RUNNING")
        elif state == "RUNNING" and number == 1:
            spark.end_driver(site, number, 21, reason="BrokerUnreachable", message="nobody there")
            spark.set_state(site, number, "FAILED", "driver container failed with ExitCode: 21, Reason: Error")
        elif state == "RUNNING":
            done = spark.ledger(number, {}, slices_done=1, counts=spark.counts(PARTITIONS), ended=True)
            spark.write_ledger(site, done)
            spark.end_driver(site, number)
            spark.set_state(site, number, "COMPLETED")


def play_all(sites: dict[str, Site]) -> None:
    for site in sites.values():
        try:
            play(site)
        except (AssertionError, RefusedError) as error:
            print(f"{site.name}: {error}")  # an object changed meanwhile; the next step sees it


def picture(site: Site) -> Any:
    """All that a Backfill has left, once it has ended as it should."""
    status = site.status("backfills", "again")
    assert (status.get("phase"), status.get("attempts")) == ("Succeeded", 2), status
    children = sorted(f"{plural}/{name}" for plural in KINDS for name in site.names(plural, WATCHED))
    kept = ("phase", "attempts", "offsetsCovered", "offsetsTotal", "records", "progressText", "resolvedRange")
    ended = {key: status["lastEnded"][key] for key in ("attempt", "reason", "failuresInARow")}
    reasons = [(each["type"], each["status"], each["reason"]) for each in status["conditions"]]
    return children, {key: status[key] for key in kept}, ended, reasons


@pytest.mark.timeout(600)
def test_operator_killed_after_any_write_makes_no_attempt_twice(
    quiet_api: ApiServer, broker: KafkaBroker, topic: str
) -> None:
    spark.install_crd(quiet_api)
    context: ForkServerContext = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([killed_operator.__name__])
    mortal = Mortal(context, str(quiet_api.kubeconfig), writes_only=True)
    with Client(quiet_api.kubeconfig) as client:

        def begin(name: str) -> Site:
            site = Site(quiet_api, client, name)
            site.apply(objects.namespace(name), objects.handler_source(name), objects.cluster(name, broker.bootstrap))
            site.apply(objects.group(name, topics=[topic], replicas=0), spark.backfill(name))
            return site

        alone = {UNDISTURBED: begin(UNDISTURBED)}

        def settled() -> Any:
            play_all(alone)
            return picture(alone[UNDISTURBED])

        writes, expected = mortal.count_calls(UNDISTURBED, settled)
        # Every write is the unit suite's; here every third one has a real API server behind it.
        deaths: dict[str, tuple[int, Moment]] = {f"backfill-killed-{k}": (k, "after") for k in range(1, writes + 1, 3)}
        deaths["backfill-killed-before"] = (1, "before")
        sites = {name: begin(name) for name in deaths}
        with Playing(sites):
            died = mortal.die_all(deaths)
            print(f"{len(died)} of {len(deaths)} operators died at their write, of {writes}")
            assert len(died) > len(deaths) * 0.7

            def all_alike() -> bool:
                for name, site in sites.items():
                    assert picture(site) == expected, name
                return True

            with Operator(quiet_api):
                eventually(all_alike, timeout_s=200, what="every Backfill to be like the undisturbed one", poll_s=1.0)


class Playing:
    """Plays the Spark operator of some namespaces on a thread of its own."""

    def __init__(self, sites: dict[str, Site]) -> None:

        self._sites = sites
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark")

    def __enter__(self) -> Playing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            play_all(self._sites)


def test_backfill_waits_for_the_crd_of_spark_and_begins_once_it_is_installed(
    quiet_api: ApiServer, quiet_site: Callable[..., Site], broker: KafkaBroker, topic: str
) -> None:
    quiet_api.kubectl("delete", "crd", spark.CRD, "--ignore-not-found", "--timeout=60s")
    here = quiet_site("backfill-no-spark")
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    here.apply(
        objects.group(here.name, topics=[topic]),
        spark.backfill(here.name),
        spark.backfill(here.name, "dry", dryRun=True),
    )
    with Operator(quiet_api, "--namespace", here.name):
        spark.wait_phase(here, "Pending", "SparkNotInstalled")
        available = here.condition("backfills", "again", "SparkAvailable")
        assert available["status"] == "False"
        assert "install the kubeflow Spark operator" in available["message"]
        spark.wait_phase(here, "Succeeded", "AllCounted", "dry")
        spark.install_crd(quiet_api)
        spark.wait_attempt(here, 1)
        spark.make_driver(here, 1)
        spark.set_state(here, 1, "RUNNING")
        spark.wait_phase(here, "Running", "Running")
        # The other way round: an operator whose kind goes away still watches all others.
        quiet_api.kubectl("delete", "crd", spark.CRD, "--timeout=60s")
        here.apply(spark.backfill(here.name, "after", dryRun=True), spark.backfill(here.name, "waits"))
        spark.wait_phase(here, "Succeeded", "AllCounted", "after")
        spark.wait_phase(here, "Pending", "SparkNotInstalled", "waits")
        spark.install_crd(quiet_api)
        spark.wait_attempt(here, 1, "waits")
