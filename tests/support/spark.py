"""Spark as the image has it, in a virtual environment of the cache: the pinned packages.

It is made once per content of the pins. Nothing of it is in the environment that runs the tests. An archive of the
classes that a driver loads halves its start time (class data sharing, JEP 350).
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import run
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.jars import ensure_table_jars
from e2e.local_cluster.kafka_node import QUICK_JVM, find_java
from tests.support.suites import ROOT

__all__ = ["ensure_driver_classes", "ensure_spark", "submit_arguments", "table_arguments"]

PINS: Final = ROOT / "requirements" / "spark.txt"
JOB: Final = Path(__file__).with_name("spark_classes.py")
ARCHIVE: Final = "driver.jsa"


def ensure_spark() -> Path:
    """Return the Python interpreter of an environment with Spark."""
    content = PINS.read_bytes() + sys.version.encode()
    folder = fleet_home() / "spark" / f"environment-{hashlib.sha256(content).hexdigest()[:8]}"

    def make(into: Path) -> None:
        run([sys.executable, "-m", "venv", into], reason="SparkFailed")
        pip: list[str | Path] = [
            into / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        run([*pip, "--requirement", PINS], reason="SparkFailed")

    return cache_entry(folder, make, purpose="installing Spark for tests") / "bin" / "python"


def submit_arguments(scratch: Path, jvm_options: Sequence[str], *more: str) -> dict[str, str]:
    """The environment with the arguments of spark-submit for a local session: memory, no web interface, a quick JVM."""
    settings = {"ui.enabled": "false", "driver.host": "127.0.0.1", "local.dir": str(scratch), "log.level": "WARN"}
    words = ["--driver-memory", "600m", *(f"--conf spark.{key}={value}" for key, value in settings.items()), *more]
    # Short runs: a JVM that compiles less starts in half the time. The first JVM only builds the driver's command.
    words += [f"--driver-java-options '{' '.join([*QUICK_JVM, *jvm_options])}'", "pyspark-shell"]
    return {"PYSPARK_SUBMIT_ARGS": " ".join(words), "SPARK_LAUNCHER_OPTS": " ".join(QUICK_JVM)}


def table_arguments(settings: Mapping[str, str]) -> str:
    """The arguments of spark-submit for Delta Lake, Iceberg and S3: the jars, and settings.

    The jars are not on the class path: the archive of a driver's classes holds for that of Spark alone.
    """
    # Jars with this scheme stay where they are, others are copied at each start.
    jars = ",".join(f"local:{jar}" for jar in sorted(ensure_table_jars().glob("*.jar")))
    return " ".join(["--jars", jars, *(f"--conf {key}={value}" for key, value in settings.items())])


def ensure_driver_classes() -> tuple[str, ...]:
    """Return the JVM options with which a driver maps the classes that it loads; the archive is made once."""
    python = ensure_spark()
    release = (find_java().resolve().parent.parent / "release").read_bytes()
    content = JOB.read_bytes() + release + repr(QUICK_JVM).encode()
    environment = python.parent.parent
    folder = environment.with_name(f"{environment.name}-start-{hashlib.sha256(content).hexdigest()[:8]}")

    def make(into: Path) -> None:
        record = (f"-XX:ArchiveClassesAtExit={into / ARCHIVE}", "-Xlog:cds*=off")
        with tempfile.TemporaryDirectory(prefix="fleet-spark-") as scratch:
            own = {"PATH": os.environ["PATH"], "HOME": scratch, "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": scratch}
            own |= {"PYSPARK_PYTHON": str(python), **submit_arguments(Path(scratch), record)}
            run([python, JOB, scratch], reason="SparkFailed", env=own, cwd=Path(scratch))
        if not (into / ARCHIVE).exists():
            raise ClusterError("SparkFailed", "the JVM of a driver wrote no archive of its classes")

    made = cache_entry(folder, make, purpose="recording the classes of Spark's drivers")
    return "-Xshare:auto", f"-XX:SharedArchiveFile={made / ARCHIVE}", "-Xlog:cds*=off"
