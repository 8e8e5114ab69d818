"""A stand-in for the image apache/kafka, for machines that reach no registry of images.

Broker, tools and the reading of settings from the environment are Apache's own classes; the stand-in has their scripts
under the image's paths, which call the same classes. Everything else is the embedded cluster's image of Kafka.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from e2e.local_cluster.archives import ImageSettings, write_image, write_layer
from e2e.local_cluster.kafka_image import kafka_archive

__all__ = ["write_stand_in"]

JAVA: Final = "/opt/java/bin/java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 $KAFKA_HEAP_OPTS -cp '/opt/kafka/*'"
CONFIG: Final = "/opt/kafka/config"
DEFAULTS: Final = "/etc/kafka/docker"
SETUP: Final = (
    f"kafka.docker.KafkaDockerWrapper setup --default-configs-dir {DEFAULTS} --mounted-configs-dir /mnt/shared/config "
    f"--final-configs-dir {CONFIG}"
)
SCRIPTS: Final = {
    f"{DEFAULTS}/run": f"export CLUSTER_ID=5L6g3nShT-eMCtK--X86sw\n{JAVA} {SETUP} &&\n"
    f"exec {JAVA} kafka.Kafka {CONFIG}/server.properties",
    "/opt/kafka/bin/kafka-topics.sh": f'exec {JAVA} org.apache.kafka.tools.TopicCommand "$@"',
    "/opt/kafka/bin/kafka-console-producer.sh": f'exec {JAVA} org.apache.kafka.tools.ConsoleProducer "$@"',
    "/opt/kafka/bin/kafka-console-consumer.sh": f'exec {JAVA} org.apache.kafka.tools.consumer.ConsoleConsumer "$@"',
}
LOGGING: Final = """\
Configuration:
  Properties: {Property: []}
  Appenders: {Console: {name: STDOUT}}
  Loggers: {Root: {level: INFO}, Logger: []}
"""


def write_stand_in(archive: Path, name: str) -> None:
    """Write the image's archive under a name. Raises ClusterError if the image of Kafka cannot be made."""
    with tempfile.TemporaryDirectory(prefix="fleet-image-") as scratch:
        folder = Path(scratch)
        with tarfile.open(kafka_archive()[0]) as kafka:
            manifest = kafka.extractfile("manifest.json")
            assert manifest is not None
            lower = json.load(manifest)[0]["Layers"]
            kafka.extractall(folder, members=[kafka.getmember(layer) for layer in lower], filter="data")
        top = folder / "top.tar"
        write_layer(top, {"/bin/sh": Path("/bin/sh").resolve(), **_scripts(folder), **_settings(folder)})
        settings = ImageSettings(entrypoint=["/bin/sh", f"{DEFAULTS}/run"], user="1000:1000", working_dir="/tmp")
        write_image(archive, name, [*(folder / layer for layer in lower), top], settings)


def _scripts(folder: Path) -> dict[str, Path]:
    found = {}
    for number, (path, text) in enumerate(SCRIPTS.items()):
        script = folder / f"script-{number}"
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        found[path] = script
    return found


def _settings(folder: Path) -> dict[str, Path]:
    """The files that Apache's class copies and fills; the image's user may write those of `CONFIG`."""
    defaults = folder / "config"
    defaults.mkdir()
    (defaults / "server.properties").write_text("\n")
    for name in ("log4j2.yaml", "tools-log4j2.yaml"):
        (defaults / name).write_text(LOGGING)
    for each in defaults.iterdir():
        each.chmod(0o666)
    final = folder / "final"
    shutil.copytree(defaults, final)
    final.chmod(0o777)
    return {f"{DEFAULTS}/{each.name}": each for each in defaults.iterdir()} | {CONFIG: final}
