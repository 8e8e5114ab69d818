"""Fixtures of the end-to-end suites: a cluster with Kafka and the installed operator, created once per run.

Tests run concurrently (tests/support/together.py), because they mostly wait. Those that kill, replace or remove what
all groups of a cluster share run one by one on a second cluster.
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
from tests.support.together import Later, play_together

FOLDER = Path(__file__).parent
AT_ONCE = 4
"""Most concurrent tests, while the processors have capacity. Next to them run one test with Spark, whose submission
alone needs a processor for seconds, one that moves many records, and one on the second cluster."""
ON_SECOND_CLUSTER = [
    pytest.mark.together("second"),
    pytest.mark.skipif(not is_embedded(), reason="FLEET_KUBECONFIG names one cluster, and its other tests need it"),
]
"""Marks of tests that change what all groups of a cluster share."""
TIMEOUT_S = 1500
"""Seconds for one test: the first may have to create the cluster, and a concurrent one waits for its start."""


def pytest_configure(config: pytest.Config) -> None:
    play_together(config, FOLDER, AT_ONCE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S), append=False)


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before(session, FOLDER, CLUSTER if is_embedded() else API_SERVER)


@contextmanager
def installed(name: str, record: Callable[[str, object], None]) -> Iterator[Installation]:
    """This run's own cluster (or FLEET_KUBECONFIG's), removed at the end unless FLEET_KEEP is set.

    An interrupted run leaves groups, releases and topics behind, which this run's tests would count as theirs.
    """
    made = Installation(name=name)
    keep = bool(os.environ.get("FLEET_KEEP"))
    if not keep and is_embedded():
        made.down()
    made.up()
    yield made
    record(PROCESSOR_SECONDS, made.processor_seconds())
    if not keep:
        made.down()


@pytest.fixture(scope="session")
def installation(record_testsuite_property: Callable[[str, object], None]) -> Iterator[Installation]:
    with installed("e2e", record_testsuite_property) as made:
        yield made


@pytest.fixture(scope="session")
def second_installation(
    record_testsuite_property: Callable[[str, object], None],
) -> Iterator[Later[Installation]]:
    with Later(lambda: installed("second", record_testsuite_property)) as later:
        yield later


@pytest.fixture
def second(second_installation: Later[Installation]) -> Installation:
    """A second cluster, with its operator: the test before may have removed or replaced it."""
    made = second_installation.get()
    made.install_chart()
    return made


@pytest.fixture
def second_fleets(second: Installation) -> Fleets:
    return Fleets(second)


@pytest.fixture(scope="session")
def cluster(installation: Installation) -> Cluster:
    return installation.cluster


@pytest.fixture(scope="session")
def fleets(installation: Installation) -> Fleets:
    return Fleets(installation)


class Fleets:
    """Creates flight fleets in namespaces of their own; a failure reports the fleet's state."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._used: set[str] = set()

    @contextmanager
    def named(self, name: str, *, topics: bool = True, retries: bool = False) -> Iterator[FlightFleet]:
        """A fleet until the end of the block; its name is also that of the namespace, the group and the topics.

        Each name is used once per run: a former namespace may still be terminating, and delete the fleet with it.
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
