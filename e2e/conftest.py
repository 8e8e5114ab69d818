"""Fixtures of the end-to-end suites: one cluster with Kafka and the installed operator, made once for the whole run.

Tests that mostly wait run concurrently (tests/support/together.py). Those that break something for all, or time what
shows only while nothing else runs on the cluster, run one by one after them; those that remove the operator come last.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster import Cluster
from e2e.demo.fleet import FlightFleet
from e2e.described import described_failure
from e2e.install import Installation
from tests.support.durations import PROCESSOR_SECONDS
from tests.support.programs import API_SERVER, CLUSTER, build_before, is_embedded
from tests.support.together import play_together

FOLDER = Path(__file__).parent
AT_ONCE = 4
"""At most, while the processors have room. Next to them runs one test with Spark, whose submission alone takes a
processor for seconds, and one that moves many records."""
LAST = ("test_uninstall", "test_walkthrough")
TIMEOUT_S = 1500
"""Seconds for one test: the first may have to make the cluster, and a concurrent one waits for its turn."""


def pytest_configure(config: pytest.Config) -> None:
    play_together(config, FOLDER, AT_ONCE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [place for place, item in enumerate(items) if FOLDER in item.path.parents]
    for place, item in zip(places, sorted((items[place] for place in places), key=turn), strict=True):
        items[place] = item
        item.add_marker(pytest.mark.timeout(TIMEOUT_S), append=False)


def turn(item: pytest.Item) -> int:
    """The place of a test's file in the order of the suite; files with the same one keep theirs."""
    name = item.path.stem
    return 1 + LAST.index(name) if name in LAST else 0


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before(session, FOLDER, CLUSTER if is_embedded() else API_SERVER)


@pytest.fixture(scope="session")
def installation(record_testsuite_property: Callable[[str, object], None]) -> Iterator[Installation]:
    """A cluster of this run's own (or FLEET_KUBECONFIG's), removed at the end unless FLEET_KEEP is set.

    An interrupted run leaves groups, releases and topics behind, which the tests of this one would count as theirs.
    """
    made = Installation(name="e2e")
    keep = bool(os.environ.get("FLEET_KEEP"))
    if not keep and is_embedded():
        made.down()
    made.up()
    yield made
    record_testsuite_property(PROCESSOR_SECONDS, made.processor_seconds())
    if not keep:
        made.down()


@pytest.fixture(scope="session")
def cluster(installation: Installation) -> Cluster:
    return installation.cluster


@pytest.fixture(scope="session")
def fleets(installation: Installation) -> Fleets:
    return Fleets(installation)


class Fleets:
    """Makes flight fleets in namespaces of their own; a failure reports the fleet's state."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._used: set[str] = set()

    @contextmanager
    def named(self, name: str, *, topics: bool = True, retries: bool = False) -> Iterator[FlightFleet]:
        """A fleet until the end of the block; its name is also that of the namespace, the group and the topics.

        Each name is used once in a run: a former namespace may still be on its way out, and take the fleet with it.
        """
        assert name not in self._used, f"another test of this run has a fleet named {name}"
        self._used.add(name)
        fleet = FlightFleet(
            self._installation.cluster,
            namespace=name,
            consumer_image=self._installation.consumer_image,
            name=name,
            retries=retries,
        )
        try:
            with described_failure(fleet):
                fleet.make_tools()
                if topics:
                    fleet.make_topics()
                yield fleet
        finally:
            fleet.cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
