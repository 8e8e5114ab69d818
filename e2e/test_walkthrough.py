"""docs/install.md and docs/own-image.md, executed command by command on a cluster without the operator.

The last command removes the CRDs, and with them every object of the project.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster import PATIENCE_S, Cluster, eventually
from e2e.conftest import ON_SECOND_CLUSTER
from e2e.demo.fleet import FlightFleet
from e2e.install import OPERATOR_NAMESPACE, Installation
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.kafka_pod import host_bootstrap
from e2e.reader import Reader, commands, sections

pytestmark = ON_SECOND_CLUSTER

INSTALL, OWN_IMAGE = "docs/install.md", "docs/own-image.md"
SHOP = "shop"
TO_A_FLEET = ("Images", "The operator", "Credentials", "The first group", "Check the group")
CRDS = ("backfills", "consumergroups", "kafkaclusters", "offsetresets", "operatorstates", "redrives", "retrypolicies")
ORDERS = b'{"item": "tea", "count": 2}\n{"item": "milk", "count": 0}\n'
UNTIL_DONE = (
    '"$@" >/tmp/out 2>&1 & worker=$!; until grep -q "done=1 failed=1" /tmp/out; do sleep 1; done; '
    "kill $worker; wait $worker; code=$?; cat /tmp/out; exit $code"
)
"""A script that acts as a user: it stops the run when the progress line shows both orders as done."""


@pytest.fixture
def bare(second: Installation) -> Installation:
    """The second cluster without the operator, and without groups, which nothing would delete any more."""
    second.cluster.kubectl("delete", "consumergroups", "--all", "--all-namespaces", f"--timeout={PATIENCE_S:.0f}s")
    second.cluster.helm("uninstall", "consumer-fleet", "--namespace", OPERATOR_NAMESPACE, "--wait")
    second.cluster.kubectl("delete", "namespace", OPERATOR_NAMESPACE, "--timeout=290s")
    return second


@contextmanager
def reading(installation: Installation, page: str, files: Path, *, in_clone: bool) -> Iterator[Reader]:
    reader = Reader(installation.cluster, installation.instance, page, files, in_clone=in_clone)
    try:
        yield reader
    finally:
        reader.close()


def wait_values(shop: FlightFleet, wanted: list[str]) -> None:
    def probe() -> bool:
        found = shop.inside("read", "--topic", "orders-done")["values"]
        assert sorted(found) == sorted(wanted), found
        return True

    eventually(probe, timeout_s=PATIENCE_S, what=f"orders-done holds {wanted}")


def run_locally(installation: Installation, reader: Reader, words: list[str]) -> str:
    """The page's local run, on the cluster's Kafka in place of one at localhost, until both orders are done."""
    image = words.index("fleet-consumer")
    stopped = ["timeout", str(PATIENCE_S), "sh", "-c", UNTIL_DONE, "sh"]
    brokers = {"localhost:9092": host_bootstrap(LocalCluster(installation.instance))}
    return reader.types([*words[:image], *stopped, *words[image:]], instead=brokers)


def worker_images(cluster: Cluster) -> set[str]:
    """Names of the workers' images, without the registry."""
    pods = cluster.list(
        "pods", namespace=SHOP, selector="consumerfleet.io/group=orders,app.kubernetes.io/component=worker"
    )
    return {pod["spec"]["containers"][0]["image"].rpartition("/")[2] for pod in pods}


def test_reader_installs_runs_an_own_image_upgrades_and_uninstalls(bare: Installation, tmp_path: Path) -> None:
    page, own, cluster = sections(INSTALL), sections(OWN_IMAGE), bare.cluster
    shop = FlightFleet(cluster, namespace=SHOP, consumer_image=bare.consumer_image, name="orders")
    with (
        reading(bare, INSTALL, tmp_path / "install", in_clone=True) as reader,
        reading(bare, OWN_IMAGE, tmp_path / "own", in_clone=False) as author,
    ):
        started = time.monotonic()
        outputs: dict[str, str] = {}
        for title in TO_A_FLEET:
            if title == "The first group":
                shop.make_tools()
                shop.inside("delete-topics", "orders", "orders-done")
                shop.make_topics()
            for words in commands(page[title]):
                outputs[" ".join(words[3:])] = reader.types(words)
        table = outputs["get consumergroups"].splitlines()
        shown = [line.split() for line in page["The first group"].splitlines() if line.startswith(("NAME ", "orders "))]
        assert [table[0].split(), table[1].split()[:5]] == [shown[0], shown[1][:5]], table
        print(f"installed, and a Ready fleet, after {time.monotonic() - started:.0f} s")
        shop.wait_stable(members=2)
        shop.inside("write", "--topic", "orders", stdin=ORDERS)
        upper = ['{"ITEM": "TEA", "COUNT": 2}', '{"ITEM": "MILK", "COUNT": 0}']
        wait_values(shop, upper)

        for words in commands(own["Build, try, push"]):
            if "--local" in words:
                assert "done=1 failed=1" in run_locally(bare, author, words).splitlines()[-1]
            else:
                author.types(words)
        wait_values(shop, [*upper, "2 of tea"])
        for words in commands(own["Run"]):
            author.types(words)
        assert worker_images(cluster) == {"orders-worker:1"}, "Ready is of the new revision"
        shop.wait_stable(members=2)
        shop.inside("write", "--topic", "orders", stdin=b'{"item": "jam", "count": 1}\n')
        wait_values(shop, [*upper, "2 of tea", "1 of jam"])
        change_the_handler(tmp_path / "own")
        for words in commands(own["Change"]):
            author.types(words)
        assert worker_images(cluster) == {"orders-worker:2"}, "Ready is of the new revision"
        shop.inside("write", "--topic", "orders", stdin=b'{"item": "bun", "count": 3}\n')
        wait_values(shop, [*upper, "2 of tea", "1 of jam", "3 times bun"])

        for title in ("Upgrade", "Uninstall"):
            for words in commands(page[title]):
                if words[:3] == ["kubectl", "delete", "crd"]:
                    assert left(cluster) == list(CRDS), "the release leaves its CRDs"
                reader.types(words)
        assert left(cluster) == []
        assert set(shop.inside("topics", "orders")) == {"orders", "orders-done"}


def change_the_handler(folder: Path) -> None:
    source = folder / "shop" / "orders.py"
    source.write_text(source.read_text().replace("} of {", "} times {"))


def left(cluster: Cluster) -> list[str]:
    """Plural names of the project's CRDs in the cluster."""
    names = cluster.kubectl("get", "crd", "--output", "name").split()
    return sorted(name.partition("/")[2].partition(".")[0] for name in names if name.endswith(".consumerfleet.io"))


def test_no_command_of_the_pages_is_left_out() -> None:
    page, own = sections(INSTALL), sections(OWN_IMAGE)
    assert {title for title, text in page.items() if commands(text)} == {*TO_A_FLEET, "Upgrade", "Uninstall"}
    assert {title for title, text in own.items() if commands(text)} == {"Build, try, push", "Run", "Change"}
