"""The number of tasks that run at once, asked of Spark's own count of executors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fleet_consumer.backfill.engine import SparkEngine
from fleet_consumer.contract.backfill_config import CANDIDATE, LIVE, parse_config
from tests.unit.backfill.documents import backfill_document, compare_section


def engine(master: str, registered: int, **conf: str) -> SparkEngine:
    """An engine over a session of which only the registered block managers are known, the driver's among them."""
    java: Any = SimpleNamespace(getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: registered))
    found = SimpleNamespace(master=master, getConf=lambda: conf, _jsc=SimpleNamespace(sc=lambda: java))
    made = SparkEngine.__new__(SparkEngine)
    made._spark = SimpleNamespace(sparkContext=found)
    return made


@pytest.mark.parametrize(("registered", "cores"), [(1, 2), (2, 2), (4, 6), (21, 40)])
def test_cores_are_those_of_the_executors_that_are_there(registered: int, cores: int) -> None:
    asked = {"spark.executor.cores": "2", "spark.executor.instances": "20"}
    assert engine("k8s://https://kubernetes", registered, **asked).cores == cores


def test_tasks_wait_where_spark_may_ask_for_executors() -> None:
    assert engine("k8s://https://kubernetes", 4, **{"spark.dynamicAllocation.enabled": "true"}).cores == 6


def test_cores_of_a_local_master_are_its_threads() -> None:
    assert engine("local[3]", 1).cores == 3


def test_candidate_reads_answers_where_the_live_pass_wrote_them() -> None:
    live, candidate = (SparkEngine.__new__(SparkEngine) for _ in range(2))
    for made, handlers in ((live, LIVE), (candidate, CANDIDATE)):
        sink = {"topic": None, "parquet": "/sink"}
        made._config = parse_config(backfill_document(compare=compare_section(handlers), sink=sink))
    assert live._slice(7) == candidate._slice(7, LIVE) == "file:///sink/0d9c2f3e/live/slice=000007"
    assert candidate._slice(7) == "file:///sink/0d9c2f3e/differences/slice=000007"
