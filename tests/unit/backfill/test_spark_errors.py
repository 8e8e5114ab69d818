"""The meaning of what Spark says, in its own words as they were seen."""

from __future__ import annotations

import pytest

from fleet_consumer.backfill.errors import MESSAGE_CHARACTERS_MAX, ExecutorsLost, meaning

CRASHED = """An error occurred while calling o65.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 0.0 failed 4 times, most recent
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
Caused by: java.io.EOFException
"""
KILLED = (
    ": org.apache.spark.SparkException: ExecutorLostFailure (executor 1 exited caused by one of the running tasks) "
    "Reason: The executor with id 1 exited with exit code 137(SIGKILL, possible container OOM)."
)


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [
        (CRASHED, "ExecutorLost", "memoryOverhead"),
        (KILLED, "ExecutorLost", "exit code 137"),
        ("java.lang.OutOfMemoryError: Java heap space", "ExecutorLost", "spark.executor.memory"),
        ("boom", "SliceFailed", "boom"),
        ("java.lang.IllegalStateException: x\n\tat a.b(C.java)\n" * 500, "SliceFailed", "IllegalState"),
    ],
)
def test_meanings(text: str, reason: str, said: str) -> None:
    found = meaning(text)
    assert (found.reason, found.final) == (reason, False)
    assert said in str(found)
    assert len(str(found)) < MESSAGE_CHARACTERS_MAX + 300
    assert "\n" not in str(found)


def test_task_that_ended_its_executors_is_known_by_its_number() -> None:
    found = meaning(CRASHED)
    assert isinstance(found, ExecutorsLost)
    assert (found.task, found.tries) == (3, 4)
    found = meaning(KILLED)
    assert isinstance(found, ExecutorsLost)
    assert (found.task, found.tries) == (None, 0)
