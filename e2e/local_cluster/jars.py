"""Jars collected by Maven from committed POMs, and kept in the cache by their POM's content."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.local_cluster import versions
from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import stream
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.gomodules import MODULES
from e2e.local_cluster.instance import CHECKOUT
from e2e.local_cluster.steps import step

__all__ = ["ensure_kafka_jars", "ensure_table_jars"]


@dataclass(frozen=True, slots=True)
class _Jars:
    name: str
    version: str
    pom: Path
    properties: Mapping[str, str]
    """The POM's version properties, with their values."""


KAFKA = _Jars("kafka", versions.KAFKA, MODULES / "kafka" / "pom.xml", {"kafka.version": versions.KAFKA})
TABLES = _Jars(
    "tables",
    versions.SPARK,
    CHECKOUT / "examples" / "tables" / "pom.xml",
    {
        "delta.version": versions.DELTA,
        "iceberg.version": versions.ICEBERG,
        "hadoop.version": versions.HADOOP,
        "aws.version": versions.AWS_SDK,
    },
)


def ensure_kafka_jars() -> Path:
    """Return the folder that holds every jar of the broker and its tools (class path ``folder/*``).

    Raises ClusterError (``MissingPrograms`` without Maven, ``DownloadFailed``).
    """
    return _ensure(KAFKA)


def ensure_table_jars() -> Path:
    """Return the folder of the jars with which Spark writes Delta Lake's and Iceberg's tables, and to S3.

    Nothing in it is among Spark's own jars. Raises ClusterError (``MissingPrograms`` without Maven,
    ``DownloadFailed``).
    """
    return _ensure(TABLES)


def _ensure(jars: _Jars) -> Path:
    digest = hashlib.sha256(jars.pom.read_bytes()).hexdigest()[:8]
    folder = fleet_home() / "jars" / f"{jars.name}-{jars.version}-{digest}"
    return cache_entry(folder, lambda into: _collect(jars, into), purpose=f"collecting jars of {jars.name}")


def _collect(jars: _Jars, into: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ClusterError(
            "MissingPrograms",
            f"collecting jars of {jars.name} needs `mvn` on the PATH and it is not there; install Maven and a JDK 17 "
            "(Debian: apt-get install maven openjdk-17-jdk-headless) and run the command again",
        )
    with step(f"{jars.name} {jars.version}: download jars") as current:
        stream(
            # The POM is copied: Maven writes a `target` folder next to it.
            [
                maven,
                "--batch-mode",
                "--file",
                shutil.copy(jars.pom, into / "pom.xml"),
                *(f"-D{name}={version}" for name, version in jars.properties.items()),
                f"-DoutputDirectory={into}",
                "-DincludeScope=runtime",
                "dependency:copy-dependencies",
            ],
            log=fleet_home() / "logs" / f"{jars.name}-jars.log",
            on_line=lambda line: setattr(current, "note", line[-100:].strip()),
            reason="DownloadFailed",
            env={"MAVEN_OPTS": f"{os.environ.get('MAVEN_OPTS', '')} -XX:TieredStopAtLevel=1".strip()},
        )
        (into / "pom.xml").unlink()
        shutil.rmtree(into / "target", ignore_errors=True)
        current.note = f"{len(list(into.glob('*.jar')))} jars"
