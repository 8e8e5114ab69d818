"""Recorded members of other clients: the Java consumer and librdkafka's."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.local_cluster.jars import ensure_kafka_jars
from e2e.local_cluster.kafka_node import find_java
from tests.support.kafka_template import quick_jvm
from tests.support.recording import RecordedProcess

__all__ = ["java_member", "librdkafka_member"]

SOURCE = Path(__file__).parent / "JavaMember.java"


@functools.cache
def _classes() -> tempfile.TemporaryDirectory[str]:
    """The compiled Java member; the folder is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="fleet-java-")
    compiler = find_java().with_name("javac")
    subprocess.run(
        [str(compiler), "-cp", f"{ensure_kafka_jars()}/*", "-d", folder.name, str(SOURCE)], check=True, timeout=120
    )
    return folder


def java_member(
    folder: Path, bootstrap: str, group: str, topic: str, *, assignors: Sequence[str], **more: str | int
) -> RecordedProcess:
    """Kafka's own consumer. `more`: `session_timeout_ms`, `heartbeat_interval_ms`, `group_instance_id`, and `members`:
    the number of threads in one process, their rows mixed."""

    def command(log: Path) -> Sequence[str]:
        words = _words(bootstrap, group, topic, assignors, log, more)
        words["members"] = str(more.get("members", 1))
        path = f"{ensure_kafka_jars()}/*:{_classes().name}"
        return [
            str(find_java()),
            "-Xmx96m",
            *quick_jvm(),
            "-cp",
            path,
            "JavaMember",
            *(f"{k}={v}" for k, v in words.items()),
        ]

    return RecordedProcess(folder, "java", command)


def librdkafka_member(
    folder: Path, bootstrap: str, group: str, topic: str, *, assignors: Sequence[str], **more: str | int
) -> RecordedProcess:
    """librdkafka's consumer; `more` as for `java_member`."""

    def command(log: Path) -> Sequence[str]:
        words = _words(bootstrap, group, topic, assignors, log, more)
        return [sys.executable, "-m", "tests.support.librdkafka_member", json.dumps(words)]

    return RecordedProcess(folder, "librdkafka", command)


def _words(
    bootstrap: str, group: str, topic: str, assignors: Sequence[str], log: Path, more: Mapping[str, str | int]
) -> dict[str, str]:
    words = {
        "bootstrap": bootstrap,
        "group": group,
        "topic": topic,
        "assignors": ",".join(assignors),
        "session": str(more.get("session_timeout_ms", 6_000)),
        "heartbeat": str(more.get("heartbeat_interval_ms", 300)),
        "log": str(log),
    }
    if "group_instance_id" in more:
        words["instance"] = str(more["group_instance_id"])
    return words
