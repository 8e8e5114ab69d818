"""The operator's memory with large objects: anybody may label objects so that its watches select them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver import objects
from tests.apiserver.client import Client
from tests.apiserver.conftest import PATIENCE_S, Operator, Site, install_crds
from tests.support.apiserver import ApiServer
from tests.support.waiting import eventually

MIB = 1024 * 1024
SMALL = 320
"""Small objects that lists show before the large ones: pages have grown by then."""
COUNTS = (40, 120)
"""Objects of a MiB of each kind, at the first and the second start: more objects must not need more memory."""
PEAK_MIB = 400.0
"""Peak limit, of the 512 MiB that the chart grants; an idle machine shows less than 240."""
MORE_MIB = 80.0
"""Largest difference between the peaks of two starts: half of what 80 more objects of each kind hold in bytes."""


@pytest.mark.together
def test_large_objects_of_others_do_not_fill_the_memory() -> None:
    """Neither during their creation nor at a start next to them; that would end the operator again and again.

    The API server is its own: a shared one would keep other tests waiting with hundreds of megabytes.
    """
    with ApiServer() as server, Client(server.kubeconfig) as client:
        install_crds(server)
        expect_bounded_memory(Site(server, client, "default"))


def expect_bounded_memory(here: Site) -> None:
    peaks = []
    here.apply(*(_small_config_map(here, number) for number in range(SMALL)))
    with _large_objects(here) as make:
        for count in COUNTS:
            with _working(here):
                make(count)
            with _working(here) as restarted:
                group = objects.group(here.name)
                group["metadata"]["name"] = name = f"seen-beside-{count}"
                here.apply(group)
                here.wait_condition("consumergroups", name, "Ready", status="False", reason="ClusterNotFound")
                peaks.append(_peak_mib(restarted))
    print(f"peaks of {peaks} MiB with {COUNTS} objects of a MiB of each kind")
    assert max(peaks) < PEAK_MIB
    assert peaks[1] - peaks[0] < MORE_MIB


@contextmanager
def _large_objects(here: Site) -> Iterator[Callable[[int], None]]:
    """A function that creates objects up to a number of each kind; all are deleted at the end."""
    made: list[dict[str, Any]] = []

    def make(count: int) -> None:
        fresh = [kind(here, number) for number in range(len(made) // 2, count) for kind in (_config_map, _pod)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(here.apply, fresh))
        made.extend(fresh)

    try:
        yield make
    finally:
        for body in made:
            here.client.delete(here.name, body)


@contextmanager
def _working(here: Site) -> Iterator[Operator]:
    with Operator(here.api) as operator:
        eventually(lambda: "working" in operator.log.read_text(), timeout_s=PATIENCE_S, what="the operator to work")
        yield operator
        print(f"peak {_peak_mib(operator):.0f} MiB, at the end {_memory_mib(operator, 'VmRSS'):.0f} MiB")
        assert operator.process.poll() is None, "it runs out of memory"
        assert operator.stop() == 0


def _config_map(here: Site, number: int) -> dict[str, Any]:
    """One of two is a handler's source, the others are records of the operator."""
    label = "true" if number % 2 else "revision"
    metadata = {"name": f"large-{number}", "namespace": here.name, "labels": {"consumerfleet.io/handler": label}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"handler.py": "#" * (MIB - 100)}}


def _small_config_map(here: Site, number: int) -> dict[str, Any]:
    metadata = {"name": f"a-{number}", "namespace": here.name, "labels": {"consumerfleet.io/handler": "true"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"handler.py": "#"}}


def _pod(here: Site, number: int) -> dict[str, Any]:
    metadata = {"name": f"large-{number}", "namespace": here.name, "labels": {"consumerfleet.io/group": "flights"}}
    container = {"name": "worker", "image": "none", "env": [{"name": "LARGE", "value": "x" * (MIB - 2000)}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def _peak_mib(operator: Operator) -> float:
    return _memory_mib(operator, "VmHWM")


def _memory_mib(operator: Operator, field: str) -> float:
    status = Path(f"/proc/{operator.process.pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024
