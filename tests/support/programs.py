"""Programs that the suites run and no package index has, built or fetched before the first test.

The first time takes minutes, Kubernetes most of them. These must not count against a test's limit, so a suite's
conftest calls `build_before` when its tests have been collected. `python -m tests.support.programs` builds everything
that all suites need, at idle priority; `tests.run` starts it first, next to the suites that need none.
In the folder that is its argument, an empty file appears for each need of suites once everything for it is there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from e2e.local_cluster.access import foreign_kubeconfig
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.gomodules import ETCD, HELM, KUBERNETES, SPARK_OPERATOR, VERSITYGW, ensure_programs
from e2e.local_cluster.images import CONSUMER, OPERATOR, SPARK, build_images
from e2e.local_cluster.jars import ensure_kafka_jars, ensure_table_jars
from e2e.local_cluster.kafka_image import kafka_archive
from e2e.local_cluster.program_images import coredns_archive, pause_archive
from tests.support.spark import ensure_driver_classes
from tests.support.suites import Need

__all__ = ["API_SERVER", "CLUSTER", "DRIVERS", "build_before", "is_embedded"]

Builds = tuple[Callable[[], object], ...]

API_SERVER: Builds = (
    ensure_kafka_jars,
    lambda: ensure_programs(ETCD),
    lambda: ensure_programs(KUBERNETES),
    lambda: ensure_programs(HELM),
)
"""For tests on an API server and a broker."""
DRIVERS: Builds = (ensure_driver_classes, ensure_table_jars, lambda: ensure_programs(VERSITYGW))
"""For tests of Spark's drivers outside a cluster."""

_FURTHER: Builds = (
    pause_archive,
    coredns_archive,
    kafka_archive,
    lambda: build_images(OPERATOR, CONSUMER),
    lambda: ensure_programs(SPARK_OPERATOR),
    lambda: build_images(SPARK),
)
CLUSTER: Builds = (*API_SERVER, *_FURTHER)
"""For tests on a cluster."""


def is_embedded() -> bool:
    """True if the tests will use the embedded cluster: as root, unless another one is named."""
    return foreign_kubeconfig() is None and os.geteuid() == 0


def build_before(session: pytest.Session, folder: Path, builds: Builds) -> None:
    """Build now if the session will run tests of `folder`; for the hook `pytest_collection_finish`."""
    if not session.config.option.collectonly and any(folder in item.path.parents for item in session.items):
        for build in builds:
            build()


def main(arguments: Sequence[str]) -> None:
    """Build everything; exits with 1 and a message if that fails."""
    # Do not slow down tests that run at the same time: use idle processors only.
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # a sandbox may forbid it
        os.nice(19)
    try:
        # Most suites wait for the API server.
        further = (*DRIVERS, *(_FURTHER if is_embedded() else ()))
        for need, builds in ((Need.API_SERVER, API_SERVER), (Need.CLUSTER, further)):
            for build in builds:
                build()
            for folder in arguments:
                (Path(folder) / need).touch()
    except ClusterError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
