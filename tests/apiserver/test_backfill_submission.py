"""Submissions of Backfills that half succeed. The test plays the Spark operator and the garbage collector."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.apiserver import objects, spark
from tests.apiserver.conftest import PATIENCE_S, Site, make_topic
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

pytestmark = [pytest.mark.usefixtures("spark_crd", "operator"), pytest.mark.together]

LOG = "failed to submit spark application: spark-submit:\nCaused by: java.util.concurrent.TimeoutException\n"


@pytest.fixture(scope="session")
def spark_crd(api: ApiServer) -> None:
    spark.install_crd(api)


@pytest.fixture(scope="session")
def submitted_topic(broker: KafkaBroker) -> str:
    make_topic(broker, "submitted")
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    producer.produce("submitted", "record")
    assert producer.flush(30) == 0
    return "submitted"


def test_pod_that_a_failed_submission_leaves_gives_way_to_the_next_attempt(
    site: Callable[..., Site], broker: KafkaBroker, submitted_topic: str
) -> None:
    """A submission fails after the pod was made if a request of it times out."""
    here = site("backfill-half")
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    here.apply(objects.group(here.name, topics=[submitted_topic]), spark.backfill(here.name))
    spark.wait_attempt(here, 1)
    pod = spark.make_driver(here, 1, phase="Pending")
    spark.set_state(here, 1, "FAILED", LOG)
    eventually(lambda: spark.applications(here) == [], timeout_s=PATIENCE_S, what="the application to be deleted")
    here.client.delete(here.name, pod)  # as the garbage collector does, which this API server lacks
    spark.wait_attempt(here, 2)
    ended = here.status("backfills", "again")["lastEnded"]
    assert (ended["attempt"], ended["reason"]) == (1, "SubmissionFailed"), ended
    assert ended["message"] == "spark-submit failed: java.util.concurrent.TimeoutException"
