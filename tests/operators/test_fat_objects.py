"""Large objects of two namespaces next to the groups of a third: nobody else notices, and the Lease is kept.

FLEET_FAT_OBJECTS and FLEET_FAT_ORDINARY set their numbers; 2000 and 200 take some minutes on two cores.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from fleet_operator.planning.times import from_text
from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Operator, Site
from tests.support.waiting import eventually

FAT, ORDINARY = int(os.environ.get("FLEET_FAT_OBJECTS", "12")), int(os.environ.get("FLEET_FAT_ORDINARY", "10"))
FATTEST = max(6, FAT // 40)
"""One of so many has 60,000 short values, which are slow to read and to render; the others have 100 kB of text."""
STATUS_S = 60.0
"""The promise to an ordinary group: its first status, whatever else there is."""
TOO_LARGE = "more than 65536 are refused"


@pytest.fixture
def here(quiet_site: Callable[..., Site]) -> Iterator[tuple[Site, Site, Site]]:
    sites = (quiet_site("fat"), quiet_site("fat"), quiet_site("ordinary"))
    yield sites
    for site in sites:
        for body in site.every("consumergroups", ""):
            site.client.delete(site.name, body)


def fat_group(site: Site, number: int) -> dict[str, Any]:
    name = f"fat-{number:04}"
    if number % FATTEST:
        long = [{"name": f"A{place}", "value": "x" * 1000} for place in range(100)]
        return objects.group(site.name, name=name, template={"spec": {"containers": [{"name": "worker", "env": long}]}})
    expression = {"key": "zone", "operator": "In", "values": ["a"] * 60}
    term = {"topologyKey": "zone", "labelSelector": {"matchExpressions": [expression] * 16}}
    terms = [{"weight": 1, "podAffinityTerm": term}] * 64
    affinity = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    return objects.group(site.name, name=name, template={"spec": {"affinity": affinity}})


def reason(body: dict[str, Any]) -> str:
    return next(
        (each["reason"] for each in body.get("status", {}).get("conditions", ()) if each["type"] == "Ready"), ""
    )


def first_statuses(site: Site, names: list[str]) -> float:
    """Make ordinary groups; the longest that one of them waited for its first status, to the second."""
    for name in names:
        site.apply(objects.group(site.name, name=name))

    def seen() -> list[dict[str, Any]]:
        found = [body for body in site.every("consumergroups", "") if body["metadata"]["name"] in names]
        missing = [body["metadata"]["name"] for body in found if reason(body) != "ClusterNotFound"]
        assert not missing, f"{len(missing)} of {len(names)} have no status: {missing[:3]}"
        return found

    return max(map(waited, eventually(seen, timeout_s=10 * STATUS_S, what="statuses of all ordinary groups")))


def waited(body: dict[str, Any]) -> float:
    (ready,) = (each for each in body["status"]["conditions"] if each["type"] == "Ready")
    created, shown = from_text(body["metadata"]["creationTimestamp"]), from_text(ready["lastTransitionTime"])
    assert created is not None
    assert shown is not None
    return shown - created


def lease(site: Site) -> dict[str, Any]:
    spec: dict[str, Any] = site.get("leases", "consumer-fleet-operator")["spec"]
    return spec


def leading(site: Site, identity: str) -> Operator:
    return Operator(site.api, "--leader-elect", "--lease-namespace", site.name, identity=identity)


def late_seconds(operator: Operator) -> float:
    """The longest time for which the event loop was late."""
    return max(map(float, re.findall(r"late_seconds=([0-9.]+)", operator.log.read_text())), default=0.0)


def all_refused(site: Site, count: int) -> bool:
    refused = [body for body in site.every("consumergroups", "") if reason(body) == "SpecTooLarge"]
    assert len(refused) == count
    return True


def test_large_objects_of_others_hold_up_neither_the_lease_nor_an_ordinary_group(here: tuple[Site, Site, Site]) -> None:
    *fat, shop = here
    bodies = [(site, fat_group(site, number)) for number in range(FAT // 2) for site in fat]
    with leading(shop, "first") as operator, ThreadPoolExecutor(2) as pool:
        eventually(lambda: "working" in operator.log.read_text(), timeout_s=PATIENCE_S, what="the operator to work")
        making: list[Future[None]] = [pool.submit(site.client.create, site.name, body) for site, body in bodies]
        during = first_statuses(shop, [f"during-{number:03}" for number in range(ORDINARY)])
        for made in making:
            made.result()
        for site in fat:
            eventually(partial(all_refused, site, FAT // 2), timeout_s=PATIENCE_S + FAT, what="refusals of all")
        after = first_statuses(shop, ["after"])
        shown = fat[0].condition("consumergroups", "fat-0000", "Ready")
        assert TOO_LARGE in shown["message"], shown
        held, late = lease(shop), late_seconds(operator)
        assert held["holderIdentity"].startswith("first"), held
        assert held["leaseTransitions"] == 0, "it was never lost"
        assert operator.process.poll() is None
        assert operator.stop() == 0
    with leading(shop, "second") as operator:
        eventually(
            lambda: lease(shop)["holderIdentity"].startswith("second"), timeout_s=PATIENCE_S, what="another leader"
        )
        restarted = first_statuses(shop, [f"restarted-{number:03}" for number in range(ORDINARY)])
        eventually(
            lambda: lease(shop)["renewTime"] > held["renewTime"], timeout_s=PATIENCE_S, what="the Lease to be renewed"
        )
        assert lease(shop)["leaseTransitions"] == 1
        assert operator.process.poll() is None
        late_again = late_seconds(operator)
    figures = f"during {during:.0f} s, after {after:.0f} s, after a restart {restarted:.0f} s"
    print(
        f"{FAT} large objects, {ORDINARY} ordinary groups; first statuses: {figures}; late: {late} and {late_again} s"
    )
    assert max(during, after, restarted) < STATUS_S
