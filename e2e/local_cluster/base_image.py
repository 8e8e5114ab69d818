"""The root file systems of our images without a registry: Debian with Python, from packages."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from e2e.local_cluster.archives import ImageSettings, write_image
from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import stream
from e2e.local_cluster.steps import step

__all__ = ["PYTHON_BASE", "SPARK_BASE", "BaseImage", "base_archive"]

# The Debian release with Python 3.11, the project's version.
SUITE = "bookworm"
PYTHON_PACKAGES = ("ca-certificates", "python3", "python3-pip", "python3-venv")
JAVA_PACKAGES = ("openjdk-17-jre-headless", "procps", "tini")
# Java is installed with links into the folder of manual pages, so a base with Java keeps that folder.
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/var/cache/*")
MANUALS = "/usr/share/man/*"


@dataclass(frozen=True, slots=True)
class BaseImage:
    """A file system of Debian packages, without the files that `left_out` matches."""

    name: str
    revision: int
    """Raised when something below changes the content of the file system."""
    packages: tuple[str, ...]
    left_out: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()

    @property
    def tag(self) -> str:
        """Name in the builder's storage, and the build argument BASE_IMAGE of images based on it."""
        return f"localhost/{self.name}:{SUITE}-{self.revision}"


PYTHON_BASE = BaseImage("fleet-base", 1, PYTHON_PACKAGES, (*LEFT_OUT, MANUALS))
# Executors here live for a minute: the second compiler and a parallel collector would use half of that.
BRIEF_JVM = ("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
SPARK_BASE = BaseImage("fleet-spark-base", 2, (*PYTHON_PACKAGES, *JAVA_PACKAGES), LEFT_OUT, env=(BRIEF_JVM,))


def base_archive(base: BaseImage) -> Path:
    """An archive of a base image. Raises ClusterError (``DownloadFailed``)."""
    folder = fleet_home() / "images" / f"{base.name}-{SUITE}-{base.revision}"
    return cache_entry(folder, lambda into: _make(base, into), purpose=f"making {base.name}") / "image.tar"


def _make(base: BaseImage, into: Path) -> None:
    layer = into / "layer.tar"
    with step(f"{base.name}: {SUITE} with {', '.join(base.packages)}") as current:
        stream(
            [
                shutil.which("mmdebstrap") or "mmdebstrap",
                "--variant=minbase",
                f"--include={','.join(base.packages)}",
                *(f"--dpkgopt=path-exclude={pattern}" for pattern in base.left_out),
                SUITE,
                layer,
            ],
            log=fleet_home() / "logs" / f"{base.name}.log",
            on_line=lambda line: setattr(current, "note", line[:80]),
            reason="DownloadFailed",
        )
        current.note = "packing"
        settings = ImageSettings(
            entrypoint=(), user="", env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **dict(base.env)}
        )
        write_image(into / "image.tar", base.tag, [layer], settings)
        layer.unlink()
        current.note = f"{(into / 'image.tar').stat().st_size / 2**20:.0f} MiB"
