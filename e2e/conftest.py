"""What the end-to-end suites share: one cluster with Kafka and the installed operator, made once for the whole run."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest

from e2e.cluster import Cluster, conditions
from e2e.demo.fleet import FlightFleet
from e2e.install import Installation


@pytest.fixture(scope="session")
def installation() -> Iterator[Installation]:
    """A cluster of this run's own (or FLEET_KUBECONFIG's), removed at the end unless FLEET_KEEP is set."""
    made = Installation(name="e2e")
    made.up()
    yield made
    if not os.environ.get("FLEET_KEEP"):
        made.down()


@pytest.fixture(scope="session")
def cluster(installation: Installation) -> Cluster:
    return installation.cluster


@pytest.fixture
def fleet_of(installation: Installation) -> Iterator[FleetMaker]:
    """Makes flight fleets in namespaces of their own; on failure prints what a person would look at first."""
    maker = FleetMaker(installation)
    yield maker
    maker.remove()


class FleetMaker:
    """Fleets by name; the name is also that of the namespace, the group and the topics."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self.made: list[FlightFleet] = []

    def __call__(self, name: str, *, topics: bool = True, retries: bool = False) -> FlightFleet:
        fleet = FlightFleet(
            self._installation.cluster,
            namespace=name,
            consumer_image=self._installation.consumer_image,
            name=name,
            retries=retries,
        )
        fleet.make_tools()
        if topics:
            fleet.make_topics()
        self.made.append(fleet)
        return fleet

    def describe(self) -> str:
        """The groups, their conditions, pods and last log lines."""
        parts = []
        for fleet in self.made:
            parts.append(fleet.kubectl("get", "consumergroups,pods,statefulsets", "--output", "wide"))
            for kind, entry in conditions(fleet.group()).items():
                parts.append(f"{kind}={entry['status']} {entry['reason']}: {entry['message']}")
            selector = f"consumerfleet.io/group={fleet.name}"
            parts.append(fleet.kubectl("logs", "--selector", selector, "--tail=20", "--prefix", "--ignore-errors"))
        return "\n".join(parts)

    def remove(self) -> None:
        for fleet in self.made:
            fleet.cluster.kubectl("delete", "namespace", fleet.namespace, "--wait=false", "--ignore-not-found")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the fleets' state to the report of a test that failed, while they still exist."""
    report = yield
    maker = getattr(item, "funcargs", {}).get("fleet_of")
    if call.when == "call" and call.excinfo is not None and isinstance(maker, FleetMaker):
        report.sections.append(("fleets at the time of the failure", maker.describe()))
    return report
