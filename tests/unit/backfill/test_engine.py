"""The number of tasks that run at once, asked of Spark's own count of executors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fleet_consumer.backfill.engine import SparkEngine


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
