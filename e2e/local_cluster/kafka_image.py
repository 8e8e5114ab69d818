"""Kafka's image: its jars, a minimal Java runtime, and the libraries that this runtime links to; no shell.

The runtime comes from the JDK on this machine (``jlink``), so its libraries come from here too: those of another
distribution might be too old.
"""

import hashlib
import platform
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from e2e.local_cluster import versions
from e2e.local_cluster.archives import ImageSettings, architecture, write_image, write_layer
from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import run
from e2e.local_cluster.jars import ensure_kafka_jars
from e2e.local_cluster.kafka_node import HEAP_MIB, find_java, java_command
from e2e.local_cluster.packages import KAFKA_PROGRAMS, ensure_programs_installed
from e2e.local_cluster.steps import step

__all__ = ["KAFKA_IMAGE", "KAFKA_USER", "kafka_archive"]

KAFKA_IMAGE = f"docker.io/local-cluster/kafka:{versions.KAFKA}"
KAFKA_USER = 65532
RUNTIME = "/opt/java"
JARS = "/opt/kafka"
# Modules that the broker and its tools load, also by reflection and service loaders, which `jdeps` does not see.
JAVA_MODULES = (
    "java.base",
    "java.desktop",
    "java.instrument",
    "java.logging",
    "java.management",
    "java.naming",
    "java.security.jgss",
    "java.security.sasl",
    "java.sql",
    "java.xml",
    "jdk.crypto.ec",
    "jdk.jfr",
    "jdk.management",
    "jdk.naming.dns",
    "jdk.net",
    "jdk.unsupported",
    "jdk.zipfs",
)

# Logging needs one package of java.desktop (java.beans). The rest would bring in desktop libraries.
SCREEN_LIBRARIES = (
    "libawt*",
    "libfontmanager*",
    "libjawt*",
    "libjavajpeg*",
    "libjsound*",
    "liblcms*",
    "libmlib*",
    "libsplash*",
)


def kafka_archive() -> tuple[Path, str]:
    """The image's archive and a fingerprint of what is in it.

    Raises ClusterError (``MissingPrograms``, ``DownloadFailed``, ``BuildFailed``).
    """
    ensure_programs_installed(KAFKA_PROGRAMS)
    jars = ensure_kafka_jars()
    java = find_java().resolve()
    # The runtime's release file names vendor and build; another JDK makes another image.
    release = (java.parent.parent / "release").read_bytes()
    digest = hashlib.sha256(
        release + repr((jars.name, JAVA_MODULES, SCREEN_LIBRARIES, _entrypoint())).encode()
    ).hexdigest()[:8]
    fingerprint = f"kafka-{versions.KAFKA}-{digest}"
    folder = fleet_home() / "images" / fingerprint
    return cache_entry(
        folder, lambda into: _make(into, jars, java), purpose="making Kafka's image"
    ) / "image.tar", fingerprint


def _make(into: Path, jars: Path, java: Path) -> None:
    with step("kafka image: Java runtime and jars") as current:
        runtime = into / "runtime"
        current.note = "jlink"
        jlink = [str(java.parent / "jlink"), "--output", str(runtime), "--add-modules", ",".join(JAVA_MODULES)]
        run([*jlink, "--strip-java-debug-attributes", "--no-header-files", "--no-man-pages"], reason="BuildFailed")
        shutil.rmtree(runtime / "legal", ignore_errors=True)
        for pattern in SCREEN_LIBRARIES:
            for library in (runtime / "lib").glob(pattern):
                library.unlink()
        current.note = "packing"
        lower, upper = into / "runtime.tar", into / "jars.tar"
        write_layer(lower, {RUNTIME: runtime, **_libraries(runtime, jars)})
        write_layer(upper, {JARS: jars})
        settings = ImageSettings(entrypoint=_entrypoint(), user=f"{KAFKA_USER}:{KAFKA_USER}", working_dir="/tmp")
        write_image(into / "image.tar", KAFKA_IMAGE, [lower, upper], settings)
        for scaffold in (lower, upper):
            scaffold.unlink()
        shutil.rmtree(runtime)
        current.note = f"{(into / 'image.tar').stat().st_size / 2**20:.0f} MiB"


def _entrypoint() -> list[str]:
    # Without a class to run: the pod names it. A broker in a pod handles millions of requests, so its code is fully
    # optimized; that of single tests' brokers, which live for seconds, is not.
    options = [f"-Xmx{HEAP_MIB}m", "-XX:+UseSerialGC"]
    return java_command(Path(RUNTIME, "bin", "java"), Path(JARS), "", options=options)[:-1]


def _libraries(runtime: Path, jars: Path) -> dict[str, Path]:
    """The machine's shared libraries that the runtime links to, by the loader's search path."""
    found: set[str] = set()
    with tempfile.TemporaryDirectory() as scratch:
        # The broker unpacks the jars' compression libraries when a client first uses them: link errors would show only
        # then.
        programs = [runtime / "bin" / "java", *runtime.rglob("*.so"), *_codecs(jars, Path(scratch))]
        for program in programs:
            found |= set(re.findall(r"(/\S+) \(0x", run(["ldd", program], reason="BuildFailed")))
    return {path: Path(path).resolve() for path in sorted(found) if str(runtime) not in path}


def _codecs(jars: Path, into: Path) -> Iterator[Path]:
    machine = platform.machine()
    folder = re.compile(rf"(^|/)linux/({machine}|{architecture()})/[^/]+\.so$", re.IGNORECASE)
    for jar in jars.glob("*.jar"):
        with zipfile.ZipFile(jar) as archive:
            for entry in archive.namelist():
                if folder.search(entry):
                    yield Path(archive.extract(entry, into))
