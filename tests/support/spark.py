"""Spark as the image has it, in a virtual environment of the cache: the pinned packages and the Kafka source's jars.

It is made once for each content of the pins. Nothing of it is in the environment that runs the tests.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import run
from e2e.local_cluster.jars import ensure_spark_jars
from tests.support.suites import ROOT

__all__ = ["ensure_spark"]

PINS = ROOT / "requirements" / "spark.txt"


def ensure_spark() -> Path:
    """Return the Python interpreter of an environment with Spark."""
    jars = ensure_spark_jars()
    content = PINS.read_bytes() + jars.name.encode() + sys.version.encode()
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
        (packages,) = into.glob("lib/python*/site-packages")
        for jar in jars.glob("*.jar"):
            shutil.copy(jar, packages / "pyspark" / "jars")

    return cache_entry(folder, make, purpose="installing Spark for tests") / "bin" / "python"
