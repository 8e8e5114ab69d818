"""The meaning of what Spark says, in its own words as they were seen."""

from __future__ import annotations

import pytest

from fleet_consumer.backfill.errors import MESSAGE_CHARACTERS_MAX, TaskFailed, meaning

LOST = """An error occurred while calling o267.save.
: org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost because they are not available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
Reason: Could not read records in offset [200000, 999999999) for topic partition t1-0
\tat org.apache.spark.sql.kafka010.KafkaExceptions$.couldNotReadOffsetRange(KafkaExceptions.scala:101)
"""  # noqa: E501
MISSING = """An error occurred while calling o303.save.
: java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this topic-partition.
\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
"""  # noqa: E501
CRASHED = """An error occurred while calling o65.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
Caused by: java.io.EOFException
"""
KILLED = (
    ": org.apache.spark.SparkException: ExecutorLostFailure (executor 1 exited caused by one of the running tasks) "
    "Reason: The executor with id 1 exited with exit code 137(SIGKILL, possible container OOM)."
)
RIGHTS = (
    ": java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TopicAuthorizationException: "
    "Not authorized to access topics: [t]"
)
LOGIN = "Caused by: org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed during x"


@pytest.mark.parametrize(
    ("text", "reason", "final", "said"),
    [
        (LOST, "RangeExpired", True, "offset [200000, 999999999) for topic partition t1-0"),
        (MISSING, "SourceTopicNotFound", True, "topic 't1'"),
        (CRASHED, "ExecutorLost", False, "memoryOverhead"),
        (KILLED, "ExecutorLost", False, "exit code 137"),
        ("java.lang.OutOfMemoryError: Java heap space", "ExecutorLost", False, "spark.executor.memory"),
        (RIGHTS, "AuthorizationFailed", False, "allow the principal"),
        (LOGIN, "AuthenticationFailed", False, "refuse the login"),
        ("boom", "SliceFailed", False, "boom"),
        ("java.lang.IllegalStateException: x\n\tat a.b(C.java)\n" * 500, "SliceFailed", False, "IllegalState"),
    ],
)
def test_meanings(text: str, reason: str, final: bool, said: str) -> None:
    found = meaning(text, "t1")
    assert (found.reason, found.final) == (reason, final)
    assert said in str(found)
    assert len(str(found)) < MESSAGE_CHARACTERS_MAX + 300
    assert "\n" not in str(found)


@pytest.mark.parametrize("message", ["plain", 'with "quotes"; {"a": 1}; and }; braces', "line\nbreak é"])
def test_error_of_a_task_is_found_among_other_words(message: str) -> None:
    error = TaskFailed("SetupFailed", message, final=True)
    found = meaning(
        f"org.apache.spark.api.python.PythonException: Traceback\n  File x\nTaskFailed: {error}\nat y", "t1"
    )
    assert (found.reason, found.final) == ("SetupFailed", True)
    assert str(found).replace("} ;", "};") == message
