"""Kafka's jars, collected by Maven from a committed POM and kept in the cache by version."""

import hashlib
import os
import shutil
from pathlib import Path

from e2e.local_cluster import versions
from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import stream
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.gomodules import MODULES
from e2e.local_cluster.steps import step

__all__ = ["ensure_kafka_jars"]

POM = MODULES / "kafka" / "pom.xml"


def ensure_kafka_jars() -> Path:
    """Return the folder that holds every jar of the broker and its tools (class path ``folder/*``).

    Raises ClusterError (``MissingPrograms`` without Maven, ``DownloadFailed``).
    """
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:8]
    folder = fleet_home() / "jars" / f"kafka-{versions.KAFKA}-{digest}"
    return cache_entry(folder, _collect, purpose="collecting Kafka's jars")


def _collect(into: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ClusterError(
            "MissingPrograms",
            "collecting Kafka's jars needs `mvn` on the PATH and it is not there; install Maven and a JDK 17 "
            "(Debian: apt-get install maven openjdk-17-jdk-headless) and run the command again",
        )
    with step(f"kafka {versions.KAFKA}: download jars") as current:
        stream(
            # The POM is copied: Maven wants to write a `target` folder beside it.
            [
                maven,
                "--batch-mode",
                "--file",
                shutil.copy(POM, into / "pom.xml"),
                f"-Dkafka.version={versions.KAFKA}",
                f"-DoutputDirectory={into}",
                "-DincludeScope=runtime",
                "dependency:copy-dependencies",
            ],
            log=fleet_home() / "logs" / "kafka-jars.log",
            on_line=lambda line: setattr(current, "note", line[-100:].strip()),
            reason="DownloadFailed",
            env={"MAVEN_OPTS": f"{os.environ.get('MAVEN_OPTS', '')} -XX:TieredStopAtLevel=1".strip()},
        )
        (into / "pom.xml").unlink()
        shutil.rmtree(into / "target", ignore_errors=True)
        current.note = f"{len(list(into.glob('*.jar')))} jars"
