"""The root file system of our images without a registry: Debian with Python, from packages."""

import shutil
from pathlib import Path

from e2e.local_cluster.archives import ImageSettings, write_image
from e2e.local_cluster.cache import cache_entry, fleet_home
from e2e.local_cluster.commands import stream
from e2e.local_cluster.steps import step

__all__ = ["BASE_IMAGE", "base_archive"]

# The Debian whose Python is the 3.11 that the project is written for.
SUITE = "bookworm"
PACKAGES = ("ca-certificates", "python3", "python3-pip", "python3-venv")
# Counted up when something below changes what is in the file system.
REVISION = 1
BASE_IMAGE = f"localhost/fleet-base:{SUITE}-{REVISION}"
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/var/cache/*")


def base_archive() -> Path:
    """An archive of the base image. Raises ClusterError (``DownloadFailed``)."""
    folder = fleet_home() / "images" / f"base-{SUITE}-{REVISION}"
    return cache_entry(folder, _make, purpose="making the base image") / "image.tar"


def _make(into: Path) -> None:
    layer = into / "layer.tar"
    with step(f"base image: {SUITE} with {', '.join(PACKAGES)}") as current:
        stream(
            [
                shutil.which("mmdebstrap") or "mmdebstrap",
                "--variant=minbase",
                f"--include={','.join(PACKAGES)}",
                *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
                SUITE,
                layer,
            ],
            log=fleet_home() / "logs" / "base-image.log",
            on_line=lambda line: setattr(current, "note", line[:80]),
            reason="DownloadFailed",
        )
        current.note = "packing"
        settings = ImageSettings(
            entrypoint=(), user="", env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        )
        write_image(into / "image.tar", BASE_IMAGE, [layer], settings)
        layer.unlink()
        current.note = f"{(into / 'image.tar').stat().st_size / 2**20:.0f} MiB"
